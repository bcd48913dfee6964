package app;

import example.slock.Locks;
import example.slock.Options;
import example.slock.lettuce.LettuceLocks;
import example.slock.shedlock.SlockLockProvider;
import example.slock.spring.SlockLockRegistry;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import java.time.Duration;
import net.javacrumbs.shedlock.core.LockProvider;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.scheduling.annotation.EnableScheduling;

/** Requests and scheduled tasks under locks, in as many processes as you start. */
@SpringBootApplication
@EnableScheduling
public class Application {
  public static void main(String[] arguments) {
    SpringApplication.run(Application.class, arguments);
  }

  /** The client is Spring's, and so are its settings. */
  @Bean(destroyMethod = "close")
  Locks locks(LettuceConnectionFactory factory) {
    RedisURI uri = RedisURI.create(factory.getHostName(), factory.getPort());
    return LettuceLocks.of((RedisClient) factory.getRequiredNativeClient(), uri, new Options().maxHold(Duration.ofMinutes(5)));
  }

  @Bean
  LockProvider lockProvider(Locks locks) {
    return new SlockLockProvider(locks);
  }

  @Bean
  SlockLockRegistry lockRegistry(Locks locks) {
    return new SlockLockRegistry(locks);
  }
}
