package example.slock;

import example.slock.Acquisition.Grant;
import example.slock.SlockException.NodeReply;
import java.util.List;
import java.util.concurrent.CompletableFuture;
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
  public Acquisition acquisition(Request request, boolean isTry) {
    return new QuorumAcquisition(this, request, isTry);
  }

  @Override
  public CompletableFuture<Grant> adopt(Request r) {
    Votes votes = new Votes(this, r);
    return votes.ask(r.settings.ttl, tally -> false,
        (node, until) -> node.take(votes.owner.adopt(r.mode, r.settings), until)).thenApply(tally -> {
          if (tally.isGranted()) {
            return votes.grant();
          }
          throw tally.isRefused() ? new SlockException.NotHeld(r.keys, r.mode) : tally.missed(r.keys, Clock.now() - votes.sent);
        });
  }

  @Override
  public CompletableFuture<Integer> release(Request r) {
    return new Votes(this, r).releaseAll().thenApply(tally -> (int) tally.count(NodeReply::granted));
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

  /** An acquisition at a quorum: each attempt has an owner token of its own, and ends what it got in vain. */
  private static final class QuorumAcquisition extends Acquisition {
    private final Quorum quorum;
    private final Request request;
    private Tally lastTally;

    QuorumAcquisition(Quorum quorum, Request request, boolean isTry) {
      super(quorum.nodes.get(0).locks, request.keys, request.settings, isTry);
      this.quorum = quorum;
      this.request = request;
    }

    @Override
    CompletableFuture<Grant> failed(boolean isPastDeadline) {
      return lastTally == null ? super.failed(isPastDeadline)
          : CompletableFuture.failedFuture(lastTally.missed(names, Clock.now() - began));
    }

    @Override
    CompletableFuture<Grant> attempt() {
      Votes votes = new Votes(quorum, request);
      return votes.attempt(this).thenCompose(tally -> {
        lastTally = tally;
        last = null;
        if (tally.isGranted()) {
          return CompletableFuture.completedFuture(votes.grant());
        } else if (tally.isRefused() && isTry) {
          return CompletableFuture.completedFuture(null);
        } else if (tally.isRefused()) {
          contact = Clock.now();
        } else {
          last = new TimeoutException("too few nodes replied");
        }
        long pause = isOnce || tally.isFinal() ? -1 : quorum.settings.polling.pause(polls++);
        return pause < 0 ? failed(false) : pause(pause);
      });
    }
  }
}
