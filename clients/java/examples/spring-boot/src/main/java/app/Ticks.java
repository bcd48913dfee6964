package app;

import java.time.Duration;
import java.time.Instant;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockProvider;
import org.springframework.data.redis.core.StringRedisTemplate;
import org.springframework.scheduling.annotation.Scheduled;
import org.springframework.stereotype.Component;

/** A task of each second that only one process runs, though the clocks of machines differ by up to half a second. */
@Component
public class Ticks {
  private final LockProvider provider;
  private final StringRedisTemplate redis;

  Ticks(LockProvider provider, StringRedisTemplate redis) {
    this.provider = provider;
    this.redis = redis;
  }

  @Scheduled(cron = "* * * * * *")
  void tick() {
    Instant now = Instant.now();
    provider.lock(new LockConfiguration(now, "tick", Duration.ofSeconds(10), Duration.ofMillis(500)))
        .ifPresent(lock -> {
          redis.opsForList().rightPush("ticks", Long.toString(Math.round(now.toEpochMilli() / 1000.0)));
          lock.unlock();
        });
  }
}
