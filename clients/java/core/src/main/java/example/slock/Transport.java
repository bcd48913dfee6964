package example.slock;

import java.util.List;
import java.util.concurrent.CompletionStage;

/**
 * What this library needs of a base library: it sends commands to the right server and hands back answers. It knows
 * nothing of locks. It repeats no command, and follows no redirection. A program does not call it.
 */
public interface Transport {
  /** Whether keys are on several nodes, by slots. */
  boolean isCluster();

  /** The primary that has the key. It does not block. */
  CompletionStage<? extends Node> find(String key);

  /** The node of a cluster with this address, {@code host:port}. */
  Node at(String address);

  /** All primaries that have keys. */
  CompletionStage<? extends List<? extends Node>> primaries();

  /** The servers may have changed: looks for them again, in the background. */
  void reload();

  /** A name for errors. */
  String name();

  /** Closes all connections. Commands may still be sent, each over a connection of its own. */
  void close();

  /** One server. */
  interface Node {
    String address();

    /**
     * Sends the commands of the call on one connection, one right after the other. It blocks only if the call says
     * that it may.
     */
    void send(Call call);

    /** A connection of its own that listens. */
    CompletionStage<? extends Subscription> listen(Heard heard);
  }

  /** A connection that listens to sharded channels. It never connects again. Its methods do not block. */
  interface Subscription {
    void subscribe(String channel);

    void ping();

    void close();
  }

  /** What a listening connection hears. The methods do not block. */
  interface Heard {
    void message(String text);

    void subscribed(String channel);

    void unsubscribed(String channel);

    /** An answer to a ping. */
    void alive();

    /** The server refused a subscription. */
    void refused(Throwable error);

    void closed(Throwable error);
  }
}
