// Which slot of a cluster a key has. Pure.

import type {Key} from "./commands.js";

const SLOTS = 16384;

const TABLE = Uint16Array.from({length: 256}, (_, index) => {
  let crc = index << 8;
  for (let bit = 0; bit < 8; bit++) crc = crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1;
  return crc;
});

function crc16(bytes: Uint8Array): number {
  let crc = 0;
  for (const byte of bytes) crc = ((crc << 8) ^ TABLE[((crc >> 8) ^ byte) & 0xff]!) & 0xffff;
  return crc;
}

const OPEN = "{".charCodeAt(0);
const CLOSE = "}".charCodeAt(0);

/** What of a key is hashed: what stands in its first braces, if anything does. */
function hashed(name: Buffer): Buffer {
  const begin = name.indexOf(OPEN);
  const end = begin < 0 ? -1 : name.indexOf(CLOSE, begin + 1);
  return end > begin + 1 ? name.subarray(begin + 1, end) : name;
}

export function slotOf(key: Key): number { return crc16(hashed(Buffer.from(key))) % SLOTS; }

/** What to put into braces so that a name hashes to the slot of `key`. */
export function hashTag(key: Key): string {
  const part = hashed(Buffer.from(key));
  const text = part.toString();
  if (part.length > 0 && !part.includes(CLOSE) && part.equals(Buffer.from(text))) return text;
  return nameIn(slotOf(key)); // such a name does not fit into braces, or into text
}

// Of the numbers that were tried, the first in each slot.
const NUMBERS: (string | undefined)[] = [];
let tried = 0;

/** A name in this slot: some number. Each number is tried once. */
export function nameIn(slot: number): string {
  for (; NUMBERS[slot] === undefined; tried++) NUMBERS[slotOf(`${tried}`)] ??= `${tried}`;
  return NUMBERS[slot];
}
