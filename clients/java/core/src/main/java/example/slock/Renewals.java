package example.slock;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;

/** Sends renewals: those for one node together, and not behind other commands. Their answers go to the holds. */
final class Renewals {
  private static final int MOST_AT_ONCE = 1000;

  private Renewals() {}

  static void send(Locks locks, List<Watchdog.Due> due) {
    Map<String, List<Watchdog.Due>> bySlot = new HashMap<>();
    for (Watchdog.Due one : due) {
      String slot = locks.servers.transport.isCluster() ? Slots.place(one.hold().owner.key()) : "";
      bySlot.computeIfAbsent(slot, name -> new ArrayList<>()).add(one);
    }
    for (List<Watchdog.Due> all : bySlot.values()) {
      for (int from = 0; from < all.size(); from += MOST_AT_ONCE) {
        together(locks, all.subList(from, Math.min(all.size(), from + MOST_AT_ONCE)));
      }
    }
  }

  private static void together(Locks locks, List<Watchdog.Due> due) {
    List<List<String>> commands = new ArrayList<>();
    long limit = 0;
    for (Watchdog.Due one : due) {
      commands.add(one.hold().owner.extend(one.renewal().ttl(), one.renewal().fence()));
      limit = Math.max(limit, Clock.in(one.renewal().ttl()));
    }
    CompletableFuture<Transport.Node> to = locks.servers.find(due.get(0).hold().owner.key());
    CompletableFuture<Reply> step = new CompletableFuture<>();
    step.thenAccept(all -> {
      for (int n = 0; n < due.size(); n++) {
        Reply reply = all.error() != null ? all : all.at(n);
        due.get(n).hold().renewed(due.get(n).renewal(), reply.number() == 1, reply.error());
      }
    });
    locks.servers.pipeline(to, commands, Call.Use.RENEWALS, limit, step);
  }
}
