from __future__ import annotations

import numpy as np
import pytest
from ddsketch.ddsketch import BaseDDSketch
from ddsketch.mapping import LogarithmicMapping
from ddsketch.pb.ddsketch_pb2 import DDSketch as Message
from ddsketch.pb.ddsketch_pb2 import IndexMapping
from ddsketch.pb.ddsketch_pb2 import Store as StoreMessage
from ddsketch.pb.proto import DDSketchProto
from ddsketch.store import DenseStore
from hypothesis import given, settings
from hypothesis import strategies as st

from hanse.errors import MethodError, RejectedContribution
from hanse.learning.arrays import FLOAT32_MAX
from hanse.learning.bin_edges import sketched_edges
from hanse.learning.binning import BucketedValues
from hanse.learning.sketch import BucketMapping, Sketch, Store

MAPPING = BucketMapping(0.01)


def _sketch(values, weights=None, centre=0.0, mapping=MAPPING) -> Sketch:
    values = np.asarray(values, dtype=np.float32)[:, None]
    weights = np.ones(len(values), dtype=np.int64) if weights is None else np.asarray(weights, dtype=np.int64)
    return BucketedValues.of(values, np.array([centre]), mapping).sketches(weights)[0]


def test_buckets_by_hand():
    """With accuracy 1/3, gamma is 2: buckets are (1, 2], (2, 4], (4, 8] and their mirror images."""
    mapping = BucketMapping(1 / 3)
    assert mapping.gamma == pytest.approx(2)
    sketch = _sketch([-3, 0, 1.5, 3, 3.5, 5], [1, 2, 4, 8, 16, 32], mapping=mapping)
    positive, negative, zero = sketch.stores(mapping)
    assert (positive.offset, positive.counts.tolist()) == (1, [4, 24, 32])
    assert (negative.offset, negative.counts.tolist()) == (2, [1])
    assert zero == 2


def test_missing_values_are_not_counted():
    assert _sketch([1.0, np.nan, 2.0], [3, 100, 4]).total == 7


@pytest.mark.parametrize("accuracy", [0.001, 0.01, 0.05])
def test_keys_are_those_of_the_ddsketch_package(accuracy):
    mapping, reference = BucketMapping(accuracy), LogarithmicMapping(accuracy)
    assert mapping.gamma == reference.gamma
    rng = np.random.default_rng(0)
    values = (10.0 ** rng.uniform(-30, 30, 500)).astype(np.float32)
    for value in values[:200]:
        positive, _, _ = _sketch([value], mapping=mapping).stores(mapping)
        assert positive.offset == reference.key(float(value))
    _, negative, _ = _sketch(-values[:1], mapping=mapping).stores(mapping)
    assert negative.offset == reference.key(float(values[0]))


def test_a_sketch_decodes_with_the_ddsketch_packages_protobuf():
    rng = np.random.default_rng(1)
    values = rng.normal(size=2000).astype(np.float32)
    positive, negative, zero = _sketch(values).stores(MAPPING)
    message = Message(
        mapping=IndexMapping(gamma=MAPPING.gamma, indexOffset=0, interpolation=IndexMapping.NONE),
        positiveValues=StoreMessage(contiguousBinCounts=positive.counts, contiguousBinIndexOffset=positive.offset),
        negativeValues=StoreMessage(contiguousBinCounts=negative.counts, contiguousBinIndexOffset=negative.offset),
        zeroCount=zero,
    )
    theirs = DDSketchProto.from_proto(Message.FromString(message.SerializeToString()))
    for q in (0.01, 0.25, 0.5, 0.75, 0.99):
        exact = np.quantile(values, q, method="lower")
        assert theirs.get_quantile_value(q) == pytest.approx(exact, rel=0.011)
        assert _sketch(values).quantile(q, MAPPING, 0.0) == pytest.approx(exact, rel=0.03)


def test_a_sketch_made_by_the_ddsketch_package_is_read():
    rng = np.random.default_rng(2)
    values = rng.normal(size=500).astype(np.float32)
    theirs = BaseDDSketch(LogarithmicMapping(0.01), DenseStore(), DenseStore(), 0.0)
    for value in values:
        theirs.add(float(value))
    stores = [
        Store(store.offset, np.array(store.bins, dtype=np.float64).astype(np.int64))
        for store in (theirs._store, theirs._negative_store)
    ]
    ours = Sketch.from_stores(*stores, int(theirs._zero_count), MAPPING)
    expected = _sketch(values)
    np.testing.assert_array_equal(ours.ordinals, expected.ordinals)
    np.testing.assert_array_equal(ours.counts, expected.counts)


def test_stores_make_the_round_trip_and_foreign_keys_are_folded():
    sketch = _sketch([-1e20, -1e-20, 0, 1e-3, 7, 8, 9], [1, 2, 3, 4, 5, 6, 7])
    again = Sketch.from_stores(*sketch.stores(MAPPING), MAPPING)
    np.testing.assert_array_equal(again.ordinals, sketch.ordinals)
    np.testing.assert_array_equal(again.counts, sketch.counts)
    far = Sketch.from_stores(Store(-100_000, np.array([5])), Store(100_000, np.array([6])), 1, MAPPING)
    assert far.ordinals.tolist() == [0, MAPPING.zero]
    assert far.counts.tolist() == [6, 6]
    with pytest.raises(RejectedContribution):
        Sketch.from_stores(Store(0, np.array([-1])), Store(0, np.zeros(0, np.int64)), 0, MAPPING)


values_and_weights = st.lists(
    st.tuples(
        st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**100), max_value=2.0**100),
        st.integers(1, 2**40),
    ),
    min_size=1,
    max_size=60,
)


@settings(deadline=None, max_examples=60)
@given(values_and_weights, st.integers(0, 60), st.floats(-1e6, 1e6))
def test_the_merge_of_two_sketches_is_the_sketch_of_the_union(pairs, cut, centre):
    values, weights = zip(*pairs, strict=True)
    whole = _sketch(values, weights, centre)
    merged = _sketch(values[:cut], weights[:cut], centre).merge(_sketch(values[cut:], weights[cut:], centre))
    np.testing.assert_array_equal(merged.ordinals, whole.ordinals)
    np.testing.assert_array_equal(merged.counts, whole.counts)
    assert whole.total == sum(weights)


@settings(deadline=None, max_examples=60)
@given(values_and_weights, st.floats(0, 1))
def test_quantiles_are_within_the_relative_accuracy(pairs, q):
    values, weights = (np.array(column) for column in zip(*pairs, strict=True))
    values = values.astype(np.float32).astype(np.float64)
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(weights[order])
    exact = values[order][np.searchsorted(cumulative, q * int(cumulative[-1]))]
    got = _sketch(values, weights).quantile(q, MAPPING, 0.0)
    assert abs(got - exact) <= 0.01 * (1 + 1e-6) * abs(exact) + 2.0**-126


def test_a_sum_beyond_64_bits_is_refused():
    big = Sketch(np.array([5], np.int32), np.array([2**62]))
    with pytest.raises(MethodError, match="sketch"):
        big.merge(big)
    with pytest.raises(MethodError, match="64 bits"):
        sketched_edges([big], np.zeros(1), MAPPING, 4)


def test_edges_by_hand():
    """Eight values in buckets of their own, four bins: two values each."""
    values = np.array([1, 2, 4, 8, 16, 32, 64, 128], dtype=np.float32)
    edges = sketched_edges([_sketch(values)], np.zeros(1), MAPPING, 4)
    cuts = edges.of_feature(0)
    assert len(cuts) == 4
    assert cuts[-1] == FLOAT32_MAX
    assert np.searchsorted(cuts, values, side="right").tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_edges_follow_the_weights():
    values = np.array([1, 2, 4, 8], dtype=np.float32)
    cuts = sketched_edges([_sketch(values, [97, 1, 1, 1])], np.zeros(1), MAPPING, 2).of_feature(0)
    assert np.searchsorted(cuts, values, side="right").tolist() == [0, 1, 1, 1]


def test_few_occupied_buckets_have_a_bin_each():
    values = np.array([-5, 0, 3, 3, 1000], dtype=np.float32)
    cuts = sketched_edges([_sketch(values)], np.zeros(1), MAPPING, 4).of_feature(0)
    assert np.searchsorted(cuts, values, side="right").tolist() == [0, 1, 2, 2, 3]


def test_constant_and_all_missing_features_have_one_bin():
    sketches = [_sketch([3, 3, 3]), _sketch([np.nan, np.nan])]
    edges = sketched_edges(sketches, np.array([3.0, 0.0]), MAPPING, 16)
    assert edges.bins.tolist() == [1, 1]


def test_centring_gives_a_gravity_axis_all_its_bins():
    rng = np.random.default_rng(0)
    values = rng.normal(9.81, 0.02, 5000).astype(np.float32)
    mean = float(values.astype(np.float64).mean())
    plain = sketched_edges([_sketch(values)], np.zeros(1), MAPPING, 64)
    centred = sketched_edges([_sketch(values, centre=mean)], np.array([mean]), MAPPING, 64)
    assert plain.widest <= 3
    assert centred.widest >= 60
