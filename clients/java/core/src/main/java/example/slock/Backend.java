package example.slock;

import example.slock.Acquisition.Grant;
import example.slock.Protocol.Owner;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;

/** What carries requests out: a server, or a quorum. */
interface Backend {
  /** What was adopted. */
  record Adopted(Keeper keeper, Owner owner, Grant grant) {}

  /** What is wrong with a request, beside what its settings know. */
  default void check(Request request) {}

  Acquisition acquisition(Request request, boolean isTry, Executor on);

  CompletableFuture<Adopted> adopt(Request request, Executor on);

  /** Tells on how many keys, or on how many nodes, it released what a token holds. */
  CompletableFuture<Integer> release(Request request, Executor on);

  /** Has a change of the primary noticed while there are holds. */
  default void follow(String key) {}
}
