package example.slock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;

class AnswersTest {
  @Test
  void aRedirectionThatNamesNoHostIsAskedAgain() {
    assertEquals("host:7001", Answers.redirection(new RuntimeException("MOVED 5 host:7001")));
    Throwable moved = new RuntimeException("MOVED 5 :7001");
    assertNull(Answers.redirection(moved));
    assertTrue(Answers.isTemporary(moved));
  }
}
