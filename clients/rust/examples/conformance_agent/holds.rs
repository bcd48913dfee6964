//! Holds of both kinds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use slock_client::{Error, Hold, HoldView, HoldViewOf, QuorumHold, QuorumHoldView, Reason, Site};

use crate::state::Failed;

pub enum AnyHold {
    One(Hold),
    Quorum(QuorumHold),
}

#[derive(Clone)]
pub enum AnyView {
    One(Arc<HoldView>),
    Quorum(Arc<QuorumHoldView>),
}

impl From<Hold> for AnyHold {
    fn from(hold: Hold) -> Self {
        AnyHold::One(hold)
    }
}

impl From<QuorumHold> for AnyHold {
    fn from(hold: QuorumHold) -> Self {
        AnyHold::Quorum(hold)
    }
}

impl AnyHold {
    pub fn view(&self) -> AnyView {
        match self {
            AnyHold::One(hold) => AnyView::One(hold.view()),
            AnyHold::Quorum(hold) => AnyView::Quorum(hold.view()),
        }
    }

    pub async fn release(self) -> Result<bool, Error> {
        match self {
            AnyHold::One(hold) => hold.release().await,
            AnyHold::Quorum(hold) => hold.release().await,
        }
    }

    pub fn hand_over(self) -> Result<(), Error> {
        match self {
            AnyHold::One(hold) => hold.hand_over(),
            AnyHold::Quorum(hold) => hold.hand_over(),
        }
    }
}

impl AnyView {
    pub fn one(self) -> Result<Arc<HoldView>, Failed> {
        match self {
            AnyView::One(hold) => Ok(hold),
            AnyView::Quorum(_) => Err(Failed::other("not for a quorum")),
        }
    }

    pub fn check(&self) -> Result<(), Error> {
        match self {
            AnyView::One(hold) => hold.check(),
            AnyView::Quorum(hold) => hold.check(),
        }
    }

    pub async fn lost(&self) -> Reason {
        match self {
            AnyView::One(hold) => hold.lost().await,
            AnyView::Quorum(hold) => hold.lost().await,
        }
    }

    pub async fn extend(&self, ttl: Duration) -> Result<(), Error> {
        match self {
            AnyView::One(hold) => hold.extend(ttl).await,
            AnyView::Quorum(hold) => hold.extend(ttl).await,
        }
    }

    pub fn valid_ms(&self) -> u64 {
        let valid_until = match self {
            AnyView::One(hold) => hold.valid_until(),
            AnyView::Quorum(hold) => hold.valid_until(),
        };
        valid_until.saturating_duration_since(Instant::now()).as_millis().try_into().unwrap_or(u64::MAX)
    }

    pub fn granted(&self) -> Value {
        match self {
            AnyView::One(hold) => {
                json!({ "token": hold.token(), "valid_ms": self.valid_ms(), "fence": hold.fence() })
            }
            AnyView::Quorum(hold) => {
                json!({ "token": hold.token(), "valid_ms": self.valid_ms(), "fences": hold.fences() })
            }
        }
    }

    pub fn state(&self) -> Value {
        let mut state = self.granted();
        match self {
            AnyView::One(hold) => add_to(&mut state, hold),
            AnyView::Quorum(hold) => add_to(&mut state, hold),
        }
        state
    }
}

fn add_to<S: Site>(state: &mut Value, hold: &HoldViewOf<S>) {
    let reason = hold.lost_reason();
    state["mode"] = json!(hold.mode().to_string());
    state["keys"] = json!(hold.keys());
    state["metadata"] = json!(hold.metadata());
    state["lost"] = json!(reason.is_some());
    state["reason"] = json!(reason.map(|reason| reason.to_string()));
}
