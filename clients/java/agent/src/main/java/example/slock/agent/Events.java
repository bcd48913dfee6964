package example.slock.agent;

import example.slock.Hooks;
import example.slock.SlockException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** Notes what the hooks report. */
final class Events implements Hooks {
  private List<Map<String, Object>> all = new ArrayList<>();

  private synchronized void add(Map<String, Object> event) {
    all.add(event);
  }

  synchronized List<Map<String, Object>> take() {
    List<Map<String, Object>> taken = all;
    all = new ArrayList<>();
    return taken;
  }

  @Override
  public void waited(String label, Duration duration, String outcome) {
    add(Map.of("event", "waited", "label", label, "outcome", outcome, "duration_ms", duration.toMillis()));
  }

  @Override
  public void held(String label, Duration duration) {
    add(Map.of("event", "held", "label", label, "duration_ms", duration.toMillis()));
  }

  @Override
  public void lost(String label, SlockException.Lost loss) {
    add(Map.of("event", "lost", "label", label, "keys", loss.keys(), "reason", loss.reason().toString()));
  }

  @Override
  public void renewalFailed(String label, Throwable error) {
    add(Map.of("event", "renewal failed", "label", label, "error", String.valueOf(error.getMessage())));
  }

  @Override
  public void releaseFailed(String label, Throwable error) {
    add(Map.of("event", "release failed", "label", label, "error", String.valueOf(error.getMessage())));
  }
}
