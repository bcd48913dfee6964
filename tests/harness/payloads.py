"""DUMP payloads taken apart and sealed again: anybody can compute the checksum, so it protects nothing."""

from __future__ import annotations

import redis

from harness.locks import Bytes

# An RDB version in two bytes and a CRC-64 in eight end every payload.
FOOTER = 10

TABLE = list(range(256))
for _ in range(8):
    # The polynomial of Jones, with the bits reversed.
    TABLE = [value >> 1 ^ (0x95AC9329AC4BC9B5 if value & 1 else 0) for value in TABLE]


def _crc64(data: bytes) -> int:
    crc = 0
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc


def body_of(payload: bytes) -> bytes:
    """The value, without version and checksum."""
    assert _crc64(payload[:-8]) == int.from_bytes(payload[-8:], "little"), "not the checksum of this server"
    return payload[:-FOOTER]


def sealed(body: bytes, like: bytes) -> bytes:
    """A payload with this value, the RDB version of another payload, and a checksum that is right."""
    data = body + like[-FOOTER:-8]
    return data + _crc64(data).to_bytes(8, "little")


def plain_dump(client: redis.Redis, key: Bytes) -> bytes:
    """DUMP without the server's compression, so that what is stored stands there as it is."""
    before = client.config_get("rdbcompression")["rdbcompression"]
    client.config_set("rdbcompression", "no")
    try:
        return client.dump(key)
    finally:
        client.config_set("rdbcompression", before)


def with_number(payload: bytes, number: int, to: int) -> bytes:
    """The payload of `plain_dump` with another number in the place of one that today's clock gave.

    Such a number takes eight bytes that stand nowhere else, wherever the encoding keeps it.
    """
    body = body_of(payload)
    for order in ("little", "big"):
        old, new = number.to_bytes(8, order), to.to_bytes(8, order)
        if body.count(old) == 1:
            return sealed(body.replace(old, new), payload)
    raise AssertionError(f"{number} not found once in {body.hex()}")
