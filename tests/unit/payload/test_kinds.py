"""Payload kinds: what is written is read back, and what cannot be is refused by name."""

from __future__ import annotations

import numpy as np
import pytest
from ddsketch.ddsketch import LogCollapsingLowestDenseDDSketch
from ddsketch.mapping import LogarithmicMapping
from ddsketch.pb import ddsketch_pb2
from ddsketch.pb.proto import DDSketchProto
from hypothesis import given, settings
from hypothesis import strategies as st

from hanse.errors import HanseError, InvalidPayload, RejectedContribution
from hanse.learning.arrays import FLOAT32_MAX
from hanse.learning.atoms import Atoms
from hanse.learning.bin_edges import BinEdges
from hanse.learning.fixed_point import Grid
from hanse.learning.sketch import BucketMapping, Sketch
from hanse.learning.trees import Forest, Tree
from hanse.payload import Payload
from hanse.payload import kinds as k
from hanse.v1 import payload_pb2

MAPPING = BucketMapping(0.01)


def wire(payload: Payload) -> Payload:
    return Payload.from_image(payload.image())


def sketch(values: dict[int, int]) -> Sketch:
    """A sketch by ordinal relative to the zero bucket."""
    ordinals = np.array(list(values), dtype=np.int32) + MAPPING.zero
    return Sketch.of(ordinals, np.array(list(values.values()), dtype=np.int64))


def counts(s: Sketch) -> dict[int, int]:
    return dict(zip((s.ordinals - MAPPING.zero).tolist(), s.counts.tolist(), strict=True))


def decode(message: payload_pb2.DDSketch) -> Sketch:
    return k.decode_ddsketch(message.SerializeToString(), MAPPING, feature="age")


def a_message(**changes: object) -> payload_pb2.DDSketch:
    mapping = {"gamma": MAPPING.gamma, **changes}
    return payload_pb2.DDSketch(mapping=payload_pb2.IndexMapping(**mapping), zero_count=1)


# ---- sketches


def test_sketches_come_back_feature_by_feature_and_output_by_output() -> None:
    sketches = [[sketch({0: 1}), sketch({-3: 2, 5: 7})], [sketch({}), sketch({9: 4})]]
    payload = wire(k.sketches_payload(sketches, MAPPING))
    back = k.read_sketches(payload, MAPPING, features=("a", "b"), outputs=2).sketches()
    assert [[counts(s) for s in row] for row in back] == [[{0: 1}, {-3: 2, 5: 7}], [{}, {9: 4}]]


def test_the_ddsketch_package_reads_our_sketches_with_the_same_counts() -> None:
    ours = sketch({-40: 3, 0: 5, 2: 11, 700: 2**40})
    message = ddsketch_pb2.DDSketch.FromString(k.encode_ddsketch(ours, MAPPING))
    theirs = DDSketchProto.from_proto(message)
    assert theirs._mapping.gamma == MAPPING.gamma
    assert theirs._zero_count == 5
    first = MAPPING.lowest_key
    positive = {key: theirs._store.bins[key - theirs._store.offset] for key in (first + 1, first + 699)}
    assert positive == {first + 1: 11, first + 699: 2**40}
    assert theirs._store.count == 11 + 2**40
    assert theirs._negative_store.count == 3
    assert theirs._negative_store.bins[first + 39 - theirs._negative_store.offset] == 3


def test_sketches_made_by_the_ddsketch_package_are_read_into_the_same_buckets_as_ours() -> None:
    values = np.array([0.25, -17.0, 3.5, 3.5, 0.0, 1e4, -1e-3], dtype=np.float32)
    theirs = LogCollapsingLowestDenseDDSketch(0.01, bin_limit=20_000)
    for value in values.tolist():
        theirs.add(value)
    read = k.decode_ddsketch(DDSketchProto.to_proto(theirs).SerializeToString(), MAPPING, feature="age")
    cuts = MAPPING.upper_cuts(0.0)
    ours = Sketch.of(np.searchsorted(cuts, values, side="right").astype(np.int32), np.ones(7, dtype=np.int64))
    assert counts(read) == counts(ours)


def test_sparse_counts_are_read_as_contiguous_ones_and_added_to_them() -> None:
    message = a_message()
    message.positive_values.bin_counts[3] = 4
    message.positive_values.bin_counts[5] = 2
    message.positive_values.contiguous_bin_index_offset = 5
    message.positive_values.contiguous_bin_counts.extend([1.0, 0.0, 6.0])
    offset = -MAPPING.lowest_key + 1
    assert counts(decode(message)) == {0: 1, 3 + offset: 4, 5 + offset: 3, 7 + offset: 6}


def test_keys_beyond_the_mapping_count_at_its_ends_without_taking_memory() -> None:
    message = a_message()
    message.positive_values.bin_counts[-(2**31)] = 2
    message.positive_values.bin_counts[2**31 - 1] = 5
    assert counts(decode(message)) == {0: 3, MAPPING.keys: 5}


@pytest.mark.parametrize(
    "changes", [{"gamma": 1.05}, {"index_offset": 1.0}, {"interpolation": 3}, {"gamma": float("nan")}]
)
def test_a_sketch_with_another_mapping_is_refused_by_feature(changes: dict[str, float]) -> None:
    with pytest.raises(InvalidPayload, match=r"feature 'age'.*agreed"):
        decode(a_message(**changes))


@pytest.mark.parametrize("count", [-1.0, float("nan"), float("inf"), 0.5, 2.0**53])
def test_counts_that_cannot_be_are_refused_by_feature(count: float) -> None:
    message = a_message()
    message.negative_values.contiguous_bin_counts.append(count)
    with pytest.raises(InvalidPayload, match="feature 'age'"):
        decode(message)


def test_a_sketch_that_weighs_too_much_in_all_is_refused_by_feature() -> None:
    message = a_message()
    message.positive_values.contiguous_bin_counts.extend([2.0**51, 2.0**51])
    with pytest.raises(InvalidPayload, match=r"feature 'age' weighs more"):
        decode(message)


def test_a_gamma_that_differs_in_its_last_digit_is_the_same_mapping() -> None:
    gamma = 1.01 / 0.99
    assert gamma != MAPPING.gamma or LogarithmicMapping(0.01).gamma == MAPPING.gamma
    assert counts(decode(a_message(gamma=gamma))) == {0: 1}


def test_lengths_that_do_not_add_up_are_refused() -> None:
    payload = k.sketches_payload([[sketch({1: 1})]], MAPPING)
    bad = Payload.build(payload.header.feature_sketches, dict(payload.arrays) | {"lengths": np.array([3], np.uint32)})
    with pytest.raises(InvalidPayload, match="add up"):
        k.read_sketches(bad, MAPPING, features=("a",), outputs=1)


@given(st.binary(max_size=200))
def test_any_bytes_as_a_sketch_are_read_or_refused(data: bytes) -> None:
    try:
        k.decode_ddsketch(data, MAPPING, feature="age")
    except HanseError as error:
        assert "age" in error.sentence  # noqa: PT017


@settings(max_examples=50)
@given(
    st.lists(
        st.dictionaries(st.integers(-MAPPING.keys, MAPPING.keys), st.integers(1, 2**40), max_size=5),
        min_size=1,
        max_size=4,
    )
)
def test_every_sketch_survives_the_wire(values: list[dict[int, int]]) -> None:
    sketches = [sketch(each) for each in values]
    names = tuple(f"f{i}" for i in range(len(values)))
    back = k.read_sketches(wire(k.sketches_payload([sketches], MAPPING)), MAPPING, features=names, outputs=1).sketches()
    assert [counts(s) for s in back[0]] == [counts(s) for s in sketches]


# ---- edges


def edges(*cuts: list[float]) -> BinEdges:
    return BinEdges.of([np.array([*each, FLOAT32_MAX], dtype=np.float32) for each in cuts])


def test_edges_come_back() -> None:
    sets = (edges([1.0, 2.0], []), edges([0.5], [3.0]))
    back = k.read_edges(wire(k.edges_payload(sets)), features=2, outputs=2)
    assert [each.cuts.tolist() for each in back] == [each.cuts.tolist() for each in sets]


@pytest.mark.parametrize("cuts", [[2.0, 1.0], [1.0, 1.0], [float("nan")], [float("inf")]])
def test_edges_that_do_not_ascend_or_are_not_finite_are_refused(cuts: list[float]) -> None:
    arrays = {
        "offsets": np.array([0, len(cuts) + 1]),
        "cuts": np.array([*cuts, FLOAT32_MAX], dtype=np.float32),
    }
    payload = Payload.build(payload_pb2.BinEdges(features=1, outputs=1), arrays)
    with pytest.raises(InvalidPayload):
        k.read_edges(payload, features=1, outputs=1)


# ---- atoms

EDGES = edges([1.0, 2.0], [5.0])
GRID = Grid()


def atoms(gradient: int = -3) -> Atoms:
    return Atoms(
        ids=np.array([[0, 1], [3, 2]], dtype=np.uint8),
        weight=np.array([1 << 20, 2 << 20]),
        gradient=np.array([[gradient, 1], [2, 2]]),
        hessian=np.array([[1, 1], [4, 4]]),
    )


def read(payload: Payload, **changes: object) -> tuple[tuple[Atoms, ...], k.AtomCounts]:
    return k.read_atoms(wire(payload), **({"edges": (EDGES,), "outputs": 2, "grid": GRID} | changes))


def packed(**changes: object) -> Payload:
    payload = k.atoms_payload([atoms()], k.AtomCounts(rows=3, single=1), GRID)
    return Payload.build(payload.header.atom_statistics, dict(payload.arrays) | changes)


def test_atoms_come_back_and_travel_in_32_bits_where_they_fit() -> None:
    told = k.AtomCounts(rows=3, single=1, small=2, found=3, coarsened=4)
    payload = k.atoms_payload([atoms()], told, GRID)
    assert {name: array.dtype.name for name, array in payload.arrays.items()} == {
        "ids": "uint8",
        "weight": "int32",
        "gradient": "int32",
        "hessian": "int32",
        "counts": "int64",
    }
    (back,), counted = read(payload)
    assert (back.gradient.tolist(), back.gradient.dtype) == ([[-3, 1], [2, 2]], np.int64)
    assert counted == told


def test_sums_that_need_more_than_32_bits_travel_whole() -> None:
    payload = k.atoms_payload([atoms(gradient=-(2**40))], k.AtomCounts(rows=3, single=0), GRID)
    assert payload.arrays["gradient"].dtype == np.int64
    assert read(payload)[0][0].gradient[0, 0] == -(2**40)


def test_one_set_of_atoms_per_output_keeps_its_own_sums() -> None:
    sets = [atoms().output(0), atoms().output(1)]
    back = read(k.atoms_payload(sets, k.AtomCounts(rows=3, single=0), GRID), edges=(EDGES, EDGES))[0]
    assert [each.gradient.ravel().tolist() for each in back] == [[-3, 2], [1, 2]]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"ids": np.array([[0, 1], [4, 2]], np.uint8)}, "bin that does not exist"),
        ({"ids": np.array([[0, 1], [3, 2]], np.uint16)}, "uint16"),
        ({"weight": np.array([1, 0], np.int32)}, "not positive"),
        ({"hessian": np.array([[1, 1], [4, -4]], np.int32)}, "not positive"),
        ({"gradient": np.array([[2**53, 0], [0, 0]])}, "2\\^52"),
        ({"gradient": np.array([[0.5, 0], [0, 0]])}, "float64"),
        ({"gradient": np.zeros((2, 3), np.int64)}, "shape"),
        ({"counts": np.array([7, 0, 0, 1])}, "7 atoms of one row"),
        ({"counts": np.array([-1, 0, 0, 1])}, "'counts'"),
        ({"counts": np.array([1])}, "'counts'"),
        ({"counts": np.array([1, 0, 4, 1])}, "4 atoms and 1"),
        ({"counts": np.array([1, 3, 2, 1])}, "3 small ones among 2"),
    ],
)
def test_atoms_that_cannot_be_are_refused_by_name(changes: dict[str, np.ndarray], sentence: str) -> None:
    with pytest.raises((InvalidPayload, RejectedContribution), match=sentence):
        read(packed(**changes))


def test_atoms_in_other_units_or_of_another_shape_of_job_are_refused() -> None:
    with pytest.raises(InvalidPayload, match="fraction bits"):
        read(packed(), grid=Grid(gradient=-20, hessian=-18))
    with pytest.raises(InvalidPayload, match="outputs"):
        read(packed(), outputs=3)
    with pytest.raises(InvalidPayload, match="atom_statistics"):
        read(k.edges_payload([EDGES]))


@settings(max_examples=60)
@given(st.data())
def test_mangled_atoms_are_read_or_refused_and_nothing_else(data: st.DataObject) -> None:
    image = bytearray(packed().image())
    for _ in range(data.draw(st.integers(1, 6))):
        image[data.draw(st.integers(0, len(image) - 1))] = data.draw(st.integers(0, 255))
    try:
        k.read_atoms(Payload.from_image(bytes(image)), edges=(EDGES,), outputs=2, grid=GRID)
    except HanseError as error:
        assert error.sentence  # noqa: PT017


# ---- trees


def stump() -> Tree:
    return Tree(
        left=np.array([1, -1, -1], np.int32),
        right=np.array([2, -1, -1], np.int32),
        feature=np.array([1, 0, 0], np.int32),
        threshold=np.array([2.5, 0, 0], np.float32),
        default_left=np.array([True, False, False]),
        value=np.array([0, -0.5, 0.25], np.float32),
        gain=np.array([3, 0, 0], np.float32),
    )


def test_trees_come_back() -> None:
    payload = wire(k.trees_payload(Forest.of_rounds([[stump(), Tree.leaf(0.125)]]), round_number=4))
    forest = k.read_trees(payload, features=2, outputs=2)
    assert payload.header.tree_update.round == 4
    values = np.array([[0, 1], [0, 3], [0, np.nan]], dtype=np.float32)
    assert forest.margins(values, np.zeros(2, np.float32)).tolist() == [[-0.5, 0.125], [0.25, 0.125], [-0.5, 0.125]]


@pytest.mark.parametrize(
    ("name", "value"),
    [("left", [0, -1, -1]), ("feature", [2, 0, 0]), ("threshold", [float("inf"), 0, 0]), ("right", [1, -1, -1])],
)
def test_unsound_trees_are_refused(name: str, value: list[float]) -> None:
    payload = k.trees_payload(Forest.of_rounds([[stump()]]), round_number=1)
    arrays = dict(payload.arrays)
    arrays[name] = np.array(value, dtype=arrays[name].dtype)
    with pytest.raises(InvalidPayload):
        k.read_trees(Payload.build(payload.header.tree_update, arrays), features=2, outputs=1)


# ---- metrics


def test_metrics_come_back_and_add_up() -> None:
    sums = {
        "loss": k.RatioSum.of(np.array([0.5, 1.0])),
        "confusion": k.ConfusionSum(np.array([[2, 1], [0, 3]])),
    }
    back = k.read_metrics(wire(k.metrics_payload(sums)))
    assert list(back) == ["confusion", "loss"]
    loss = back["loss"]
    assert isinstance(loss, k.RatioSum)
    assert (loss.mean, loss.count, (loss + loss).mean, (loss + loss).count) == (0.75, 2, 0.75, 4)
    assert back["confusion"].count == 6


@pytest.mark.parametrize(
    ("form", "array", "sentence"),
    [
        (1, np.array([1, -1]), "sum and a count"),
        (1, np.array([1, 0]), "no rows"),
        (1, np.array([1, 1, 1]), "sum and a count"),
        (1, np.array([2**60, 1]), "2\\^52"),
        (1, np.array([1.0, 1.0]), "int64"),
        (2, np.array([[1, 2]]), "square"),
        (2, np.array([[1, -2], [0, 0]]), "square"),
        (7, np.array([1, 1]), "form 7"),
    ],
)
def test_metrics_that_cannot_be_are_refused_by_name(form: int, array: np.ndarray, sentence: str) -> None:
    spec = payload_pb2.MetricSpec(name="loss")
    spec.MergeFromString(bytes([0x10, form]))  # a form from a newer program, too
    payload = Payload.build(payload_pb2.Metrics(metrics=[spec]), {"loss": array})
    with pytest.raises(InvalidPayload, match=f"'loss'.*{sentence}"):
        k.read_metrics(payload)


# ---- documents


def test_the_same_document_gives_the_same_bytes() -> None:
    first = k.document_payload("method.note", {"b": 1, "a": "ä"})
    second = k.document_payload("method.note", {"a": "ä", "b": 1})
    assert first.digest == second.digest
    assert k.read_document(wire(first), "method.note") == {"a": "ä", "b": 1}


@pytest.mark.parametrize("document", [b"[1]", b"{", b'{"a": NaN}', b"\xff", b"[" * 60_000, b'"' + b"x" * 70_000])
def test_documents_that_are_not_small_json_objects_are_refused(document: bytes) -> None:
    payload = Payload.build(payload_pb2.Opaque(type="method.note", document=document))
    with pytest.raises(InvalidPayload, match=r"method\.note"):
        k.read_document(payload, "method.note")


def test_a_document_of_another_type_is_refused() -> None:
    with pytest.raises(InvalidPayload, match=r"method\.note.*other"):
        k.read_document(k.document_payload("other", {}), "method.note")
    with pytest.raises(InvalidPayload, match="bin_edges"):
        k.read_document(k.edges_payload([EDGES]), "method.note")


def test_texts_of_any_length_come_back() -> None:
    texts = ("", "grüße", "x" * 100_000, 'say "no"')
    payload = wire(k.document_payload("t", {}, {"names": k.text_array(texts)}))
    assert k.read_text_array(payload, "names") == texts
    with pytest.raises(InvalidPayload, match="'other'"):
        k.read_text_array(payload, "other")


@settings(max_examples=50)
@given(
    st.dictionaries(st.integers(-MAPPING.keys, MAPPING.keys), st.integers(1, 2**40), max_size=40),
)
def test_our_sketches_are_the_bytes_that_protobuf_writes(values: dict[int, int]) -> None:
    written = k.encode_ddsketch(sketch(values), MAPPING)
    assert payload_pb2.DDSketch.FromString(written).SerializeToString(deterministic=True) == written
    message = payload_pb2.DDSketch.FromString(written)
    assert message.HasField("positive_values")
    assert message.HasField("negative_values")
