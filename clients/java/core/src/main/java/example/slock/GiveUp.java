package example.slock;

import java.util.List;
import java.util.concurrent.CompletableFuture;

/**
 * The ends on one server. A release names the fence, so that it does no harm when it arrives late. The end of an
 * acquisition in doubt has the server withdraw what waits, refuse what comes later, and release what was given. It is
 * sent whole until it is answered.
 */
final class GiveUp {
  private GiveUp() {}

  /** Of a hold: tells whether it was there. */
  static CompletableFuture<Boolean> release(Locks locks, Commands owner, Lease ending) {
    boolean inDoubt = ending.doubt || ending.changing;
    boolean isWhole = ending.reason() == SlockException.Reason.GONE && owner.keys().size() == 1 && !inDoubt;
    if (ending.state == Lease.State.LOST && (isWhole || owner.given())) {
      return CompletableFuture.completedFuture(false); // nothing is left, or the token may have a later hold by now
    }
    boolean[] isUnanswered = new boolean[1];
    long most = Math.min(Clock.until(ending.until), ending.ttl);
    return locks.repeat("release", owner, locks.retryEnd(), Clock.now() + most, limit -> {
      CompletableFuture<Reply> sent = inDoubt ? takeOff(locks, owner, owner.end(), limit)
          : locks.send(owner, owner.release(ending.mode, ending.fence), limit);
      return sent.thenApply(reply -> {
        isUnanswered[0] |= Answers.mayRunLater(reply.error());
        return reply;
      });
    }).forCaller.thenApply(reply -> {
      long released = (Long) reply.get();
      // A 0 after a copy without an answer means that this copy released the hold, if it was valid then.
      return released == owner.keys().size() || isUnanswered[0] && Clock.now() < ending.until;
    });
  }

  /**
   * Of an acquisition, in the background; it may wait by the channel (null: by none). With a token of the program's only
   * what waits is withdrawn: a hold of the token may be another's by now.
   */
  static void acquisition(Locks locks, Commands owner, long ttl, Listener.Channel waitsBy) {
    List<List<String>> commands = owner.given() ? owner.cancel() : owner.end();
    // After the ttl nothing is left of a grant anyway.
    long end = Clock.now() + Math.min(ttl + locks.options.retryFor, Commands.REFUSE_MS * Clock.MS);
    locks.repeat("end", owner, end, end, limit -> takeOff(locks, owner, commands, limit)).whole
        .thenAccept(reply -> {
          // The server forgets the request when nobody listens to its channel.
          if (reply.error() instanceof SlockException.TimedOut && waitsBy != null) {
            locks.listener.close(waitsBy, reply.error());
          }
        });
  }

  /** Sends the end once, and gives how many keys it released. A user may lack the permission for one of the modes. */
  private static CompletableFuture<Reply> takeOff(Locks locks, Commands owner, List<List<String>> commands, long limit) {
    return locks.pipeline(owner, commands, limit).thenApply(all -> {
      if (all.error() != null) {
        return all;
      }
      long released = 0;
      int failed = 0;
      Throwable error = null;
      int releases = commands.size() - owner.keys().size();
      for (int n = owner.keys().size(); n < commands.size(); n++) {
        Reply reply = all.at(n);
        released += reply.number();
        if (reply.error() != null) {
          failed++;
          error = reply.error();
        }
      }
      return failed > 0 && failed == releases ? Reply.failed(error) : new Reply(released, null);
    });
  }
}
