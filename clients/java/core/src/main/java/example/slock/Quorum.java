package example.slock;

import example.slock.Acquisition.Grant;
import example.slock.SlockException.NodeReply;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeoutException;
import java.util.function.Predicate;

/** Several independent servers, and arithmetic. The algorithm is that of redsync and of the Redis documentation. */
final class Quorum implements Backend {
  final List<Server> nodes;
  final Settings settings;

  Quorum(Locks locks) {
    nodes = locks.servers;
    settings = locks.settings;
  }

  /** The part of a ttl that counts for the validity. */
  long counted(long ttl) {
    return ttl - (long) (ttl * settings.driftFactor) - 2 * Clock.MS;
  }

  @Override
  public void check(Request r) {
    Settings.require(counted(r.settings.ttl) > 0, "the ttl of a quorum must be above 2 ms and the drift");
  }

  @Override
  public Acquisition acquisition(Request request, boolean isTry, Executor on) {
    return new QuorumAcquisition(this, request, isTry, on);
  }

  @Override
  public CompletableFuture<Adopted> adopt(Request r, Executor on) {
    Votes votes = new Votes(this, r);
    return votes.ask(r.settings.ttl, tally -> false,
        (node, until) -> node.take(votes.owner.adopt(r.mode, r.settings), until)).thenCompose(tally -> {
          if (tally.isGranted()) {
            return CompletableFuture.completedFuture(new Adopted(votes, votes.owner, new Grant(0, votes.sent)));
          }
          return CompletableFuture.failedFuture(tally.isRefused() ? new SlockException.NotHeld(r.keys, r.mode)
              : tally.missed(r.keys, Clock.now() - votes.sent));
        });
  }

  @Override
  public CompletableFuture<Integer> release(Request r, Executor on) {
    Votes votes = new Votes(this, r);
    return votes.ask(r.settings.ttl, tally -> false, (node, until) -> node.release(votes.owner, until))
        .thenApply(tally -> (int) tally.count(NodeReply::granted));
  }

  /** The replies of all nodes. Those that have not replied have an error that says that nothing came. */
  record Tally(List<NodeReply> replies) {
    long count(Predicate<NodeReply> is) {
      return replies.stream().filter(is).count();
    }

    boolean isGranted() {
      return count(NodeReply::granted) > replies.size() / 2;
    }

    /** Others have the lock at so many nodes that there can be no majority, whatever the others say. */
    boolean isRefused() {
      return count(r -> !r.granted() && r.error() == null) > (replies.size() - 1) / 2;
    }

    /** A majority is out of reach. */
    boolean isOutOfReach() {
      return count(r -> !r.granted() && !Server.isSilent(r.error())) > (replies.size() - 1) / 2;
    }

    /** A majority of nodes gives errors that last. */
    boolean isFinal() {
      return count(r -> r.error() != null && !Protocol.passes(r.error())) > replies.size() / 2;
    }

    boolean isCertain() {
      return isGranted() || isRefused();
    }

    /** The error of a call that got no majority. */
    SlockException missed(List<String> keys, long waited) {
      String text = "no majority of " + replies.size() + " nodes after " + Clock.text(waited);
      SlockException missed = new SlockException.QuorumMissed(keys, text, replies);
      return isRefused() ? new SlockException.TimedOut(keys, text, List.of(), missed) : missed;
    }

    /** The same without grants: they came too late, or were too few. */
    Tally inVain() {
      return new Tally(replies.stream().map(r -> r.granted() ? new NodeReply(r.node(), false, new RuntimeException(
          "granted, and released since there was no majority")) : r).toList());
    }
  }

  /** An acquisition at a quorum: each attempt has an owner token of its own. */
  private static final class QuorumAcquisition extends Acquisition {
    private final Quorum quorum;
    private final Request request;
    private Votes votes;
    private Tally lastTally;

    QuorumAcquisition(Quorum quorum, Request request, boolean isTry, Executor on) {
      super(quorum.settings, request.keys, request.settings, isTry, on);
      this.quorum = quorum;
      this.request = request;
      polling = quorum.settings.polling;
    }

    @Override
    Keeper keeper() {
      return votes;
    }

    @Override
    Protocol.Owner owner() {
      return votes.owner;
    }

    /** An attempt that failed has been ended. */
    @Override
    void abandon() {}

    @Override
    CompletableFuture<Throwable> failed(boolean isTimedOut) {
      return CompletableFuture.completedFuture(lastTally == null ? Server.noAnswer(names, Clock.now() - began, last)
          : lastTally.missed(names, Clock.now() - began));
    }

    @Override
    CompletableFuture<Grant> send() {
      votes = new Votes(quorum, request);
      return votes.attempt(this).handle((tally, error) -> {
        if (error != null) {
          throw Protocol.failure(Protocol.unwrap(error));
        }
        lastTally = tally;
        last = null;
        if (isLeft()) {
          return CompletableFuture.<Grant>failedFuture(Protocol.Signal.LEFT);
        } else if (tally.isGranted()) {
          return CompletableFuture.completedFuture(new Grant(0, votes.sent));
        } else if (tally.isRefused() && isTry) {
          return CompletableFuture.<Grant>completedFuture(null);
        } else if (isOnce || tally.isFinal()) {
          return failed(false).thenCompose(CompletableFuture::<Grant>failedFuture);
        } else if (tally.isRefused()) {
          contact = Clock.now();
        } else {
          last = new TimeoutException("too few nodes replied");
        }
        return CompletableFuture.<Grant>failedFuture(Protocol.Signal.POLL);
      }).thenCompose(done -> done);
    }
  }
}
