package example.slock.lettuce;

import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.CommandOutput;
import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;

/** Any answer: a Long, a String, null, or a List of these. A map is a flat list. */
final class AnswerOutput extends CommandOutput<String, String, Object> {
  /** A list of which so many items are to come. */
  private static final class Open {
    final List<Object> items = new ArrayList<>();
    int missing;

    Open(int missing) {
      this.missing = missing;
    }
  }

  private final Deque<Open> lists = new ArrayDeque<>();

  AnswerOutput() {
    super(StringCodec.UTF8, null);
  }

  private void add(Object value) {
    if (lists.isEmpty()) {
      output = value;
      return;
    }
    lists.peek().items.add(value);
    while (!lists.isEmpty() && --lists.peek().missing == 0) {
      lists.pop(); // which completes one item of the list around it
    }
  }

  @Override
  public void set(ByteBuffer bytes) {
    add(bytes == null ? null : codec.decodeValue(bytes));
  }

  @Override
  public void setSingle(ByteBuffer bytes) {
    set(bytes);
  }

  @Override
  public void set(long integer) {
    add(integer);
  }

  @Override
  public void set(double number) {
    add(number);
  }

  @Override
  public void set(boolean value) {
    add(value);
  }

  @Override
  public void multi(int count) {
    if (count <= 0) {
      add(count == 0 ? List.of() : null);
      return;
    }
    Open list = new Open(count);
    if (lists.isEmpty()) {
      output = list.items;
    } else {
      lists.peek().items.add(list.items);
    }
    lists.push(list);
  }
}
