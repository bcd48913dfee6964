package example.slock;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.Executor;
import java.util.concurrent.ForkJoinPool;
import java.util.concurrent.RejectedExecutionException;
import java.util.function.Consumer;

/**
 * The options of {@link Locks} and {@link Quorum}: the defaults of their requests, how to wait, and hooks. Each method
 * changes this object; what was made from it before is not changed.
 */
public final class Options extends RequestOptions<Options> implements Cloneable {
  enum Waiting { NOTIFY, BLOCK, POLL }

  /** The shortest ttl: a hold counts as valid for a little more than 1 ms less. */
  static final long LEAST_TTL = Clock.MS * 2;

  // of a request; times in ns
  long ttl = Clock.SECOND * 10;
  long wait = Clock.NONE;
  Integer limit;
  String metadata = "";
  boolean renew = true;
  long longestLease;
  String token = "";
  int minReplicas;
  long replicaTimeout = Clock.SECOND;
  String label = "";

  // of locks
  Waiting waiting = Waiting.NOTIFY;
  Polling polling = Polling.none();
  long retryFor = Clock.SECOND * 3;
  long retryWaitFor = Clock.SECOND * 60;
  Hooks hooks = new Hooks() {};
  Executor executor = ForkJoinPool.commonPool();

  // of a quorum
  long nodeTimeout;
  double driftFactor = 0.01;
  boolean failFast;

  @Override
  Options with(Consumer<Options> change) {
    change.accept(this);
    return this;
  }

  /** All waits share one connection (in a cluster: one for each node), which subscribes. This is the default. */
  public Options waitByNotify() {
    return with(o -> o.waiting = Waiting.NOTIFY);
  }

  /** Each wait has a connection of its own. */
  public Options waitByBlocking() {
    return with(o -> o.waiting = Waiting.BLOCK);
  }

  /** Waits ask again and again. Nobody is served in order then. */
  public Options waitByPolling(Polling strategy) {
    polling = strategy;
    return with(o -> o.waiting = Waiting.POLL);
  }

  /** How long a call goes on while no answer has come at all. The default is 3 seconds. */
  public Options retryFor(Duration duration) {
    require(!duration.isNegative(), "retryFor must not be negative, not %s", duration);
    return with(o -> o.retryFor = Clock.nanos(duration));
  }

  /** How long a request that waits survives without any contact to the server. The default is a minute. */
  public Options retryWaitFor(Duration duration) {
    require(!duration.isNegative(), "retryWaitFor must not be negative, not %s", duration);
    return with(o -> o.retryWaitFor = Clock.nanos(duration));
  }

  /** What hears of waits, holds and losses. */
  public Options hooks(Hooks hooks) {
    return with(o -> o.hooks = Objects.requireNonNull(hooks));
  }

  /**
   * Where the futures of {@link Request#acquireAsync} are completed and what was given to {@link Hold#onLost} is called.
   * The default is the common pool, which also takes what another one refuses. Give one of its own to a program whose tasks
   * block the common pool for long.
   */
  public Options executor(Executor executor) {
    Objects.requireNonNull(executor);
    return with(o -> o.executor = task -> {
      try {
        executor.execute(task);
      } catch (RejectedExecutionException e) {
        ForkJoinPool.commonPool().execute(task);
      }
    });
  }

  /** How long a quorum waits for one node. The default is a twentieth of the ttl, from 50 ms to {@code retryFor}. */
  public Options nodeTimeout(Duration timeout) {
    return with(o -> o.nodeTimeout = Clock.nanos(timeout));
  }

  /** Which part of the ttl does not count for a quorum, because clocks differ. The default is 0.01. */
  public Options driftFactor(double factor) {
    require(factor >= 0 && factor < 1, "the drift factor must be 0 or more and less than 1, not %s", factor);
    return with(o -> o.driftFactor = factor);
  }

  /** Ends an attempt of a quorum as soon as the majority is out of reach. */
  public Options failFast() {
    return with(o -> o.failFast = true);
  }

  Options copy() {
    try {
      return (Options) clone();
    } catch (CloneNotSupportedException e) {
      throw new AssertionError(e);
    }
  }

  /** Of a request, before anything is sent. */
  void check(List<String> keys, Mode mode) {
    require(!keys.isEmpty() && keys.size() <= 1024, "a request needs 1 to 1024 keys, not %s", keys.size());
    checkTtl(ttl);
    require(wait >= 0, "the wait must not be negative, not %s", Duration.ofNanos(wait));
    require(limit == null || limit >= 1, "the limit must be 1 or more, not %s", limit);
    require(limit == null || mode == Mode.READ, "a limit is for reading only");
    require(bytes(metadata) <= 1024, "the metadata must have at most 1024 bytes, not %s", bytes(metadata));
    require(bytes(token) <= 255, "the token must have at most 255 bytes, not %s", bytes(token));
    require(longestLease >= 0, "the longest lease must be positive, not %s", Duration.ofNanos(longestLease));
    require(minReplicas >= 0, "the number of replicas must not be negative, not %s", minReplicas);
    require(minReplicas == 0 || replicaTimeout > 0, "the timeout for replicas must be positive");
  }

  static void checkTtl(long ttl) {
    require(ttl >= LEAST_TTL, "the ttl must be %s or more, not %s", Duration.ofNanos(LEAST_TTL), Duration.ofNanos(ttl));
  }

  static void require(boolean isRight, String text, Object... values) {
    if (!isRight) {
      throw new IllegalArgumentException(String.format(text, values));
    }
  }

  private static int bytes(String text) {
    return text.getBytes(StandardCharsets.UTF_8).length;
  }
}
