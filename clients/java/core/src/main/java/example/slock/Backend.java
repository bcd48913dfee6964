// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock;

import example.slock.Acquisition.Grant;
import java.util.concurrent.CompletableFuture;

/** What carries requests out: a server, or a quorum. */
interface Backend {
  /**
   * The part of a ttl that counts for the validity: a clock that is slewed runs up to 500 ppm fast, on both sides, and the
   * server counts in milliseconds.
   */
  default long counted(long ttl) {
    return ttl - ttl / 1000 - Clock.MS;
  }

  Acquisition acquisition(Request request, boolean isTry);

  /** Gives null if the token does not hold the keys in the mode. */
  CompletableFuture<Grant> adopt(Request request);

  /** Tells on how many keys, or on how many nodes, it released what a token holds. */
  CompletableFuture<Integer> release(Request request);

  /** Has a change of the primary noticed while there are holds. */
  default void follow(String key) {}
}
