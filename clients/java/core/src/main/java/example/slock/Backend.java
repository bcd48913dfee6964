package example.slock;

import example.slock.Acquisition.Grant;
import java.util.concurrent.CompletableFuture;

/** What carries requests out: a server, or a quorum. */
interface Backend {
  /** What is wrong with a request, beside what its settings know. */
  default void check(Request request) {}

  Acquisition acquisition(Request request, boolean isTry);

  /** Gives null if the token does not hold the keys in the mode. */
  CompletableFuture<Grant> adopt(Request request);

  /** Tells on how many keys, or on how many nodes, it released what a token holds. */
  CompletableFuture<Integer> release(Request request);

  /** Has a change of the primary noticed while there are holds. */
  default void follow(String key) {}
}
