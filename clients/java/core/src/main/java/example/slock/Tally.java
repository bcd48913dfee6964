package example.slock;

import example.slock.SlockException.NodeAnswer;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Predicate;

/** The answers of the nodes of a quorum, and what they mean together. It sends nothing. */
final class Tally {
  private final List<NodeAnswer> answers;

  /** A node that has not answered yet has the error NO_ANSWER. */
  Tally(List<String> nodes) {
    answers = new ArrayList<>();
    nodes.forEach(node -> answers.add(new NodeAnswer(node, false, Answers.NO_ANSWER)));
  }

  private Tally(Tally other) {
    answers = List.copyOf(other.answers);
  }

  Tally copy() {
    return new Tally(this);
  }

  void note(int node, boolean granted, Throwable error) {
    answers.set(node, new NodeAnswer(answers.get(node).node(), granted, error));
  }

  int needed() {
    return answers.size() / 2 + 1;
  }

  private long count(Predicate<NodeAnswer> is) {
    return answers.stream().filter(is).count();
  }

  int granted() {
    return (int) count(NodeAnswer::granted);
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
    return isRefusal() ? new SlockException.QuorumTimedOut(keys, told, needed())
        : new SlockException.QuorumMissed(told, needed());
  }
}
