package example.slock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import example.slock.Lease.State;
import java.util.List;
import org.junit.jupiter.api.Test;

class LeaseTest {
  private static final long TTL = 9000 * Clock.MS;

  private static Lease lease() {
    return new Lease(new Lease.Grant(Mode.WRITE, 7, 0, false), TTL, Lease.Drift.ONE_SERVER, true);
  }

  @Test
  void validityIsTheTtlLessAThousandthAndAMillisecond() {
    assertEquals(TTL - TTL / 1000 - Clock.MS, lease().until);
  }

  @Test
  void renewalIsDueAfterAThirdOfTheTtl() {
    Lease lease = lease();
    assertEquals(TTL / 3, lease.due());
    assertNull(lease.begin(TTL / 3 - 1));
    assertEquals(new Lease.Renewal(7, TTL, TTL / 3), lease.begin(TTL / 3));
    assertNull(lease.begin(TTL / 3 + 1));
    assertNotNull(lease.begin(2 * TTL / 3), "without an answer for a third of the ttl another one is sent");
  }

  @Test
  void anAnswerForAnEarlierFenceIsIgnored() {
    Lease lease = lease();
    Lease.Renewal renewal = lease.begin(TTL / 3);
    lease.granted(Mode.READ, 8, TTL / 3);
    assertFalse(lease.renewed(TTL / 2, renewal, false, null));
    assertEquals(State.LIVE, lease.state);
  }

  @Test
  void aZeroWhileAChangeIsOpenIsNoLoss() {
    Lease lease = lease();
    Lease.Renewal renewal = lease.begin(TTL / 3);
    lease.changing = true;
    assertTrue(lease.renewed(TTL / 2, renewal, false, null));
    assertEquals(State.LIVE, lease.state);
    lease.changing = false;
    assertTrue(lease.renewed(TTL / 2, renewal, false, null));
    assertEquals(SlockException.Reason.GONE, lease.reason);
  }

  @Test
  void anExtensionNeverShortens() {
    Lease lease = lease();
    long until = lease.until;
    lease.lengthen(0, TTL / 2);
    assertEquals(until, lease.until);
  }

  @Test
  void theLossNamesTheKeysAndTheErrorOfTheLastRenewal() {
    Lease lease = lease();
    lease.renewed(TTL / 3, lease.begin(TTL / 3), false, new Answers.Unanswered(new RuntimeException("refused"), true));
    lease.look(TTL);
    SlockException problem = lease.problem(List.of("a", "b"));
    assertEquals("the hold of a, b is lost: expired: refused", problem.getMessage());
  }

  @Test
  void theLongestLeaseEndsTheHold() {
    Lease lease = lease();
    lease.leaseEnd = TTL / 2;
    lease.look(TTL / 2);
    assertEquals(SlockException.Reason.LEASE_ENDED, lease.reason);
  }
}
