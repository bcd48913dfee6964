import java.io.InputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeoutException;
import java.util.stream.Collectors;
import redis.clients.jedis.BuilderFactory;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.CommandObject;
import redis.clients.jedis.ConnectionPoolConfig;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.commands.ProtocolCommand;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.executors.RetryableCommandExecutor;
import redis.clients.jedis.providers.PooledConnectionProvider;
import redis.clients.jedis.util.KeyValue;

/**
 * A lock by Jedis: wait, work and release; give up a wait; look.
 *
 * <p>Usage: java Lock port key work counter | try counter | give-up | info
 *
 * <p>Work adds one to the counter; try does so only if the lock is free. A wait is given up when standard
 * input ends.
 */
class Lock {
    static final Duration TTL = Duration.ofSeconds(30), LONGEST_WAIT = Duration.ofMinutes(1),
        REFUSAL = Duration.ofMinutes(2);

    enum Command implements ProtocolCommand {
        LOCK, UNLOCK, MUNLOCK, INFO;

        @Override
        public byte[] getRaw() {
            return ("SLOCK." + name()).getBytes(StandardCharsets.US_ASCII);
        }
    }

    final ExecutorService threads = Executors.newCachedThreadPool();
    final RedisClient commands, waiting;

    Lock(int port) {
        // Jedis does not send a command again. A release has to arrive.
        var provider = new PooledConnectionProvider(new HostAndPort("127.0.0.1", port));
        commands = RedisClient.builder().connectionProvider(provider)
            .commandExecutor(new RetryableCommandExecutor(provider, 5, Duration.ofSeconds(10))).build();
        // For WAIT and nothing else: so many can wait at once.
        var pool = new ConnectionPoolConfig();
        pool.setMaxTotal(100);
        var timeout = (int) LONGEST_WAIT.plusSeconds(5).toMillis();
        var settings = DefaultJedisClientConfig.builder().blockingSocketTimeoutMillis(timeout).build();
        waiting = RedisClient.builder().hostAndPort("127.0.0.1", port)
            .poolConfig(pool).clientConfig(settings).build();
    }

    /** Returns the fence, or 0 when the wait is over. When it throws, neither hold nor request is left. */
    long acquire(String key, String token) throws InterruptedException, ExecutionException {
        // Another thread waits for the reply, because an interrupt does not end the read of a socket.
        Future<Long> answer = threads.submit(() -> (Long) waiting.sendBlockingCommand(
            Command.LOCK, key, token, "" + TTL.toMillis(), "WAIT", "" + LONGEST_WAIT.toMillis()));
        try {
            return answer.get();
        } catch (InterruptedException | ExecutionException problem) {
            // In another thread, so that a second interrupt does not stop it.
            CompletableFuture.runAsync(() -> end(key, token)).join();
            throw problem;
        }
    }

    /** Returns the fence, or 0 at once when another owner holds or waits. When it throws, nothing is left. */
    long tryAcquire(String key, String token) {
        try {
            return (long) commands.sendCommand(Command.LOCK, key, token, "" + TTL.toMillis());
        } catch (JedisException problem) {
            end(key, token);
            throw problem;
        }
    }

    /** Leaves neither a hold nor a request. One that is still on its way is refused when it arrives. */
    void end(String key, String token) {
        commands.sendCommand(Command.MUNLOCK, "1", key, token, "REFUSE", "" + REFUSAL.toMillis());
    }

    /** Tells the mode, the fence and the tokens of the holders. */
    String info(String key) {
        var request = new CommandArguments(Command.INFO).key(key).add("FULL");
        Map<String, Object> lock = commands.executeCommand(
            new CommandObject<>(request, BuilderFactory.ENCODED_OBJECT_MAP));
        if (lock == null) {
            return "nobody";
        }
        var holders = ((List<?>) lock.get("holders")).stream();
        var tokens = holders.map(Lock::token).collect(Collectors.joining(","));
        return lock.get("mode") + " " + lock.get("fence") + " " + tokens;
    }

    /** A map within the reply is a list of pairs. */
    static String token(Object holder) {
        var pairs = ((List<?>) holder).stream().map(pair -> (KeyValue<?, ?>) pair);
        var token = pairs.filter(pair -> pair.getKey().equals("token")).findFirst();
        return (String) token.orElseThrow().getValue();
    }

    void work(String key, String counter) throws Exception {
        var token = UUID.randomUUID().toString();
        if (acquire(key, token) == 0) {
            throw new TimeoutException("the wait is over");
        }
        addAndRelease(key, token, counter);
    }

    String tryToWork(String key, String counter) {
        var token = UUID.randomUUID().toString();
        if (tryAcquire(key, token) == 0) {
            return "busy";
        }
        addAndRelease(key, token, counter);
        return "done";
    }

    void addAndRelease(String key, String token, String counter) {
        try {
            var value = commands.get(counter);
            commands.set(counter, String.valueOf(value == null ? 1 : Long.parseLong(value) + 1));
        } finally {
            commands.sendCommand(Command.UNLOCK, key, token);
        }
    }

    void waitUntilTheInputEnds(String key) throws Exception {
        var me = Thread.currentThread();
        var input = new Thread(() -> {
            try (InputStream in = System.in) {
                in.transferTo(OutputStream.nullOutputStream());
            } catch (java.io.IOException problem) {
                throw new java.io.UncheckedIOException(problem);
            }
            me.interrupt();
        });
        input.setDaemon(true);
        input.start();
        try {
            acquire(key, UUID.randomUUID().toString());
        } catch (InterruptedException expected) {
            return;
        }
        throw new AssertionError("not given up");
    }

    public static void main(String[] arguments) throws Exception {
        var lock = new Lock(Integer.parseInt(arguments[0]));
        var key = arguments[1];
        try {
            switch (arguments[2]) {
                case "work" -> lock.work(key, arguments[3]);
                case "try" -> System.out.println(lock.tryToWork(key, arguments[3]));
                case "give-up" -> lock.waitUntilTheInputEnds(key);
                case "info" -> System.out.println(lock.info(key));
                default -> throw new IllegalArgumentException(arguments[2]);
            }
        } finally {
            lock.threads.shutdown();
            lock.waiting.close();
            lock.commands.close();
        }
    }
}
