import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisException;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.ComplexData;
import io.lettuce.core.output.ComplexOutput;
import io.lettuce.core.output.IntegerOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeoutException;
import java.util.stream.Collectors;

/**
 * A lock by Lettuce: wait, work and release; give up a wait; look.
 *
 * <p>Usage: java Lock port key work counter | try counter | give-up | info
 *
 * <p>Work adds one to the counter; try does so only if the lock is free. A wait is given up when standard
 * input ends.
 */
class Lock {
    static final Duration TTL = Duration.ofSeconds(30), LONGEST_WAIT = Duration.ofMinutes(1),
        REFUSAL = Duration.ofMinutes(2);

    enum Command implements ProtocolKeyword {
        LOCK, UNLOCK, MUNLOCK, INFO;

        @Override
        public byte[] getBytes() {
            return ("SLOCK." + name()).getBytes(StandardCharsets.US_ASCII);
        }
    }

    final RedisClient client;
    final StatefulRedisConnection<String, String> commands;

    Lock(int port) {
        client = RedisClient.create("redis://127.0.0.1:" + port);
        commands = client.connect();
    }

    /** Returns the fence, or 0 when the wait is over. When it throws, neither hold nor request is left. */
    long acquire(String key, String token) throws InterruptedException, ExecutionException {
        try (var waiting = client.connect()) { // for this wait and nothing else
            waiting.setTimeout(LONGEST_WAIT.plusSeconds(5));
            var request = arguments(key, token).add(TTL.toMillis()).add("WAIT").add(LONGEST_WAIT.toMillis());
            var answer = waiting.async().dispatch(Command.LOCK, integer(), request);
            try {
                return answer.get();
            } catch (InterruptedException | ExecutionException problem) {
                // In another thread, so that a second interrupt does not stop it.
                CompletableFuture.runAsync(() -> end(key, token)).join();
                throw problem;
            }
        }
    }

    /** Returns the fence, or 0 at once when another owner holds or waits. When it throws, nothing is left. */
    long tryAcquire(String key, String token) {
        try {
            return ask(Command.LOCK, arguments(key, token).add(TTL.toMillis()));
        } catch (RedisException problem) {
            end(key, token);
            throw problem;
        }
    }

    /** Leaves neither a hold nor a request. One that is still on its way is refused when it arrives. */
    void end(String key, String token) {
        var keys = new CommandArgs<>(StringCodec.UTF8).add(1).addKey(key);
        ask(Command.MUNLOCK, keys.add(token).add("REFUSE").add(REFUSAL.toMillis()));
    }

    long ask(Command command, CommandArgs<String, String> arguments) {
        return commands.sync().dispatch(command, integer(), arguments);
    }

    static IntegerOutput<String, String> integer() {
        return new IntegerOutput<>(StringCodec.UTF8);
    }

    static CommandArgs<String, String> arguments(String key, String argument) {
        return new CommandArgs<>(StringCodec.UTF8).addKey(key).add(argument);
    }

    /** Tells the mode, the fence and the tokens of the holders. */
    String info(String key) {
        var output = new ComplexOutput<>(StringCodec.UTF8, data -> data);
        ComplexData reply = commands.sync().dispatch(Command.INFO, output, arguments(key, "FULL"));
        if (reply == null) {
            return "nobody";
        }
        var lock = reply.getDynamicMap();
        var holders = ((ComplexData) lock.get("holders")).getDynamicList().stream();
        var tokens = holders.map(holder -> (String) ((ComplexData) holder).getDynamicMap().get("token"));
        return lock.get("mode") + " " + lock.get("fence") + " " + tokens.collect(Collectors.joining(","));
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
            var value = commands.sync().get(counter);
            commands.sync().set(counter, String.valueOf(value == null ? 1 : Long.parseLong(value) + 1));
        } finally {
            ask(Command.UNLOCK, arguments(key, token));
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
            lock.client.shutdown(Duration.ZERO, Duration.ofSeconds(1));
        }
    }
}
