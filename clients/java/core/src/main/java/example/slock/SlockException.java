package example.slock;

import java.util.List;
import java.util.Locale;
import java.util.stream.Collectors;

/**
 * What all errors of this library have in common. Errors of the network, and those of the server that have no name
 * here, are those of the base library.
 */
public class SlockException extends RuntimeException {
  SlockException(String text, Throwable cause) {
    super(text + told(cause), cause);
  }

  /** The error and what is behind it, which often says more. */
  private static String told(Throwable cause) {
    StringBuilder all = new StringBuilder();
    Throwable one = cause;
    for (int depth = 0; one != null && depth < 5; depth++) {
      String text = one.getMessage();
      if (text != null && all.indexOf(text) < 0) {
        all.append(": ").append(text);
      }
      one = one.getCause() != null || one.getSuppressed().length == 0 ? one.getCause() : one.getSuppressed()[0];
    }
    return all.toString();
  }

  /** The wait is over, or no answer came in time. The cause is the last error, if there was one. */
  public static final class TimedOut extends SlockException {
    TimedOut(String what, List<String> keys, Throwable cause) {
      super("the wait is over: " + what + " of " + String.join(", ", keys), cause);
    }
  }

  /** Why a hold was lost. */
  public enum Reason {
    /** The server said that the token does not hold the key any more. */
    GONE,
    /** The hold was not renewed in time. */
    EXPIRED,
    /** The longest lease ended. */
    LEASE_ENDED;

    @Override
    public String toString() {
      return name().toLowerCase(Locale.ROOT).replace('_', ' ');
    }
  }

  /** The hold ended, and nobody released it through this library. The cause is the error of the last renewal. */
  public static final class Lost extends SlockException {
    private final Reason reason;

    Lost(List<String> keys, Reason reason, Throwable cause) {
      super("the hold of " + String.join(", ", keys) + " is lost: " + reason, cause);
      this.reason = reason;
    }

    /** Why it was lost. */
    public Reason reason() {
      return reason;
    }
  }

  /** The token does not hold the keys, or not all of them; or the hold has been released or handed over. */
  public static final class NotHeld extends SlockException {
    NotHeld(String text, Throwable cause) {
      super("the token does not hold the lock: " + text, cause);
    }
  }

  /** The token holds the lock in the other mode. */
  public static final class WrongMode extends SlockException {
    WrongMode(Throwable cause) {
      super("the token holds the lock in the other mode", cause);
    }
  }

  /** The wait would have closed a cycle of owners that wait for each other. The text names the cycle. */
  public static final class Deadlock extends SlockException {
    Deadlock(Throwable cause) {
      super("the wait would be a deadlock", cause);
    }
  }

  /** The server lets no more requests wait. */
  public static final class QueueFull extends SlockException {
    QueueFull(Throwable cause) {
      super("too many requests wait on the server", cause);
    }
  }

  /** The server refuses the token, because its acquisition or an upgrade was given up. It is final. */
  public static final class Refused extends SlockException {
    Refused(Throwable cause) {
      super("the server refuses the token", cause);
    }
  }

  /** The lock was granted, but too few replicas confirmed it. It has been released. */
  public static final class TooFewReplicas extends SlockException {
    TooFewReplicas(long confirmed, int needed) {
      super("too few replicas have the lock: " + confirmed + " of " + needed, null);
    }
  }

  /** The server does not know the commands of the module. */
  public static final class ModuleNotLoaded extends SlockException {
    ModuleNotLoaded(Throwable cause) {
      super("the server has not loaded the SLOCK module: start it with --loadmodule /path/to/libslock.so, or run"
          + " MODULE LOAD /path/to/libslock.so", cause);
    }
  }

  /** The locks have been closed. */
  public static final class Closed extends SlockException {
    Closed() {
      super("closed", null);
    }
  }

  /** What one node of a quorum answered: granted, refused (no error), or an error. */
  public record NodeAnswer(String node, boolean granted, Throwable error) {
    @Override
    public String toString() {
      return node + ": " + (error != null ? error.getMessage() : granted ? "granted" : "refused");
    }
  }

  private static String tell(List<NodeAnswer> answers, int needed) {
    long granted = answers.stream().filter(NodeAnswer::granted).count();
    String all = answers.stream().map(NodeAnswer::toString).collect(Collectors.joining("; "));
    return granted + " of " + answers.size() + " nodes granted it, " + needed + " are needed (" + all + ")";
  }

  /** Too few nodes of a quorum granted. It is the cause of a time-out where too many refused for a majority. */
  public static final class QuorumMissed extends SlockException {
    private final transient List<NodeAnswer> answers;

    QuorumMissed(List<NodeAnswer> answers, int needed) {
      super(tell(answers, needed), null);
      this.answers = answers;
      answers.stream().map(NodeAnswer::error).filter(e -> e != null && e != this).forEach(this::addSuppressed);
    }

    /** One answer for each node, in the order in which they were given. */
    public List<NodeAnswer> answers() {
      return answers;
    }
  }
}
