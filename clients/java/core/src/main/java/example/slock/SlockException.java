// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock;

import java.io.Serializable;
import java.util.List;
import java.util.Locale;
import java.util.Objects;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * What all errors of this library have in common. All other errors are those of the Redis client library, and
 * {@link IllegalArgumentException} and {@link IllegalStateException} for a wrong use: then no lock was asked for.
 */
public class SlockException extends RuntimeException {
  private static final int MOST_CAUSES = 5;
  private final List<String> keys;

  /** About these keys. The text of the cause is added. */
  protected SlockException(List<String> keys, String text, Throwable cause) {
    this(keys, text, "", cause);
  }

  private SlockException(List<String> keys, String text, String more, Throwable cause) {
    super(text + (keys.isEmpty() ? "" : " (lock " + String.join(", ", keys) + ")") + more + told(text, cause), cause);
    this.keys = List.copyOf(keys);
  }

  /** The keys of the request, without the prefix. */
  public List<String> keys() {
    return keys;
  }

  /** The causes, of which the last often says most. */
  private static String told(String text, Throwable cause) {
    return Stream.iterate(cause, Objects::nonNull, SlockException::cause).limit(MOST_CAUSES).map(Throwable::getMessage)
        .filter(next -> next != null && !text.contains(next)).distinct().map(next -> ": " + next).collect(Collectors.joining());
  }

  /** Jedis has the error of a connection among those that it suppressed. */
  private static Throwable cause(Throwable error) {
    Throwable[] others = error.getSuppressed();
    return error.getCause() != null || others.length == 0 ? error.getCause() : others[0];
  }

  /** The server replied, and others held the lock until the wait was over. */
  public static final class TimedOut extends SlockException {
    private final List<Info.Holder> holders;

    /** With the holders that the server named. */
    public TimedOut(List<String> keys, String text, List<Info.Holder> holders, Throwable cause) {
      super(keys, text, (holders.isEmpty() ? "" : ", held by ") + holders.stream()
          .map(one -> (one.metadata() + " " + one.token()).strip()).collect(Collectors.joining(" and ")), cause);
      this.holders = List.copyOf(holders);
    }

    /** Holders of a key when the wait was over, at most 10; none if the user may not run SLOCK.INFO. */
    public List<Info.Holder> holders() {
      return holders;
    }
  }

  /** No reply came from the server within the limit, or none that decides. The cause is the last error. */
  public static final class NoAnswer extends SlockException {
    /** About these keys. */
    public NoAnswer(List<String> keys, String text, Throwable cause) {
      super(keys, text, cause);
    }
  }

  /** Why a hold was lost. */
  public enum Reason {
    /** The server said that the owner token does not hold the keys any more. */
    GONE,
    /** No renewal succeeded in time. */
    EXPIRED,
    /** The maximum hold time has passed. */
    MAX_HOLD,
    /** The {@link Locks} had been closed, so that nothing renewed the hold. */
    CLOSED;

    @Override
    public String toString() {
      return name().toLowerCase(Locale.ROOT).replace('_', ' ');
    }
  }

  /** The hold ended, and nobody released it through this library. The cause is the error of the last renewal. */
  public static final class Lost extends SlockException {
    private final Reason reason;

    /** For this reason. */
    public Lost(List<String> keys, Reason reason, Throwable cause) {
      super(keys, "the lock was lost, " + reason, cause);
      this.reason = reason;
    }

    /** Why it was lost. */
    public Reason reason() {
      return reason;
    }
  }

  /** The owner token does not hold all the keys, for example because the hold was released or detached. */
  public static final class NotHeld extends SlockException {
    NotHeld(List<String> keys, Mode mode) {
      this(keys, "the owner token does not hold the lock for " + mode, null);
    }

    /** About these keys. */
    public NotHeld(List<String> keys, String text, Throwable cause) {
      super(keys, text, cause);
    }
  }

  /** The owner token holds the lock in the other mode. */
  public static final class WrongMode extends SlockException {
    /** About these keys. */
    public WrongMode(List<String> keys, String text, Throwable cause) {
      super(keys, text, cause);
    }
  }

  /** The wait would have closed a cycle of owners that wait for each other. The text names the cycle. */
  public static final class Deadlock extends SlockException {
    /** About these keys. */
    public Deadlock(List<String> keys, String text, Throwable cause) {
      super(keys, text, cause);
    }
  }

  /** The server lets no more requests wait. */
  public static final class QueueFull extends SlockException {
    /** About these keys. */
    public QueueFull(List<String> keys, String text, Throwable cause) {
      super(keys, text, cause);
    }
  }

  /** The server refuses the owner token, because its acquisition has been ended. */
  public static final class Refused extends SlockException {
    /** About these keys. */
    public Refused(List<String> keys, String text, Throwable cause) {
      super(keys, text, cause);
    }
  }

  /** The lock was granted, but too few replicas acknowledged it. It has been released. */
  public static final class TooFewReplicas extends SlockException {
    /** About these keys. */
    public TooFewReplicas(List<String> keys, String text, Throwable cause) {
      super(keys, text, cause);
    }
  }

  /** The server does not know the commands of the module. */
  public static final class ModuleNotLoaded extends SlockException {
    /** About these keys. */
    public ModuleNotLoaded(List<String> keys, String text, Throwable cause) {
      super(keys, text, cause);
    }
  }

  /** The {@link Locks} has been closed. */
  public static final class Closed extends SlockException {
    /** About these keys. */
    public Closed(List<String> keys) {
      super(keys, "the Locks has been closed", null);
    }
  }

  /**
   * The reply of one node of a quorum. If it did not grant and there is no error, others have the lock there.
   *
   * @param granted whether the node granted, extended or released the hold
   */
  public record NodeReply(String node, boolean granted, Throwable error) implements Serializable {
    @Override
    public String toString() {
      return node + ": " + (error != null ? error.getMessage() : granted ? "granted" : "refused");
    }
  }

  /** Neither did a majority of the nodes of a quorum grant the lock, nor a majority refuse it. */
  public static final class QuorumMissed extends SlockException {
    private final List<NodeReply> nodes;

    /** With the replies of the nodes, in the order of the clients. */
    public QuorumMissed(List<String> keys, String text, List<NodeReply> nodes) {
      super(keys, text, "; " + nodes.stream().map(NodeReply::toString).collect(Collectors.joining("; ")), null);
      this.nodes = List.copyOf(nodes);
      nodes.stream().map(NodeReply::error).filter(e -> e != null).forEach(this::addSuppressed);
    }

    /** The replies of the nodes, in the order of the clients. */
    public List<NodeReply> nodes() {
      return nodes;
    }
  }
}
