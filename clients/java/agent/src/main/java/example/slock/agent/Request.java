package example.slock.agent;

import com.google.gson.annotations.SerializedName;
import example.slock.Locker;
import example.slock.Options;
import example.slock.Polling;
import example.slock.RequestOptions;
import java.time.Duration;
import java.util.List;

/** One line of input. Its fields are those of all operations; null where absent. */
final class Request {
  long id;
  String op;
  String locks;
  String hold;
  long target;

  String kind = "single";
  List<String> nodes;
  String service;
  String user;
  String password;
  String waiting = "notify";
  Poll poll;
  @SerializedName("retry_for_ms") Long retryForMs;
  @SerializedName("retry_wait_for_ms") Long retryWaitForMs;
  @SerializedName("node_timeout_ms") Long nodeTimeoutMs;
  @SerializedName("drift_factor") Double driftFactor;
  @SerializedName("fail_fast") boolean failFast;

  String key;
  List<String> keys;
  String mode;
  Integer limit;
  @SerializedName("ttl_ms") Long ttlMs;
  @SerializedName("wait_ms") Long waitMs;
  String metadata;
  Boolean renew;
  @SerializedName("longest_lease_ms") Long longestLeaseMs;
  String token;
  @SerializedName("min_replicas") int minReplicas;
  @SerializedName("replica_timeout_ms") Long replicaTimeoutMs;
  String label;

  @SerializedName("work_ms") long workMs;
  int tasks;
  int additions;
  String counter;
  int rounds;

  static final class Poll {
    String kind;
    @SerializedName("pause_ms") long pauseMs;
    @SerializedName("most_ms") long mostMs;
    Integer limit;

    Polling strategy() {
      Polling strategy = switch (kind) {
        case "none" -> Polling.none();
        case "constant" -> Polling.constant(Duration.ofMillis(pauseMs));
        default -> Polling.exponential(Duration.ofMillis(pauseMs), Duration.ofMillis(mostMs));
      };
      return limit == null ? strategy : strategy.limit(limit);
    }
  }

  static Duration ms(long ms) {
    return Duration.ofMillis(ms);
  }

  List<String> allKeys() {
    return key != null ? List.of(key) : keys;
  }

  Options options() {
    Options options = new Options();
    Polling polling = poll != null ? poll.strategy() : Polling.exponential(ms(10), ms(100));
    if (waiting.equals("block")) {
      options.waitByBlocking();
    } else if (waiting.equals("poll") || op.equals("open_quorum") && poll != null) {
      options.waitByPolling(polling);
    }
    if (retryForMs != null) {
      options.retryFor(ms(retryForMs));
    }
    if (retryWaitForMs != null) {
      options.retryWaitFor(ms(retryWaitForMs));
    }
    if (nodeTimeoutMs != null) {
      options.nodeTimeout(ms(nodeTimeoutMs));
    }
    if (driftFactor != null) {
      options.driftFactor(driftFactor);
    }
    return failFast ? options.failFast() : options;
  }

  example.slock.Request request(Locker locker) {
    String[] names = allKeys().toArray(new String[0]);
    return with("read".equals(mode) ? locker.read(names) : locker.write(names));
  }

  private <T extends RequestOptions<T>> T with(T r) {
    r = ttlMs == null ? r : r.ttl(ms(ttlMs));
    r = waitMs == null ? r : r.waitFor(ms(waitMs));
    r = limit == null ? r : r.limit(limit);
    r = metadata == null ? r : r.metadata(metadata);
    r = renew == null ? r : r.renew(renew);
    r = longestLeaseMs == null ? r : r.longestLease(ms(longestLeaseMs));
    r = token == null || op.equals("adopt") ? r : r.token(token);
    r = minReplicas == 0 ? r : r.minReplicas(minReplicas, ms(replicaTimeoutMs == null ? 1000 : replicaTimeoutMs));
    return label == null ? r : r.label(label);
  }
}
