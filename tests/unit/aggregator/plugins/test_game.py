"""Fed-GAME as a federation: the consensus is FedAvg's, each node receives its own update and nothing of others, and any
replica goes on where another has stopped."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

import hanse.models
from hanse.errors import MethodError, OperatorError, RejectedContribution
from hanse.harness import Harness, HarnessResult
from hanse.jobs import EvaluationSettings, JobSpecification, Selection
from hanse.method import (
    Assignment,
    Audience,
    Contribution,
    DatasetDescription,
    Evaluation,
    JobContext,
    Outcome,
    Phase,
    Purpose,
    Scope,
)
from hanse.models import Role
from hanse.payload import Payload
from hanse.payload.documents import read_document
from hanse.payload.kinds import RatioSum, metrics_payload
from hanse.payload.models import delta_payload
from hanse.settings import Settings
from hanse_aggregator.plugins.averaging import Averaging
from hanse_aggregator.plugins.game import Game

BODY, HEAD, SIZE = "body", ("head.weight", "head.bias"), 14
NODES = ("a", "b", "c", "d")


class Tiny:
    """A model of a body and a selective head, without a network behind it."""

    class Config(Settings):
        selective: bool = True
        evaluation_only: bool = False
        body: int = 50

    def __init__(self, config: Config) -> None:
        self.config = config

    def initial_state(self, seed: int) -> Mapping[str, NDArray[Any]]:
        rng = np.random.default_rng(seed)
        shapes: dict[str, tuple[int, ...]] = {BODY: (self.config.body,), "head.weight": (4, 3), "head.bias": (2,)}
        return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}

    def roles(self) -> Mapping[str, Role]:
        head = Role.SELECTIVE if self.config.selective else Role.GLOBAL
        body = Role.EVALUATION_ONLY if self.config.evaluation_only else Role.GLOBAL
        return {BODY: body, "head.weight": head, "head.bias": head}


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint(name="tiny", value=f"{__name__}:Tiny", group="hanse.models")]
    monkeypatch.setattr(EntryPoint, "load", lambda self: Tiny if self.name == "tiny" else _load(self))
    monkeypatch.setattr(hanse.models, "entry_points", lambda group: points)


_load = EntryPoint.load


class Nowhere:
    """A dataset of nothing, in a city."""

    def __init__(self, node: str, city: str = "") -> None:
        self.node, self.city = node, city

    def describe(self) -> DatasetDescription:
        facts = {"city": self.city} if self.city else {}
        return DatasetDescription(name="d", kind="test", rows=1, facts=facts)

    def load(self) -> str:
        return self.node


class Pulled:
    """Training moves the start a third of the way to the node's own target; figures tell the distance to it."""

    version: ClassVar[str] = "1"
    dataset_kinds: ClassVar[tuple[str, ...]] = ("test",)
    log: ClassVar[list[Assignment]] = []
    listens: ClassVar[bool] = True

    def __init__(self, dataset: Nowhere) -> None:
        self.node = dataset.load()

    def target(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        # Nodes of the same parity want nearly the same.
        parity = ord(self.node[-1]) % 2
        common = np.random.default_rng([parity, len(name)]).standard_normal(shape)
        own = np.random.default_rng([ord(self.node[-1]), len(name), 9]).standard_normal(shape)
        return (common + 0.1 * own).astype(np.float32)

    def perform(self, assignment: Assignment) -> Payload:
        Pulled.log.append(assignment)
        base = assignment.instruction.arrays
        start = {name: np.array(array) for name, array in base.items()}
        personal = assignment.personal if self.listens else None
        if personal is not None:
            assert personal.header.weight_delta.base_digest == assignment.instruction.digest
            for name, array in personal.arrays.items():
                start[name] = start[name] + array
        if assignment.purpose is Purpose.EVALUATE:
            off = [np.square(start[name] - self.target(name, start[name].shape)).mean() for name in HEAD]
            return metrics_payload({"mse": RatioSum.of(np.array(off))})
        names = HEAD if assignment.purpose is Purpose.ADAPT else tuple(base)
        deltas = {
            name: (start[name] + (self.target(name, start[name].shape) - start[name]) / 3 - base[name]).astype(
                np.float32
            )
            for name in names
        }
        return delta_payload(assignment.instruction.digest, 10 + ord(self.node[-1]), deltas)


class Deaf(Pulled):
    """Leaves what was sent to it alone unread: personalisation is off."""

    listens: ClassVar[bool] = False


@pytest.fixture(autouse=True)
def _fresh_log() -> None:
    Pulled.log.clear()


def run(
    rounds: int = 3,
    *,
    plugin: Any = Game,
    learner: Any = Pulled,
    nodes: tuple[str, ...] = NODES,
    unseen: tuple[str, ...] = (),
    every: int = 0,
    selection: Mapping[str, Any] | None = None,
    workdir: Path | None = None,
    **config: Any,
) -> HarnessResult:
    specification = JobSpecification(
        name="x",
        method="fedgame",
        dataset="d",
        model="tiny",
        rounds=rounds,
        seed=3,
        selection=Selection(**(selection or {})),
        evaluation=EvaluationSettings(every=every, unseen=unseen),
        method_config=config,
    )
    datasets = {node: Nowhere(node) for node in nodes}
    return Harness("fedgame", datasets, specification, workdir, plugin=plugin, learner=learner).run()


def job(rounds: int = 3, *, every: int = 0, unseen: tuple[str, ...] = (), **config: Any) -> JobContext:
    return JobContext(
        id="j",
        name="x",
        method="fedgame",
        dataset="d",
        rounds=rounds,
        seed=3,
        model="tiny",
        config=config,
        evaluation=Evaluation(every=every, unseen=unseen),
        nodes=NODES,
        datasets={node: Nowhere(node, "north" if node in "ab" else "south").describe() for node in NODES},
    )


def decoded(payload: Payload | None) -> Payload | None:
    return None if payload is None else Payload.from_image(payload.image())


def delta(phase: Phase, head: Any, *, body: float = 0.0, names: tuple[str, ...] = (BODY, *HEAD)) -> Payload:
    flat = np.broadcast_to(np.asarray(head, dtype=np.float32), (SIZE,))
    arrays = {
        BODY: np.full(phase.instruction.arrays[BODY].shape, body, dtype=np.float32),
        "head.weight": flat[:12].reshape(4, 3),
        "head.bias": flat[12:],
    }
    return delta_payload(phase.instruction.digest, 5, {name: arrays[name] for name in names})


def close(phase: Phase, state: Payload | None, order: tuple[str, ...] = (), **heads: Any) -> Outcome:
    aggregation = Game().open(phase, decoded(state))
    for node in order or sorted(heads):
        aggregation.add(Contribution(node=node, payload=decoded(delta(phase, heads[node]))))
    return aggregation.finish()


def heads(*nodes: str, seed: int = 0, size: float = 1e-2) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    return {node: (size * rng.standard_normal(SIZE)).astype(np.float32) for node in nodes}


def flat(arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
    return np.concatenate([np.asarray(arrays[name]).reshape(-1) for name in HEAD])


def values_of(outcome: Outcome) -> dict[str, float]:
    return {row.name: row.value for row in outcome.metrics if row.scope is Scope.AGGREGATION}


# ---- property 4: the consensus


@pytest.mark.parametrize("server", [{}, {"optimiser": "adam", "learning_rate": 0.1}, {"learning_rate": 0.5}])
def test_with_personalisation_unread_the_whole_run_is_that_of_averaging_bit_for_bit(server: dict[str, Any]) -> None:
    game = run(4, learner=Deaf, server=server)
    plain = run(4, plugin=Averaging, learner=Deaf, weighting="uniform", server=server)
    assert [record.instruction for record in game.phases] == [record.instruction for record in plain.phases]
    assert game.contributions == plain.contributions
    file = "model.safetensors"
    arrays = [hanse_file(result.model.arrays[file]) for result in (game, plain) if result.model is not None]
    assert all(np.array_equal(arrays[0][name], arrays[1][name]) for name in (BODY, *HEAD))


def hanse_file(file: NDArray[Any]) -> Mapping[str, NDArray[Any]]:
    from hanse.payload.safetensors import read_safetensors

    return read_safetensors(file, "the model")


def test_the_next_model_is_the_mean_of_the_nodes_own() -> None:
    phase = Game().first_phase(job())
    sent = heads(*NODES)
    outcome = close(phase, None, **sent)
    assert outcome.next_phase is not None
    own = [flat(phase.instruction.arrays) + sent[node] for node in NODES]
    np.testing.assert_allclose(flat(outcome.next_phase.instruction.arrays), np.mean(own, axis=0), atol=1e-6)


@pytest.mark.parametrize("combine", ["convex", "sum"])
def test_with_the_old_anchor_an_update_starts_from_the_model_that_it_was_measured_against(combine: str) -> None:
    game = {"delta_anchor": "old", "aggregator": "uniform", "combine": combine, "clip": 0}
    phase = Game().first_phase(job(game=game))
    sent = heads(*NODES)
    outcome = close(phase, None, **sent)
    assert outcome.next_phase is not None
    new = flat(outcome.next_phase.instruction.arrays)
    for node in NODES:
        peers = np.mean([sent[other] for other in NODES if other != node], axis=0)
        mix = 0.5 * sent[node] + 0.5 * peers if combine == "convex" else sent[node] + 0.5 * peers
        start = new + flat(outcome.next_phase.personal[node].arrays)
        np.testing.assert_allclose(start, flat(phase.instruction.arrays) + mix, atol=1e-6)


def test_with_the_old_anchor_equal_nodes_reduce_to_fedavg() -> None:
    phase = Game().first_phase(job(game={"delta_anchor": "old"}))
    same = heads("a")["a"]
    outcome = close(phase, None, **dict.fromkeys(NODES, same))
    assert outcome.next_phase is not None
    for node in NODES:
        np.testing.assert_allclose(flat(outcome.next_phase.personal[node].arrays), 0, atol=1e-6)


def test_with_the_old_anchor_a_stale_difference_starts_from_the_model_of_its_own_round() -> None:
    game = {"delta_anchor": "old", "aggregator": "own", "max_stale": 3}
    first = Game().first_phase(job(5, game=game))
    sent = heads(*NODES)
    one = close(first, None, **sent)
    assert one.next_phase is not None
    two = close(one.next_phase, one.state, a=heads("a", seed=4)["a"])
    assert two.next_phase is not None
    new = flat(two.next_phase.instruction.arrays)
    start = new + flat(two.next_phase.personal["b"].arrays)
    np.testing.assert_allclose(start, flat(first.instruction.arrays) + sent["b"], atol=1e-6)


def test_with_the_old_anchor_an_unseen_node_adds_its_peers_from_where_they_began() -> None:
    game = {"delta_anchor": "old", "aggregator": "uniform", "clip": 0}
    phase = Game().first_phase(job(1, every=1, unseen=("z",), game=game))
    sent = heads(*NODES)
    trained = close(phase, None, **sent)
    adapting = trained.next_phase
    assert adapting is not None
    aggregation = Game().open(adapting, decoded(trained.state))
    own = heads("z", seed=7)["z"]
    aggregation.add(Contribution(node="z", payload=delta(adapting, own, names=HEAD), unseen=True))
    evaluation = aggregation.finish().next_phase
    assert evaluation is not None
    new, before = flat(adapting.instruction.arrays), flat(phase.instruction.arrays)
    peers = before + np.mean([sent[node] for node in NODES], axis=0)
    start = new + flat(evaluation.personal["z"].arrays)
    np.testing.assert_allclose(start, 0.5 * (new + own) + 0.5 * peers, atol=1e-6)


# ---- what a node receives


def test_each_node_receives_its_own_update_of_the_selective_arrays_and_nothing_else() -> None:
    phase = Game().first_phase(job())
    outcome = close(phase, None, **heads(*NODES))
    following = outcome.next_phase
    assert following is not None
    assert set(following.personal) == set(NODES)
    assert len({payload.digest for payload in following.personal.values()}) == len(NODES)
    for payload in following.personal.values():
        assert payload.kind == "weight_delta"
        header = payload.header.weight_delta
        assert (header.base_digest, header.examples) == (following.instruction.digest, 1)
        assert {name: array.shape for name, array in payload.arrays.items()} == {
            "head.weight": (4, 3),
            "head.bias": (2,),
        }
        assert all(array.dtype == np.float32 for array in payload.arrays.values())


def test_nothing_about_another_node_reaches_a_node() -> None:
    """What a node is sent depends on others through the mixed numbers alone: not on their names, counts or rounds."""
    names = ("station-north", "station-south", "station-west")

    def received(others: tuple[str, ...]) -> Payload:
        context = dataclasses.replace(job(game={"aggregator": "uniform"}), nodes=("me", *others))
        phase = Game().first_phase(context)
        sent = heads("me", *others)
        outcome = close(phase, None, **sent)
        assert outcome.next_phase is not None
        return outcome.next_phase.personal["me"]

    mine = received(names)
    image = bytes(mine.image())
    for name in names:
        assert name.encode() not in image
    renamed = received(("x", "y", "z"))
    assert renamed.header == mine.header
    np.testing.assert_allclose(flat(renamed.arrays), flat(mine.arrays), atol=1e-7)
    sent = heads("me", *names)
    for name in names:
        assert sent[name].tobytes()[:8] not in image
    result = run(2, every=1, unseen=("d",))
    assert result.phases
    for assignment in Pulled.log:
        if assignment.personal is not None:
            others = [node for node in NODES if node != assignment.node]
            words = bytes(assignment.personal.image())
            assert not any(f'"{node}"'.encode() in words for node in others)
        assert assignment.instruction.arrays.keys() == {BODY, *HEAD}


@pytest.mark.parametrize("body", [2_000, 200_000])
def test_the_extra_download_is_that_of_the_formula(body: int) -> None:
    phase = Game().first_phase(job(model={"body": body}))
    outcome = close(phase, None, **heads(*NODES))
    assert outcome.next_phase is not None
    numbers = body + SIZE
    (size,) = {payload.size for payload in outcome.next_phase.personal.values()}
    header = size - 4 * SIZE
    assert 0 < header < 400
    values = values_of(outcome)
    assert values["overhead_formula"] == pytest.approx(SIZE / (2 * numbers))
    assert values["personal_bytes"] == size
    exchange = phase.instruction.size + delta(phase, 0.0).size
    assert exchange == pytest.approx(8 * numbers, abs=1500)  # 4 bytes a number each way, and headers
    assert values["overhead_measured"] == pytest.approx(size / exchange)
    assert values["overhead_measured"] - header / exchange == pytest.approx(values["overhead_formula"], rel=0.1)


# ---- partial participation


def test_stale_differences_count_for_peers_and_never_for_the_consensus() -> None:
    game = {"aggregator": "uniform", "max_stale": 1, "clip": 0}
    phase = Game().first_phase(job(5, game=game))
    sent = heads(*NODES)
    one = close(phase, None, **sent)
    assert one.next_phase is not None
    new = heads("a", "b", seed=1)
    two = close(one.next_phase, one.state, **new)
    assert two.next_phase is not None
    moved = flat(two.next_phase.instruction.arrays) - flat(one.next_phase.instruction.arrays)
    np.testing.assert_allclose(moved, (new["a"] + new["b"]) / 2, atol=1e-6)
    peers = (new["b"] + sent["c"] + sent["d"]) / 3
    np.testing.assert_allclose(flat(two.next_phase.personal["a"].arrays), 0.5 * new["a"] + 0.5 * peers, atol=1e-6)
    assert set(two.next_phase.personal) == set(NODES)  # who was absent may be drawn next
    assert values_of(two)["peers_stale"] == 2
    three = close(two.next_phase, two.state, a=new["a"], b=new["b"])
    assert three.next_phase is not None
    assert set(three.next_phase.personal) == {"a", "b"}  # two rounds are too old


def test_without_stale_differences_only_the_rounds_own_nodes_receive() -> None:
    phase = Game().first_phase(job())
    one = close(phase, None, **heads(*NODES))
    assert one.next_phase is not None
    two = close(one.next_phase, one.state, **heads("a", "c", seed=1))
    assert two.next_phase is not None
    assert set(two.next_phase.personal) == {"a", "c"}


def test_a_node_that_joins_late_takes_part_at_once() -> None:
    phase = Game().first_phase(job(5))
    one = close(phase, None, **heads("a", "c", "d"))
    assert one.next_phase is not None
    two = close(one.next_phase, one.state, **heads("a", "b", "c", "d", seed=1))
    assert two.next_phase is not None
    assert set(two.next_phase.personal) == set(NODES)
    assert two.state is not None
    steps = two.state.arrays["x.game.network.bias.steps"]
    assert steps.tolist() == [10, 5, 10, 10]


# ---- any order, any replica


def test_every_order_of_arrival_gives_the_same_bytes() -> None:
    phase = Game().first_phase(job(3, every=1, unseen=("z",)))
    sent = heads(*NODES)
    outcomes = [close(phase, None, order, **sent) for order in itertools.permutations(NODES)]
    assert len({outcome.state.digest for outcome in outcomes if outcome.state}) == 1
    assert len({outcome.metrics for outcome in outcomes}) == 1
    assert len({tuple(picture.payload.digest for picture in outcome.pictures) for outcome in outcomes}) == 1


@pytest.mark.parametrize("game", [{}, {"delta_anchor": "old", "max_stale": 2}, {"aggregator": "uniform"}])
def test_any_replica_goes_on_from_the_state_alone_with_the_same_bytes(game: dict[str, Any]) -> None:
    context = job(4, every=2, unseen=("z",), game=game)
    phase: Phase | None = Game().first_phase(context)
    state: Payload | None = None
    sizes = []
    for number in itertools.count():
        if phase is None:
            break
        outcomes = []
        for _ in range(2):  # each time a new plug-in that knows nothing but what has been written down
            aggregation = Game().open(phase, decoded(state))
            for contribution in contributions(phase, number):
                aggregation.add(contribution)
            outcomes.append(aggregation.finish())
        first, second = outcomes
        assert first.state is not None
        assert second.state is not None
        assert first.state.digest == second.state.digest
        assert described(first) == described(second)
        phase, state = first.next_phase, first.state
        sizes.append(state.size)
    assert number > 6
    assert max(sizes[4:]) <= max(sizes[:4])  # it does not grow with the rounds


def contributions(phase: Phase, number: int) -> list[Contribution]:
    if phase.purpose is Purpose.EVALUATE:
        figures = metrics_payload({"qs": RatioSum.of(np.array([1.0]))})
        return [Contribution(node="a", payload=figures), Contribution(node="z", payload=figures, unseen=True)]
    if phase.purpose is Purpose.ADAPT:
        head = heads("z", seed=number)["z"]
        return [Contribution(node="z", payload=delta(phase, head, names=HEAD), unseen=True)]
    sent = heads(*NODES, seed=number)
    return [Contribution(node=node, payload=delta(phase, sent[node])) for node in NODES]


def described(outcome: Outcome) -> Any:
    following = outcome.next_phase
    if following is None:
        return outcome.model is not None and outcome.model.digest
    personal = {node: payload.digest for node, payload in following.personal.items()}
    return following.name, following.round, following.instruction.digest, personal


# ---- what is broken or hostile


def test_a_hostile_difference_moves_nobody_else_far_and_is_counted() -> None:
    phase = Game().first_phase(job(game={"aggregator": "uniform"}))
    sent = heads(*NODES)
    honest = close(phase, None, **sent)
    evil = close(phase, None, **{**sent, "d": 1e4 * sent["d"]})
    assert honest.next_phase is not None
    assert evil.next_phase is not None
    median = float(np.median([np.linalg.norm(value) for value in sent.values()]))
    for node in "abc":
        change = flat(evil.next_phase.personal[node].arrays) - flat(honest.next_phase.personal[node].arrays)
        assert np.linalg.norm(change) < 0.5 * 4 * median
    assert values_of(evil)["peers_clipped"] == 1
    assert values_of(honest)["peers_clipped"] == 0


def test_a_difference_that_is_not_finite_is_rejected_and_leaves_no_trace() -> None:
    phase = Game().first_phase(job())
    sent = heads("a", "b", "c")
    aggregation = Game().open(phase, None)
    for node in ("a", "b", "c"):
        aggregation.add(Contribution(node=node, payload=delta(phase, sent[node])))
    with pytest.raises(RejectedContribution, match=r"node 'd': the array 'head\.weight' holds nan"):
        aggregation.add(Contribution(node="d", payload=delta(phase, np.full(SIZE, np.nan))))
    outcome = aggregation.finish()
    assert outcome.state is not None
    alone = close(phase, None, **sent)
    assert alone.state is not None
    assert outcome.state.digest == alone.state.digest


def test_a_node_that_learned_nothing_receives_nothing() -> None:
    phase = Game().first_phase(job())
    outcome = close(phase, None, **{**heads("a", "b", "c"), "d": np.zeros(SIZE)})
    assert outcome.next_phase is not None
    assert set(outcome.next_phase.personal) == {"a", "b", "c"}
    nothing = close(phase, None, **dict.fromkeys(NODES, np.zeros(SIZE)))
    assert nothing.next_phase is not None
    assert not nothing.next_phase.personal


# ---- unseen nodes and evaluation


def test_unseen_nodes_adapt_before_the_evaluation_and_nodes_that_train_get_theirs_after_it() -> None:
    phase = Game().first_phase(job(2, every=1, unseen=("z",)))
    sent = heads(*NODES)
    trained = close(phase, None, **sent)
    adapting = trained.next_phase
    assert adapting is not None
    assert (adapting.name, adapting.purpose, adapting.audience) == ("adapt", Purpose.ADAPT, Audience.UNSEEN)
    assert not adapting.personal
    aggregation = Game().open(adapting, decoded(trained.state))
    own = heads("z", seed=7)["z"]
    aggregation.add(Contribution(node="z", payload=delta(adapting, own, names=HEAD), unseen=True))
    adapted = aggregation.finish()
    evaluation = adapted.next_phase
    assert evaluation is not None
    assert (evaluation.name, evaluation.audience, set(evaluation.personal)) == ("evaluate", Audience.ALL, {"z"})
    assert evaluation.instruction.digest == adapting.instruction.digest
    update = flat(evaluation.personal["z"].arrays)
    # Half its own, half a mean of those who train: between the two.
    peers = (update - 0.5 * own) / 0.5
    weights, *_ = np.linalg.lstsq(np.stack([sent[node] for node in NODES]).T, peers, rcond=None)
    assert weights.sum() == pytest.approx(1, abs=1e-3)
    assert (weights > 0).all()
    assert adapted.state is not None
    assert trained.state is not None
    assert adapted.state.digest == trained.state.digest  # nothing of an unseen node is kept
    (picture,) = adapted.pictures
    assert read_document(picture.payload, "picture")["rows"] == ["z"]
    closing = Game().open(evaluation, decoded(adapted.state))
    closing.add(Contribution(node="a", payload=metrics_payload({"qs": RatioSum.of(np.array([1.0]))})))
    following = closing.finish().next_phase
    assert following is not None
    assert (following.name, following.round, set(following.personal)) == ("train", 2, set(NODES))
    straight = close(Game().first_phase(job(2)), None, **sent).next_phase
    assert straight is not None
    assert {node: flat(payload.arrays).tolist() for node, payload in following.personal.items()} == {
        node: flat(payload.arrays).tolist() for node, payload in straight.personal.items()
    }


def test_the_evaluation_goes_on_when_no_unseen_node_adapts() -> None:
    phase = Game().first_phase(job(1, every=1, unseen=("z",)))
    trained = close(phase, None, **heads(*NODES))
    assert trained.next_phase is not None
    evaluation = Game().open(trained.next_phase, decoded(trained.state)).finish().next_phase
    assert evaluation is not None
    assert (evaluation.name, dict(evaluation.personal)) == ("evaluate", {})


@pytest.mark.parametrize("name", ["adapt", "evaluate"])
def test_a_phase_after_training_needs_the_state_of_its_round(name: str) -> None:
    phase = Game().first_phase(job(1, every=1, unseen=("z",)))
    with pytest.raises(MethodError, match=f"The phase '{name}' of round 1 came without"):
        Game().open(dataclasses.replace(phase, name=name), None)


@pytest.mark.parametrize(
    ("names", "head", "unseen", "words"),
    [
        (HEAD, 1.0, False, "only nodes that never train adapt"),
        (HEAD[:1], 1.0, True, "the array 'head.bias' is missing"),
        ((BODY, *HEAD), 1.0, True, "the array 'body' is not one"),
        (HEAD, np.inf, True, "the array 'head.weight' holds a number that is not finite"),
    ],
)
def test_what_cannot_be_adapted_to_is_rejected(names: Any, head: Any, unseen: bool, words: str) -> None:
    phase = Game().first_phase(job(1, every=1, unseen=("z",)))
    trained = close(phase, None, **heads(*NODES))
    assert trained.next_phase is not None
    aggregation = Game().open(trained.next_phase, decoded(trained.state))
    payload = delta(trained.next_phase, head, names=names)
    with pytest.raises(RejectedContribution, match=f"node 'z': {words}"):
        aggregation.add(Contribution(node="z", payload=decoded(payload), unseen=unseen))


def test_nodes_judged_by_what_they_receive_get_it_with_the_evaluation() -> None:
    training = {"personal": {"served": "received"}}
    for unseen in ((), ("z",)):
        phase: Phase | None = Game().first_phase(job(1, every=1, unseen=unseen, training=training))
        assert phase is not None
        outcome = close(phase, None, **heads(*NODES))
        if unseen:
            assert outcome.next_phase is not None
            outcome = Game().open(outcome.next_phase, decoded(outcome.state)).finish()
        assert outcome.next_phase is not None
        assert outcome.next_phase.name == "evaluate"
        assert set(outcome.next_phase.personal) == set(NODES)


@pytest.mark.parametrize("aggregator", ["game", "uniform", "own", "same_group", "graphsage", "gat"])
def test_a_federation_runs_to_its_end_with_every_aggregator(aggregator: str) -> None:
    nodes = ("a", "b", "c", "d", "e", "f")
    game = {
        "aggregator": aggregator,
        "groups": {node: "odd" if ord(node) % 2 else "even" for node in nodes},
        "graph": {"a": ["c", "e"], "b": ["d", "f"], "c": ["a"], "d": ["b"], "f": ["b", "d"]},
    }
    result = run(3, nodes=nodes, unseen=("f",), every=3, selection={"minimum_nodes": 3}, game=game)
    assert [record.name for record in result.phases] == ["train", "train", "train", "adapt", "evaluate"]
    assert result.value("mse") > 0
    assert result.value("mse", scope=Scope.UNSEEN) > 0
    if aggregator == "same_group":
        assert result.value("attention_within_groups", scope=Scope.AGGREGATION) == pytest.approx(1)


def test_personal_updates_bring_nodes_nearer_to_what_they_want() -> None:
    served = {"personal": {"served": "received"}}
    personal = run(6, every=6, training=served)
    common = run(6, plugin=Averaging, learner=Deaf, every=6, weighting="uniform")
    assert personal.value("mse") < 0.8 * common.value("mse")


# ---- what people see


def test_the_learned_graph_is_part_of_the_outcome() -> None:
    phase = Game().first_phase(job(2, game={"group_by": "city", "pictures_every": 2}))
    first = close(phase, None, **heads(*NODES))
    assert first.pictures == ()
    assert first.next_phase is not None
    second = close(first.next_phase, first.state, **heads(*NODES, seed=1))
    pictures = {picture.name: picture for picture in second.pictures}
    assert {name: picture.kind for name, picture in pictures.items()} == {
        "attention": "matrix",
        "graph": "graph",
        "gates": "matrix",
    }
    attention = pictures["attention"].payload
    document = read_document(attention, "picture")
    assert document["rows"] == document["columns"] == list(NODES)
    np.testing.assert_allclose(attention.arrays["values"].sum(axis=1), 1, atol=1e-6)
    assert not np.diagonal(attention.arrays["values"]).any()
    assert read_document(pictures["graph"].payload, "picture")["labels"] == list(NODES)
    np.testing.assert_allclose(pictures["gates"].payload.arrays["values"].sum(axis=1), 1, atol=1e-6)
    values = values_of(second)
    kept = attention.arrays["values"]
    expected = np.mean([kept[0, 1], kept[1, 0], kept[2, 3], kept[3, 2]])
    assert values["attention_within_groups"] == pytest.approx(float(expected), abs=1e-6)
    assert sum(values[f"gate_importance_{number}"] for number in range(4)) == pytest.approx(1)
    assert values["meta_loss_last"] <= values["meta_loss_first"] * 1.5
    assert 0 < values["attention_evenness"] <= 1 + 1e-9
    by_node = {(row.name, row.node) for row in second.metrics if row.scope is Scope.NODE}
    assert {("update_norm", "a"), ("selective_norm", "a"), ("personal_norm", "a")} <= by_node


def test_the_card_tells_which_choices_are_in_force() -> None:
    result = run(1, game={"delta_anchor": "old", "max_stale": 2})
    assert result.model is not None
    card = result.model.arrays["card.md"].tobytes().decode()
    for words in ("personalised by: game, 4 experts, top 2", "delta anchor: old", "up to 2 rounds", "body: rebased"):
        assert words in card


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model": {"selective": False}}, "'tiny' has none"),
        ({"model": {"evaluation_only": True}}, "has arrays for unseen nodes alone"),
        ({"game": {"aggregator": "same_group", "groups": {"a": "x"}}}, "node 'b' is in none of game.groups"),
        ({"game": {"aggregator": "same_group", "group_by": "town"}}, "node 'a' tells no 'town'"),
        ({"game": {"aggregator": "gat", "graph": [["x", "y"]]}}, "joins no two nodes of this job; it names x, y"),
        ({"game": {"expert": 3}}, "unknown key 'game.expert'"),
        ({"game": {"top_k": 9}}, "top_k is 9, and there are 4 experts"),
    ],
)
def test_a_job_that_cannot_work_is_refused_before_it_begins(config: dict[str, Any], words: str) -> None:
    with pytest.raises(OperatorError, match=words):
        Game().first_phase(job(**config))
