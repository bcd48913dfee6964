package example.slock;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.function.Consumer;

/**
 * Brings commands to the server that has the key, follows redirections, and limits the time. It knows nothing of
 * locks.
 */
final class Servers {
  private static final int MOST_REDIRECTIONS = 5;

  final Transport transport;
  final Reporter report;

  Servers(Transport transport, Reporter report) {
    this.transport = transport;
    this.report = report;
  }

  /**
   * What is sent: for which key, until when, by a thread that may block (null: by none), and where the answer goes. Nobody
   * waits for it any more when the step is done; then it goes to late.
   */
  record Sending(String key, Call.Use use, long limit, Thread caller, CompletableFuture<Reply> step, Consumer<Reply> late,
      CompletableFuture<Void> expired) {}

  private void start(Sending sending, List<List<String>> commands, boolean isPipeline) {
    transport.find(sending.key).whenComplete((node, error) -> {
      if (error != null) {
        end(sending, Reply.failed(new Answers.Unanswered(error.getCause() != null ? error.getCause() : error, false)));
      } else {
        to(sending, node, commands, isPipeline, 0);
      }
    });
    if (!sending.step.isDone() && sending.limit != Clock.NONE) {
      Future<?> timer = Timers.at(sending.limit, () -> {
        if (sending.step.complete(Reply.NO_ANSWER)) {
          note(Answers.NO_ANSWER);
          sending.expired.complete(null);
        }
      });
      sending.step.whenComplete((reply, error) -> timer.cancel(false));
    }
  }

  private void to(Sending sending, Transport.Node node, List<List<String>> commands, boolean isPipeline, int redirections) {
    if (sending.step.isDone()) {
      return;
    }
    Call call = new Call(commands, sending);
    call.done.thenAccept(all -> {
      if (isPipeline || all.error() != null) {
        end(sending, isPipeline ? whole(all) : all);
        return;
      }
      Reply reply = all.at(commands.size() - 1);
      String address = reply.error() == null ? null : Answers.redirection(reply.error());
      if (address == null || redirections == MOST_REDIRECTIONS || sending.step.isDone()) {
        end(sending, reply);
        return;
      }
      transport.reload();
      List<String> last = commands.get(commands.size() - 1);
      boolean isAsk = Answers.hasCode(reply.error(), "ASK");
      to(sending, transport.at(address), isAsk ? List.of(List.of("ASKING"), last) : List.of(last), false, redirections + 1);
    });
    node.send(call);
  }

  private void end(Sending sending, Reply reply) {
    note(reply.error());
    if (!sending.step.complete(reply) && sending.late != null) {
      sending.late.accept(reply);
    }
  }

  /** A temporary error of one command is that of a pipeline, which may be sent again as a whole. */
  private static Reply whole(Reply all) {
    if (all.error() == null) {
      for (Object answer : (List<?>) all.value()) {
        if (answer instanceof Throwable error && Answers.isTemporary(error)) {
          return Reply.failed(error);
        }
      }
    }
    return all;
  }

  /**
   * Sends one command and follows redirections. The step is completed with the answer, or at the limit. Who completes it
   * before leaves the command under way; the answer then goes to late, if that is not null.
   */
  void send(String key, List<String> command, Call.Use use, long limit, Thread caller, CompletableFuture<Reply> step,
      Consumer<Reply> late) {
    start(new Sending(key, use, limit, caller, step, late, new CompletableFuture<>()), List.of(command), false);
  }

  /** Sends commands for the node of the key in one go, on one connection. */
  void pipeline(String key, List<List<String>> commands, Call.Use use, long limit, Thread caller,
      CompletableFuture<Reply> step) {
    start(new Sending(key, use, limit, caller, step, null, new CompletableFuture<>()), commands, true);
  }

  /** Sends one command to a node. */
  CompletableFuture<Reply> ask(Transport.Node node, List<String> command, long limit) {
    CompletableFuture<Reply> step = new CompletableFuture<>();
    Sending sending = new Sending(null, Call.Use.COMMANDS, limit, null, step, null, new CompletableFuture<>());
    to(sending, node, List.of(command), false, MOST_REDIRECTIONS);
    Timers.at(limit, () -> step.complete(Reply.NO_ANSWER));
    return step;
  }

  /** Has the servers looked at again when one does not answer: a failover may be over. */
  void note(Throwable error) {
    report.reached(error);
    if (error != null && Answers.isTemporary(error)) {
      transport.reload();
    }
  }
}
