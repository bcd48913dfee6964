package app;

import example.slock.Locks;
import example.slock.SlockException;
import example.slock.spring.SlockLockRegistry;
import java.time.Duration;
import java.util.concurrent.locks.Lock;
import org.springframework.data.redis.core.StringRedisTemplate;
import org.springframework.http.HttpStatus;
import org.springframework.http.ResponseEntity;
import org.springframework.web.bind.annotation.ExceptionHandler;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RestController;

/** Adds one to a counter, which two at once would get wrong. */
@RestController
public class Counter {
  private final Locks locks;
  private final SlockLockRegistry registry;
  private final StringRedisTemplate redis;

  Counter(Locks locks, SlockLockRegistry registry, StringRedisTemplate redis) {
    this.locks = locks;
    this.registry = registry;
    this.redis = redis;
  }

  private String addOne(String key) {
    String before = redis.opsForValue().get(key);
    int count = before == null ? 1 : Integer.parseInt(before) + 1;
    redis.opsForValue().set(key, Integer.toString(count));
    return Integer.toString(count);
  }

  @PostMapping("/add")
  String add() throws InterruptedException {
    return locks.write("counter").waitFor(Duration.ofSeconds(30)).run(hold -> addOne("count"));
  }

  /** The same by the lock of Spring Integration. */
  @PostMapping("/add-by-registry")
  String addByRegistry() {
    Lock lock = registry.obtain("counter");
    lock.lock();
    try {
      return addOne("count");
    } finally {
      lock.unlock();
    }
  }

  /** Busy is not down. */
  @ExceptionHandler(SlockException.TimedOut.class)
  ResponseEntity<String> busy(SlockException.TimedOut e) {
    return ResponseEntity.status(HttpStatus.CONFLICT).body(e.getMessage());
  }

  @ExceptionHandler(SlockException.NoAnswer.class)
  ResponseEntity<String> down(SlockException.NoAnswer e) {
    return ResponseEntity.status(HttpStatus.SERVICE_UNAVAILABLE).body(e.getMessage());
  }
}
