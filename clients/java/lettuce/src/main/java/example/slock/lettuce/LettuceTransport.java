// SPDX-License-Identifier: MIT OR Apache-2.0

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
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;
import java.util.function.Supplier;

/**
 * The transport over Lettuce. Commands share one connection, which is replaced when it is silent. For one server, or Sentinel,
 * it is one of a second client with the program's resources and options, but without time limits of commands and repetitions.
 */
final class LettuceTransport implements Transport {
  /** How long the first commands of a connection may take. */
  private static final Duration OPENING = Duration.ofMillis(1500);
  /** How soon a subscription is tried again, or the slots of a cluster are asked for again. */
  private static final long AGAIN_MS = 100;
  /** How often Sentinel is asked for the primary while there are channels. */
  private static final long PRIMARY_MS = 1000;
  /** The shortest time in which Lettuce may have repeated a command in a cluster. */
  private static final long REPEATED_NANOS = 5_000_000;
  /** What a server replies that is not the primary any more. */
  private static final Set<String> REFUSALS = Set.of("READONLY", "NOREPLICAS");

  /** In Lettuce before 7, {@code name} is abstract. */
  private record Keyword(String name) implements ProtocolKeyword {
    @Override
    public byte[] getBytes() {
      return name.getBytes(StandardCharsets.US_ASCII);
    }

    /** What spans and metrics are named by. */
    @Override
    public String toString() {
      return name;
    }
  }

  /** One connection, which is opened when it is used, and again after it was lost. */
  private static final class Link<C extends StatefulConnection<String, String>> {
    private final Supplier<CompletionStage<? extends C>> open;
    private volatile CompletableFuture<C> current = CompletableFuture.failedFuture(new IllegalStateException("not used yet"));
    /** What shall replace the current one, while it is being opened. */
    private CompletableFuture<C> next;

    Link(Supplier<CompletionStage<? extends C>> open) {
      this.open = open;
    }

    synchronized CompletableFuture<C> get() {
      if (current.isCompletedExceptionally() || current.isDone() && !current.join().isOpen()) {
        drop(current);
        current = open.get().<C>thenApply(connection -> connection).toCompletableFuture();
      }
      return current;
    }

    /** Has the next command open another connection, unless that has happened. */
    synchronized boolean drop(CompletableFuture<?> old) {
      boolean is = old == current;
      if (is) {
        current.thenAccept(connection -> {
          if (connection.isOpen()) {
            connection.closeAsync();
          }
        });
        current = CompletableFuture.failedFuture(new IllegalStateException("dropped"));
      }
      return is;
    }

    /** Leaves a connection when another one is open. Until then commands go on over it: they may be for other nodes. */
    synchronized void replace(CompletableFuture<C> old) {
      if (old == current && next == null) {
        next = open.get().<C>thenApply(connection -> connection).toCompletableFuture();
        next.whenComplete((connection, error) -> changeTo(connection, old));
      }
    }

    private synchronized void changeTo(C connection, CompletableFuture<C> old) {
      boolean isWanted = connection != null && old == current;
      CompletableFuture<C> spare = isWanted ? old : next;
      current = isWanted ? next : current;
      next = null;
      // By then the commands that were sent over it have their replies.
      spare.thenAcceptAsync(C::closeAsync, CompletableFuture.delayedExecutor(OPENING.toMillis(), TimeUnit.MILLISECONDS));
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
  /** The subscriptions that the server has not confirmed, by channel. */
  private final Map<Object, AsyncCommand<String, String, List<Object>>> unconfirmed = new ConcurrentHashMap<>();
  /** The connections whose messages are heard. */
  private final Set<Object> heard = ConcurrentHashMap.newKeySet();
  private final AtomicBoolean isFollowing = new AtomicBoolean();
  /** The last question for the slots of a cluster, and when it was asked. */
  private CompletableFuture<?> refresh;
  private long refreshed;
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
    commands = new Link<>(this::connect);
    listening = new Link<>(this::connect);
    sentinel = null;
  }

  /** A client that has not been used yet knows no nodes, and then makes no connections. */
  private CompletionStage<StatefulRedisClusterConnection<String, String>> connect() {
    return refresh().handle((done, error) -> cluster.connectAsync(StringCodec.UTF8)).thenCompose(connection -> connection);
  }

  /** Asks for the slots, or has done so just now: of the calls that fail in one outage each would connect to all nodes. */
  private synchronized CompletableFuture<?> refresh() {
    long now = System.nanoTime();
    if (refresh == null || refresh.isDone() && now - refreshed > TimeUnit.MILLISECONDS.toNanos(AGAIN_MS)) {
      refreshed = now;
      refresh = cluster.refreshPartitionsAsync().toCompletableFuture().orTimeout(OPENING.toMillis(), TimeUnit.MILLISECONDS);
    }
    return refresh;
  }

  private boolean hasSentinel() {
    return cluster == null && !uri.getSentinels().isEmpty();
  }

  @Override
  public int slot(String key) {
    // Lettuce's getSlot of a String takes its bytes in the default charset.
    return cluster == null ? -1 : SlotHash.getSlot(key.getBytes(StandardCharsets.UTF_8));
  }

  @Override
  public Topology topology() {
    String name = cluster != null ? "cluster" : hasSentinel() ? uri.getSentinelMasterId()
        : uri.getSocket() != null ? uri.getSocket() : uri.getHost() + ":" + uri.getPort();
    return new Topology(name, hasSentinel());
  }

  // --- commands

  @Override
  public CompletionStage<Reply> call(Call call, long limit, boolean mayBlock) {
    CompletableFuture<StatefulConnection<String, String>> over = commands.get();
    long began = System.nanoTime();
    CompletableFuture<Reply> sent = over.thenCompose(connection -> send(connection, call));
    // orTimeout would wake a thread for each command.
    var timer = resources.timer()
        .newTimeout(now -> sent.completeExceptionally(new TimeoutException()), limit, TimeUnit.NANOSECONDS);
    return sent.handle((reply, error) -> {
      timer.cancel();
      boolean isRefused = error == null && reply.value() instanceof ErrorReply e && REFUSALS.contains(e.code());
      boolean isSilent = error instanceof TimeoutException && over.isDone(); // to open one may take longer than a call
      if (isSilent && cluster != null) {
        commands.replace(over);
      } else if (isSilent || isRefused && hasSentinel()) {
        commands.drop(over);
      }
      boolean isAlone = cluster == null || System.nanoTime() - began < REPEATED_NANOS;
      return error == null ? new Reply(reply.value(), reply.then(), isAlone) : failed(error);
    });
  }

  /** A login that is refused is final, unless the password may change. */
  private Reply failed(Throwable error) {
    Throwable cause = error;
    while (cause != null && !(cause instanceof RedisCommandExecutionException)) {
      cause = cause.getCause();
    }
    if (cluster != null) {
      refresh();
    } else if (cause != null && uri.getCredentialsProvider() instanceof StaticCredentialsProvider) {
      return new Reply(new ErrorReply(cause.getMessage(), cause), null, true);
    }
    throw new CompletionException(error);
  }

  private CompletionStage<Reply> send(StatefulConnection<String, String> connection, Call call) {
    if (!call.key().isEmpty()) {
      return call.then().isEmpty() ? dispatch(connection, call)
          : to(connection, call.key()).thenCompose(one -> dispatch(one, call));
    }
    List<CompletableFuture<Reply>> all = connection instanceof StatefulRedisClusterConnection<String, String> nodes
        ? cluster.getPartitions().stream()
            .filter(node -> node.getRole() == RedisNodeDescription.Role.UPSTREAM && !node.getSlots().isEmpty())
            .map(node -> nodes.getConnectionAsync(node.getNodeId()).thenCompose(one -> dispatch(one, call))).toList()
        : List.of(dispatch(connection, call));
    return CompletableFuture.allOf(all.toArray(CompletableFuture[]::new))
        .thenApply(done -> new Reply(all.stream().map(one -> one.join().value()).toList(), null, true));
  }

  /** The connection to the node that has the slot of a key. */
  private CompletableFuture<StatefulConnection<String, String>> to(StatefulConnection<String, String> connection, String key) {
    return !(connection instanceof StatefulRedisClusterConnection<String, String> nodes)
        ? CompletableFuture.completedFuture(connection)
        : nodes.getConnectionAsync(cluster.getPartitions().getPartitionBySlot(slot(key)).getNodeId())
            .thenApply(one -> one);
  }

  private static CompletableFuture<Reply> dispatch(StatefulConnection<String, String> connection, Call call) {
    var first = command(call.words(), !call.key().isEmpty());
    var value = first.handle(LettuceTransport::value);
    if (call.then().isEmpty()) {
      connection.dispatch(first);
      return value.thenApply(reply -> new Reply(reply, null, true));
    }
    var second = command(call.then(), false);
    connection.dispatch(List.of(first, second));
    return value.thenCombine(second.handle(LettuceTransport::value), (reply, then) -> new Reply(reply, then, true));
  }

  private static AsyncCommand<String, String, List<Object>> command(List<Object> words, boolean hasKey) {
    CommandArgs<String, String> args = new CommandArgs<>(StringCodec.UTF8);
    boolean isKey = hasKey;
    for (Object word : words.subList(1, words.size())) {
      if (word instanceof Long number) {
        args.add(number);
      } else if (isKey) {
        args.addKey((String) word);
        isKey = false;
      } else {
        args.addValue((String) word);
      }
    }
    return new AsyncCommand<>(new Command<>(new Keyword((String) words.get(0)), new NestedMultiOutput<>(StringCodec.UTF8), args));
  }

  /** Lettuce gives a list of one for a plain value, which no list of SLOCK looks like. */
  private static Object value(List<Object> list, Throwable error) {
    if (error instanceof RedisCommandExecutionException) {
      return new ErrorReply(error.getMessage(), error);
    } else if (error != null) {
      throw new CompletionException(error);
    }
    return list.size() == 1 && !(list.get(0) instanceof List) ? list.get(0) : list;
  }

  // --- channels

  @Override
  public Runnable listen(String name, Consumer<String> heard, Runnable changed) {
    channels.put(name, new Channel(heard, changed));
    subscribe(name);
    if (hasSentinel() && !isFollowing.getAndSet(true)) {
      follow();
    }
    return () -> {
      channels.remove(name);
      unconfirmed.remove(name);
      reopen(listening.current);
    };
  }

  /** Listens over a new connection, unless that has happened. */
  private boolean reopen(CompletableFuture<?> of) {
    boolean is = listening.drop(of);
    if (is) {
      heard.clear();
      channels.keySet().forEach(this::subscribe);
    }
    return is;
  }

  private void later(long ms, Runnable task) {
    resources.eventExecutorGroup().schedule(task, ms, TimeUnit.MILLISECONDS);
  }

  /** The reply to SSUBSCRIBE is a push message. Of itself only an error completes a command: its own one, or that of another. */
  private void subscribe(String name) {
    var over = listening.get();
    var command = command(List.of("SSUBSCRIBE", name), true);
    unconfirmed.put(name, command);
    over.thenCompose(connection -> to(connection, name)).thenCompose(connection -> {
      if (heard.add(connection)) {
        hear((StatefulRedisConnection<String, String>) connection, over);
      }
      connection.dispatch(command);
      return command;
    }).orTimeout(OPENING.toMillis(), TimeUnit.MILLISECONDS).exceptionally(error -> {
      String text = String.valueOf(error.getMessage());
      if (text.contains("MOVED ")) {
        refresh();
      }
      if (!text.contains("NOPERM")) { // else the user may not listen
        later(AGAIN_MS, () -> {
          if (unconfirmed.get(name) == command && !reopen(over)) {
            subscribe(name);
          }
        });
      }
      return null;
    });
  }

  private void hear(StatefulRedisConnection<String, String> connection, CompletableFuture<?> of) {
    connection.addListener((PushListener) message -> {
      List<Object> content = message.getContent(StringCodec.UTF8::decodeKey);
      Channel channel = content.size() < 2 ? null : channels.get(content.get(1));
      if (channel == null || of != listening.current) { // what the connections before tell does not count
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
        case "sunsubscribe" -> reopen(of); // the slot has moved
        default -> { }
      }
    });
    connection.addListener(new RedisConnectionStateListener() {
      @Override
      public void onRedisDisconnected(RedisChannelHandler<?, ?> handler) {
        later(AGAIN_MS, () -> reopen(of));
      }
    });
  }

  /** Leaves the connections to the former primary when Sentinel names another one, which they would not notice. */
  private void follow() {
    sentinel.get().thenCompose(to -> to.async().getMasterAddrByName(uri.getSentinelMasterId())).toCompletableFuture()
        .orTimeout(OPENING.toMillis(), TimeUnit.MILLISECONDS).whenComplete((address, error) -> {
          if (error != null) {
            sentinel.drop(sentinel.current);
          } else if (address != null && !address.equals(primary)) { // or the first: what was opened before may be too old
            primary = address;
            commands.drop(commands.current);
            reopen(listening.current);
          }
          isFollowing.set(false);
          if (channels.isEmpty()) {
            primary = null;
          } else if (!isFollowing.getAndSet(true)) { // else a new channel has started it again
            later(PRIMARY_MS, this::follow);
          }
        });
  }

  @Override
  public void close() {
    channels.clear();
    listening.drop(listening.current);
    commands.drop(commands.current);
    if (own != program) {
      own.shutdownAsync(0, 1, TimeUnit.SECONDS);
      own = program; // what is still released goes over it
    }
  }
}
