package example.slock.lettuce;

import example.slock.Transport;
import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisChannelHandler;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisConnectionStateListener;
import io.lettuce.core.RedisURI;
import io.lettuce.core.StaticCredentialsProvider;
import io.lettuce.core.TimeoutOptions;
import io.lettuce.core.api.StatefulConnection;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.api.push.PushListener;
import io.lettuce.core.api.push.PushMessage;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.SlotHash;
import io.lettuce.core.cluster.api.StatefulRedisClusterConnection;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.models.role.RedisNodeDescription;
import io.lettuce.core.output.NestedMultiOutput;
import io.lettuce.core.protocol.AsyncCommand;
import io.lettuce.core.protocol.Command;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import io.lettuce.core.protocol.ProtocolVersion;
import io.lettuce.core.resource.ClientResources;
import io.lettuce.core.sentinel.api.StatefulRedisSentinelConnection;
import java.net.SocketAddress;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.Supplier;

/**
 * The transport over Lettuce. Commands share one connection, which is replaced when it is silent. For one server, or Sentinel,
 * it is one of a second client with the program's resources and options, but without time limits of commands and repetitions.
 */
final class LettuceTransport implements Transport {
  /** How long the first commands of a connection may take. */
  private static final Duration OPENING = Duration.ofMillis(1500);
  /** How soon a subscription is tried again. */
  private static final long AGAIN_MS = 100;
  /** How often Sentinel is asked for the primary while there are channels. */
  private static final long PRIMARY_MS = 1000;
  /** The shortest time in which Lettuce may have repeated a command in a cluster. */
  private static final long REPEATED_NANOS = 5_000_000;

  /** In Lettuce before 7, {@code name} is abstract. */
  private record Keyword(String name) implements ProtocolKeyword {
    @Override
    public byte[] getBytes() {
      return name.getBytes(StandardCharsets.US_ASCII);
    }
  }

  /** One connection, which is opened when it is used, and again after it was lost. */
  private static final class Link<C extends StatefulConnection<String, String>> {
    private final Supplier<CompletionStage<? extends C>> open;
    private CompletableFuture<C> current;

    Link(Supplier<CompletionStage<? extends C>> open) {
      this.open = open;
    }

    synchronized CompletableFuture<C> get() {
      boolean isUsable = current != null && !current.isCompletedExceptionally() && (!current.isDone() || current.join().isOpen());
      if (!isUsable) {
        drop();
        current = open.get().<C>thenApply(connection -> connection).toCompletableFuture();
      }
      return current;
    }

    synchronized void drop() {
      if (current != null) {
        current.thenAccept(connection -> {
          if (connection.isOpen()) {
            connection.closeAsync();
          }
        });
      }
      current = null;
    }
  }

  private record Channel(Consumer<String> heard, Runnable changed) {}

  private final RedisClient program;
  private final RedisURI uri;
  private final RedisClusterClient cluster;
  private final ClientResources resources;
  private final Link<StatefulConnection<String, String>> commands;
  private final Link<StatefulConnection<String, String>> listening;
  private final Link<StatefulRedisSentinelConnection<String, String>> sentinel;
  private final Map<String, Channel> channels = new ConcurrentHashMap<>();
  private volatile Ears ears = new Ears();
  private volatile RedisClient own;
  private volatile SocketAddress primary;

  LettuceTransport(RedisClient client, RedisURI of) {
    program = client;
    RedisURI.Builder copy = RedisURI.builder(of).withTimeout(OPENING);
    if (of.getSentinelMasterId() != null) {
      copy.withSentinelMasterId(of.getSentinelMasterId());
      of.getSentinels().forEach(one -> copy.withSentinel(RedisURI.builder(one).withTimeout(OPENING).build()));
    }
    uri = copy.build();
    cluster = null;
    resources = client.getResources();
    own = RedisClient.create(resources);
    own.setOptions(client.getOptions().mutate().autoReconnect(false).timeoutOptions(TimeoutOptions.create())
        .protocolVersion(ProtocolVersion.RESP3).disconnectedBehavior(ClientOptions.DisconnectedBehavior.REJECT_COMMANDS).build());
    commands = new Link<>(() -> own.connectAsync(StringCodec.UTF8, uri));
    listening = new Link<>(() -> own.connectAsync(StringCodec.UTF8, uri));
    sentinel = new Link<>(() -> own.connectSentinelAsync(StringCodec.UTF8, uri));
  }

  LettuceTransport(RedisClusterClient client) {
    program = null;
    uri = null;
    cluster = client;
    resources = client.getResources();
    commands = new Link<>(() -> connect(client));
    listening = new Link<>(() -> connect(client));
    sentinel = null;
  }

  /** A client that has not been used yet knows no nodes, and then makes no connections. */
  private static CompletionStage<StatefulRedisClusterConnection<String, String>> connect(RedisClusterClient client) {
    return client.refreshPartitionsAsync().toCompletableFuture().orTimeout(OPENING.toMillis(), TimeUnit.MILLISECONDS)
        .handle((done, error) -> client.connectAsync(StringCodec.UTF8)).thenCompose(connection -> connection);
  }

  private boolean hasSentinel() {
    return cluster == null && !uri.getSentinels().isEmpty();
  }

  @Override
  public Topology topology() {
    String name = cluster != null ? "cluster" : hasSentinel() ? uri.getSentinelMasterId()
        : uri.getSocket() != null ? uri.getSocket() : uri.getHost() + ":" + uri.getPort();
    return new Topology(name, cluster != null, hasSentinel());
  }

  // --- commands

  @Override
  public CompletionStage<Reply> call(Call call, Executor blocking) {
    CompletableFuture<Reply> result = new CompletableFuture<>();
    CompletableFuture<StatefulConnection<String, String>> over = commands.get();
    long began = System.nanoTime();
    result.whenComplete((reply, error) -> {
      boolean isRefused = reply != null && reply.value() instanceof ErrorReply e
          && (e.code().equals("READONLY") || e.code().equals("NOREPLICAS"));
      boolean isSilent = error != null && over.isDone() && System.nanoTime() - began > call.limit() / 2;
      if (isSilent || isRefused && hasSentinel()) { // one that is being opened may take longer than a call
        replace(over);
      }
    });
    over.thenCompose(connection -> send(connection, call)).whenComplete((values, failure) -> {
      Throwable error = failure == null ? null : refusedLogin(failure);
      if (error instanceof ErrorReply refused) {
        result.complete(new Reply(refused, null, true));
      } else if (error != null) {
        if (cluster != null) {
          cluster.refreshPartitionsAsync();
        }
        result.completeExceptionally(error);
      } else {
        boolean isAlone = cluster == null || System.nanoTime() - began < REPEATED_NANOS;
        result.complete(new Reply(values.get(0), values.size() > 1 ? values.get(1) : null, isAlone));
      }
    });
    return result;
  }

  /** Has the next command open another connection: this one was silent, or belongs to another server. */
  private void replace(CompletableFuture<StatefulConnection<String, String>> over) {
    synchronized (commands) {
      if (commands.current == over) {
        commands.drop();
      }
    }
  }

  /** A login that is refused is final, unless the password may change. */
  private Throwable refusedLogin(Throwable error) {
    boolean isStatic = cluster == null && uri.getCredentialsProvider() instanceof StaticCredentialsProvider;
    for (Throwable e = error; e != null; e = e.getCause()) {
      if (e instanceof RedisCommandExecutionException && isStatic) {
        return new ErrorReply(e.getMessage(), e);
      }
    }
    return error;
  }

  private CompletionStage<List<Object>> send(StatefulConnection<String, String> connection, Call call) {
    if (!call.key().isEmpty()) {
      return call.then().isEmpty() ? dispatch(connection, commands(call))
          : to(connection, call.key()).thenCompose(one -> dispatch(one, commands(call)));
    }
    List<CompletableFuture<List<Object>>> all = connection instanceof StatefulRedisClusterConnection<String, String> nodes
        ? cluster.getPartitions().stream()
            .filter(node -> node.getRole() == RedisNodeDescription.Role.UPSTREAM && !node.getSlots().isEmpty())
            .map(node -> nodes.getConnectionAsync(node.getNodeId()).thenCompose(one -> dispatch(one, commands(call)))).toList()
        : List.of(dispatch(connection, commands(call)));
    return CompletableFuture.allOf(all.toArray(CompletableFuture[]::new))
        .thenApply(done -> List.of(all.stream().map(one -> one.join().get(0)).toList()));
  }

  /** The connection to the node that has the slot of a key. */
  private CompletableFuture<StatefulConnection<String, String>> to(StatefulConnection<String, String> connection, String key) {
    return !(connection instanceof StatefulRedisClusterConnection<String, String> nodes)
        ? CompletableFuture.completedFuture(connection)
        : nodes.getConnectionAsync(cluster.getPartitions().getPartitionBySlot(SlotHash.getSlot(key)).getNodeId())
            .thenApply(one -> one);
  }

  private static List<AsyncCommand<String, String, List<Object>>> commands(Call call) {
    int keyAt = call.key().isEmpty() ? 0 : call.keyAt();
    return call.then().isEmpty() ? List.of(command(call.words(), keyAt))
        : List.of(command(call.words(), keyAt), command(call.then(), 0));
  }

  private static AsyncCommand<String, String, List<Object>> command(List<Object> words, int keyAt) {
    CommandArgs<String, String> args = new CommandArgs<>(StringCodec.UTF8);
    for (int n = 1; n < words.size(); n++) {
      if (words.get(n) instanceof Long number) {
        args.add(number);
      } else if (n == keyAt) {
        args.addKey((String) words.get(n));
      } else {
        args.addValue((String) words.get(n));
      }
    }
    return new AsyncCommand<>(new Command<>(new Keyword((String) words.get(0)), new NestedMultiOutput<>(StringCodec.UTF8), args));
  }

  private static CompletableFuture<List<Object>> dispatch(StatefulConnection<String, String> connection,
      List<AsyncCommand<String, String, List<Object>>> all) {
    connection.dispatch(all);
    return CompletableFuture.allOf(all.stream().map(one -> one.handle((v, e) -> null)).toArray(CompletableFuture[]::new))
        .thenApply(done -> {
          List<Object> values = new ArrayList<>();
          all.forEach(one -> values.add(one.handle(LettuceTransport::value).join()));
          return values;
        });
  }

  /** Lettuce gives a list of one for a plain value, which no list of SLOCK looks like. */
  private static Object value(List<Object> list, Throwable error) {
    if (error instanceof RedisCommandExecutionException) {
      return new ErrorReply(error.getMessage(), error);
    } else if (error != null) {
      throw error instanceof RuntimeException e ? e : new CompletionException(error);
    }
    return list.size() == 1 && !(list.get(0) instanceof List) ? list.get(0) : list;
  }

  // --- channels

  @Override
  public Runnable listen(String name, Consumer<String> heard, Runnable changed) {
    boolean isFirst = channels.isEmpty();
    channels.put(name, new Channel(heard, changed));
    subscribe(name, ears);
    if (isFirst && hasSentinel()) {
      follow();
    }
    return () -> {
      channels.remove(name);
      reopen();
    };
  }

  /** Listens over a new connection. */
  private synchronized void reopen() {
    Ears now = new Ears();
    ears = now;
    listening.drop();
    channels.keySet().forEach(name -> subscribe(name, now));
  }

  private void later(long ms, Runnable task) {
    resources.eventExecutorGroup().schedule(task, ms, TimeUnit.MILLISECONDS);
  }

  /** The reply to SSUBSCRIBE is a push message. Of itself only an error completes a command: its own one, or that of another. */
  private void subscribe(String name, Ears of) {
    var command = command(List.of("SSUBSCRIBE", name), 1);
    of.unconfirmed.put(name, command);
    command.handle((none, error) -> error == null ? null : of.failed(error));
    later(OPENING.toMillis(), () -> {
      if (!command.isDone()) {
        of.again();
      }
    });
    listening.get().thenCompose(connection -> to(connection, name)).thenAccept(connection -> {
      of.hear((StatefulRedisConnection<String, String>) connection);
      connection.dispatch(List.of(command));
    }).exceptionally(of::failed);
  }

  /** What the listening connections tell, until others take their place. */
  private final class Ears implements PushListener, RedisConnectionStateListener {
    private final Set<Object> connections = ConcurrentHashMap.newKeySet();
    private final Map<Object, AsyncCommand<String, String, List<Object>>> unconfirmed = new ConcurrentHashMap<>();

    void hear(StatefulRedisConnection<String, String> connection) {
      if (connections.add(connection)) {
        connection.addListener((PushListener) this);
        connection.addListener((RedisConnectionStateListener) this);
      }
    }

    private Void failed(Throwable error) {
      String text = String.valueOf(error.getMessage());
      if (text.contains("MOVED ")) {
        cluster.refreshPartitionsAsync();
      }
      if (!text.contains("NOPERM")) { // else the user may not listen
        again();
      }
      return null;
    }

    @Override
    public void onPushMessage(PushMessage message) {
      List<Object> content = message.getContent(StringCodec.UTF8::decodeKey);
      Channel channel = content.size() < 2 ? null : channels.get(content.get(1));
      if (channel == null || this != ears) {
        return;
      }
      switch (message.getType()) {
        case "smessage" -> channel.heard.accept((String) content.get(2));
        case "ssubscribe" -> {
          var command = unconfirmed.remove(content.get(1));
          if (command != null) {
            command.complete(); // so that no time limit of the client ends it
          }
          channel.changed.run();
        }
        case "sunsubscribe" -> again(); // the slot has moved
        default -> { }
      }
    }

    @Override
    public void onRedisDisconnected(RedisChannelHandler<?, ?> of) {
      again();
    }

    void again() {
      later(AGAIN_MS, () -> {
        if (this == ears) {
          reopen();
        }
      });
    }
  }

  /** Leaves the connections to the former primary when Sentinel names another one, which they would not notice. */
  private void follow() {
    sentinel.get().thenCompose(to -> to.async().getMasterAddrByName(uri.getSentinelMasterId())).toCompletableFuture()
        .orTimeout(OPENING.toMillis(), TimeUnit.MILLISECONDS).whenComplete((address, error) -> {
          if (error != null) {
            sentinel.drop();
          } else if (address != null && !address.equals(primary)) { // or the first: what was opened before may be too old
            primary = address;
            commands.drop();
            reopen();
          }
          if (!channels.isEmpty()) {
            later(PRIMARY_MS, this::follow);
          } else {
            primary = null;
          }
        });
  }

  @Override
  public void close() {
    channels.clear();
    listening.drop();
    commands.drop();
    if (cluster == null) {
      sentinel.drop();
      RedisClient made = own;
      own = program; // what is still released goes over it
      if (made != program) {
        made.shutdownAsync(0, 1, TimeUnit.SECONDS);
      }
    }
  }
}
