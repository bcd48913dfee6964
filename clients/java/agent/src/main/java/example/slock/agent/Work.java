package example.slock.agent;

import example.slock.Hold;
import example.slock.Locks;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.IntFunction;

/** Operations of many tasks, and comparisons with the base library. */
final class Work {
  /** A turn of task n. */
  private interface Turn {
    void run(int task) throws Exception;
  }

  /** So many turns of 100 come first, for the compiler. */
  private static final int COMPILED = 100;
  private static final AtomicLong RAW = new AtomicLong(System.nanoTime());

  private final Base base;
  private final Agent.Opened opened;
  private final Request r;

  Work(Base base, Agent.Opened opened, Request r) {
    this.base = base;
    this.opened = opened;
    this.r = r;
  }

  Object perform() throws Exception {
    return switch (r.op) {
      case "work" -> work();
      case "wait_many" -> waitMany();
      case "cost" -> cost();
      case "pairs" -> compare(Math.max(8, r.tasks), task -> "pairs:" + task, false);
      default -> compare(r.tasks, task -> r.key, true);
    };
  }

  private String node() {
    return opened.request().nodes.get(0);
  }

  /** Lets tasks add to a counter under the lock, or counts those that are under it at once. */
  private Object work() throws Exception {
    AtomicLong most = new AtomicLong();
    example.slock.Request request = r.request(opened.locker());
    try (Base.Plain plain = base.plain(node(), 8)) {
      inTasks(r.tasks, task -> {
        for (int n = 0; n < r.additions; n++) {
          try (Hold hold = request.acquire()) {
            if (r.limit != null) {
              most.accumulateAndGet((Long) plain.call(task, "INCR", r.counter), Math::max);
              plain.call(task, "DECR", r.counter);
            } else {
              Object before = plain.call(task, "GET", r.counter);
              long count = before == null ? 0 : Long.parseLong(before.toString());
              plain.call(task, "SET", r.counter, Long.toString(count + 1));
              most.set(1);
            }
          }
        }
      });
    }
    return Map.of("done", r.tasks * r.additions, "most", most.get());
  }

  /** Lets tasks acquire and release once each; they are futures, so that none needs a thread. */
  private Object waitMany() throws Exception {
    example.slock.Request request = r.request(opened.locker());
    List<CompletableFuture<?>> all = new ArrayList<>();
    for (int n = 0; n < r.tasks; n++) {
      all.add(request.acquireAsync().thenCompose(Hold::releaseAsync));
    }
    for (CompletableFuture<?> one : all) {
      one.get();
    }
    return Map.of("done", r.tasks);
  }

  private static void inTasks(int tasks, Turn turn) throws Exception {
    List<FutureTask<Void>> all = new ArrayList<>();
    for (int n = 0; n < tasks; n++) {
      int task = n;
      FutureTask<Void> one = new FutureTask<>(() -> {
        turn.run(task);
        return null;
      });
      all.add(one);
      new Thread(one, Agent.THREADS + "task").start();
    }
    for (FutureTask<Void> one : all) {
      try {
        one.get();
      } catch (ExecutionException e) {
        throw e.getCause() instanceof Exception cause ? cause : e;
      }
    }
  }

  /** Compares a lock and unlock with the same two commands by the base library, in turns of 100. */
  private Object cost() throws Exception {
    example.slock.Request request = opened.locker().write("cost").renew(false);
    List<Long> own = new ArrayList<>();
    List<Long> raw = new ArrayList<>();
    try (Base.Plain plain = base.plain(node(), 1)) {
      for (int turn = -COMPILED; turn * 100 < r.rounds; turn++) {
        if (turn == 0) { // what came before was for the compiler
          own.clear();
          raw.clear();
        }
        for (int n = 0; n < 100; n++) {
          long began = System.nanoTime();
          request.acquire().release();
          own.add(System.nanoTime() - began);
        }
        for (int n = 0; n < 100; n++) {
          String token = rawToken();
          long began = System.nanoTime();
          plain.call(0, "SLOCK.LOCK", "cost", token, "10000", "META", "host=localhost pid=12345 task=agent");
          plain.call(0, "SLOCK.MUNLOCK", "1", "cost", token, "REFUSE", "120000");
          raw.add(System.nanoTime() - began);
        }
      }
    }
    return Map.of("client_us", medianUs(own), "raw_us", medianUs(raw));
  }

  /** As long as a token of the library. */
  private static String rawToken() {
    return Long.toString(1_000_000_000_000_000L + RAW.incrementAndGet()) + "tokens";
  }

  /** Measures turns of all tasks by the library and by the base library, five times, and gives medians of the whole time. */
  private Object compare(int connections, IntFunction<String> key, boolean waits) throws Exception {
    List<Long> own = new ArrayList<>();
    List<Long> raw = new ArrayList<>();
    int rounds = r.rounds / 5 + 1;
    Request fresh = new Request();
    fresh.op = "open";
    fresh.tasks = r.tasks;
    fresh.nodes = opened.request().nodes;
    fresh.poolSize = Math.max(8, r.tasks);
    try (Locks locks = base.open(fresh, fresh.options()).locks(); Base.Plain plain = base.plain(node(), connections)) {
      for (int turn = 0; turn < 6; turn++) {
        long began = System.nanoTime();
        inTasks(r.tasks, task -> {
          example.slock.Request request = locks.write(key.apply(task)).renew(false);
          for (int n = 0; n < rounds; n++) {
            request.acquire().release();
          }
        });
        long between = System.nanoTime();
        inTasks(r.tasks, task -> {
          for (int n = 0; n < rounds; n++) {
            String token = rawToken();
            if (waits) {
              plain.call(task, "SLOCK.LOCK", key.apply(task), token, "10000", "WAIT", "0");
            } else {
              plain.call(task, "SLOCK.LOCK", key.apply(task), token, "10000");
            }
            plain.call(task, "SLOCK.MUNLOCK", "1", key.apply(task), token, "REFUSE", "120000");
          }
        });
        if (turn > 0) { // the first makes the connections
          own.add(between - began);
          raw.add(System.nanoTime() - between);
        }
      }
    }
    return Map.of("library_us", medianUs(own) * 5, "raw_us", medianUs(raw) * 5);
  }

  private static double medianUs(List<Long> nanos) {
    Collections.sort(nanos);
    return nanos.get(nanos.size() / 2) / 1000.0;
  }
}
