//! Whether anybody listens to what is replicated: a replica, a backlog kept for one, or the append-only file.
//!
//! `RM_Replicate` looks its command up and makes an object of every argument before it finds that
//! there is nobody to send it to. On a server alone that was a quarter of the cost of a fresh lock.
//! The API does not say who listens, `INFO` does; but asking it costs much, so the answer is kept until
//! something happens that can change it.
//!
//! # Why this is safe
//!
//! A listener begins with a copy of the data set, or with a backlog of what came after
//! one. A full sync, an append-only file that is turned on and a slot that is exported begin at a fork;
//! a partial sync begins at an offset that a fork, a file that was saved, or a time as a replica gave
//! away. The server announces each of these (forks, saving, loading, changes of role, `CONFIG SET`)
//! before it runs another command, and then we look again; and where we look, a backlog counts as a
//! listener. A backlog may have been there a little longer, since the first replica asked for its copy,
//! but nobody can hold an offset in it from before the announcement. In a cluster, where slots are
//! streamed to other nodes in ways of their own, somebody always listens.
//!
//! Were the answer ever wrong, [`Ctx::count_change`] would let the deciding command itself through. No
//! replica and no log ever runs one: both refuse it with an error.

use crate::server::Ctx;
use crate::state::STATE;

/// Something has happened that can bring a listener or take one away.
pub fn look_again() {
    STATE.knows_listeners.set(false);
}

/// Whether anybody listens to what is replicated now.
#[inline(always)]
pub fn has_listeners(ctx: Ctx<'_>) -> bool {
    if !STATE.knows_listeners.get() {
        STATE.has_listeners.set(ctx.is_cluster() || ctx.info_shows_listeners());
        STATE.knows_listeners.set(true);
    }
    STATE.has_listeners.get()
}
