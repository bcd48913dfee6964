package example.slock;

import example.slock.SlockException.NodeAnswer;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Predicate;

/**
 * The answers of the nodes of a quorum, and what they mean together. A node that has not answered yet has the error
 * NO_ANSWER. It sends nothing.
 */
record Tally(List<NodeAnswer> answers) {
  static Tally ofNone(List<String> nodes) {
    return new Tally(nodes.stream().map(node -> new NodeAnswer(node, false, Answers.NO_ANSWER)).toList());
  }

  /** With the answer of one more node. */
  Tally with(int node, boolean granted, Throwable error) {
    List<NodeAnswer> more = new ArrayList<>(answers);
    more.set(node, new NodeAnswer(answers.get(node).node(), granted, error));
    return new Tally(more);
  }

  private int needed() {
    return answers.size() / 2 + 1;
  }

  private int count(Predicate<NodeAnswer> is) {
    return (int) answers.stream().filter(is).count();
  }

  boolean isComplete() {
    return count(a -> a.error() == Answers.NO_ANSWER) == 0;
  }

  int granted() {
    return count(NodeAnswer::granted);
  }

  boolean isGranted() {
    return granted() >= needed();
  }

  /** Others have the lock at so many nodes that there can be no majority, whatever the other nodes say. */
  boolean isRefusal() {
    return count(a -> a.error() == null && !a.granted()) > answers.size() - needed();
  }

  boolean isCertain() {
    return isGranted() || isRefusal();
  }

  /** So many nodes have refused or failed that there can be no majority. */
  boolean isOutOfReach() {
    return count(a -> !a.granted() && a.error() != Answers.NO_ANSWER) > answers.size() - needed();
  }

  /** Another attempt may end otherwise: not where a majority of nodes gives errors that last. */
  boolean mayHelp() {
    return count(a -> a.error() != null && !Answers.isTemporary(a.error())) < needed();
  }

  /** The error when nothing more is tried. */
  SlockException over(List<String> keys) {
    List<NodeAnswer> told =
        answers.stream().map(a -> new NodeAnswer(a.node(), a.granted(), Answers.cause(a.error()))).toList();
    SlockException missed = new SlockException.QuorumMissed(told, needed());
    return isRefusal() ? new SlockException.TimedOut("lock", keys, missed) : missed;
  }
}
