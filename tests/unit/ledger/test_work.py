"""Jobs, phases, assignments, contributions and artifacts in the ledger."""

from __future__ import annotations

import pytest
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy import insert

from hanse.errors import Conflict, NotFound, Owner, Reason
from hanse.ledger import AssignmentState, Decision, InvariantBroken, JobState, Ledger, PhaseState, models
from hanse.ledger.columns import field_names
from hanse.ledger.records import Contribution, Phase
from hanse.method import Audience, Purpose, Scope

GONE = Reason(code="LEASE_EXPIRED", sentence="The node went silent.", owner=Owner.SITE, remedy="Look at its log.")
DIGEST, OTHER = "ab" * 32, "cd" * 32


def add_jobs(ledger: Ledger, epoch: int, clock, names: list[str]) -> list[str]:
    made = []
    for name in names:
        clock.now += 1
        with ledger.write(epoch) as tx:
            common = {"method": "m", "dataset": "d", "specification": "{}", "submitted_by": "ada", "rounds": 1}
            made.append(tx.add_job(name=name, **common))
            made.append(tx.add_job(name=name, **common))
    return made


# ---- Jobs


def test_jobs_are_listed_newest_first_in_pages(ledger: Ledger, epoch: int, clock) -> None:
    ids = add_jobs(ledger, epoch, clock, ["a", "b", "c"])
    with ledger.write(epoch) as tx:
        tx.update_job(ids[0], state=JobState.RUNNING)
    with ledger.read() as view:
        jobs = view.jobs()
        assert [(j.submitted_at, j.id) for j in jobs] == sorted(((j.submitted_at, j.id) for j in jobs), reverse=True)
        pages, after = [], ""
        while page := view.jobs(after=after, limit=4):
            pages += page
            after = page[-1].id
        assert pages == jobs
        assert view.jobs(oldest_first=True) == jobs[::-1]
        assert view.jobs(oldest_first=True, after=jobs[1].id) == [jobs[0]]
        assert [j.id for j in view.jobs(states=[JobState.RUNNING, JobState.PAUSED])] == [ids[0]]
        with pytest.raises(NotFound):
            view.jobs(after="unknown")


def test_a_name_means_its_newest_job(ledger: Ledger, epoch: int, clock) -> None:
    ids = add_jobs(ledger, epoch, clock, ["a", "b", "a"])
    with ledger.read() as view:
        assert view.job_by_name("a").id == max(ids[4:])
        assert view.job(ids[0]).name == "a"
        assert view.find_job("none") is None
        with pytest.raises(NotFound, match="no job named z"):
            view.job_by_name("z")


def test_a_new_state_of_a_job_tells_since_when(world) -> None:
    for state, ended in ((JobState.PAUSED, False), (JobState.RUNNING, False), (JobState.FAILED, True)):
        world.clock.now += 10
        with world.ledger.write(world.epoch) as tx:
            tx.update_job(world.job, state=state, reason=GONE, resume_state=JobState.WAITING)
            job = tx.job(world.job)
        assert (job.state, job.reason, job.since) == (state, GONE, world.clock.now)
        assert job.ended_at == (world.clock.now if ended else None)
        assert job.resume_state is JobState.WAITING


def test_what_a_node_said_replaces_what_it_was_asked(world) -> None:
    with world.ledger.write(world.epoch) as tx:
        tx.set_participation(job=world.job, node="node-2", decision=Decision.OFFERED, unseen=True)
        tx.set_participation(job=world.job, node="node-1", decision=Decision.OFFERED)
        tx.set_participation(job=world.job, node="node-2", decision=Decision.ACCEPTED, dataset={"rows": 5})
        tx.set_participation(job=world.job, node="node-1", decision=Decision.REFUSED, reason=GONE)
        first, second = tx.participations(world.job)
        assert (first.decision, first.reason, first.unseen, first.dataset) == (Decision.REFUSED, GONE, False, None)
        assert (second.decision, second.unseen, second.dataset) == (Decision.ACCEPTED, True, {"rows": 5})
        assert tx.participations(world.job, decisions=[Decision.ACCEPTED]) == [second]
        assert tx.participation(world.job, "node-1") == first
        assert tx.participation(world.job, "node-3") is None
        assert tx.participations_of("node-2") == [second]
        assert tx.participations_of("node-2", states=[JobState.SUBMITTED]) == [second]
        assert tx.participations_of("node-2", states=[JobState.RUNNING]) == []


def test_a_round_is_opened_once(world) -> None:
    with world.ledger.write(world.epoch) as tx:
        tx.add_round(job=world.job, number=0, cohort=[])
        tx.add_round(job=world.job, number=1, cohort=["node-1", "node-2"])
        with pytest.raises(Conflict, match="Round 1"):
            tx.add_round(job=world.job, number=1, cohort=[])
        tx.update_round(world.job, 1, closed_at=5.0)
        opened = tx.round(world.job, 1)
        assert opened is not None
        assert (opened.cohort, opened.closed_at) == (("node-1", "node-2"), 5.0)
        assert [r.number for r in tx.rounds(world.job)] == [0, 1]
        assert tx.rounds(world.job, after=0) == [opened]
        assert tx.round(world.job, 2) is None


# ---- Phases and assignments


def add_phase(tx, world, ordinal: int, attempt: int = 1) -> str:
    return tx.add_phase(
        job=world.job,
        round=1,
        ordinal=ordinal,
        attempt=attempt,
        name="atoms",
        purpose=Purpose.TRAIN,
        audience=Audience.SELECTED,
        quorum=2,
        personal={"node-1": DIGEST},
    )


def test_a_job_is_in_one_phase_at_a_time(world) -> None:
    with world.ledger.write(world.epoch) as tx:
        with pytest.raises(Conflict, match="is in another phase"):
            add_phase(tx, world, ordinal=2)
        tx.update_phase(world.phase, state=PhaseState.ABANDONED, reason=GONE)
        assert tx.open_phase(world.job) is None
        with pytest.raises(Conflict, match=r"phase 1 \(attempt 1\)"):
            add_phase(tx, world, ordinal=1)
        again = add_phase(tx, world, ordinal=1, attempt=2)
        assert tx.open_phase(world.job) == tx.last_phase(world.job) == tx.phase(again)
        assert tx.phase(again).personal == {"node-1": DIGEST}
        assert (tx.phase(world.phase).closed_at, tx.phase(world.phase).reason) == (tx.now, GONE)
        tx.update_phase(again, state=PhaseState.CLOSED)
        newest = add_phase(tx, world, ordinal=2)
        assert [p.id for p in tx.phases(world.job)] == [world.phase, again, newest]
        assert [p.id for p in tx.phases(world.job, limit=2)] == [again, newest]


def test_an_open_phase_is_one_at_a_time_for_the_database_too(world) -> None:
    with world.ledger.read() as view:
        phase = view.phase(world.phase)
    twin = {name: getattr(phase, name) for name in field_names(Phase)} | {"id": "twin", "ordinal": 9}
    with pytest.raises(Conflict, match="already holds"), world.ledger.write(world.epoch) as tx:
        tx._connection.execute(insert(models.phase).values(twin))


def test_a_node_has_one_assignment_of_a_phase(world) -> None:
    with pytest.raises(Conflict), world.ledger.write(world.epoch) as tx:
        tx.add_assignments([{"phase": world.phase, "job": world.job, "node": "node-1"}])


def test_an_assignment_needs_a_node_that_exists(world) -> None:
    with pytest.raises(InvariantBroken), world.ledger.write(world.epoch) as tx:
        tx.add_assignments([{"phase": world.phase, "job": world.job, "node": "nobody"}])


def test_assignments_move_and_end(world) -> None:
    first, second = world.assignments["node-1"], world.assignments["node-2"]
    with world.ledger.write(world.epoch) as tx:
        tx.update_assignment(first, state=AssignmentState.LEASED, fence=2, lease_expires_at=99.0, stage="train")
        tx.update_assignment(second, state=AssignmentState.DELIVERED, fraction=1.0)
        moved, ended = tx.assignment(first), tx.assignment(second)
        assert (moved.state, moved.fence, moved.lease_expires_at, moved.ended_at) == (
            AssignmentState.LEASED,
            2,
            99.0,
            None,
        )
        assert (ended.state, ended.ended_at) == (AssignmentState.DELIVERED, tx.now)
        assert [a.node for a in tx.live_assignments()] == ["node-1", "node-3", "node-4", "node-5", "node-6"]
        assert tx.live_assignments(node="node-1") == [moved]
        assert tx.assignments(world.phase, states=[AssignmentState.DELIVERED]) == [ended]
        expired = tx.end_live_assignments(world.phase, state=AssignmentState.EXPIRED, reason=GONE)
        assert [a.node for a in expired] == ["node-1", "node-3", "node-4", "node-5", "node-6"]
        assert {(a.state, a.reason, a.ended_at) for a in expired} == {(AssignmentState.EXPIRED, GONE, tx.now)}
        assert tx.live_assignments() == []
        assert tx.assignment(second) == ended
        tally = tx.phase_tallies(world.job)[0]
        assert (tally.phase.id, tally.assigned, tally.delivered) == (world.phase, 6, 1)
        assert tx.assignments_of("node-2") == [ended]
        with pytest.raises(NotFound):
            tx.update_assignment("none", fence=1)


# ---- Contributions and artifacts


def contribute(tx, world, node: str = "node-1", digest: str = DIGEST, **more):
    return tx.add_contribution(
        assignment=world.assignments[node],
        phase=world.phase,
        job=world.job,
        node=node,
        digest=digest,
        size=100,
        **more,
    )


def test_the_same_contribution_again_changes_nothing(world) -> None:
    with world.ledger.write(world.epoch) as tx:
        first = contribute(tx, world)
    world.clock.now += 5
    with world.ledger.write(world.epoch) as tx:
        assert contribute(tx, world, late=True) == first == tx.contribution(world.assignments["node-1"])
        assert tx.contributions(world.phase) == [first]


def test_another_contribution_to_the_same_assignment_is_refused(world) -> None:
    with world.ledger.write(world.epoch) as tx:
        contribute(tx, world)
        with pytest.raises(Conflict, match="answered already") as refused:
            contribute(tx, world, digest=OTHER)
        assert [c.digest for c in tx.contributions(world.phase)] == [DIGEST]
    assert refused.value.code == "ALREADY_CONTRIBUTED"


def test_one_contribution_per_assignment_is_enforced_by_the_database(world) -> None:
    with world.ledger.write(world.epoch) as tx:
        first = contribute(tx, world)
    twin = {name: getattr(first, name) for name in field_names(Contribution)} | {"digest": OTHER}
    with pytest.raises(Conflict, match="already holds"), world.ledger.write(world.epoch) as tx:
        tx._connection.execute(insert(models.contribution).values(twin))


def test_what_each_node_contributed_is_added_up(world) -> None:
    with world.ledger.write(world.epoch) as tx:
        contribute(tx, world, "node-2")
        contribute(tx, world, "node-1")
        contribute(tx, world, "node-3", late=True)
        assert tx.bytes_by_node(world.job) == {"node-1": 100, "node-2": 100, "node-3": 100}
        assert [c.node for c in tx.contributions(world.phase, late=False)] == ["node-1", "node-2"]


def test_artifacts_of_contributions_go_when_their_retention_has_passed(world) -> None:
    with world.ledger.write(world.epoch) as tx:
        contribute(tx, world)
        contribute(tx, world, "node-2", digest=OTHER)
        tx.add_artifact(digest=DIGEST, size=100, kind="contribution", job=world.job)
        tx.add_artifact(digest=OTHER, size=100, kind="model", job=world.job)
        assert tx.expired_artifacts(1e12) == []
        tx.retain_contributions(world.phase, 500.0)
        tx.retain_contributions(world.phase, 400.0)
        assert tx.expired_artifacts(499.0) == []
        assert [a.digest for a in tx.expired_artifacts(500.0)] == [DIGEST]
        tx.mark_deleted([DIGEST])
        assert tx.expired_artifacts(1e12) == []
        artifact, contribution = tx.artifact(DIGEST), tx.contribution(world.assignments["node-1"])
        assert artifact is not None
        assert contribution is not None
        assert (artifact.deleted_at, artifact.size) == (contribution.deleted_at, contribution.size) == (tx.now, 100)
        kept = tx.artifact(OTHER)
        assert kept is not None
        assert (kept.retain_until, kept.deleted_at) == (None, None)
        assert {a.digest for a in tx.artifacts(world.job)} == {DIGEST, OTHER}


def test_artifacts_that_served_one_phase_go_and_a_living_job_holds_what_it_needs(world) -> None:
    with world.ledger.write(world.epoch) as tx:
        for digest, kind in ((DIGEST, "state"), (OTHER, "model")):
            tx.add_artifact(digest=digest, size=1, kind=kind, job=world.job)
        tx.retain([DIGEST, OTHER, None], 7.0, kinds=["state", "instruction"])
        tx.retain([DIGEST], 5.0, kinds=["state"])
        assert [(item.digest, item.retain_until) for item in tx.expired_artifacts(7.0)] == [(DIGEST, 7.0)]
        assert tx.still_needed([DIGEST, OTHER]) == set()
        tx.update_job(world.job, state_digest=DIGEST, model_digest=OTHER)
        assert tx.still_needed([DIGEST, OTHER]) == {DIGEST, OTHER}
        tx.update_job(world.job, state=JobState.SUCCEEDED)
        assert tx.still_needed([DIGEST, OTHER]) == {OTHER}


@pytest.mark.parametrize(
    ("first", "again", "kept"), [(5.0, 9.0, 9.0), (9.0, 5.0, 9.0), (5.0, None, None), (None, 5.0, None)]
)
def test_an_artifact_stored_twice_is_kept_for_the_longer_time(world, first, again, kept) -> None:
    with world.ledger.write(world.epoch) as tx:
        tx.add_artifact(digest=DIGEST, size=1, kind="model", retain_until=first)
        tx.add_artifact(digest=DIGEST, size=1, kind="model", retain_until=again)
        found = tx.artifact(DIGEST)
        assert found is not None
        assert found.retain_until == kept
        with pytest.raises(Conflict, match="has 1 bytes, not 2"):
            tx.add_artifact(digest=DIGEST, size=2, kind="model")


def test_an_artifact_that_was_deleted_and_is_stored_again_is_there(world) -> None:
    with world.ledger.write(world.epoch) as tx:
        tx.add_artifact(digest=DIGEST, size=1, kind="model")
        tx.mark_deleted([DIGEST])
        tx.add_artifact(digest=DIGEST, size=1, kind="model", retain_until=7.0)
        found = tx.artifact(DIGEST)
        assert found is not None
        assert (found.deleted_at, found.retain_until) == (None, 7.0)
        tx.update_artifact(DIGEST, retain_until=None)


def test_the_newest_value_of_each_metric_is_told(world) -> None:
    with world.ledger.write(world.epoch) as tx:
        for number in (1, 2):
            rows = [
                {"name": "accuracy", "value": number / 4, "scope": Scope.NODE, "node": node, "weight": 10.0}
                for node in ("node-2", "node-1")
            ]
            rows.append({"name": "accuracy", "value": number / 8, "scope": Scope.POOLED, "node": ""})
            tx.add_metrics(job=world.job, round=number, phase=world.phase, rows=rows)
        latest = [(m.scope, m.node, m.value, m.round) for m in tx.latest_metrics(world.job)]
        assert latest == [
            (Scope.NODE, "node-1", 0.5, 2),
            (Scope.NODE, "node-2", 0.5, 2),
            (Scope.POOLED, None, 0.25, 2),
        ]
        assert [m.value for m in tx.metrics(world.job, scopes=[Scope.POOLED])] == [0.125, 0.25]
        assert len(tx.metrics(world.job, after_round=1, names=["accuracy"])) == 3
        with pytest.raises(InvariantBroken, match="not a number"):
            tx.add_metrics(
                job=world.job,
                round=1,
                phase=world.phase,
                rows=[{"name": "a", "value": float("nan"), "scope": Scope.POOLED}],
            )


def test_pictures_are_listed_newest_first(world) -> None:
    with world.ledger.write(world.epoch) as tx:
        for name in ("bins", "trees"):
            tx.add_picture(
                job=world.job, round=1, phase=world.phase, name=name, kind="matrix", title="T", digest=DIGEST
            )
        assert [p.name for p in tx.pictures(world.job)] == ["trees", "bins"]
        assert [p.name for p in tx.pictures(world.job, name="bins", limit=5)] == ["bins"]
        with pytest.raises(Conflict, match="picture bins already"):
            tx.add_picture(
                job=world.job, round=1, phase=world.phase, name="bins", kind="matrix", title="T", digest=DIGEST
            )


def test_events_are_found_by_job_and_node(world) -> None:
    with world.ledger.write(world.epoch) as tx:
        for job, node in ((world.job, None), (None, "node-1"), (world.job, "node-1")):
            tx.event("happened", job=job, node=node)
        assert [e.sequence for e in tx.events(job=world.job)] == [1, 3]
        assert [e.sequence for e in tx.events(node="node-1", after=2)] == [3]
        assert [e.sequence for e in tx.events(limit=2)] == [1, 2]
        assert [e.sequence for e in tx.events(limit=2, newest_first=True)] == [3, 2]


def test_no_list_or_lookup_reads_a_whole_table_that_grows_with_the_work(world) -> None:
    if world.ledger._engine.dialect.name != "sqlite":
        pytest.skip("SQLite tells its plan without statistics")
    asked: list[tuple[str, object]] = []
    sqlalchemy_event.listen(world.ledger._engine, "before_cursor_execute", lambda *a: asked.append((a[2], a[3])))
    one = world.assignments["node-1"]
    with world.ledger.write(world.epoch) as tx:
        contribute(tx, world)
        tx.set_participation(job=world.job, node="node-1", decision=Decision.OFFERED)
        tx.end_live_assignments(world.phase, state=AssignmentState.EXPIRED)
        tx.retain_contributions(world.phase, 1.0)
        tx.retain([DIGEST], 1.0, kinds=["state"]), tx.still_needed([DIGEST])
        tx.mark_deleted([DIGEST])
        tx.revoke_certificates("node-1")
        tx.use_invitation(tx.add_invitation(node="node-1", created_by="a", expires_at=1.0), key_sha256="a")
        tx.event("one")
        tx.open_phase(world.job), tx.last_phase(world.job), tx.phases(world.job), tx.phase_tallies(world.job, limit=5)
        tx.assignments(world.phase), tx.live_assignments(), tx.live_assignments(node="a"), tx.assignments_of("a")
        tx.contribution(one), tx.contributions(world.phase), tx.bytes_by_node(world.job)
        tx.artifact(DIGEST), tx.artifacts(world.job), tx.expired_artifacts(5.0)
        tx.metrics(world.job), tx.latest_metrics(world.job), tx.pictures(world.job)
        tx.participations(world.job), tx.participations_of("a", states=[JobState.RUNNING]), tx.rounds(world.job)
        tx.job_by_name("activity"), tx.jobs(states=[JobState.RUNNING]), tx.jobs(after=world.job, limit=5)
        tx.events(job="a"), tx.events(node="a", newest_first=True, limit=5), tx.events(after=5), tx.head()
        tx.certificates("a"), tx.invitations("a"), tx.token_by_secret_hash("a")
        plans = []
        for statement, parameters in asked.copy():
            if statement.split()[0] in {"SELECT", "UPDATE"}:
                rows = tx._connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
                plans += [(row[3], statement) for row in rows if row[3].startswith("SCAN")]
    # In the order of an index or of the key, up to a limit, is no scan of a table.
    assert [plan for plan in plans if "INDEX" not in plan[0] and "LIMIT" not in plan[1]] == []
