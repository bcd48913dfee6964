package example.slock;

import java.nio.charset.StandardCharsets;

/** The slots of a cluster. */
final class Slots {
  private Slots() {}

  /** What of a key is hashed: the part in its braces, if there is one, or all. */
  private static String tag(String key) {
    int start = key.indexOf('{');
    int end = start < 0 ? -1 : key.indexOf('}', start + 1);
    return end > start + 1 ? key.substring(start + 1, end) : key;
  }

  /**
   * What has to be in braces in the name of a channel, which has to be in the slot of the key. There is nothing for a key
   * that is hashed as a whole and has a brace in it.
   */
  static String place(String key) {
    String tag = tag(key);
    return tag.contains("}") ? "" : tag;
  }

  /** The slot of a key, by CRC16/XMODEM. */
  static int of(String key) {
    int crc = 0;
    for (byte b : tag(key).getBytes(StandardCharsets.UTF_8)) {
      crc ^= (b & 0xff) << 8;
      for (int bit = 0; bit < 8; bit++) {
        crc = (crc & 0x8000) != 0 ? crc << 1 ^ 0x1021 : crc << 1;
      }
    }
    return (crc & 0xffff) % 16384;
  }
}
