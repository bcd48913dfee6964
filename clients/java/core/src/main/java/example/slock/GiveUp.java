package example.slock;

import java.util.List;
import java.util.concurrent.CompletableFuture;

/**
 * The end of an acquisition in doubt on one server: it withdraws what waits, refuses what comes later, and releases what
 * was given. It is sent whole until it is answered.
 */
final class GiveUp {
  private GiveUp() {}

  /**
   * Goes on in the background; the request may wait by the channel (null: by none). With a token of the program's only
   * what waits is withdrawn: a hold of the token may be another's by now.
   */
  static void acquisition(Locks locks, Commands owner, long ttl, Listener.Channel waitsBy) {
    List<List<String>> commands = owner.given() ? owner.cancel() : owner.end(0);
    // After the ttl nothing is left of a grant anyway.
    long end = Clock.now() + Math.min(ttl + locks.options.retryFor, Commands.REFUSE_MS * Clock.MS);
    locks.repeat("end", owner, end, end, limit -> locks.pipeline(owner, commands, limit)).whole.thenAccept(reply -> {
      // The server forgets the request when nobody listens to its channel.
      if (reply.error() instanceof SlockException.TimedOut && waitsBy != null) {
        locks.listener.close(waitsBy, reply.error());
      }
    });
  }

  /** Of a hold in doubt, once. Gives how many keys that released. */
  static CompletableFuture<Reply> hold(Locks locks, Commands owner, long fence, long limit) {
    List<List<String>> commands = owner.end(fence);
    return locks.pipeline(owner, commands, limit)
        .thenApply(all -> all.error() != null ? all : all.list().get(commands.size() - 1));
  }
}
