// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock;

import example.slock.Protocol.Owner;
import java.util.concurrent.CompletableFuture;

/** Where a hold is kept: one server, or the nodes of a quorum. */
interface Keeper {
  /**
   * Sends one extension. The number of the answer is 0 if the hold is gone.
   *
   * @param fence 0: whatever the token holds
   * @param wanted says which replicas count
   */
  CompletableFuture<Server.Answer> extend(Owner owner, long ttl, long fence, Settings wanted, long until);

  /**
   * Releases, or has the hold end after a time above 0, and tells whether it was still there. Without a reply it goes on in the
   * background.
   */
  CompletableFuture<Boolean> end(Owner owner, long fence, long after);

  /** The same in the background. */
  void endLater(Owner owner, long fence, long after);
}
