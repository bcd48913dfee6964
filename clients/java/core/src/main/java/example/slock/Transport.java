package example.slock;

import java.util.List;
import java.util.concurrent.CompletionStage;

/**
 * What this library needs of a base library: it looks which servers there are, sends commands and hands back answers. It
 * knows nothing of locks. It repeats no command, and follows no redirection. A program does not call it.
 */
public interface Transport {
  /** Whether keys are on several nodes, by slots. */
  boolean isCluster();

  /** The slot of a key; 0 where there are no slots. */
  int slot(String key);

  /**
   * Asks for the primaries: the address of the only one, or in a cluster one for each slot, null where there is none. It
   * does not block.
   */
  CompletionStage<List<String>> look();

  /** New connections to the server with this address, {@code host:port}. They are opened when they are used. */
  Node node(String address);

  /** A name for errors. */
  String name();

  /** The connections to one server. */
  interface Node {
    /**
     * Sends the commands of the call on one connection, one right after the other. It blocks only if the call says
     * that it may.
     */
    void send(Call call);

    /** A connection of its own that listens. */
    CompletionStage<? extends Subscription> listen(Heard heard);

    /** Closes all. Commands may still be sent, each over a connection of its own. */
    void close();
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
