package example.slock;

import java.util.concurrent.CompletableFuture;

/**
 * The end of an acquisition in doubt on one server: it withdraws what waits, refuses what comes later, and releases what
 * was given. It is sent whole until it is answered.
 */
final class GiveUp {
  private GiveUp() {}

  /** Goes on in the background; the request may wait by the channel (null: by none). */
  static void acquisition(Locks locks, Commands owner, long ttl, Listener.Channel waitsBy) {
    // After the ttl nothing is left of a grant anyway.
    long end = Clock.now() + Math.min(ttl + locks.options.retryFor, Commands.REFUSE_MS * Clock.MS);
    locks.repeat("end", owner, end, end, limit -> once(locks, owner, Commands.NO_FENCE, limit)).whole.thenAccept(reply -> {
      // The server forgets the request when nobody listens to its channel.
      if (reply.error() instanceof SlockException.TimedOut && waitsBy != null) {
        locks.listener.close(waitsBy, reply.error());
      }
    });
  }

  /**
   * Gives how many keys that released. A given token is released by its fence; when that is not the one that is known, it
   * is asked again.
   */
  static CompletableFuture<Reply> once(Locks locks, Commands owner, long fence, long limit) {
    return locks.pipeline(owner, owner.end(fence), limit).thenCompose(all -> {
      int last = all.error() != null ? 0 : all.list().size() - 1;
      Reply released = all.error() != null ? all : all.at(last);
      boolean isLast = !owner.given() || released.error() != null || released.number() > 0;
      long found = isLast ? 0 : Math.max(all.at(last - 2).number(), all.at(last - 1).number());
      return found > 0 ? once(locks, owner, found, limit) : CompletableFuture.completedFuture(released);
    });
  }
}
