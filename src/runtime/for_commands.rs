//! Operations for commands, and leaving their clients waiting.

use slock_core::{AcquireOutcome, AcquireRequest, LockError, LockManager, RequestId, Timestamp, WaitPolicy};

use crate::keyspace::Keyspace;
use crate::server::{self, BlockedCallbacks, Ctx, HandleKey, Reply, now};
use crate::state::{Notice, Runtime, WaitingCommand, notice, try_with_runtime};

/// Looks at the manager. `None` if an operation is under way.
pub fn consult<R>(look: impl FnOnce(&LockManager) -> R) -> Option<R> {
    try_with_runtime(|runtime| look(&runtime.manager))
}

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

/// Asks for a hold, and leaves the client waiting if it has to. Where the client cannot wait after all, it is
/// as if it had not wanted to. `None` if an operation is under way.
pub fn acquire<'c>(
    ctx: Ctx<'c>,
    mut store: Keyspace<'c>,
    request: &AcquireRequest<'_>,
    command: WaitingCommand<'_>,
) -> Option<Result<AcquireOutcome, LockError>> {
    let outcome = try_with_runtime(|runtime| {
        let now = now();
        let outcome = runtime.manager.acquire(&mut store, now, request);
        let outcome = match outcome {
            Ok(AcquireOutcome::Waiting(id)) if !wait(runtime, ctx, id, command) => {
                runtime.manager.cancel(id);
                let request = AcquireRequest { wait: WaitPolicy::NoWait, ..*request };
                runtime.manager.acquire(&mut store, now, &request)
            }
            outcome => outcome,
        };
        runtime.reschedule(now);
        outcome
    });
    store.announce();
    outcome
}

/// Leaves the client of this command waiting for the answer to its request. False if it cannot wait.
fn wait(runtime: &mut Runtime, ctx: Ctx<'_>, request: RequestId, command: WaitingCommand<'_>) -> bool {
    if !std::mem::replace(&mut runtime.has_waited, true) {
        server::subscribe_to_keys();
    }
    match server::block::<WaitingClients>(ctx) {
        Some(handle) => {
            runtime.blocked_clients.insert(request, handle, ctx, command);
            true
        }
        None => false,
    }
}

/// Clients that wait.
struct WaitingClients;

impl BlockedCallbacks for WaitingClients {
    fn unblocked(client: HandleKey) -> Reply {
        notice(Notice::WaiterUnblocked(client));
        Reply::Int(0)
    }

    fn gone(client: HandleKey) {
        notice(Notice::WaiterGone(client));
    }
}
