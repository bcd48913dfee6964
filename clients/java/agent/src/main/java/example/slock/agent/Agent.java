package example.slock.agent;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import example.slock.Hold;
import example.slock.Locker;
import example.slock.Locks;
import example.slock.Quorum;
import example.slock.SlockException;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.FutureTask;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * Plays the operations of the conformance scenarios with this library: the argument says on which base. It reads one JSON
 * object a line and writes one a line. Half of the acquisitions wait in a thread, which is interrupted to cancel them; the
 * others are futures.
 */
public final class Agent {
  static final String THREADS = "agent-";
  private static final Gson GSON = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();

  private final PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
  private final Base base;
  private final Map<String, Opened> locks = new ConcurrentHashMap<>();
  private final Map<String, Hold> holds = new ConcurrentHashMap<>();
  private final Map<Long, Task> running = new ConcurrentHashMap<>();
  private final ExecutorService threads = Executors.newCachedThreadPool(task -> {
    Thread thread = new Thread(task, THREADS + "operation");
    thread.setDaemon(true);
    return thread;
  });

  /** What an open made. */
  record Opened(Locker locker, Events events, Request request) {}

  private Agent(Base base) {
    this.base = base;
  }

  public static void main(String[] arguments) throws Exception {
    java.util.logging.LogManager.getLogManager().reset();
    Agent agent = new Agent(arguments[0].equals("jedis") ? new JedisBase() : new LettuceBase());
    Rehearsal.play(agent.base);
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      agent.start(GSON.fromJson(line, Request.class));
    }
    System.exit(0);
  }

  private void start(Request r) throws InterruptedException {
    if (r.op.equals("cancel")) {
      Task target = running.get(r.target);
      if (target != null) {
        target.interrupt();
      }
      answer(r, Map.of(), null);
      return;
    }
    Task task = new Task(r);
    running.put(r.id, task);
    threads.execute(task);
  }

  /** An operation in a thread. Its cancellation interrupts the thread, but never after its end. */
  private final class Task extends FutureTask<Void> {
    private final Request r;
    private final AtomicBoolean hasBegun;
    private volatile Thread thread;

    Task(Request r) {
      this(r, new AtomicBoolean());
    }

    private Task(Request r, AtomicBoolean hasBegun) {
      super(() -> {
        if (hasBegun.compareAndSet(false, true)) {
          Agent.this.run(r);
        }
      }, null);
      this.r = r;
      this.hasBegun = hasBegun;
    }

    @Override
    public void run() {
      thread = Thread.currentThread();
      super.run();
    }

    /** Cancels it, and gives the thread the time to notice that: what the server answers next is too late then. */
    void interrupt() throws InterruptedException {
      cancel(true);
      Thread interrupted = thread;
      for (int n = 0; n < 1000 && interrupted != null && interrupted.isInterrupted() && running.containsKey(r.id); n++) {
        Thread.sleep(1);
      }
    }

    @Override
    protected void done() {
      if (isCancelled() && hasBegun.compareAndSet(false, true)) {
        answer(r, null, new CancellationException("cancelled before it began"));
      }
    }
  }

  private void run(Request r) {
    try {
      answer(r, perform(r), null);
    } catch (Throwable e) {
      answer(r, null, e instanceof ExecutionException ? e.getCause() : e);
    }
    running.remove(r.id);
  }

  private void answer(Request r, Object ok, Throwable error) {
    Map<String, Object> line = new LinkedHashMap<>();
    line.put("id", r.id);
    if (error == null) {
      line.put("ok", ok);
    } else {
      line.put("error", name(error));
      line.put("text", String.valueOf(error.getMessage()));
      if (name(error).equals("Other")) {
        error.printStackTrace();
      }
    }
    synchronized (out) {
      out.println(GSON.toJson(line));
      out.flush();
    }
  }

  private static String name(Throwable error) {
    if (error instanceof InterruptedException || error instanceof CancellationException) {
      return "Cancelled";
    } else if (error instanceof SlockException.TimedOut) {
      return "TimedOut";
    }
    return error instanceof SlockException && error.getClass() != SlockException.class
        ? error.getClass().getSimpleName() : "Other";
  }

  private Object perform(Request r) throws Exception {
    return switch (r.op) {
      case "open" -> {
        Events events = new Events();
        locks.put(r.locks, new Opened(base.open(r, r.options().hooks(events)), events, r));
        yield Map.of();
      }
      case "open_quorum" -> {
        Events events = new Events();
        locks.put(r.locks, new Opened(base.openQuorum(r, r.options().hooks(events)), events, r));
        yield Map.of();
      }
      case "tasks" -> Map.of("count", Thread.getAllStackTraces().entrySet().stream()
          .filter(one -> !one.getKey().getName().startsWith(THREADS) && !isIdle(one.getValue())).count());
      case "release", "extend", "upgrade", "downgrade", "hand_over", "check", "state", "await_lost" ->
        withHold(r, holds.get(r.hold));
      default -> withLocks(r, locks.get(r.locks));
    };
  }

  /** A thread of a pool that waits for work, and ends without it. */
  private static boolean isIdle(StackTraceElement[] stack) {
    return java.util.Arrays.stream(stack).anyMatch(
        frame -> frame.getMethodName().equals("getTask") || frame.getMethodName().equals("awaitWork"));
  }

  private Object withHold(Request r, Hold hold) throws Exception {
    switch (r.op) {
      case "release":
        return Map.of("released", isAsync(r) ? hold.releaseAsync().get() : hold.release());
      case "extend":
        if (isAsync(r)) {
          hold.extendAsync(Request.ms(r.ttlMs)).get();
        } else {
          hold.extend(Request.ms(r.ttlMs));
        }
        return Map.of("valid_ms", hold.timeLeft().toMillis());
      case "upgrade":
        if (isAsync(r)) {
          await(hold.upgradeAsync(r.waitMs == null ? null : Request.ms(r.waitMs)));
        } else {
          hold.upgrade(r.waitMs == null ? null : Request.ms(r.waitMs));
        }
        return Map.of("fence", hold.fence(), "mode", hold.mode().toString());
      case "downgrade":
        hold.downgrade();
        return Map.of("fence", hold.fence(), "mode", hold.mode().toString());
      case "hand_over":
        hold.handOver();
        return Map.of();
      case "check":
        hold.check();
        return Map.of();
      case "state":
        Map<String, Object> state = describe(hold);
        state.put("mode", hold.mode().toString());
        state.put("keys", hold.keys());
        state.put("metadata", hold.metadata());
        state.put("lost", hold.lostReason() != null);
        state.put("reason", hold.lostReason() == null ? null : hold.lostReason().toString());
        return state;
      default:
        CompletableFuture<SlockException.Lost> lost = new CompletableFuture<>();
        hold.onLost(lost::complete);
        return Map.of("reason", lost.get().reason().toString());
    }
  }

  private static Map<String, Object> describe(Hold hold) {
    Map<String, Object> all = new LinkedHashMap<>();
    all.put("token", hold.token());
    all.put("fence", hold.fence());
    all.put("valid_ms", hold.timeLeft().toMillis());
    if (hold.fence() == 0) {
      all.put("fences", hold.fences());
    }
    return all;
  }

  private Object keep(Request r, Hold hold) {
    holds.put(r.hold, hold);
    return describe(hold);
  }

  private static boolean isAsync(Request r) {
    return r.id % 2 == 0;
  }

  /** Waits for a future of the library, and cancels it when the operation is cancelled. */
  private static <T> T await(CompletableFuture<T> future) throws Exception {
    try {
      return future.get();
    } catch (InterruptedException e) {
      if (!future.cancel(true)) {
        return future.get();
      }
      throw e;
    }
  }

  private Object withLocks(Request r, Opened o) throws Exception {
    switch (r.op) {
      case "acquire":
        return keep(r, isAsync(r) ? await(r.request(o.locker).acquireAsync()) : r.request(o.locker).acquire());
      case "try_acquire":
        Optional<Hold> hold =
            isAsync(r) ? await(r.request(o.locker).tryAcquireAsync()) : r.request(o.locker).tryAcquire();
        return hold.isPresent() ? keep(r, hold.get()) : Map.of("refused", true);
      case "adopt":
        return keep(r, r.request(o.locker).adopt(r.token));
      case "release_token":
        return Map.of("released", o.locker.release(r.allKeys(), r.token));
      case "block":
        return r.request(o.locker).run(held -> {
          Thread.sleep(r.workMs);
          return Map.of();
        });
      case "info":
        var info = ((Locks) o.locker).info(r.key);
        return Map.of("mode", info.mode().toString(), "readers", info.readers(), "waiters", info.waiters(), "holders",
            info.holders().size(), "queue", info.queue().size());
      case "queues":
        return Map.of("names", ((Locks) o.locker).queues().stream().map(queue -> queue.key()).toList());
      case "work", "wait_many", "cost", "pairs", "handoffs":
        return new Work(base, o, r).perform();
      case "events":
        return Map.of("events", o.events.take());
      case "close":
        o.locker.close();
        return Map.of();
      default:
        throw new IllegalArgumentException("unknown operation " + r.op);
    }
  }
}
