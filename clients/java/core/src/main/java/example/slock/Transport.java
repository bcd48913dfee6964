// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock;

import java.util.List;
import java.util.concurrent.CompletionStage;
import java.util.function.Consumer;

/**
 * What {@link Locks} needs of a Redis client library. There is one for Lettuce, one for Jedis, and one without a server for
 * the tests of programs.
 */
public interface Transport {
  /**
   * Sends a command, perhaps more than once. The reply fails if none came: with an {@link IllegalStateException} or an
   * {@link Error} if that cannot change, with a {@link java.util.concurrent.TimeoutException} after the limit, and with anything
   * else if the command may be sent again. What was sent may be carried out later.
   *
   * @param limit how long the caller waits, in ns
   * @param mayBlock the thread that calls waits for the reply anyway, so the command may block it until the limit
   */
  CompletionStage<Reply> call(Call call, long limit, boolean mayBlock);

  /**
   * Subscribes to a channel by SSUBSCRIBE, on the primary that has the channel's slot. It does not wait for the server.
   * {@code changed} is called if the server has confirmed the subscription, and whenever a message may have been missed.
   * What is returned ends the subscription, and replaces the connection of those that share it.
   */
  Runnable listen(String channel, Consumer<String> heard, Runnable changed);

  /** The slot of a key or a channel in a cluster; -1 without a cluster. */
  default int slot(String key) {
    return -1;
  }

  /** Describes the servers. It fails if the client cannot be used. */
  Topology topology();

  /** Ends what the transport has made. The program's client stays open. */
  void close();

  /**
   * A command.
   *
   * @param key tells which primary has to have it, and is the first String among the arguments. If it is empty, the command
   *     goes to each primary, and the reply is a list of theirs
   * @param words the command with its arguments, each a String or a Long
   * @param then a command that follows over the same connection, if it is not empty
   */
  record Call(String key, List<Object> words, List<Object> then) {}

  /**
   * What came back.
   *
   * @param value a Long, a String, null, a list of such, or an {@link ErrorReply}
   * @param then the same of the command that follows
   * @param isAlone the command was certainly sent only once
   */
  record Reply(Object value, Object then, boolean isAlone) {}

  /**
   * The servers behind a transport.
   *
   * @param name the address for texts of errors
   * @param hasFailover another server, which may lack some locks, can take over while the former one still replies, as with
   *     Sentinel. Then {@link Locks} listens while there are holds, and confirms them after a change
   */
  record Topology(String name, boolean hasFailover) {}

  /** An error reply of the server. Its text begins with the code. */
  final class ErrorReply extends RuntimeException {
    /** With the error of the client library, if it has one. */
    public ErrorReply(String text, Throwable cause) {
      super(text, cause, false, false);
    }

    /** The first word. */
    public String code() {
      return getMessage().split(" ", 2)[0];
    }
  }
}
