"""Fed-GAME's personalised stream: the eight properties of the method, against a reference in plain NumPy."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hanse.learning import game_draws, game_networks
from hanse.learning.arrays import Float32, Float64
from hanse.learning.game import Played, Rows, adapt, play
from hanse.learning.game_mixing import capped, clip_factors, norms, scale_of
from hanse.learning.game_options import GameOptions
from hanse.learning.game_parameters import BIAS, Networks, Trained, fresh_networks
from tests.unit.learning import game_reference as reference

SMALL = {"embedding": 8, "experts": 3, "top_k": 2, "clip": 0.0}


def rows_of(values: Float32 | Float64, age: Any = None, groups: dict[str, str] | None = None) -> Rows:
    n = len(values)
    return Rows(
        nodes=tuple(f"node-{number:03d}" for number in range(n)),
        values=np.asarray(values, dtype=np.float32),
        age=np.zeros(n, dtype=np.int64) if age is None else np.asarray(age, dtype=np.int64),
        groups=groups or {},
    )


def drawn(n: int, d: int, seed: int = 0, size: float = 1e-3) -> Float32:
    return (size * np.random.default_rng(seed).standard_normal((n, d))).astype(np.float32)


def trained_for(values: Float32, options: GameOptions, rounds: int, seed: int = 5) -> Networks:
    networks = None
    for number in range(1, rounds + 1):
        networks = play(rows_of(values), networks, options, seed=seed, round_number=number).networks
    assert networks is not None
    return networks


def random_networks(inputs: int, n: int, options: GameOptions, seed: int) -> Networks:
    """Networks with no zeros anywhere."""
    rng = np.random.default_rng(seed)
    fresh = fresh_networks(inputs, n, options, seed)
    return {
        name: dataclasses.replace(each, value=rng.standard_normal(each.value.shape).astype(np.float32))
        for name, each in fresh.items()
    }


def group_mass(played: Played, labels: Any) -> float:
    return float((played.attention * (labels[:, None] == labels)).sum(axis=1).mean())


options_of = st.builds(
    lambda experts, top_k, temperature, neighbours, own, loop, combine: GameOptions(
        embedding=5,
        experts=max(experts, top_k),
        top_k=top_k,
        temperature=temperature,
        neighbour_top_k=neighbours,
        own_weight=own,
        self_loop=loop,
        combine=combine,
        clip=0,
        meta_steps=0,
    ),
    st.integers(1, 5),
    st.integers(1, 4),
    st.floats(0.1, 5),
    st.integers(0, 3),
    st.floats(0, 1),
    st.booleans(),
    st.sampled_from(["convex", "sum"]),
)


# ---- properties 1 and 7, and the reference


@settings(max_examples=40, deadline=None)
@given(options=options_of, n=st.integers(1, 7), d=st.integers(1, 9), seed=st.integers(0, 10_000))
def test_gates_attention_and_updates_are_those_of_the_reference(
    options: GameOptions, n: int, d: int, seed: int
) -> None:
    values = drawn(n, d, seed)
    networks = random_networks(d, n, options, seed)
    played = play(rows_of(values), networks, options, seed=1, round_number=1)
    again = play(rows_of(values), networks, options, seed=1, round_number=1)
    assert played.updates.tobytes() == again.updates.tobytes()
    assert played.attention.tobytes() == again.attention.tobytes()
    assert played.gates is not None
    allowed = np.ones((n, n), dtype=bool)
    np.fill_diagonal(allowed, options.self_loop)
    scaled = values.astype(np.float64) / scale_of(norms(values), d)
    weights, gates = reference.attention(networks, scaled, networks[BIAS].value, allowed, options)
    np.testing.assert_allclose(played.gates, gates, atol=1e-9)
    np.testing.assert_allclose(played.attention, weights, atol=1e-9)
    for i in range(n):
        expected = reference.update(values[i].astype(float), values.astype(float), weights[i], options)
        np.testing.assert_allclose(played.updates[i], expected, atol=1e-8)
    assert (played.gates >= 0).all()
    np.testing.assert_allclose(played.gates.sum(axis=1), 1)
    assert ((played.gates > 0).sum(axis=1) == options.top_k).all()
    sums = played.attention.sum(axis=1)
    assert np.allclose(sums, 1) if n > 1 or options.self_loop else not sums.any()
    if not options.self_loop:
        assert not np.diagonal(played.attention).any()


def test_ties_of_gates_that_have_learned_nothing_go_to_the_first_experts() -> None:
    options = GameOptions(**SMALL, meta_steps=0)
    played = play(rows_of(drawn(4, 6)), None, options, seed=1, round_number=1)
    assert played.gates is not None
    np.testing.assert_array_equal(played.gates, np.tile([0.5, 0.5, 0.0], (4, 1)))


def test_noise_lets_every_expert_be_tried_and_its_absence_only_the_first() -> None:
    values = drawn(10, 20)

    def touched(noise: bool) -> Any:
        options = GameOptions(**SMALL, meta_noise=noise, meta_steps=1, weight_decay=0, balance_weight=0)
        networks = play(rows_of(values), None, options, seed=3, round_number=1).networks
        assert networks is not None
        return networks["experts"].second.any(axis=1)

    assert touched(noise=True).all()
    assert touched(noise=False).tolist() == [True, True, False]


@pytest.mark.parametrize("ahead", [0.0, 0.5, 1.0, 5.0])
def test_with_noise_an_expert_is_chosen_as_often_as_its_logit_says(ahead: float) -> None:
    """Of two experts, the first wins with probability Phi(ahead / (sqrt(2) ln 2)): softplus of 0 is ln 2."""
    options = GameOptions(embedding=2, experts=2, top_k=1)
    nodes = 4000
    fresh = fresh_networks(3, nodes, options, 1)
    values = {name: torch.from_numpy(each.value.astype(np.float64)) for name, each in fresh.items()}
    values[BIAS][:, 0] = ahead
    noise = torch.from_numpy(game_draws.normal((nodes, 2), 7, game_draws.NOISE, 1, 0))
    rows, peers = torch.zeros((nodes, 3)).double(), torch.ones((2, 3)).double()
    _, gates = game_networks._attention(values, rows, peers, torch.ones((nodes, 2), dtype=torch.bool), options, noise)
    expected = 0.5 * (1 + math.erf(ahead / (math.sqrt(2) * math.log(2)) / math.sqrt(2)))
    assert float((gates[:, 0] > 0).double().mean()) == pytest.approx(expected, abs=0.025)


# ---- property 2


@settings(max_examples=25, deadline=None)
@given(n=st.integers(2, 6), own=st.floats(0, 1), seed=st.integers(0, 1000))
def test_nodes_that_have_learned_the_same_receive_just_that(n: int, own: float, seed: int) -> None:
    row = drawn(1, 7, seed)
    options = GameOptions(**SMALL, own_weight=own)
    played = play(rows_of(np.tile(row, (n, 1))), None, options, seed=seed, round_number=1)
    np.testing.assert_allclose(played.updates, np.tile(row, (n, 1)), rtol=1e-5)
    assert len({update.tobytes() for update in played.updates}) == 1


def test_equal_embeddings_share_attention_evenly() -> None:
    played = play(
        rows_of(np.tile(drawn(1, 5), (4, 1))), None, GameOptions(**SMALL, meta_steps=0), seed=1, round_number=1
    )
    np.testing.assert_allclose(played.attention, (1 - np.eye(4)) / 3)


# ---- property 3


@settings(max_examples=25, deadline=None)
@given(options=options_of, seed=st.integers(0, 1000), order=st.permutations(range(5)))
def test_another_order_of_nodes_is_the_same_result_in_another_order(
    options: GameOptions, seed: int, order: list[int]
) -> None:
    values, networks = drawn(5, 6, seed), random_networks(6, 5, options, seed)
    plain = play(rows_of(values), networks, options, seed=1, round_number=1)
    permuted = {**networks, BIAS: networks[BIAS].rows(np.array(order))}
    other = play(rows_of(values[order]), permuted, options, seed=1, round_number=1)
    np.testing.assert_allclose(other.updates, plain.updates[order], atol=1e-9)
    np.testing.assert_allclose(other.attention, plain.attention[np.ix_(order, order)], atol=1e-9)


# ---- property 5


@settings(max_examples=25, deadline=None)
@given(own=st.floats(0, 1), seed=st.integers(0, 1000))
def test_with_scores_held_fixed_a_nodes_own_difference_counts_by_its_weight(own: float, seed: int) -> None:
    options = GameOptions(aggregator="uniform", own_weight=own, clip=0)
    values = drawn(3, 4, seed)
    moved = values.copy()
    moved[0] += np.float32(0.5)
    before = play(rows_of(values), None, options, seed=1, round_number=1)
    after = play(rows_of(moved), None, options, seed=1, round_number=1)
    np.testing.assert_allclose(after.updates[0] - before.updates[0], own * 0.5, atol=1e-6)
    np.testing.assert_allclose(after.updates[1] - before.updates[1], (1 - own) / 2 * 0.5, atol=1e-6)


@pytest.mark.parametrize("aggregator", ["game", "uniform", "own"])
def test_a_node_alone_receives_its_own_difference(aggregator: Any) -> None:
    values = drawn(1, 6)
    played = play(rows_of(values), None, GameOptions(**SMALL, aggregator=aggregator), seed=1, round_number=1)
    assert played.updates.tobytes() == values.tobytes()


# ---- property 6


@pytest.mark.parametrize(("nodes", "groups", "rounds"), [(12, 2, 40), (24, 4, 60)])
def test_planted_groups_are_found(nodes: int, groups: int, rounds: int) -> None:
    """Uniform attention would keep 0.45 and 0.22 within groups."""
    rng, d = np.random.default_rng(0), 200
    means = np.linalg.qr(rng.standard_normal((d, groups)))[0].T * np.sqrt(d)
    labels = np.arange(nodes) % groups
    options = GameOptions(embedding=16)
    networks = None
    for number in range(1, rounds + 1):
        values = (1e-3 * (means[labels] + 0.5 * rng.standard_normal((nodes, d)))).astype(np.float32)
        played = play(rows_of(values), networks, options, seed=3, round_number=number)
        networks = played.networks
    assert group_mass(played, labels) > 0.85
    # The group of a node that never trained is found as well, without any bias of its own.
    unseen = rows_of((1e-3 * (means + 0.5 * rng.standard_normal((groups, d)))).astype(np.float32))
    unseen = dataclasses.replace(unseen, nodes=tuple(f"unseen-{number}" for number in range(groups)))
    adapted = adapt(unseen, rows_of(values), networks, options, seed=3)
    mass = (adapted.attention * (np.arange(groups)[:, None] == labels)).sum(axis=1)
    assert mass.mean() > 0.85
    np.testing.assert_allclose(adapted.attention.sum(axis=1), 1)


# ---- training


@pytest.mark.parametrize("combine", ["convex", "sum"])
def test_the_meta_loss_is_that_of_the_reference_and_falls(combine: Any) -> None:
    values = drawn(6, 12)
    options = GameOptions(**SMALL, combine=combine, meta_noise=False, balance_weight=0, meta_steps=40, weight_decay=0)
    played = play(rows_of(values), None, options, seed=3, round_number=1)
    scaled = values.astype(np.float64) / scale_of(norms(values), 12)
    start = fresh_networks(12, 6, options, 3)
    weights, _ = reference.attention(start, scaled, start[BIAS].value, ~np.eye(6, dtype=bool), options)
    assert played.losses is not None
    assert played.losses.first == pytest.approx(reference.meta_loss(weights, scaled, options), rel=1e-6)
    assert played.losses.last < played.losses.first


def test_the_first_step_goes_down_the_slope_of_the_reference() -> None:
    """Adam's first step moves every number by the rate against the sign of its slope, here by finite differences."""
    values = drawn(4, 5, seed=2)
    options = GameOptions(**SMALL, meta_noise=False, balance_weight=0, meta_steps=1, weight_decay=0)
    before = random_networks(5, 4, options, 9)
    after = play(rows_of(values), before, options, seed=3, round_number=1).networks
    assert after is not None
    scaled = values.astype(np.float64) / scale_of(norms(values), 5)
    allowed = ~np.eye(4, dtype=bool)

    def loss(name: str, place: tuple[int, ...], shift: float) -> float:
        shifted = before[name].value.astype(np.float64)
        shifted[place] += shift
        changed = {**before, name: dataclasses.replace(before[name], value=shifted)}
        return reference.meta_loss(
            reference.attention(changed, scaled, changed[BIAS].value, allowed, options)[0], scaled, options
        )

    for name in ("encoder", "offset", "experts", "gates", "bias"):
        for place in [(0,) * before[name].value.ndim, tuple(size - 1 for size in before[name].value.shape)]:
            slope = (loss(name, place, 1e-5) - loss(name, place, -1e-5)) / 2e-5
            step = float(after[name].value[place]) - float(before[name].value[place])
            if abs(slope) > 1e-6:
                assert step == pytest.approx(-1e-3 * np.sign(slope), rel=0.05), name
    np.testing.assert_array_equal(after["noise"].value, before["noise"].value)


def test_only_nodes_of_the_round_move_their_bias_and_count_their_steps() -> None:
    values = drawn(4, 6)
    options = GameOptions(**SMALL, max_stale=2, meta_noise=False)
    networks = random_networks(6, 4, options, 4)
    played = play(rows_of(values, age=[0, 1, 3, 0]), networks, options, seed=3, round_number=5)
    assert played.places.tolist() == [0, 1, 3]  # three rounds are too old
    assert played.networks is not None
    bias = played.networks[BIAS]
    assert bias.steps.tolist() == [5, 0, 5]
    np.testing.assert_array_equal(bias.value[1], networks[BIAS].value[1])
    assert not np.array_equal(bias.value[0], networks[BIAS].value[0])
    assert played.attention[0, 1] > 0  # stale, and still a peer
    assert played.updates[1].any()  # and it receives an update itself


def test_a_node_that_joins_late_has_a_gate_without_bias() -> None:
    networks = trained_for(drawn(3, 6), GameOptions(**SMALL), rounds=3)
    joined = networks[BIAS].rows(np.array([0, -1, 1, 2]))
    assert not joined.value[1].any()
    assert joined.steps.tolist() == [15, 0, 15, 15]
    np.testing.assert_array_equal(joined.value[2], networks[BIAS].value[1])


def test_training_never_moves_frozen_networks_and_repeats() -> None:
    options = GameOptions(**SMALL)
    first, second = (trained_for(drawn(5, 6), options, rounds=4) for _ in range(2))
    for name in first:
        for part in ("value", "first", "second", "steps"):
            assert getattr(first[name], part).tobytes() == getattr(second[name], part).tobytes()
    copies = {name: each.value.copy() for name, each in first.items()}
    adapt(rows_of(drawn(2, 6, seed=8)), rows_of(drawn(5, 6)), first, options, seed=5)
    assert all(np.array_equal(copies[name], first[name].value) for name in first)


# ---- differences that are broken, hostile, or say nothing


def test_a_node_whose_difference_is_zero_neither_counts_nor_receives() -> None:
    values = drawn(4, 6)
    values[2] = 0
    played = play(rows_of(values), None, GameOptions(**SMALL), seed=1, round_number=1)
    assert played.places.tolist() == [0, 1, 3]
    nothing = play(rows_of(np.zeros((3, 6))), None, GameOptions(**SMALL), seed=1, round_number=1)
    assert nothing.places.tolist() == []
    assert nothing.updates.shape == (0, 6)
    assert nothing.losses is None


@pytest.mark.parametrize("aggregator", ["game", "uniform"])
def test_a_hostile_difference_moves_its_peers_no_further_than_the_limit(aggregator: Any) -> None:
    values = drawn(7, 20)
    options = GameOptions(embedding=8, aggregator=aggregator, clip=2.0)
    hostile = values.copy()
    hostile[3] *= 1e6
    played = play(rows_of(hostile), None, options, seed=1, round_number=1)
    limit = 2.0 * float(np.median(norms(values)))
    assert played.clipped.tolist() == [False, False, False, True, False, False, False]
    for place in (0, 1, 2, 4, 5, 6):
        assert np.linalg.norm(played.updates[place]) <= limit * 1.0001
    # What it has learned itself comes back to it whole.
    assert np.linalg.norm(played.updates[3]) >= 0.49 * np.linalg.norm(hostile[3])


def test_attention_has_a_cap_where_there_are_peers_enough() -> None:
    values = drawn(6, 8, seed=3)
    options = GameOptions(**SMALL, meta_steps=0, temperature=0.05)
    networks = random_networks(8, 6, options, 3)
    free = play(rows_of(values), networks, options, seed=1, round_number=1)
    assert free.attention.max() > 0.9
    held = play(rows_of(values), networks, options.model_copy(update={"attention_cap": 0.4}), seed=1, round_number=1)
    assert held.attention.max() <= 0.4 + 1e-9
    np.testing.assert_allclose(held.attention.sum(axis=1), 1)
    assert (np.argmax(held.attention, axis=1) == np.argmax(free.attention, axis=1)).sum() >= 4
    pair = play(
        rows_of(values[:2]),
        {**networks, BIAS: networks[BIAS].rows(np.array([0, 1]))},
        options.model_copy(update={"attention_cap": 0.4}),
        seed=1,
        round_number=1,
    )
    np.testing.assert_allclose(pair.attention, [[0, 1], [1, 0]])


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.lists(st.sampled_from([0.0, 1e-9, 0.1, 1.0, 5.0]), min_size=5, max_size=5), min_size=1, max_size=4
    ),
    cap=st.floats(0.05, 1.0),
)
def test_what_is_over_the_cap_goes_to_the_other_peers_in_their_order(rows: list[list[float]], cap: float) -> None:
    given_ = np.array(rows)
    attention = given_ / np.maximum(given_.sum(axis=1, keepdims=True), 1e-300)
    held = capped(attention, cap)
    np.testing.assert_allclose(held.sum(axis=1), attention.sum(axis=1), atol=1e-9)
    assert ((held > 0) == (attention > 0)).all()  # nobody becomes a peer by it
    peers = (attention > 0).sum(axis=1)
    assert (held.max(axis=1) <= np.maximum(cap, 1 / np.maximum(peers, 1)) + 1e-9).all()
    for before, after in zip(attention, held, strict=True):
        order = np.argsort(before, kind="stable")
        assert (np.diff(after[order]) >= -1e-9).all()


def test_factors_of_clipping_are_of_the_median_and_never_above_one() -> None:
    lengths = np.array([1.0, 2.0, 3.0, 100.0])
    np.testing.assert_allclose(clip_factors(lengths, 2.0), [1, 1, 1, 0.05], atol=1e-7)
    np.testing.assert_array_equal(clip_factors(lengths, 0.0), np.ones(4))
    np.testing.assert_allclose(clip_factors(lengths, 1.0, median=1.0), [1, 0.5, 1 / 3, 0.01], atol=1e-7)


# ---- large heads


def test_large_heads_are_projected_and_their_updates_are_whole() -> None:
    rng, d = np.random.default_rng(1), 3000
    labels = np.arange(8) % 2
    means = rng.standard_normal((2, d))
    options = GameOptions(embedding=16, projection=256)
    networks = None
    for number in range(1, 31):
        values = (1e-3 * (means[labels] + 0.5 * rng.standard_normal((8, d)))).astype(np.float32)
        played = play(rows_of(values), networks, options, seed=3, round_number=number)
        networks = played.networks
    assert networks is not None
    assert networks["encoder"].value.shape == (16, 256)
    assert played.updates.shape == (8, d)
    assert group_mass(played, labels) > 0.85
    unseen = rows_of((1e-3 * means).astype(np.float32))
    mass = adapt(unseen, rows_of(values), networks, options, seed=3).attention * (np.arange(2)[:, None] == labels)
    assert mass.sum(axis=1).min() > 0.7


# ---- the other aggregators


GRAPH = {"node-000": ["node-001", "node-002"], "node-001": ["node-000"]}
GROUPS = {"node-000": "a", "node-001": "b", "node-002": "a"}
EVEN: list[tuple[dict[str, Any], list[list[float]]]] = [
    ({"aggregator": "uniform"}, [[0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]]),
    ({"aggregator": "uniform", "self_loop": True}, [[1 / 3] * 3] * 3),
    ({"aggregator": "own"}, [[0, 0, 0]] * 3),
    ({"aggregator": "same_group", "groups": GROUPS}, [[0, 0, 1], [0, 0, 0], [1, 0, 0]]),
    ({"aggregator": "graphsage", "graph": GRAPH}, [[0, 0.5, 0.5], [1, 0, 0], [0, 0, 0]]),
]


@pytest.mark.parametrize(("config", "expected"), EVEN)
def test_aggregators_without_networks_attend_evenly(config: dict[str, Any], expected: list[list[float]]) -> None:
    values = drawn(3, 4)
    played = play(rows_of(values, groups=GROUPS), None, GameOptions(**config), seed=1, round_number=1)
    np.testing.assert_allclose(played.attention, expected)
    assert played.networks is None
    assert played.gates is None
    for place in range(3):
        if not any(expected[place]):
            assert played.updates[place].tobytes() == values[place].tobytes()


def test_gat_learns_over_the_graph_alone() -> None:
    graph = {f"node-{i:03d}": [f"node-{j:03d}" for j in range(6) if j != i and (i + j) % 3] for i in range(6)}
    options = GameOptions(embedding=8, aggregator="gat", graph=graph)
    values = drawn(6, 10)
    played = play(rows_of(values), None, options, seed=1, round_number=1)
    for i in range(6):
        for j in range(6):
            assert (played.attention[i, j] > 0) == (f"node-{j:03d}" in graph[f"node-{i:03d}"])
    assert played.gates is not None
    assert played.gates.shape == (6, 1)
    assert played.losses is not None


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"experts": 2, "top_k": 3}, "top_k is 3, and there are 2 experts"),
        ({"aggregator": "gat"}, "needs a graph"),
        ({"aggregator": "same_group"}, "needs groups"),
        ({"groups": {"a": "x"}, "group_by": "city"}, "not both"),
        ({"aggregator": "uniform", "neighbour_top_k": 2}, "uniform scores nobody"),
        ({"graph": [["a", "b", "c"]]}, "an edge is a pair"),
        ({"own_weight": 1.5}, "less than or equal to 1"),
    ],
)
def test_options_that_contradict_each_other_are_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        GameOptions(**config)


def test_pairs_are_edges_both_ways() -> None:
    assert GameOptions(graph=[["a", "b"], ["b", "c"]]).graph == {"a": ["b"], "b": ["a", "c"], "c": ["b"]}


def test_adam_without_steps_is_at_zero() -> None:
    fresh = Trained.fresh(np.ones((2, 3)), rows=True)
    assert fresh.steps.tolist() == [0, 0]
    assert not fresh.first.any()
