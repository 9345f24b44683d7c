from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hanse.errors import MethodError, RejectedContribution
from hanse.learning.arrays import FLOAT32_MAX
from hanse.learning.atoms import Atoms, aggregate, coarsen, coarsening_for, pack, small_atom_share
from hanse.learning.bin_edges import BinEdges
from tests.unit.learning.data import random_parts


def _edges(bins: int, features: int) -> BinEdges:
    cuts = np.append(np.arange(1, bins, dtype=np.float32), FLOAT32_MAX)
    return BinEdges.of([cuts] * features)


def _rows(rng, rows=200, features=3, bins=4, outputs=2):
    ids = rng.integers(-1, bins, size=(rows, features)).astype(np.int32)
    weight = rng.integers(1, 5, rows) << 20
    gradient = rng.integers(-(2**20), 2**20, (rows, outputs))
    hessian = rng.integers(1, 2**19, (rows, outputs))
    return ids, weight, gradient, hessian


def _same(a: Atoms, b: Atoms) -> bool:
    return all(np.array_equal(left, b.arrays()[name]) for name, left in a.arrays().items())


def test_atoms_by_hand():
    bins = np.array([[1, 0], [-1, 2], [1, 0], [0, 3]], dtype=np.int32)
    ones = np.ones(4, dtype=np.int64)
    gradient = np.array([[5], [-7], [1], [2]])
    atoms, rows = aggregate(bins, _edges(4, 2), ones, gradient, np.array([[1], [2], [3], [4]]))
    assert atoms.bins.tolist() == [[-1, 2], [0, 3], [1, 0]]
    assert atoms.weight.tolist() == [1, 1, 2]
    assert atoms.gradient.tolist() == [[-7], [2], [6]]
    assert atoms.hessian.tolist() == [[2], [4], [4]]
    assert rows.tolist() == [1, 1, 2]
    assert small_atom_share(rows, 2) == pytest.approx(2 / 3)
    assert small_atom_share(rows, 1) == 0


def test_coarser_bins_by_hand():
    bins = np.array([[0, 5], [1, 4], [2, -1], [3, 7]], dtype=np.int32)
    assert coarsen(bins, 2).tolist() == [[0, 4], [0, 4], [2, -1], [2, 6]]
    assert coarsen(bins, 1).tolist() == bins.tolist()


def test_bins_are_coarsened_until_no_atom_is_small():
    bins = np.arange(8, dtype=np.int32)[:, None]
    assert [coarsening_for(bins, _edges(8, 1), k) for k in (1, 2, 4, 8, 9)] == [1, 2, 4, 8, None]
    bins[3] = -1
    assert coarsening_for(bins, _edges(8, 1), 2) is None


@pytest.mark.parametrize(("bins", "dtype"), [(2, np.uint8), (255, np.uint8), (256, np.uint16), (4096, np.uint16)])
def test_ids_take_8_bits_where_they_fit(bins, dtype):
    ids = pack(np.array([[-1], [bins - 1]], dtype=np.int32), _edges(bins, 1))
    assert ids.dtype == dtype
    assert ids[:, 0].tolist() == [0, bins]


@pytest.mark.parametrize("bins", [4, 300])
def test_atoms_are_sorted_by_their_bins(bins):
    rng = np.random.default_rng(0)
    ids, weight, gradient, hessian = _rows(rng, bins=bins)
    atoms, _ = aggregate(ids, _edges(bins, 3), weight, gradient, hessian)
    assert atoms.bins.tolist() == sorted(np.unique(ids, axis=0).tolist())


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_any_partition_gives_the_same_atoms_and_sums_are_kept(seed, nodes):
    rng = np.random.default_rng(seed)
    ids, weight, gradient, hessian = _rows(rng)
    edges = _edges(4, 3)
    whole, _ = aggregate(ids, edges, weight, gradient, hessian)
    parts = [
        aggregate(ids[i], edges, weight[i], gradient[i], hessian[i])[0] for i in random_parts(rng, len(ids), nodes)
    ]
    assert _same(parts[0].merge(*parts[1:]), whole)
    one_by_one = parts[-1]
    for part in parts[-2::-1]:
        one_by_one = one_by_one.merge(part)
    assert _same(one_by_one, whole)
    assert whole.weight.sum() == weight.sum()
    np.testing.assert_array_equal(whole.gradient.sum(axis=0), gradient.sum(axis=0))
    np.testing.assert_array_equal(whole.hessian.sum(axis=0), hessian.sum(axis=0))
    for f in range(3):
        for k in range(2):
            np.testing.assert_array_equal(
                np.bincount(whole.ids[:, f], whole.gradient[:, k], 5), np.bincount(ids[:, f] + 1, gradient[:, k], 5)
            )


def test_a_node_without_rows_has_no_atoms():
    empty = np.zeros((0, 3), np.int32)
    sums = np.zeros((0, 2), np.int64)
    atoms, rows = aggregate(empty, _edges(4, 3), np.zeros(0, np.int64), sums, sums)
    assert len(atoms) == len(rows) == 0
    assert small_atom_share(rows, 5) == 0
    full, _ = aggregate(*_with_edges(_rows(np.random.default_rng(0))))
    assert _same(full.merge(atoms), full)
    assert _same(atoms.merge(full), full)


def _with_edges(rows):
    ids, *sums = rows
    return ids, _edges(4, 3), *sums


def test_atoms_make_the_round_trip_in_any_order():
    atoms, _ = aggregate(*_with_edges(_rows(np.random.default_rng(0))))
    shuffled = np.random.default_rng(1).permutation(len(atoms))
    arrays = {name: array[shuffled] for name, array in atoms.arrays().items()}
    assert _same(Atoms.from_arrays(arrays, edges=_edges(4, 3), outputs=2), atoms)
    assert _same(Atoms.from_arrays(atoms.arrays(), edges=_edges(4, 3), outputs=2), atoms)


def _no_array(arrays):
    del arrays["hessian"]


def _float_gradient(arrays):
    arrays["gradient"] = arrays["gradient"].astype(np.float64)


def _wide_ids(arrays):
    arrays["ids"] = arrays["ids"].astype(np.uint16)


def _strange_bin(arrays):
    arrays["ids"] = np.full_like(arrays["ids"], 5)


def _zero_hessian(arrays):
    arrays["hessian"] = np.zeros_like(arrays["hessian"])


def _one_output(arrays):
    arrays["gradient"] = arrays["gradient"][:, :1]


@pytest.mark.parametrize("spoil", [_no_array, _float_gradient, _wide_ids, _strange_bin, _zero_hessian, _one_output])
def test_arrays_that_are_no_atoms_are_rejected(spoil):
    arrays = aggregate(*_with_edges(_rows(np.random.default_rng(0))))[0].arrays()
    spoil(arrays)
    with pytest.raises(RejectedContribution):
        Atoms.from_arrays(arrays, edges=_edges(4, 3), outputs=2)


def test_sums_beyond_64_bits_are_refused_by_name():
    atoms, _ = aggregate(*_with_edges(_rows(np.random.default_rng(0))))
    big = Atoms(atoms.ids, atoms.weight, atoms.gradient, np.full_like(atoms.hessian, 2**61))
    with pytest.raises(MethodError, match="atom hessian"):
        big.merge(big)
