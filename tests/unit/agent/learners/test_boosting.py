"""FedSCS-XGB at the node: what it sends, what it refuses, and what it remembers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hanse.errors import InvalidPayload, MethodError, PolicyRefusal, SiteError
from hanse.learning.arrays import FLOAT32_MAX
from hanse.learning.bin_edges import BinEdges
from hanse.learning.exact_sum import exact_total
from hanse.learning.fixed_point import Grid
from hanse.learning.objectives import make_objective
from hanse.learning.parameters import BoostingParameters
from hanse.learning.setup_sums import SetupSums
from hanse.learning.sketch import BucketMapping
from hanse.learning.trees import Forest, Tree
from hanse.method import JobContext, LearnerLimits
from hanse.payload.boosting import BoostingInstruction, Schema, Setup, read_distinct
from hanse.payload.kinds import read_atoms, read_metrics, read_sketches, read_text_array, trees_payload
from hanse.tables import Table
from hanse_agent.learners.boosting import BoostingLearner
from tests.unit.boosting_data import NAMES, Desk, MemoryDataset, make_table, random_table

UNIT = 2**20
JOB = JobContext(id="j", name="n", method="fedscs_xgb", dataset="d", rounds=9)
BINARY = BoostingParameters(objective="binary:logistic")
SETUP = Setup(base_margins=np.zeros(1, np.float32), centres=np.zeros(2), grid=Grid())
EDGES = BinEdges.of([np.array([1.5, FLOAT32_MAX], np.float32), np.array([FLOAT32_MAX], np.float32)])

# age 1 or 2; weight 10 or missing; the last row is held out.
ROWS = make_table(
    [[1, 10], [1, 10], [2, 10], [2, np.nan], [1, 10]], [0, 1, 1, 1, 0], held_out=[False, False, False, False, True]
)


def instruction(**changes: Any) -> BoostingInstruction:
    defaults: dict[str, Any] = {"parameters": BINARY, "schema": Schema(features=NAMES[:2]), "setup": SETUP}
    return BoostingInstruction(**(defaults | changes))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, JOB)


def learner(table: Table = ROWS) -> BoostingLearner:
    return BoostingLearner(MemoryDataset(table))


def perform(
    desk: Desk, phase: str, told: BoostingInstruction, *, at: BoostingLearner | None = None, **more: Any
) -> Any:
    return (at or learner()).perform(desk.assignment(phase, 1, told.to_payload(), **more))


# ---- what it sends


def test_preparation_sends_schema_and_sums_of_the_training_rows_alone(desk: Desk) -> None:
    payload = perform(desk, "prepare", instruction(setup=None))
    sums = SetupSums.from_arrays(payload.arrays, features=2, objective=make_objective(BINARY))
    assert read_text_array(payload, "features") == ("age", "weight")
    assert sums.rows.tolist() == [4]
    assert sums.feature_counts.tolist() == [4, 3]
    assert [float(exact_total(limbs)) for limbs in sums.feature_sums] == [6.0, 30.0]
    assert [float(exact_total(limbs)) for limbs in sums.class_weights] == [1.0, 3.0]


def test_sketches_carry_the_hessian_units_of_the_atoms(desk: Desk) -> None:
    payload = perform(desk, "sketch", instruction())
    mapping = BucketMapping(0.01)
    ((age, weight),) = read_sketches(payload, mapping, features=NAMES[:2], outputs=1).sketches()
    quarter = UNIT // 4  # p (1 - p) at margin 0
    assert age.counts.tolist() == [2 * quarter, 2 * quarter]
    assert weight.counts.tolist() == [3 * quarter]  # the missing value is not counted


def test_atoms_are_the_rows_that_share_all_bins(desk: Desk) -> None:
    payload = perform(desk, "atoms", instruction(edges=(EDGES,)))
    (atoms,), counts = read_atoms(payload, edges=(EDGES,), outputs=1, grid=Grid())
    assert atoms.bins.tolist() == [[0, 0], [1, -1], [1, 0]]
    assert atoms.weight.tolist() == [2 * UNIT, UNIT, UNIT]
    assert atoms.gradient.ravel().tolist() == [0, -UNIT // 2, -UNIT // 2]
    assert atoms.hessian.ravel().tolist() == [UNIT // 2, UNIT // 4, UNIT // 4]
    assert (counts.rows, counts.single) == (4, 2)


def test_instance_weights_reach_sketches_and_atoms(desk: Desk) -> None:
    weighted = make_table([[1, 10], [2, 10]], [0, 1], weight=[0.5, 3])
    payload = perform(desk, "atoms", instruction(edges=(EDGES,)), at=learner(weighted))
    (atoms,), _ = read_atoms(payload, edges=(EDGES,), outputs=1, grid=Grid())
    assert atoms.weight.tolist() == [UNIT // 2, 3 * UNIT]
    assert atoms.gradient.ravel().tolist() == [UNIT // 4, -3 * UNIT // 2]


def test_distinct_values_are_sent_where_the_job_says_exact(desk: Desk) -> None:
    exact = BoostingParameters(objective="binary:logistic", bin_source="exact")
    payload = perform(desk, "sketch", instruction(parameters=exact))
    assert [values.tolist() for values in read_distinct(payload, features=2)] == [[1, 2], [10]]


def test_evaluation_counts_held_out_rows_and_every_row_of_an_unseen_node(desk: Desk, tmp_path: Path) -> None:
    confusion = read_metrics(perform(desk, "evaluate", instruction()))["confusion"]
    assert confusion.array.tolist() == [[1, 0], [0, 0]]
    elsewhere = Desk(tmp_path / "b", JOB, unseen=True)
    (tmp_path / "b").mkdir()
    assert read_metrics(perform(elsewhere, "evaluate", instruction()))["confusion"].array.tolist() == [[2, 0], [3, 0]]


def test_the_units_of_a_squared_error_follow_the_target(desk: Desk) -> None:
    told = instruction(
        parameters=BoostingParameters(objective="reg:squarederror"),
        setup=Setup(base_margins=np.zeros(1, np.float32), centres=np.zeros(2), grid=Grid(gradient=10, hessian=-20)),
    )
    table = make_table([[1, 1], [1, 1]], [3e9, 1e9], held_out=[True, True])
    mse = read_metrics(perform(desk, "evaluate", told, at=learner(table)))["mse"]
    assert mse.mean == pytest.approx(5e18)  # type: ignore[union-attr]


def test_rows_are_drawn_by_seed_round_and_node_and_the_same_for_sketch_and_atoms(tmp_path: Path) -> None:
    half = BoostingParameters(objective="binary:logistic", subsample=0.5, seed=3)
    table = random_table(400, seed=1, classes=2, features=2)
    names = table.feature_names

    digests = set()

    def rows(node: str, round_number: int) -> int:
        desk = Desk(tmp_path / f"{node}{round_number}", JOB, node=node)
        desk.folder.mkdir()
        told = instruction(parameters=half, schema=Schema(features=names), edges=(EDGES,)).to_payload()
        at = BoostingLearner(MemoryDataset(table))
        atoms = at.perform(desk.assignment("atoms", round_number, told))
        sketch = at.perform(desk.assignment("sketch", round_number, told))
        (sets,) = read_sketches(sketch, BucketMapping(0.01), features=names, outputs=1).sketches()
        (merged,), counted = read_atoms(atoms, edges=(EDGES,), outputs=1, grid=Grid())
        present = merged.ids[:, 0] > 0
        digests.add(atoms.digest)
        assert sets[0].total == int(merged.hessian[present].sum())
        return counted.rows

    counts = [rows("a", 1), rows("a", 2), rows("b", 1)]
    training = int(np.count_nonzero(~table.held_out))
    assert all(0.35 * training < count < 0.65 * training for count in counts)
    assert len(digests) == 3  # the same rows and edges: what differs is the draw


# ---- what it refuses


def test_the_atom_guard_names_rule_share_and_remedy(desk: Desk) -> None:
    with pytest.raises(PolicyRefusal, match=r"2 of 3 atoms \(66\.7%\) hold fewer than 2 rows") as caught:
        perform(desk, "atoms", instruction(edges=(EDGES,)), limits=LearnerLimits(minimum_rows_per_atom=2))
    assert caught.value.rule == "minimum_rows_per_atom"
    assert "minimum_rows_per_atom" in caught.value.remedy


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        (("age", "height"), "column 'height' is not in this dataset"),
        (("age",), "column 'weight' is not one of the job's"),
        (("weight", "age"), "Column 1 of this dataset is 'age', and that of the job is 'weight'"),
    ],
)
def test_another_schema_is_refused_by_column(desk: Desk, schema: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(SiteError, match=sentence) as caught:
        perform(desk, "prepare", instruction(schema=Schema(features=schema), setup=None))
    assert caught.value.code == "SCHEMA_MISMATCH"
    assert caught.value.remedy


def test_columns_that_the_job_names_are_picked_by_name(desk: Desk) -> None:
    told = instruction(schema=Schema(features=("weight",)), select=True, setup=None)
    payload = perform(desk, "prepare", told)
    sums = SetupSums.from_arrays(payload.arrays, features=1, objective=make_objective(BINARY))
    assert float(exact_total(sums.feature_sums[0])) == 30.0


def test_other_class_names_are_refused(desk: Desk) -> None:
    table = make_table([[1, 1]], [0], class_names=("ill", "well"))
    told = instruction(schema=Schema(features=NAMES[:2], classes=("well", "ill")), setup=None)
    with pytest.raises(SiteError, match="numbers the classes"):
        perform(desk, "prepare", told, at=learner(table))


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (make_table([[1, np.inf]], [0]), "'weight'"),
        (make_table([[-np.inf, 1]], [0]), "'age'"),
        (make_table([[1, 1], [1, 1]], [0, 2]), "row 1 is 2.0"),
        (make_table([[1, 1]], [0.5]), "row 0 is 0.5"),
        (make_table([[1, 1]], [0], weight=[0]), "weight of row 0"),
    ],
)
def test_values_labels_and_weights_out_of_range_are_refused(desk: Desk, table: Table, sentence: str) -> None:
    with pytest.raises(SiteError, match=sentence) as caught:
        perform(desk, "prepare", instruction(setup=None), at=learner(table))
    assert caught.value.remedy


def test_an_unseen_node_does_not_train(tmp_path: Path) -> None:
    with pytest.raises(MethodError, match="unseen"):
        perform(Desk(tmp_path, JOB, unseen=True), "sketch", instruction())


# ---- what it remembers


def tree(value: float) -> Tree:
    """Age below 1.5: -value, else value."""
    return Tree(
        left=np.array([1, -1, -1], np.int32),
        right=np.array([2, -1, -1], np.int32),
        feature=np.zeros(3, np.int32),
        threshold=np.array([1.5, 0, 0], np.float32),
        default_left=np.zeros(3, np.bool_),
        value=np.array([0, -value, value], np.float32),
        gain=np.zeros(3, np.float32),
    )


FORESTS = [Forest.of_rounds([[tree(0.1 * (i + 1))]]) for i in range(5)]
ARTIFACTS = [trees_payload(forest, round_number=i + 1) for i, forest in enumerate(FORESTS)]


def after(rounds: int, **changes: Any) -> BoostingInstruction:
    """The instruction once so many rounds have grown their trees."""
    grown = tuple(artifact.digest for artifact in ARTIFACTS[:rounds])
    newest = FORESTS[rounds - 1] if rounds else None
    return instruction(grown=grown, newest=newest, edges=(EDGES,), **changes)


def stocked(folder: Path) -> Desk:
    folder.mkdir(exist_ok=True)
    desk = Desk(folder, JOB)
    desk.artifacts = {artifact.digest: artifact for artifact in ARTIFACTS}
    return desk


def test_a_node_that_missed_rounds_sends_the_bytes_of_one_that_did_not(tmp_path: Path) -> None:
    steady, late = stocked(tmp_path / "steady"), stocked(tmp_path / "late")
    at = learner()
    for rounds in range(6):
        one = perform(steady, "atoms", after(rounds), at=at)
        steady.keep()
    assert steady.fetched == []  # the newest trees ride in the instruction
    assert perform(late, "atoms", after(5)).digest == one.digest
    assert late.fetched == [artifact.digest for artifact in ARTIFACTS[:4]]
    assert np.load(steady.state / "margins.npy").tolist() == np.load(late.next_state / "margins.npy").tolist()


def test_a_node_killed_between_two_states_begins_again_from_the_first(tmp_path: Path) -> None:
    desk = stocked(tmp_path / "a")
    perform(desk, "atoms", after(2))
    desk.keep()
    lost = perform(desk, "atoms", after(3))  # written to state n + 1, which is never kept
    before = sorted(path.name for path in desk.state.iterdir())
    again = perform(desk, "atoms", after(3), at=learner())  # a new process
    assert again.digest == lost.digest
    assert sorted(path.name for path in desk.state.iterdir()) == before


def test_a_warm_learner_that_is_ahead_of_its_state_goes_by_the_state(tmp_path: Path) -> None:
    desk, at = stocked(tmp_path / "a"), learner()
    first = perform(desk, "atoms", after(2), at=at)
    desk.keep()
    perform(desk, "atoms", after(3), at=at)
    assert perform(desk, "atoms", after(2), at=at).digest == first.digest


def test_a_restarted_learner_fetches_no_trees_that_its_state_has(tmp_path: Path) -> None:
    desk = stocked(tmp_path / "a")
    perform(desk, "atoms", after(3))
    desk.keep()
    desk.fetched.clear()
    perform(desk, "evaluate", after(4), at=learner())
    assert desk.fetched == []


@pytest.mark.parametrize("damage", ["truncated", "missing", "nonsense"])
def test_a_damaged_state_is_made_anew_from_the_trees(tmp_path: Path, damage: str) -> None:
    desk = stocked(tmp_path / "a")
    whole = perform(desk, "atoms", after(3))
    desk.keep()
    file = desk.state / "margins.npy"
    if damage == "truncated":
        file.write_bytes(file.read_bytes()[:-3])
    elif damage == "missing":
        file.unlink()
    else:
        (desk.state / "margins.json").write_text("[" * 10)
    assert perform(desk, "atoms", after(3), at=learner()).digest == whole.digest


def test_an_unchanged_state_is_carried_over_without_being_written_again(tmp_path: Path) -> None:
    desk, at = stocked(tmp_path / "a"), learner()
    perform(desk, "sketch", after(3), at=at)
    desk.keep()
    perform(desk, "atoms", after(3), at=at)
    assert (desk.next_state / "margins.npy").samefile(desk.state / "margins.npy")


def test_records_that_changed_during_the_job_are_noticed(tmp_path: Path) -> None:
    desk = stocked(tmp_path / "a")
    perform(desk, "atoms", after(1))
    desk.keep()
    other = make_table(ROWS.features + 1, ROWS.target, held_out=ROWS.held_out)
    with pytest.raises(SiteError, match="changed") as caught:
        perform(desk, "atoms", after(1), at=learner(other))
    assert caught.value.code == "DATASET_CHANGED"


def test_trees_that_are_not_those_of_the_reference_are_refused(desk: Desk) -> None:
    told = instruction(grown=(ARTIFACTS[0].digest,), newest=FORESTS[1])
    with pytest.raises(InvalidPayload, match="not those of its last reference"):
        perform(desk, "sketch", told)


def test_progress_is_reported_and_the_file_is_read_once(tmp_path: Path) -> None:
    desk = stocked(tmp_path / "a")
    dataset = MemoryDataset(ROWS)
    at = BoostingLearner(dataset)
    perform(desk, "atoms", after(4), at=at)
    perform(desk, "atoms", after(4), at=at)
    assert dataset.loads == 1
    assert "trees of round 2 of 4" in desk.notes
