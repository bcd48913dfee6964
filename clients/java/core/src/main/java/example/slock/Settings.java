package example.slock;

import java.time.Duration;
import java.util.List;
import java.util.function.Consumer;

/** The values of the options of a request, their defaults, and the checks before anything is sent. Times in ns. */
final class Settings implements Cloneable {
  /** The shortest ttl: a hold counts as valid for a little more than 1 ms less. */
  static final long LEAST_TTL = Clock.MS * 2;

  long ttl = Clock.SECOND * 10;
  long wait = Clock.NONE;
  int limit;
  boolean hasLimit;
  String metadata = "";
  boolean renew = true;
  long longestLease;
  String token = "";
  /** The token is not the program's, but that of an attempt of a quorum. */
  boolean isFresh;
  /** Instead of that of the locks; 0: that one. */
  long retryFor;
  /** Takes what gives up an acquisition that ends in doubt; null: that is done at once. */
  Consumer<Runnable> open;
  int minReplicas;
  long replicaTimeout = Clock.SECOND;
  String label = "";

  Settings copy() {
    try {
      return (Settings) clone();
    } catch (CloneNotSupportedException e) {
      throw new AssertionError(e);
    }
  }

  void check(List<String> keys, Mode mode) {
    require(!keys.isEmpty() && keys.size() <= 1024, "a request needs 1 to 1024 keys, not %s", keys.size());
    checkTtl(ttl);
    require(wait >= 0, "the wait must not be negative, not %s", text(wait));
    require(!hasLimit || limit >= 1, "the limit must be 1 or more, not %s", limit);
    require(!hasLimit || mode == Mode.READ, "a limit is for reading only");
    require(bytes(metadata) <= 1024, "the metadata must have at most 1024 bytes, not %s", bytes(metadata));
    require(bytes(token) <= 255, "the token must have at most 255 bytes, not %s", bytes(token));
    require(longestLease >= 0, "the longest lease must be positive, not %s", text(longestLease));
    require(minReplicas >= 0, "the number of replicas must not be negative, not %s", minReplicas);
    require(minReplicas == 0 || replicaTimeout > 0, "the timeout for replicas must be positive");
  }

  static void checkTtl(long ttl) {
    require(ttl >= LEAST_TTL, "the ttl must be %s or more, not %s", text(LEAST_TTL), text(ttl));
  }

  static void require(boolean isRight, String text, Object... values) {
    if (!isRight) {
      throw new IllegalArgumentException(String.format(text, values));
    }
  }

  private static int bytes(String text) {
    return text.getBytes(java.nio.charset.StandardCharsets.UTF_8).length;
  }

  private static String text(long nanos) {
    return Duration.ofNanos(nanos).toString();
  }
}
