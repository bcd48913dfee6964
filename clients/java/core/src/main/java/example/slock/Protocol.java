// SPDX-License-Identifier: MIT OR Apache-2.0

package example.slock;

import example.slock.Transport.Call;
import example.slock.Transport.ErrorReply;
import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletionException;
import java.util.concurrent.RejectedExecutionException;
import java.util.function.BiFunction;

/** The words of the commands, and what the replies mean. It sends nothing. */
final class Protocol {
  /** For how long, in ns, the server refuses an owner token after the end of its acquisition. */
  static final long REFUSE = 120 * Clock.SECOND;
  /** How long a request waits on the server at most unless it is sent again: the queue forgets a program that has died. */
  static final long SERVER_WAIT = 15 * Clock.SECOND;

  /** After these codes the same command, with the same token, may succeed a little later. */
  private static final Set<String> PASSING = Set.of("UNBLOCKED", "TRYAGAIN", "READONLY", "LOADING", "MASTERDOWN",
      "CLUSTERDOWN", "GRACE", "NOREPLICAS", "MISCONF", "MOVED", "ASK", "NOSUBSCRIBER");
  /** Errors that say neither that a reply is missing nor that it may come: also those of linkage, and of programming. */
  private static final List<Class<?>> FINAL = List.of(SlockException.class, Signal.class, Error.class,
      NullPointerException.class, ClassCastException.class, IllegalArgumentException.class,
      UnsupportedOperationException.class, IndexOutOfBoundsException.class, IllegalStateException.class,
      RejectedExecutionException.class);
  private static final Map<String, BiFunction<List<String>, ErrorReply, SlockException>> ERRORS = Map.of(
      "DEADLOCK", (keys, e) -> new SlockException.Deadlock(keys, e.getMessage(), e.getCause()),
      "QUEUEFULL", (keys, e) -> new SlockException.QueueFull(keys, e.getMessage(), e.getCause()),
      "WRONGMODE", (keys, e) -> new SlockException.WrongMode(keys, e.getMessage(), e.getCause()),
      "NOTHELD", (keys, e) -> new SlockException.NotHeld(keys, e.getMessage(), e.getCause()),
      "REFUSED", (keys, e) -> new SlockException.Refused(keys, e.getMessage(), e.getCause()));

  private static final SecureRandom RANDOM = new SecureRandom();

  private Protocol() {}

  /** 128 random bits as text: an owner token or a tag, both secret. */
  static String draw() {
    byte[] bits = new byte[16];
    RANDOM.nextBytes(bits);
    return Base64.getEncoder().withoutPadding().encodeToString(bits);
  }

  /**
   * An owner token and the keys that it wants or holds.
   *
   * @param names the keys for the program
   * @param keys those for the server, with the prefix
   * @param isGiven the token is the program's: other acquisitions may use it too
   */
  record Owner(List<String> names, List<String> keys, String token, boolean isGiven) {
    static Owner of(Request r) {
      Settings s = r.settings;
      List<String> keys = s.prefix.isEmpty() ? r.keys : r.keys.stream().map(name -> s.prefix + name).toList();
      return new Owner(r.keys, keys, s.token == null ? draw() : s.token, s.token != null);
    }

    /** A command for one key or for several, by its two names. */
    private Call call(String single, String several, List<?>... options) {
      List<Object> words = new ArrayList<>(keys.size() + 12);
      if (keys.size() == 1 && single != null) {
        words.add(single);
      } else {
        words.add(several);
        words.add((long) keys.size());
      }
      words.addAll(keys);
      words.add(token);
      for (List<?> option : options) {
        words.addAll(option);
      }
      return new Call(keys.get(0), words, List.of());
    }

    private static List<?> option(boolean is, Object... words) {
      return is ? List.of(words) : List.of();
    }

    private Call take(Mode mode, List<?>... options) {
      return mode == Mode.READ ? call("SLOCK.RLOCK", "SLOCK.MRLOCK", options) : call("SLOCK.LOCK", "SLOCK.MLOCK", options);
    }

    /** Asks for the lock. */
    Call lock(Mode mode, Settings s) {
      String metadata = s.metadata();
      return take(mode, List.of(Clock.millis(s.ttl)), option(!metadata.isEmpty(), "META", metadata),
          s.limit == null ? List.of() : List.of("LIMIT", (long) s.limit));
    }

    /** Gives the fence of what the token holds in the mode, and never takes a lock. */
    Call adopt(Mode mode, long ttl, String metadata) {
      return take(mode, List.of(Clock.millis(ttl), "XX"), option(!metadata.isEmpty(), "META", metadata));
    }

    /** Has the hold with the fence (0: whatever the token holds) end a ttl from now, or, if it only lengthens, not before. */
    Call extend(long ttl, long fence, boolean lengthens) {
      return call("SLOCK.EXTEND", "SLOCK.MEXTEND", List.of(Clock.millis(ttl)), option(lengthens, "GT"),
          option(fence > 0, "FENCE", fence));
    }

    /**
     * If a release may have to lengthen the hold to {@code atLeast}: asks whether the server takes that as a ttl. It extends the
     * hold of an owner that nobody is, so it changes nothing. Else null.
     */
    Call question(Settings s) {
      return s.atLeast > s.ttl ? new Owner(names, keys, draw(), false).extend(s.atLeast, 0, true) : null;
    }

    /** Makes the hold of a single key one of this mode. */
    Call change(Mode to, long ttl, long fence) {
      return call(to == Mode.READ ? "SLOCK.DOWNGRADE" : "SLOCK.UPGRADE", null, List.of(Clock.millis(ttl)),
          option(fence > 0, "FENCE", fence));
    }

    /** Ends what waits for the first key, also if it waits for all keys. */
    Call withdraw() {
      return new Call(keys.get(0), List.of("SLOCK.CANCEL", keys.get(0), token), List.of());
    }

    /**
     * Ends the acquisition: the server withdraws what waits, releases what is held, and refuses what arrives later. A token of
     * the program's may be in use for another hold: it is not refused, what waits stays (see {@link #withdraw}), and the hold
     * with the fence ends, if that is known.
     */
    Call end(long fence) {
      return call(null, "SLOCK.MUNLOCK", option(!isGiven, "REFUSE", Clock.millis(REFUSE)),
          option(isGiven && fence > 0, "FENCE", fence));
    }
  }

  /** The command with a place in the queue, whose end is told on a channel. */
  static Call waiting(Call call, long wait, String channel, String tag) {
    List<Object> words = new ArrayList<>(call.words());
    words.addAll(List.of("WAIT", Clock.millis(wait), "NOTIFY", channel, tag));
    return new Call(call.key(), words, List.of());
  }

  /** The message {@code <n> <tag>}: n is a fence, 0, or the code of an error after a minus. */
  record Message(String tag, long fence, ErrorReply error) {
    static Message of(String payload) {
      String[] parts = payload.split(" ", 2);
      String tag = parts.length == 2 ? parts[1] : "";
      if (parts[0].startsWith("-")) {
        return new Message(tag, 0, new ErrorReply(parts[0].substring(1) + " the server ended the wait", null));
      }
      try {
        return new Message(tag, Long.parseLong(parts[0]), null);
      } catch (NumberFormatException e) {
        return new Message("", 0, null);
      }
    }
  }

  static String code(Throwable error) {
    return error instanceof ErrorReply reply ? reply.code() : "";
  }

  /** The error itself, which a future may have wrapped. */
  static Throwable unwrap(Throwable error) {
    return error instanceof CompletionException && error.getCause() != null ? error.getCause() : error;
  }

  /** What a step of a future throws to fail with this. */
  static CompletionException failure(Throwable error) {
    return new CompletionException(error);
  }

  /** Whether the same command may be sent again after this. */
  static boolean passes(Throwable error) {
    if (error instanceof ErrorReply reply) {
      return PASSING.contains(reply.code()) || reply.getMessage().contains("max number of clients reached");
    }
    return error != null && FINAL.stream().noneMatch(type -> type.isInstance(error));
  }

  /** The error that the program gets. */
  static Throwable explain(Throwable error, List<String> keys) {
    if (!(error instanceof ErrorReply reply)) {
      return error;
    }
    if (ERRORS.containsKey(reply.code())) {
      return ERRORS.get(reply.code()).apply(keys, reply);
    } else if (reply.getMessage().toLowerCase(Locale.ROOT).contains("unknown command")) {
      return new SlockException.ModuleNotLoaded(keys, "the server has not loaded the SLOCK module: start it with"
          + " --loadmodule /path/to/libslock.so, or run MODULE LOAD /path/to/libslock.so", reply.getCause());
    }
    return reply.getCause() != null ? reply.getCause() : reply;
  }

  /** What an attempt ends with that is no error: the next one follows at once, unless the caller has left. */
  static final class Signal extends RuntimeException {
    static final Signal AGAIN = new Signal();

    private Signal() {
      super("send again", null, false, false);
    }
  }
}
