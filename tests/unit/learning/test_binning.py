from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hanse.errors import InvalidPayload, MethodError, SiteError
from hanse.learning.arrays import FLOAT32_MAX
from hanse.learning.bin_edges import BinEdges, exact_edges, sketched_edges
from hanse.learning.binning import BucketedValues, bin_values, check_values
from hanse.learning.sketch import BucketMapping

LAST = [float(FLOAT32_MAX)]


def _edges(*features) -> BinEdges:
    return BinEdges.of([np.array([*cuts, *LAST], dtype=np.float32) for cuts in features])


def test_bins_by_hand():
    values = np.array([[0.0], [1.0], [1.5], [2.0], [9.0], [np.nan], [-0.0]], dtype=np.float32)
    assert bin_values(values, _edges([1.0, 2.0]))[:, 0].tolist() == [0, 1, 1, 2, 2, -1, 0]


def test_exact_edges_are_the_distinct_values_but_the_first():
    edges = exact_edges([np.array([3, 1, 2], np.float32), np.zeros(0, np.float32), np.array([5], np.float32)])
    assert edges.of_feature(0).tolist() == [2, 3, *LAST]
    assert edges.bins.tolist() == [3, 1, 1]
    with pytest.raises(MethodError, match="bin_source"):
        exact_edges([np.arange(70_000, dtype=np.float32)])


def test_equal_zeros_share_a_bin_whatever_their_sign():
    values = np.array([[-0.0], [0.0], [1.0], [-1.0]], dtype=np.float32)
    buckets = BucketedValues.exact(values)
    assert buckets.bins(exact_edges(buckets.lower))[:, 0].tolist() == [1, 1, 2, 0]


tables = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 80), st.integers(1, 3)),
    elements=st.one_of(
        st.floats(width=32, min_value=-(2.0**127), max_value=2.0**127),
        st.floats(width=32, min_value=-2, max_value=2),
        st.sampled_from([0.0, -0.0, 1.0, 9.8125, float("nan")]),
    ),
)


@settings(deadline=None, max_examples=80)
@given(tables, st.sampled_from([0.001, 0.01, 0.05]), st.integers(2, 40), st.sampled_from([0.0, 0.5, 9.81, -1e20, 1e38]))
def test_the_look_up_equals_the_search_and_sketch_weight_per_bin_equals_row_weight(values, accuracy, bins, centre):
    mapping = BucketMapping(accuracy)
    centres = np.full(values.shape[1], centre)
    buckets = BucketedValues.of(values, centres, mapping)
    weights = np.arange(1, len(values) + 1, dtype=np.int64) ** 3
    sketches = buckets.sketches(weights)
    edges = sketched_edges(sketches, centres, mapping, bins)
    ids = buckets.bins(edges)
    np.testing.assert_array_equal(ids, bin_values(values, edges))
    assert edges.widest <= bins
    for f, sketch in enumerate(sketches):
        # The lower cut of each occupied bucket says which bin all its weight belongs to.
        cuts = edges.of_feature(f)
        lower = np.append(-np.inf, mapping.upper_cuts(centre))[sketch.ordinals]
        bin_of_bucket = np.minimum(np.searchsorted(cuts, lower, side="right"), len(cuts) - 1)
        by_sketch = np.bincount(bin_of_bucket, sketch.counts, len(cuts))
        present = ids[:, f] >= 0
        np.testing.assert_array_equal(by_sketch, np.bincount(ids[present, f], weights[present], len(cuts)))


def test_bins_have_about_equal_weight():
    rng = np.random.default_rng(0)
    values = rng.lognormal(size=(20_000, 1)).astype(np.float32)
    weights = rng.integers(1, 2**20, 20_000)
    buckets = BucketedValues.of(values, np.array([1.6]), BucketMapping(0.001))
    edges = sketched_edges(buckets.sketches(weights), np.array([1.6]), BucketMapping(0.001), 32)
    mass = np.bincount(buckets.bins(edges)[:, 0], weights) / weights.sum()
    assert np.abs(mass - 1 / 32).max() < 0.2 / 32


def test_sketches_of_chosen_rows_leave_the_others_out():
    values = np.array([[1.0], [2.0], [3.0]], dtype=np.float32)
    buckets = BucketedValues.of(values, np.zeros(1), BucketMapping())
    chosen = np.array([True, False, True])
    assert buckets.sketches(np.array([5, 6, 7]), chosen)[0].counts.tolist() == [5, 7]


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.finfo(np.float32).max])
def test_infinite_values_are_refused_by_column(value):
    with pytest.raises(SiteError, match="'pressure'"):
        check_values(np.array([[0.0, value], [np.nan, 1.0]], dtype=np.float32), ["pulse", "pressure"])


def test_missing_values_are_accepted():
    check_values(np.array([[np.nan]], dtype=np.float32), ["pulse"])


@pytest.mark.parametrize(
    "cuts",
    [[1.0], [2.0, 1.0, *LAST], [1.0, 1.0, *LAST], [np.nan, *LAST], [np.inf]],
)
def test_edges_that_are_no_edges_are_refused(cuts):
    arrays = {"offsets": np.array([0, len(cuts)], np.int64), "cuts": np.array(cuts, np.float32)}
    with pytest.raises(InvalidPayload):
        BinEdges.from_arrays(arrays)


def test_edges_make_the_round_trip():
    edges = _edges([1.0, 2.0], [], [0.5])
    again = BinEdges.from_arrays(edges.arrays())
    assert again.bins.tolist() == [3, 1, 2]
    assert again.of_feature(2).tolist() == [0.5, *LAST]
