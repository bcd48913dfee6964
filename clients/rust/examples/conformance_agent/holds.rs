//! Holds of both kinds.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use slock_client::{Error, Held, Hold, HoldView, Holding, QuorumHold, QuorumHoldView};

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
            AnyHold::One(hold) => Holding::hand_over(hold),
            AnyHold::Quorum(hold) => Holding::hand_over(hold),
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

    pub fn held(&self) -> &Held {
        match self {
            AnyView::One(hold) => hold,
            AnyView::Quorum(hold) => hold,
        }
    }

    pub async fn extend(&self, ttl: Duration) -> Result<(), Error> {
        match self {
            AnyView::One(hold) => hold.extend(ttl).await,
            AnyView::Quorum(hold) => hold.extend(ttl).await,
        }
    }

    pub fn valid_ms(&self) -> u64 {
        let left = self.held().valid_until().saturating_duration_since(Instant::now());
        left.as_millis().try_into().unwrap_or(u64::MAX)
    }

    pub fn granted(&self) -> Value {
        let mut granted = json!({ "token": self.held().token(), "valid_ms": self.valid_ms() });
        match self {
            AnyView::One(hold) => granted["fence"] = json!(hold.fence()),
            AnyView::Quorum(hold) => granted["fences"] = json!(hold.fences()),
        }
        granted
    }

    pub fn state(&self) -> Value {
        let mut state = self.granted();
        let held = self.held();
        let reason = held.lost_reason();
        state["mode"] = json!(held.mode().to_string());
        state["keys"] = json!(held.keys());
        state["metadata"] = json!(held.metadata());
        state["lost"] = json!(reason.is_some());
        state["reason"] = json!(reason.map(|reason| reason.to_string()));
        state
    }
}
