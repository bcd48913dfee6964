//! Operations for commands, and leaving their clients waiting.

use slock_core::{AcquireOutcome, AcquireRequest, LockError, LockManager, ReplyTo, RequestId, Timestamp};

use crate::keyspace::Keyspace;
use crate::server::{self, BlockedCallbacks, Ctx, HandleKey, Reply, now};
use crate::state::{self, Notice, Runtime, notice, try_with_runtime};

/// Looks at the manager, and at any keys. `None` if an operation is under way.
pub fn consult_with_keys<R>(look: impl FnOnce(&LockManager, &mut Keyspace<'_>) -> R) -> Option<R> {
    try_with_runtime(|runtime| look(&runtime.manager, &mut Keyspace::of_timer(server::own_ctx())))
}

/// Has the manager do something for a command, sees to what follows from it, and tells subscribers. `None` if
/// an operation is under way.
pub fn operate<'c, R>(
    mut store: Keyspace<'c>,
    operation: impl FnOnce(&mut LockManager, &mut Keyspace<'c>, Timestamp) -> R,
) -> Option<R> {
    let result = try_with_runtime(|runtime| {
        let now = now();
        let result = operation(&mut runtime.manager, &mut store, now);
        runtime.reschedule(now);
        result
    });
    store.announce();
    result
}

/// What became of a request for a hold.
pub enum Acquired {
    /// It holds, with this fence.
    Granted(u64),
    /// It cannot have it now, and does not wait.
    Refused,
    /// Its client is blocked until it is answered.
    Blocked,
    /// It waits, and is answered on its channel.
    Waiting,
    /// It would have to wait, and this server cannot block this client.
    CannotBlock,
}

/// Asks for a hold, and leaves the request waiting if it has to. `None` if an operation is under way.
pub fn acquire<'c>(
    ctx: Ctx<'c>,
    mut store: Keyspace<'c>,
    request: &AcquireRequest<'_>,
) -> Option<Result<Acquired, LockError>> {
    let outcome = try_with_runtime(|runtime| {
        let now = now();
        let outcome = runtime.manager.acquire(&mut store, now, request);
        let acquired = outcome.map(|outcome| match outcome {
            AcquireOutcome::Granted(fence) => Acquired::Granted(fence),
            AcquireOutcome::Refused => Acquired::Refused,
            AcquireOutcome::Waiting(id) => wait(runtime, ctx, id, request.reply_to),
        });
        runtime.reschedule(now);
        acquired
    });
    store.announce();
    outcome
}

/// Leaves this request waiting.
fn wait(runtime: &mut Runtime, ctx: Ctx<'_>, request: RequestId, reply_to: ReplyTo<'_>) -> Acquired {
    if !std::mem::replace(&mut runtime.has_waited, true) {
        server::subscribe_to_keys();
    }
    state::with(|state| state.sleep_watch.begin());
    if reply_to == ReplyTo::Client {
        let Some(handle) = server::block::<BlockedByLock>(ctx) else {
            runtime.manager.cancel(request);
            return Acquired::CannotBlock;
        };
        runtime.clients.blocked.insert(request, handle);
    }
    if reply_to == ReplyTo::Client { Acquired::Blocked } else { Acquired::Waiting }
}

/// Clients that wait.
struct BlockedByLock;

impl BlockedCallbacks for BlockedByLock {
    fn unblocked(client: HandleKey) -> Reply {
        notice(Notice::WaiterUnblocked(client));
        Reply::Int(0)
    }

    fn gone(client: HandleKey) {
        notice(Notice::WaiterGone(client));
    }
}
