// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.function.Consumer;

/** All options with their defaults, and the checks before anything is sent. Times are in ns. Nobody changes one in use. */
final class Settings implements Cloneable {
  /** The shortest ttl: a hold counts as valid for a little more than 1 ms less. */
  static final long LEAST_TTL = 2 * Clock.MS;
  /** That of the JDK's futures: the common pool, or a thread for each task if the common pool has one thread or none. */
  static final Executor POOL = new CompletableFuture<>().defaultExecutor();
  private static final String HOST = host();

  // of a request
  long ttl = 10 * Clock.SECOND;
  long wait = Clock.NEVER;
  Integer limit;
  String metadata;
  boolean isRenewed = true;
  long maxHold = Clock.NEVER;
  long atLeast;
  String token;
  int minReplicas;
  long replicaTimeout = Clock.SECOND;
  String label;
  /** The owner of a lock by a view, which is not renewed after the end of the thread. */
  Thread thread;

  // of locks
  String prefix = "";
  long retryFor = 3 * Clock.SECOND;
  long retryWaitFor = 60 * Clock.SECOND;
  Hooks hooks = new Hooks() {};
  Executor executor = POOL;

  // of a quorum
  Polling polling = Polling.exponential(Duration.ofMillis(20), Duration.ofMillis(250));
  double driftFactor = 0.01;
  long nodeTimeout;
  boolean failFast;

  Settings with(Consumer<Settings> change) {
    try {
      Settings copy = (Settings) clone();
      change.accept(copy);
      return copy;
    } catch (CloneNotSupportedException e) {
      throw new AssertionError(e);
    }
  }

  private static String host() {
    try {
      return InetAddress.getLocalHost().getHostName();
    } catch (UnknownHostException e) {
      return "unknown";
    }
  }

  /** By default it tells an operator where to look for the owner. */
  String metadata() {
    return metadata != null ? metadata
        : "host=" + HOST + " pid=" + ProcessHandle.current().pid() + " task=" + Thread.currentThread().getName();
  }

  void check(List<String> keys, Mode mode) {
    require(!keys.isEmpty() && keys.size() <= 1024, "a request needs 1 to 1024 keys, not %s", keys.size());
    require(!keys.contains(""), "a key must not be empty");
    require(keys.size() == 1 || Set.copyOf(keys).size() == keys.size(), "a key is named twice: %s", keys);
    checkTtl(ttl);
    require(wait >= 0, "the wait must not be negative, not %s", Duration.ofNanos(wait));
    require(limit == null || limit >= 1, "the limit must be 1 or more, not %s", limit);
    require(limit == null || mode == Mode.READ, "a limit is for reading only");
    require(metadata == null || bytes(metadata) <= 1024, "the metadata must have at most 1024 bytes");
    require(token == null || !token.isEmpty() && bytes(token) <= 255, "the owner token must have 1 to 255 bytes");
    require(maxHold > 0, "the maximum hold time must be positive, not %s", Duration.ofNanos(maxHold));
    require(atLeast >= 0, "the minimum hold time must not be negative, not %s", Duration.ofNanos(atLeast));
    require(minReplicas >= 0, "the number of replicas must not be negative, not %s", minReplicas);
    require(minReplicas == 0 || replicaTimeout > 0, "the timeout for replicas must be positive");
  }

  static void checkTtl(long ttl) {
    require(ttl >= LEAST_TTL, "the ttl must be 2 ms or more, not %s", Duration.ofNanos(ttl));
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
