//! Holds of both kinds.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use slock_client::{Error, Hold, HoldView, QuorumHold, QuorumHoldView, Reason};

use crate::state::Failed;

pub enum AnyHold {
    One(Hold),
    Quorum(QuorumHold),
}

#[derive(Clone)]
pub enum AnyView {
    One(HoldView),
    Quorum(QuorumHoldView),
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
            AnyHold::Quorum(hold) => Ok(hold.release().await),
        }
    }
}

impl AnyView {
    pub fn one(self) -> Result<HoldView, Failed> {
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

    pub async fn extend(&self, ttl: Duration) -> Result<(), Error> {
        match self {
            AnyView::One(hold) => hold.extend(ttl).await,
            AnyView::Quorum(hold) => hold.extend(ttl).await,
        }
    }

    pub async fn lost(&self) -> Reason {
        match self {
            AnyView::One(hold) => hold.lost().await,
            AnyView::Quorum(hold) => hold.lost().await,
        }
    }

    pub fn valid_ms(&self) -> u64 {
        let valid_until = match self {
            AnyView::One(hold) => hold.valid_until(),
            AnyView::Quorum(hold) => hold.valid_until(),
        };
        let left = valid_until.saturating_duration_since(Instant::now());
        left.as_millis().try_into().unwrap_or(u64::MAX)
    }

    pub fn granted(&self) -> Value {
        match self {
            AnyView::One(hold) => {
                json!({ "token": hold.token(), "fence": hold.fence(), "valid_ms": self.valid_ms() })
            }
            AnyView::Quorum(hold) => {
                json!({ "token": hold.token(), "fences": hold.fences(), "valid_ms": self.valid_ms() })
            }
        }
    }

    pub fn state(&self) -> Value {
        let mut state = self.granted();
        let (mode, keys, metadata, reason) = match self {
            AnyView::One(hold) => (hold.mode(), hold.keys(), hold.metadata(), hold.lost_reason()),
            AnyView::Quorum(hold) => (hold.mode(), hold.keys(), hold.metadata(), hold.lost_reason()),
        };
        state["mode"] = json!(mode.to_string());
        state["keys"] = json!(keys);
        state["metadata"] = json!(metadata);
        state["lost"] = json!(reason.is_some());
        state["reason"] = json!(reason.map(|reason| reason.to_string()));
        state
    }
}
