package example.slock;

import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletionException;
import java.util.function.Function;

/** What each answer of the server means. It does no input or output. */
final class Answers {
  /** A signal inside this library. */
  private static final class Signal extends Exception {
    Signal(String text) {
      super(text, null, false, false);
    }
  }

  /** No answer came, so nobody knows whether the command was carried out; if it was sent. */
  static final class Unanswered extends Exception {
    final boolean wasSent;

    Unanswered(Throwable cause, boolean wasSent) {
      super(cause == null ? "the server did not answer" : unwrapped(cause).toString(), unwrapped(cause), false, false);
      this.wasSent = wasSent;
    }
  }

  /** The answer 0 to a command that asks for a lock: others hold it, or wait for it. */
  static final Throwable TAKEN = new Signal("the lock is not free");
  /** The subscription or the hold was lost. */
  static final Throwable ASK_AGAIN = new Signal("ask again");
  /** Nothing came in time. */
  static final Throwable NO_ANSWER = new Unanswered(null, true);
  /** Nothing came, and nothing will: it was not sent. */
  static final Throwable NOT_SENT = new Unanswered(null, false);

  /** The errors after which the same command, with the same token, may succeed a little later. */
  private static final Set<String> TEMPORARY = Set.of("UNBLOCKED", "TRYAGAIN", "READONLY", "LOADING", "MASTERDOWN",
      "CLUSTERDOWN", "GRACE", "NOREPLICAS", "MOVED", "ASK", "NOSUBSCRIBER");
  private static final Map<String, Function<Throwable, RuntimeException>> NAMED = Map.of(
      "WRONGMODE", SlockException.WrongMode::new,
      "NOTHELD", error -> new SlockException.NotHeld("gone", error),
      "DEADLOCK", SlockException.Deadlock::new,
      "QUEUEFULL", SlockException.QueueFull::new,
      "REFUSED", SlockException.Refused::new);

  private Answers() {}

  static boolean isConnectionError(Throwable error) {
    return error instanceof Unanswered;
  }

  static boolean isTemporary(Throwable error) {
    return error == ASK_AGAIN || isConnectionError(error) || TEMPORARY.contains(code(error))
        || hasCode(error, "ERR") && error.getMessage().startsWith("ERR max number of clients reached");
  }

  /** Whether a command was sent and got no answer, so that the server may carry it out at any time later. */
  static boolean mayRunLater(Throwable error) {
    return error instanceof Unanswered unanswered && unanswered.wasSent;
  }

  /** The first word of an error of the server; of another error there is none. */
  private static String code(Throwable error) {
    boolean isOwn = error instanceof Unanswered || error instanceof Signal || error instanceof SlockException;
    return error == null || isOwn || error.getMessage() == null ? "" : error.getMessage().split(" ", 2)[0];
  }

  /** Whether an error of the server begins with this word. */
  static boolean hasCode(Throwable error, String code) {
    return code(error).equals(code);
  }

  /** A refusal of the channel, and not of the keys or of the command. */
  static boolean isAboutChannels(Throwable error) {
    return hasCode(error, "NOPERM") && error.getMessage().contains("channel");
  }

  /** What a program is given for an error: those of the server that have a name get it. */
  static RuntimeException named(Throwable error) {
    if (NAMED.containsKey(code(error))) {
      return NAMED.get(code(error)).apply(error);
    } else if (hasCode(error, "ERR") && error.getMessage().toLowerCase(Locale.ROOT).contains("unknown command")) {
      return new SlockException.ModuleNotLoaded(error);
    }
    return error instanceof RuntimeException e ? e : new SlockException("failed", cause(error));
  }

  /** Without the wrapper of errors that a dependent future has. */
  static Throwable unwrapped(Throwable error) {
    return error instanceof CompletionException && error.getCause() != null ? error.getCause() : error;
  }

  /** What is told as the cause: the error of the base library, where there is one. */
  static Throwable cause(Throwable error) {
    return error instanceof Unanswered && error.getCause() != null ? error.getCause() : error;
  }

  /** An error of the server that came as a message, without its sentence. */
  static final class ServerError extends RuntimeException {
    ServerError(String code) {
      super(code, null, false, false);
    }
  }

  /** The first word of a message: a fence, 0, or the code of an error after a minus. */
  static Reply message(String answer) {
    return answer.startsWith("-") ? Reply.failed(new ServerError(answer.substring(1)))
        : new Reply(Long.parseLong(answer), null);
  }

  /** The address that MOVED or ASK names, or null: one without a host is not known before it has been looked for. */
  static String redirection(Throwable error) {
    if (!hasCode(error, "MOVED") && !hasCode(error, "ASK")) {
      return null;
    }
    String[] words = error.getMessage().split(" ");
    return words.length < 3 || words[2].startsWith(":") ? null : words[2];
  }

  /** The name of the end of an acquisition, for hooks. */
  static String outcome(Hold hold, Throwable error) {
    if (error == null) {
      return hold == null ? "refused" : "granted";
    } else if (error instanceof SlockException.TimedOut) {
      return "timed out";
    } else if (error instanceof CancellationException) {
      return "cancelled";
    }
    return error instanceof SlockException && error.getClass() != SlockException.class
        ? error.getClass().getSimpleName() : "Other";
  }
}
