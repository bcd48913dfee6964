// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock;

import java.time.Duration;
import java.util.Objects;
import java.util.concurrent.Executor;
import java.util.function.Consumer;

/** The options of {@link Locks}, and the defaults of its requests. It is never changed: each method gives a copy. */
public final class Options extends RequestOptions<Options> {
  final Settings settings;

  /** The defaults. */
  public Options() {
    this(new Settings());
  }

  private Options(Settings settings) {
    this.settings = settings;
  }

  @Override
  Options with(Consumer<Settings> change) {
    return new Options(settings.with(change));
  }

  /** Is put before each key that is sent, and taken off in {@link Locks#info} and {@link Locks#queues}. */
  public Options prefix(String prefix) {
    return with(s -> s.prefix = Objects.requireNonNull(prefix));
  }

  /** How long a call goes on while no reply comes at all. The default is 3 seconds. */
  public Options retryFor(Duration duration) {
    Settings.require(!duration.isNegative(), "retryFor must not be negative, not %s", duration);
    return with(s -> s.retryFor = Clock.nanos(duration));
  }

  /** How long a request that waits survives an outage after the server has replied to it once: a second or more, by default a minute. */
  public Options retryWaitFor(Duration duration) {
    Settings.require(!duration.isNegative(), "retryWaitFor must not be negative, not %s", duration);
    return with(s -> s.retryWaitFor = Math.max(Clock.nanos(duration), Clock.SECOND));
  }

  /** What is called when a lock is granted, released or lost. */
  public Options hooks(Hooks hooks) {
    return with(s -> s.hooks = Objects.requireNonNull(hooks));
  }

  /**
   * Where all futures are completed, and where {@link Hold#onLost} calls. The default is that of {@link
   * java.util.concurrent.CompletableFuture}: the common pool, if it has more than one thread. Give another one if your tasks
   * block the common pool for long.
   */
  public Options executor(Executor executor) {
    return with(s -> s.executor = Objects.requireNonNull(executor));
  }

  /** The pauses between the attempts of a quorum. The default is random pauses of 10 to 250 ms. */
  public Options poll(Polling strategy) {
    return with(s -> s.polling = Objects.requireNonNull(strategy));
  }

  /** How long a quorum waits for one node. The default is a twentieth of the ttl, from 50 ms to {@code retryFor}. */
  public Options nodeTimeout(Duration timeout) {
    return with(s -> s.nodeTimeout = Clock.nanos(timeout));
  }

  /** Which part of the ttl does not count for a quorum, because clocks run at different speeds. The default is 0.01. */
  public Options driftFactor(double factor) {
    Settings.require(factor >= 0 && factor < 1, "the drift factor must be at least 0 and less than 1, not %s", factor);
    return with(s -> s.driftFactor = factor);
  }

  /** Ends an attempt of a quorum as soon as the majority is out of reach. */
  public Options failFast() {
    return with(s -> s.failFast = true);
  }
}
