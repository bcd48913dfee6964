"""Locks in a cluster move with their slot."""

from __future__ import annotations

import pytest
import redis

from harness import Cluster, Locks, key_slot, lock_state, wait_until

LONG = 60_000


def test_a_lock_moves_with_its_slot(cluster: Cluster) -> None:
    key = b"moving:\xff"
    source = cluster.node_of(key)
    target = cluster.other_than(source)
    slot = key_slot(source, key)
    locks = Locks(source.client())
    for token in (b"\x00", b"two", b"\xff" * 255):
        locks.rlock(key, token, LONG, meta=token)
    before = lock_state(source.client(), key)
    last = max(fence for _, fence, _ in before.holders)
    cluster.begin_move(slot, source, target)
    assert cluster.move_keys(slot, source, target) == [key]
    assert source.raw().error("SLOCK.RUNLOCK", key, "two").startswith("ASK ")
    cluster.end_move(slot, source, target)
    assert lock_state(target.client(), key).without_expiry() == before.without_expiry()
    there = Locks(target.client())
    for token, _, _ in before.holders:
        assert there.runlock(key, token) == 1
    assert there.lock(key, "next", LONG) > last


def test_changes_arrive_as_commands_where_slots_are_replicated(cluster: Cluster) -> None:
    key = "imported"
    source = cluster.node_of(key)
    target, slot = cluster.other_than(source), key_slot(source, key)
    client = source.client()
    if b"MIGRATESLOTS" not in b" ".join(client.execute_command("CLUSTER HELP")):
        pytest.skip("this server moves slots key by key")
    locks = Locks(client)
    fence = locks.lock(key, "owner", LONG, meta=b"m")
    client.execute_command("CLUSTER MIGRATESLOTS SLOTSRANGE", slot, slot, "NODE", cluster.node_id(target))
    state = lock_state(client, key)

    def has_moved() -> bool:
        """Each try is a change, until the slot is the target's."""
        nonlocal state
        try:
            assert locks.extend(key, "owner", LONG) == 1
            state = lock_state(client, key)
        except redis.ResponseError:
            return cluster.node_of(key) is target
        return False

    wait_until(has_moved, 30, "the slot to have moved")
    assert Locks(target.client()).check(key, fence) == 1
    assert lock_state(target.client(), key) == state
    assert "slock.allow-apply" in target.raw().error("SLOCK.APPLY", key, "RELEASE 0 owner")
    assert Locks(target.client()).unlock(key, "owner") == 1
