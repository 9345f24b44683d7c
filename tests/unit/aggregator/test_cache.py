"""Payloads kept between calls, bounded by their bytes."""

from __future__ import annotations

import numpy as np

from hanse.payload import Payload
from hanse.v1 import payload_pb2
from hanse_aggregator.cache import PayloadCache


def payload(seed: int, numbers: int = 100) -> Payload:
    return Payload.build(payload_pb2.Opaque(type="t"), {"v": np.full(numbers, seed, np.int64)})


def test_what_was_used_last_is_kept_and_the_rest_makes_room():
    one, two, three = payload(1), payload(2), payload(3)
    cache = PayloadCache(2 * one.size)
    cache.put(one)
    cache.put(two)
    assert cache.get(one.digest) is one
    cache.put(three)
    assert cache.get(two.digest) is None
    assert (cache.get(one.digest), cache.get(three.digest)) == (one, three)


def test_what_is_put_twice_counts_once():
    one, two = payload(1), payload(2)
    cache = PayloadCache(2 * one.size)
    for each in (one, one, one, two):
        cache.put(each)
    assert cache.get(one.digest) is one


def test_what_is_larger_than_the_whole_cache_drives_nothing_out():
    small, large = payload(1), payload(2, 10_000)
    cache = PayloadCache(small.size)
    cache.put(small)
    cache.put(large)
    assert cache.get(small.digest) is small
    assert cache.get(large.digest) is None
