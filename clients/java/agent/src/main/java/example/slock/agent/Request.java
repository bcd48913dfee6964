package example.slock.agent;

import com.google.gson.annotations.SerializedName;
import example.slock.Locks;
import example.slock.Options;
import example.slock.Polling;
import example.slock.RequestOptions;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
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
  @SerializedName("password_file") String passwordFile;
  @SerializedName("pool_size") int poolSize = 2;
  @SerializedName("read_timeout_ms") Integer readTimeoutMs;
  String prefix;
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
  @SerializedName("max_hold_ms") Long maxHoldMs;
  @SerializedName("at_least_ms") Long atLeastMs;
  String token;
  @SerializedName("min_replicas") int minReplicas;
  @SerializedName("replica_timeout_ms") Long replicaTimeoutMs;
  String label;

  boolean release;
  long ms;
  List<String> command;
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

  String password() {
    try {
      return passwordFile == null ? password : Files.readString(Path.of(passwordFile)).strip();
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  static Duration ms(long ms) {
    return Duration.ofMillis(ms);
  }

  List<String> allKeys() {
    return key != null ? List.of(key) : keys;
  }

  Options options() {
    Options o = new Options();
    o = prefix == null ? o : o.prefix(prefix);
    o = poll == null ? o : o.poll(poll.strategy());
    o = retryForMs == null ? o : o.retryFor(ms(retryForMs));
    o = retryWaitForMs == null ? o : o.retryWaitFor(ms(retryWaitForMs));
    o = nodeTimeoutMs == null ? o : o.nodeTimeout(ms(nodeTimeoutMs));
    o = driftFactor == null ? o : o.driftFactor(driftFactor);
    return failFast ? o.failFast() : o;
  }

  example.slock.Request request(Locks locks) {
    String[] names = allKeys().toArray(new String[0]);
    return with("read".equals(mode) ? locks.read(names) : locks.write(names));
  }

  private <T extends RequestOptions<T>> T with(T r) {
    r = ttlMs == null ? r : r.ttl(ms(ttlMs));
    r = waitMs == null ? r : r.waitFor(ms(waitMs));
    r = limit == null ? r : r.limit(limit);
    r = metadata == null ? r : r.metadata(metadata);
    r = renew == null ? r : r.renew(renew);
    r = maxHoldMs == null ? r : r.maxHold(ms(maxHoldMs));
    r = atLeastMs == null ? r : r.atLeast(ms(atLeastMs));
    r = token == null || op.equals("adopt") ? r : r.token(token);
    r = minReplicas == 0 ? r : r.minReplicas(minReplicas, ms(replicaTimeoutMs == null ? 1000 : replicaTimeoutMs));
    return label == null ? r : r.label(label);
  }
}
