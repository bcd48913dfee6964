package example.slock;

import java.util.List;
import java.util.stream.Stream;

/** The outcome of a command: what the server answered, or an error, or a signal of this library. */
record Reply(Object value, Throwable error) {
  static final Reply NO_ANSWER = failed(Answers.NO_ANSWER);
  static final Reply ASK_AGAIN = failed(Answers.ASK_AGAIN);

  static Reply failed(Throwable error) {
    return new Reply(null, error);
  }

  /** Of one command of a pipeline. */
  static Reply of(Object answer) {
    return answer instanceof Throwable error ? failed(error) : new Reply(answer, null);
  }

  /** Two lists as one. */
  Reply and(Reply more) {
    return error != null ? this : more.error != null ? more
        : new Reply(Stream.concat(((List<?>) value).stream(), ((List<?>) more.value).stream()).toList(), null);
  }

  /** The value, or the error by its name. */
  Object get() {
    if (error != null) {
      throw Answers.named(error);
    }
    return value;
  }

  boolean isNull() {
    return error == null && value == null;
  }

  long number() {
    return value instanceof Long number ? number : 0;
  }

  /** The answer to command n of those that went together. The error of all is that of each. */
  Reply at(int n) {
    return error != null ? this : of(((List<?>) value).get(n));
  }
}
