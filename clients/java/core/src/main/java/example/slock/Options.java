package example.slock;

import java.time.Duration;
import java.util.Objects;
import java.util.concurrent.Executor;
import java.util.concurrent.ForkJoinPool;
import java.util.function.Consumer;

/**
 * The options of {@link Locks} and {@link Quorum}: the defaults of their requests, how to wait, and hooks. Each method
 * changes this object; what was made from it before is not changed.
 */
public final class Options extends RequestOptions<Options> implements Cloneable {
  enum Waiting { NOTIFY, BLOCK, POLL }

  Settings request = new Settings();
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
  Options with(Consumer<Settings> change) {
    change.accept(request);
    return this;
  }

  /** All waits share one connection (in a cluster: one for each node), which subscribes. This is the default. */
  public Options waitByNotify() {
    waiting = Waiting.NOTIFY;
    return this;
  }

  /** Each wait has a connection of its own. */
  public Options waitByBlocking() {
    waiting = Waiting.BLOCK;
    return this;
  }

  /** Waits ask again and again. Nobody is served in order then. */
  public Options waitByPolling(Polling strategy) {
    waiting = Waiting.POLL;
    polling = strategy;
    return this;
  }

  /** How long a call goes on while no answer has come at all. The default is 3 seconds. */
  public Options retryFor(Duration duration) {
    retryFor = Clock.nanos(duration);
    return this;
  }

  /** How long a request that waits survives without any contact to the server. The default is a minute. */
  public Options retryWaitFor(Duration duration) {
    retryWaitFor = Clock.nanos(duration);
    return this;
  }

  /** What hears of waits, holds and losses. */
  public Options hooks(Hooks hooks) {
    this.hooks = Objects.requireNonNull(hooks);
    return this;
  }

  /**
   * Where the futures of {@link Request#acquireAsync} are completed and what was given to {@link Hold#onLost} is called.
   * The default is the common pool. Give one of its own to a program whose tasks block the common pool for long.
   */
  public Options executor(Executor executor) {
    this.executor = Objects.requireNonNull(executor);
    return this;
  }

  /** How long a quorum waits for one node. The default is a twentieth of the ttl, and at least 50 ms. */
  public Options nodeTimeout(Duration timeout) {
    nodeTimeout = Clock.nanos(timeout);
    return this;
  }

  /** Which part of the ttl does not count for a quorum, because clocks differ. The default is 0.01. */
  public Options driftFactor(double factor) {
    Settings.require(factor >= 0 && factor < 1, "the drift factor must be 0 or more and less than 1, not %s", factor);
    driftFactor = factor;
    return this;
  }

  /** Ends an attempt of a quorum as soon as the majority is out of reach. */
  public Options failFast() {
    failFast = true;
    return this;
  }

  Options copy() {
    try {
      Options copy = (Options) clone();
      copy.request = request.copy();
      return copy;
    } catch (CloneNotSupportedException e) {
      throw new AssertionError(e);
    }
  }
}
