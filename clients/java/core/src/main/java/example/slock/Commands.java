package example.slock;

import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;

/**
 * The words of the commands of one owner: a token and the keys that it asks for or holds. It sends nothing. A given token
 * is the program's: other acquisitions may use it too.
 */
record Commands(List<String> keys, String token, boolean given) {
  /** For how long the server refuses a token after its acquisition was given up, in ms: no command is later. */
  static final long REFUSE_MS = 120_000;
  /** No hold has it. */
  static final long NO_FENCE = 1;
  private static final SecureRandom RANDOM = new SecureRandom();

  /** 128 random bits in 22 characters, which the server keeps without memory of their own. */
  static String newToken() {
    byte[] bits = new byte[16];
    RANDOM.nextBytes(bits);
    return Base64.getEncoder().withoutPadding().encodeToString(bits);
  }

  String key() {
    return keys.get(0);
  }

  /** A command for one key or for several, by its two names. */
  private List<String> command(String single, String several, Object... rest) {
    List<String> words = new ArrayList<>(keys.size() + rest.length + 8);
    if (keys.size() == 1 && single != null) {
      words.add(single);
    } else {
      words.add(several);
      words.add(Integer.toString(keys.size()));
    }
    words.addAll(keys);
    words.add(token);
    return with(words, rest);
  }

  /** The words with further ones, in the same list. */
  private static List<String> with(List<String> words, Object... rest) {
    for (Object word : rest) {
      words.add(word.toString());
    }
    return words;
  }

  private List<String> lock(Mode mode, long ttl) {
    return mode == Mode.READ ? command("SLOCK.RLOCK", "SLOCK.MRLOCK", Clock.milliseconds(ttl))
        : command("SLOCK.LOCK", "SLOCK.MLOCK", Clock.milliseconds(ttl));
  }

  List<String> lock(Mode mode, Options s) {
    List<String> words = lock(mode, s.ttl);
    if (!s.metadata.isEmpty()) {
      with(words, "META", s.metadata);
    }
    return s.limit != null ? with(words, "LIMIT", s.limit) : words;
  }

  /** The command with a wait; the rest says how to wait. */
  static List<String> waiting(List<String> command, long waitMs, Object... rest) {
    return with(with(new ArrayList<>(command), "WAIT", waitMs), rest);
  }

  /** Gives the fence of what the token holds in the mode, and never takes a lock. */
  List<String> refresh(Mode mode, long ttl) {
    return with(lock(mode, ttl), "XX");
  }

  /** Never shortens, so it does no harm when it arrives late. */
  List<String> extend(long ttl, long fence) {
    return command("SLOCK.EXTEND", "SLOCK.MEXTEND", Clock.milliseconds(ttl), "GT", "FENCE", fence);
  }

  List<String> change(Mode to, long ttl, long fence) {
    return command(to == Mode.WRITE ? "SLOCK.UPGRADE" : "SLOCK.DOWNGRADE", null, Clock.milliseconds(ttl), "FENCE", fence);
  }

  /** Releases the hold with the fence and no other. */
  List<String> release(Mode mode, long fence) {
    return command(mode == Mode.READ ? "SLOCK.RUNLOCK" : "SLOCK.UNLOCK", "SLOCK.MUNLOCK", "FENCE", fence);
  }

  /** Releases whatever the token holds, in either mode. The rest may name a fence. */
  List<String> releaseInAnyMode(Object... rest) {
    return command(null, "SLOCK.MUNLOCK", rest);
  }

  /** Withdraws what waits. The server refuses what a token of the library asks for later, by the name of each key. */
  List<List<String>> cancel() {
    List<List<String>> all = new ArrayList<>();
    for (String key : keys) {
      all.add(given ? List.of("SLOCK.CANCEL", key, token)
          : List.of("SLOCK.CANCEL", key, token, "REFUSE", Long.toString(REFUSE_MS)));
    }
    return all;
  }

  /** Asks for the fence of what the token holds to write, and to read. */
  List<List<String>> lookAtModes(long ttl) {
    return List.of(refresh(Mode.WRITE, ttl), refresh(Mode.READ, ttl));
  }

  /**
   * The end of an acquisition in doubt: nothing waits, and nothing is held, whatever was carried out so far. With a given
   * token only the hold with the fence is released; the answers to the two commands before the last one tell which fence
   * the token has.
   */
  List<List<String>> end(long fence) {
    List<List<String>> all = cancel();
    if (given) {
      all.addAll(lookAtModes(Clock.MS));
    }
    all.add(given ? releaseInAnyMode("FENCE", fence) : releaseInAnyMode());
    return all;
  }
}
