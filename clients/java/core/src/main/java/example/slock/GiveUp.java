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
    List<List<String>> commands = owner.given() ? owner.cancel() : owner.end();
    // After the ttl nothing is left of a grant anyway.
    long end = Clock.now() + Math.min(ttl + locks.options.retryFor, Commands.REFUSE_MS * Clock.MS);
    locks.repeat("end", owner, end, end, limit -> locks.pipeline(owner, commands, limit)).whole.thenAccept(reply -> {
      // The server forgets the request when nobody listens to its channel.
      if (reply.error() instanceof SlockException.TimedOut && waitsBy != null) {
        locks.listener.close(waitsBy, reply.error());
      }
    });
  }

  /**
   * Sends commands that end with releases in either mode, and gives how many keys these released. A user may lack the
   * permission for one of the modes.
   */
  static CompletableFuture<Reply> takeOff(Locks locks, Commands owner, List<List<String>> commands, long limit) {
    return locks.pipeline(owner, commands, limit).thenApply(all -> {
      if (all.error() != null) {
        return all;
      }
      List<Reply> releases = all.list().subList(commands.size() - owner.releases().size(), commands.size());
      boolean isRefused = releases.stream().allMatch(reply -> reply.error() != null);
      return isRefused ? releases.get(0) : new Reply(releases.stream().mapToLong(Reply::number).sum(), null);
    });
  }
}
