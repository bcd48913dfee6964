package example.slock;

import example.slock.Protocol.Owner;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;

/** Where a hold is kept: one server, or the nodes of a quorum. */
interface Keeper {
  /**
   * A command that prolongs a hold.
   *
   * @param fence 0: whatever the token holds
   * @param wanted says which replicas count
   */
  record Extension(long ttl, long fence, Settings wanted) {}

  /** Sends one extension. The number of the answer is 0 if the hold is gone. */
  CompletableFuture<Server.Answer> extend(Owner owner, Extension extension, long until, Executor on);

  /**
   * Releases, or has the hold end after a time, and tells whether it was still there. Without a reply it goes on in the
   * background; so it does from the beginning if nobody waits for it.
   */
  CompletableFuture<Boolean> end(Owner owner, long fence, long after, boolean isWaitedFor, Executor on);
}
