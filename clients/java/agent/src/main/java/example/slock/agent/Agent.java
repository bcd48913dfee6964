package example.slock.agent;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import example.slock.Hold;
import example.slock.Locks;
import example.slock.SlockException;
import example.slock.Transport;
import example.slock.testing.MemoryServer;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
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
  private final Map<String, MemoryServer> memories = new ConcurrentHashMap<>();
  private final Map<String, Hold> holds = new ConcurrentHashMap<>();
  private final Map<Long, Task> running = new ConcurrentHashMap<>();
  private final ExecutorService threads = Executors.newCachedThreadPool(task -> {
    Thread thread = new Thread(task, THREADS + "operation");
    thread.setDaemon(true);
    return thread;
  });

  /** What an open made. */
  record Opened(Locks locker, Base.Filler filler, MemoryServer memory, Events events, Request request) {}

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
    }
    return error instanceof SlockException && error.getClass() != SlockException.class
        ? error.getClass().getSimpleName() : "Other";
  }

  private Object perform(Request r) throws Exception {
    return switch (r.op) {
      case "open" -> {
        Events events = new Events();
        locks.put(r.locks, open(r, events));
        yield Map.of();
      }
      case "open_quorum" -> {
        Events events = new Events();
        locks.put(r.locks, new Opened(base.openQuorum(r, r.options().hooks(events)), seconds -> {}, null, events, r));
        yield Map.of();
      }
      case "tasks" -> Map.of("count", Thread.getAllStackTraces().entrySet().stream()
          .filter(one -> !one.getKey().getName().startsWith(THREADS) && !isIdle(one.getValue())).count());
      case "release", "extend", "upgrade", "downgrade", "detach", "check", "state", "await_lost" ->
        withHold(r, holds.get(r.hold));
      default -> withLocks(r, locks.get(r.locks));
    };
  }

  private Opened open(Request r, Events events) {
    if (r.kind.equals("memory")) {
      MemoryServer memory = memories.computeIfAbsent(r.nodes.get(0), name -> new MemoryServer());
      return new Opened(new Locks(memory, r.options().hooks(events)), seconds -> {}, memory, events, r);
    }
    Base.Opened opened = base.open(r, r.options().hooks(events));
    return new Opened(opened.locks(), opened.filler(), null, events, r);
  }

  /** A thread of a pool that waits for work, and ends without it. */
  private static boolean isIdle(StackTraceElement[] stack) {
    return java.util.Arrays.stream(stack).anyMatch(
        frame -> frame.getMethodName().equals("getTask") || frame.getMethodName().equals("awaitWork"));
  }

  private Object withHold(Request r, Hold hold) throws Exception {
    switch (r.op) {
      case "release":
        if (isAsync(r)) {
          hold.releaseAsync().get();
        } else {
          hold.release();
        }
        return Map.of();
      case "extend":
        if (isAsync(r)) {
          hold.extendAsync(Request.ms(r.ttlMs)).get();
        } else {
          hold.extend(Request.ms(r.ttlMs));
        }
        return Map.of("remaining_ms", hold.remaining().toMillis());
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
      case "detach":
        hold.detach();
        return Map.of();
      case "check":
        hold.check();
        return Map.of();
      case "state":
        Map<String, Object> state = describe(hold);
        state.put("mode", hold.mode().toString());
        state.put("keys", hold.keys());
        state.put("metadata", hold.metadata());
        state.put("lost", hold.isLost());
        state.put("reason", null);
        try {
          hold.check();
        } catch (SlockException.Lost e) {
          state.put("reason", e.reason().toString());
        } catch (SlockException.NotHeld e) {
          // released
        }
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
    all.put("remaining_ms", hold.remaining().toMillis());
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

  private Object raw(Request r, Opened o) {
    if (o.memory == null) {
      try (Base.Plain plain = base.plain(o.request.nodes.get(0), 1)) {
        return plain.call(0, r.command.toArray(String[]::new));
      }
    }
    List<Object> words = List.copyOf(r.command);
    Object reply = o.memory.call(new Transport.Call("memory", words, List.of()), 0, true).toCompletableFuture().join().value();
    return reply instanceof Transport.ErrorReply error ? error.getMessage() : reply;
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
        var info = o.locker.info(r.key);
        return Map.of("key", r.key, "mode", info.mode().toString(), "readers", info.readers(), "waiters", info.waiters(),
            "holders", info.holders().size(), "queue", info.queue().size(),
            "tokens", info.holders().stream().map(holder -> holder.token()).toList());
      case "fill_pool":
        o.filler.fill(r.ms / 1000.0);
        return Map.of();
      case "raw":
        return Collections.singletonMap("reply", raw(r, o));
      case "queues":
        return Map.of("names", o.locker.queues().stream().map(queue -> queue.key()).toList());
      case "work", "wait_many", "cost", "pairs", "handoffs":
        return new Work(base, o, r).perform();
      case "events":
        return Map.of("events", o.events.take());
      case "close":
        if (r.release) {
          o.locker.closeAndRelease();
        } else {
          o.locker.close();
        }
        return Map.of();
      default:
        throw new IllegalArgumentException("unknown operation " + r.op);
    }
  }
}
