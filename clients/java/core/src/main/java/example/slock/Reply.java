package example.slock;

import java.util.List;

/** The outcome of a command: what the server answered, or an error, or a signal of this library. */
record Reply(Object value, Throwable error) {
  static final Reply LEFT = failed(Answers.LEFT);
  static final Reply NO_ANSWER = failed(Answers.NO_ANSWER);
  static final Reply ASK_AGAIN = failed(Answers.ASK_AGAIN);

  static Reply failed(Throwable error) {
    return new Reply(null, error);
  }

  /** Of one command of a pipeline. */
  static Reply of(Object answer) {
    return answer instanceof Throwable error ? failed(error) : new Reply(answer, null);
  }

  /** Of several pipelines: what each answered to its first command, or an error. */
  static Reply firsts(List<Reply> pipelines) {
    List<Reply> all = pipelines.stream().map(reply -> reply.error != null ? reply : reply.at(0)).toList();
    return all.stream().filter(reply -> reply.error != null).findFirst()
        .orElseGet(() -> new Reply(all.stream().map(Reply::value).toList(), null));
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

  /** Of a pipeline: the answer to each command. */
  List<Reply> list() {
    return ((List<?>) value).stream().map(Reply::of).toList();
  }

  /** Of a pipeline: the answer to command n. */
  Reply at(int n) {
    return of(((List<?>) value).get(n));
  }
}
