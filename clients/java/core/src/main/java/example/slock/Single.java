package example.slock;

import java.util.List;
import java.util.concurrent.CompletableFuture;

/** Where the holds of one server are kept: they are extended, renewed and released by their fence. */
record Single(Locks locks) implements Hold.Keeper {
  @Override
  public List<Long> fences(Hold hold) {
    return List.of(hold.fence());
  }

  @Override
  public CompletableFuture<Reply> extend(Hold hold, Lease is, long ttl, long within) {
    long end = Math.min(is.until, Clock.in(within));
    Repetition asked = locks.ask("extension", hold.owner, end, end,
        limit -> locks.send(hold.owner, hold.owner.extend(ttl, is.fence), limit));
    return asked.forCaller.thenApply(reply -> reply.error() != null ? reply
        : new Reply(reply.number() == 1 ? (Object) asked.sent : null, null));
  }

  /** Not behind other commands. */
  @Override
  public void renew(Hold hold, Lease.Renewal renewal) {
    List<String> command = hold.owner.extend(renewal.ttl(), renewal.fence());
    locks.servers.send(hold.owner.key(), command, Call.Use.RENEWALS, Clock.in(renewal.ttl()), new CompletableFuture<>(),
        late -> {}).thenAccept(reply -> hold.renewed(renewal, reply.number() == 1, reply.error()));
  }

  @Override
  public CompletableFuture<Boolean> release(Hold hold, Lease ending) {
    Commands owner = hold.owner;
    boolean inDoubt = ending.doubt || ending.changing;
    boolean isWhole = ending.reason() == SlockException.Reason.GONE && owner.keys().size() == 1 && !inDoubt;
    if (ending.state == Lease.State.LOST && (isWhole || owner.given() && inDoubt)) {
      return CompletableFuture.completedFuture(false); // nothing is left, or the token may have a later hold by now
    }
    long most = Math.min(Clock.until(ending.until), ending.ttl);
    Repetition asked = locks.repeat("release", owner, locks.retryEnd(), Clock.now() + most,
        limit -> inDoubt ? GiveUp.once(locks, owner, ending.fence, limit)
            : locks.send(owner, owner.release(ending.mode, ending.fence), limit));
    return asked.forCaller.thenApply(reply -> {
      long released = (Long) reply.get();
      // A 0 after a copy without an answer means that this copy released the hold, if it was valid then.
      return released == owner.keys().size() || asked.isUnanswered && Clock.now() < ending.until;
    });
  }
}
