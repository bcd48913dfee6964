package example.slock.lettuce;

import example.slock.Call;
import example.slock.Transport;
import io.lettuce.core.RedisChannelHandler;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisConnectionStateListener;
import io.lettuce.core.RedisException;
import io.lettuce.core.RedisURI;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.NestedMultiOutput;
import io.lettuce.core.protocol.AsyncCommand;
import io.lettuce.core.protocol.Command;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import io.lettuce.core.pubsub.RedisPubSubListener;
import io.lettuce.core.pubsub.StatefulRedisPubSubConnection;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.ReentrantLock;

/**
 * The connections to one server. Commands share one connection. Where what is under way there has no answer for long,
 * further commands go over the next, so that one silent connection does not hold all up.
 */
final class LettuceNode implements Transport.Node {
  /** How long a connection may be without an answer before others are used. */
  private static final long PATIENCE_NANOS = 50_000_000;
  /** When a call had no answer in time, the others on its connection have so much longer. */
  private static final int OVERDUE_MILLIS = 2000;
  private static final int MOST_SPARE = 8;

  private record Keyword(String word) implements ProtocolKeyword {
    @Override
    public byte[] getBytes() {
      return word.getBytes(StandardCharsets.US_ASCII);
    }
  }

  private final RedisClient client;
  private final RedisURI uri;
  private final Lane first = new Lane();
  private final Lane second = new Lane();
  /** For commands that go alone: all, and those that are not in use. */
  private final Set<Lane> alone = ConcurrentHashMap.newKeySet();
  private final Queue<Lane> spare = new ConcurrentLinkedQueue<>();
  private volatile boolean isClosed;

  LettuceNode(RedisClient client, RedisURI uri) {
    this.client = client;
    this.uri = uri;
  }

  @Override
  public void send(Call call) {
    if (isClosed || call.use() == Call.Use.ALONE) {
      Lane found = spare.poll();
      Lane lane = found != null ? found : new Lane();
      alone.add(lane);
      lane.send(call, () -> {
        if (isClosed || spare.size() >= MOST_SPARE) {
          alone.remove(lane);
          lane.close();
        } else {
          spare.add(lane);
        }
      });
      return;
    }
    (first.isSlow() ? second : first).send(call, () -> {});
  }

  @Override
  public void close() {
    isClosed = true;
    first.close();
    second.close();
    alone.forEach(Lane::close);
  }

  /** A place for one connection, which is opened when it is used, and again after it was lost. */
  private final class Lane {
    private final AtomicInteger underWay = new AtomicInteger();
    private final ReentrantLock opening = new ReentrantLock();
    private volatile long movedAt;
    private volatile CompletableFuture<StatefulRedisConnection<String, String>> connection = new CompletableFuture<>();
    /** Gets no more commands: one there had no answer in time. */
    private volatile CompletableFuture<StatefulRedisConnection<String, String>> left = connection;

    /** What is under way has had no answer for long. */
    boolean isSlow() {
      return underWay.get() > 0 && System.nanoTime() - movedAt > PATIENCE_NANOS;
    }

    private CompletableFuture<StatefulRedisConnection<String, String>> open() {
      opening.lock();
      try {
        boolean isUsable = connection != left
            && (!connection.isDone() || !connection.isCompletedExceptionally() && connection.join().isOpen());
        if (!isUsable) {
          CompletableFuture<StatefulRedisConnection<String, String>> made = new CompletableFuture<>();
          client.connectAsync(StringCodec.UTF8, uri).whenComplete((to, error) -> {
            if (error != null) {
              made.completeExceptionally(error);
            } else if (!made.complete(to)) {
              to.closeAsync(); // nobody waits for it any more
            }
          });
          connection = made;
        }
        return connection;
      } finally {
        opening.unlock();
      }
    }

    void send(Call call, Runnable afterwards) {
      CompletableFuture<StatefulRedisConnection<String, String>> over = open();
      if (underWay.getAndIncrement() == 0) {
        movedAt = System.nanoTime();
      }
      Runnable ended = () -> {
        movedAt = System.nanoTime();
        underWay.decrementAndGet();
        afterwards.run();
      };
      over.whenComplete((to, error) -> {
        if (error != null || call.isOver()) {
          ended.run();
          call.failed(error, false);
        } else {
          write(call, to, ended);
        }
      });
      call.whenExpired(() -> {
        left = over;
        int millis = alone.contains(this) ? 0 : OVERDUE_MILLIS; // others may still have answers
        CompletableFuture.delayedExecutor(millis, TimeUnit.MILLISECONDS).execute(() -> close(over));
      });
    }

    private void close(CompletableFuture<StatefulRedisConnection<String, String>> which) {
      which.thenCompose(to -> to.isOpen() ? to.closeAsync() : CompletableFuture.completedFuture(null));
      which.cancel(true); // unless it is open
    }

    void close() {
      close(connection);
      close(left);
    }
  }

  private static AsyncCommand<String, String, List<Object>> command(List<String> words) {
    CommandArgs<String, String> args = new CommandArgs<>(StringCodec.UTF8).addValues(words.subList(1, words.size()));
    return new AsyncCommand<>(new Command<>(new Keyword(words.get(0)), new NestedMultiOutput<>(StringCodec.UTF8), args));
  }

  private static void write(Call call, StatefulRedisConnection<String, String> to, Runnable ended) {
    List<AsyncCommand<String, String, List<Object>>> all = call.commands().stream().map(LettuceNode::command).toList();
    CompletableFuture.allOf(all.toArray(AsyncCommand[]::new)).whenComplete((done, failed) -> {
      ended.run();
      List<Object> answers = all.stream().map(LettuceNode::answer).toList();
      answers.stream().filter(LettuceNode::isLost).findFirst().ifPresentOrElse(
          problem -> call.failed((Throwable) problem, true), () -> call.answered(answers));
    });
    try {
      to.dispatch(all);
    } catch (RuntimeException e) {
      all.forEach(command -> command.completeExceptionally(e));
    }
  }

  /** What a command has ended with. Lettuce gives a list of one for a plain value, which no list of SLOCK looks like. */
  private static Object answer(AsyncCommand<String, String, List<Object>> command) {
    if (command.isCompletedExceptionally()) {
      return command.handle((none, error) -> error).join();
    }
    List<Object> list = command.join();
    return list.size() == 1 && !(list.get(0) instanceof List) ? list.get(0) : list;
  }

  /** The command may have been sent, and has no answer. */
  private static boolean isLost(Object answer) {
    return answer instanceof Throwable && !(answer instanceof RedisCommandExecutionException);
  }

  // --- listening

  @Override
  public CompletionStage<Listening> listen(Transport.Heard heard) {
    return client.connectPubSubAsync(StringCodec.UTF8, uri).thenApply(to -> new Listening(to, heard));
  }

  /** A connection that listens. */
  static final class Listening extends RedisPubSubAdapter<String, String>
      implements Transport.Subscription, RedisConnectionStateListener {
    private final StatefulRedisPubSubConnection<String, String> connection;
    private final Transport.Heard heard;

    Listening(StatefulRedisPubSubConnection<String, String> connection, Transport.Heard heard) {
      this.connection = connection;
      this.heard = heard;
      connection.addListener((RedisPubSubListener<String, String>) this);
      connection.addListener((RedisConnectionStateListener) this);
    }

    @Override
    public void subscribe(String channel) {
      connection.async().ssubscribe(channel).whenComplete((done, error) -> {
        if (error instanceof RedisCommandExecutionException) {
          heard.refused(error);
        } else if (error != null) {
          heard.closed(error);
        }
      });
    }

    @Override
    public void ping() {
      connection.async().ping().thenAccept(pong -> heard.alive());
    }

    @Override
    public void close() {
      connection.closeAsync();
    }

    @Override
    public void smessage(String channel, String message) {
      heard.message(message);
    }

    @Override
    public void ssubscribed(String channel, long count) {
      heard.subscribed(channel);
    }

    @Override
    public void sunsubscribed(String channel, long count) {
      heard.unsubscribed(channel);
    }

    @Override
    public void onRedisDisconnected(RedisChannelHandler<?, ?> of) {
      heard.closed(new RedisException("the listening connection was lost"));
    }
  }
}
