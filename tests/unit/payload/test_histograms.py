"""Histograms as payloads: what comes back, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hanse.errors import HanseError, InvalidPayload, RejectedContribution
from hanse.learning.arrays import FLOAT32_MAX
from hanse.learning.bin_edges import BinEdges
from hanse.learning.fixed_point import Grid
from hanse.learning.histograms import Histograms
from hanse.payload import Payload
from hanse.payload.kinds import document_payload, histograms_payload, read_histograms

GRID = Grid()
WIDE = BinEdges.of([np.array([1, 2, FLOAT32_MAX], np.float32), np.array([FLOAT32_MAX], np.float32)])
NARROW = BinEdges.of([np.array([1, FLOAT32_MAX], np.float32), np.array([FLOAT32_MAX], np.float32)])


def part(nodes: int, edges: BinEdges, gradient: int = -3) -> Histograms:
    sums = np.ones((nodes, 2, len(edges.cuts)), dtype=np.int64)
    sums[:, 0] = gradient
    return Histograms(sums, np.tile(np.array([[gradient, 4]]), (nodes, 1)))


def wire(payload: Payload) -> Payload:
    return Payload.from_image(payload.image())


def packed() -> Payload:
    return histograms_payload([part(2, WIDE), part(0, WIDE), part(1, WIDE)], (WIDE,), GRID)


def altered(**arrays: np.ndarray) -> Payload:
    payload = packed()
    return wire(Payload.build(payload.header.histogram_statistics, dict(payload.arrays) | arrays))


def test_all_trees_come_back_in_32_bits_where_they_fit() -> None:
    payload = wire(packed())
    assert payload.arrays["sums"].dtype == np.int32
    back = read_histograms(payload, (WIDE,), (2, 0, 1), GRID)
    assert [each.sums.shape for each in back] == [(2, 2, 4), (0, 2, 4), (1, 2, 4)]
    assert back[2].sums.tolist() == part(1, WIDE).sums.tolist()
    assert back[0].totals.tolist() == [[-3, 4], [-3, 4]]
    large = histograms_payload([part(1, WIDE, gradient=-(2**40))], (WIDE,), GRID)
    assert large.arrays["sums"].dtype == np.int64
    assert read_histograms(wire(large), (WIDE,), (1,), GRID)[0].sums[0, 0, 0] == -(2**40)


def test_each_tree_may_have_edges_of_its_own() -> None:
    edges = (WIDE, NARROW)
    payload = wire(histograms_payload([part(1, WIDE), part(2, NARROW, gradient=7)], edges, GRID))
    back = read_histograms(payload, edges, (1, 2), GRID)
    assert [each.sums.shape for each in back] == [(1, 2, 4), (2, 2, 3)]
    assert back[1].sums[1, 0].tolist() == [7, 7, 7]


def test_sums_are_added_in_place() -> None:
    (total,) = read_histograms(wire(histograms_payload([part(1, WIDE)], (WIDE,), GRID)), (WIDE,), (1,), GRID)
    total.take(part(1, WIDE, gradient=5))
    assert total.sums[0].tolist() == [[2, 2, 2, 2], [2, 2, 2, 2]]
    assert total.totals.tolist() == [[2, 8]]


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"sums": np.zeros(7, np.int32)}, "not 24 integers"),
        ({"sums": np.zeros(24, np.float32)}, "not 24 integers"),
        ({"sums": np.full(24, 2**53)}, "above 2\\^52"),
        ({"sums": np.full(24, -1, np.int32)}, "negative"),
        ({"sums": np.full(24, 9, np.int32)}, "above its total"),
        ({"totals": np.zeros((2, 2), np.int64)}, "'totals'"),
        ({"totals": np.zeros((3, 2), np.int32)}, "'totals'"),
    ],
)
def test_what_cannot_be_histograms_is_refused(arrays: dict[str, np.ndarray], sentence: str) -> None:
    with pytest.raises((InvalidPayload, RejectedContribution), match=sentence):
        read_histograms(altered(**arrays), (WIDE,), (2, 0, 1), GRID)


def test_histograms_of_other_edges_units_or_kinds_are_refused() -> None:
    with pytest.raises(InvalidPayload, match="4 bins with 20 fraction bits, not of 2, 3 and 3"):
        read_histograms(wire(packed()), (NARROW,), (2, 0, 1), GRID)
    with pytest.raises(InvalidPayload, match="18"):
        read_histograms(wire(packed()), (WIDE,), (2, 0, 1), Grid(hessian=-18))
    with pytest.raises(InvalidPayload, match="histogram_statistics"):
        read_histograms(document_payload("x", {}), (WIDE,), (1,), GRID)


@settings(max_examples=60)
@given(st.data())
def test_mangled_histograms_are_read_or_refused_and_nothing_else(data: st.DataObject) -> None:
    image = bytearray(packed().image())
    for _ in range(data.draw(st.integers(1, 6))):
        image[data.draw(st.integers(0, len(image) - 1))] = data.draw(st.integers(0, 255))
    try:
        read_histograms(Payload.from_image(bytes(image)), (WIDE,), (2, 0, 1), GRID)
    except HanseError as error:
        assert error.sentence  # noqa: PT017
