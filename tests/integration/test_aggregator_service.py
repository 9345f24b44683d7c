"""The aggregator as a process of its own, over mutual TLS, with a plug-in that somebody else packaged."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import grpc.aio
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hanse.artifacts import LocalStore
from hanse.errors import Forbidden, HanseError, MethodError, NotFound, OperatorError, Unreachable
from hanse.payload import Payload
from hanse.rpc import version
from hanse.security import Authority, Identity, KeyPair, channel_credentials, channel_options
from hanse.v1 import aggregator_pb2, aggregator_pb2_grpc, node_pb2, payload_pb2
from hanse.wire import sources
from hanse_coordinator.aggregators import AggregatorPool

LARGE = 200_000  # numbers in a state of 1.6 MB: it travels as an artifact


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> LocalStore:
    return LocalStore(tmp_path_factory.mktemp("shared"))


@pytest.fixture(scope="module")
def sharing(start_aggregator, shared_store):
    """An aggregator that reaches the coordinator's store."""
    return start_aggregator(artifacts=shared_store.root)


@pytest.fixture(scope="module")
def remote(start_aggregator):
    """An aggregator that reaches no store."""
    return start_aggregator()


def facts(rounds: int = 3, method: str = "tally", **config: object) -> aggregator_pb2.JobFacts:
    job = node_pb2.JobDescription(
        id="j-1", name="counting", method=method, dataset="d", rounds=rounds, config=json.dumps(config).encode()
    )
    offer = node_pb2.DatasetOffer(name="d", kind="table", rows=5)
    return aggregator_pb2.JobFacts(job=job, nodes=["a", "b", "c"], datasets={"a": offer, "b": offer, "c": offer})


def counts(*values: int) -> Payload:
    return Payload.build(payload_pb2.Opaque(type="counts"), {"counts": np.array(values, np.int64)})


def large_counts(seed: int) -> Payload:
    values = np.random.default_rng(seed).integers(0, 9, LARGE)
    return Payload.build(payload_pb2.Opaque(type="counts"), {"counts": values})


@asynccontextmanager
async def pool_of(
    authority: Authority, pair: KeyPair, store: LocalStore, *addresses: str
) -> AsyncIterator[AggregatorPool]:
    pool = AggregatorPool(addresses, store=store, authority_pem=authority.certificate_pem, pair=pair)
    try:
        yield pool
    finally:
        await pool.close()


Play = Callable[..., object]


@pytest.fixture
def play(authority: Authority, coordinator_pair: KeyPair) -> Play:
    """Run a scenario with a pool of the coordinator's."""

    def run(scenario: Callable[[AggregatorPool], Awaitable[object]], store: LocalStore, *addresses: str) -> object:
        async def inner() -> object:
            async with pool_of(authority, coordinator_pair, store, *addresses) as pool:
                return await scenario(pool)

        return asyncio.run(inner())

    return run


def keep(store: LocalStore, message: aggregator_pb2.OutcomeMessage) -> None:
    """What the engine does with an outcome: its small payloads go to the store, too."""
    for source in sources(message):
        if source.WhichOneof("source") == "inline":
            store.put(Payload.from_image(source.inline))
        else:
            assert store.open(source.artifact.digest).size == source.artifact.size
    for reference in message.stored:
        assert store.exists(reference.digest)


def state_of(message: aggregator_pb2.OutcomeMessage) -> bytes:
    if message.state.WhichOneof("source") == "inline":
        return Payload.from_image(message.state.inline).digest
    return message.state.artifact.digest


async def play_job(
    pool: AggregatorPool, store: LocalStore, job: aggregator_pb2.JobFacts, contributions: dict[str, Payload]
) -> list[aggregator_pb2.OutcomeMessage]:
    """The whole job as an engine would run it; every node sends the same in every round."""
    async with pool.open(job, None, None) as call:
        outcomes = [await call.close()]
    state = None
    while outcomes[-1].HasField("next_phase"):
        async with pool.open(job, outcomes[-1].next_phase, state) as call:
            for node, payload in contributions.items():
                assert await call.add(f"{node}-{len(outcomes)}", node, store.put(payload).digest) is None
            outcomes.append(await call.close())
        keep(store, outcomes[-1])
        state = state_of(outcomes[-1])
    return outcomes


def values(message: aggregator_pb2.OutcomeMessage) -> dict[str, float]:
    return {metric.name: metric.value for metric in message.metrics}


@pytest.mark.parametrize("length", [4, LARGE])
def test_a_shared_store_and_streamed_bytes_give_the_same_outcomes(
    play, sharing, remote, shared_store, tmp_path, length
):
    """The plug-in comes from a package outside this repository, and cannot tell where artifacts come from."""
    contributions = {"a": counts(1, 2), "b": large_counts(1), "c": large_counts(2)}
    elsewhere = LocalStore(tmp_path / "elsewhere")
    results = [
        play(lambda pool, store=store: play_job(pool, store, facts(length=length), contributions), store, address)
        for store, address in ((shared_store, sharing.address), (elsewhere, remote.address))
    ]
    encoded = [[message.SerializeToString(deterministic=True) for message in outcomes] for outcomes in results]
    assert encoded[0] == encoded[1]
    total = sum(int(payload.arrays["counts"].sum()) for payload in contributions.values())
    assert [values(message) for message in results[1][1:]] == [{"total": total * n, "depth": n - 1} for n in (1, 2, 3)]
    assert results[1][-1].state.WhichOneof("source") == ("inline" if length == 4 else "artifact")
    assert not list(elsewhere.spool.iterdir())


def test_any_replica_goes_on_with_the_state_that_another_made(play, sharing, remote, start_aggregator, tmp_path):
    """Three replicas take turns: one that shares another store, two that share none."""
    contributions = {"a": large_counts(1), "b": counts(5)}
    store, third = LocalStore(tmp_path), start_aggregator()
    job = facts(rounds=6, length=LARGE)
    one = play(lambda pool: play_job(pool, store, job, contributions), store, remote.address)
    three = play(
        lambda pool: play_job(pool, store, job, contributions), store, sharing.address, remote.address, third.address
    )
    assert one == three


def test_plugins_are_described_and_a_broken_one_stops_no_other(play, remote, shared_store):
    plugins = play(lambda pool: pool.describe(), shared_store, remote.address)
    assert plugins["tally"].version == "7.1"
    assert plugins["tally"].summary == "Adds up what nodes count."
    assert json.loads(plugins["tally"].config_schema)["properties"]["length"]["default"] == 4
    assert {"absent", "no_plugin"}.isdisjoint(plugins)
    log = remote.log.read_text()
    assert "No module named 'hanse_tally_of_nobody'" in log
    assert "its entry point does not name a class" in log


@pytest.mark.parametrize(
    ("method", "config", "error", "words"),
    [
        ("tally", {"lenght": 3}, OperatorError, "lenght"),
        ("tally", {"length": "many"}, OperatorError, "length"),
        ("unheard_of", {}, NotFound, "unheard_of"),
        ("absent", {}, NotFound, "hanse_tally_of_nobody"),
    ],
)
def test_a_job_that_cannot_run_is_refused_with_what_is_wrong(play, remote, shared_store, method, config, error, words):
    async def check(pool: AggregatorPool) -> None:
        with pytest.raises(error, match=words):
            await pool.check_configuration(method, config)
        with pytest.raises(error, match=words):
            async with pool.open(facts(method=method, **config), None, None) as call:
                await call.close()

    play(check, shared_store, remote.address)


def test_a_contribution_is_rejected_with_its_reason_and_the_others_count(play, remote, tmp_path):
    store = LocalStore(tmp_path)

    async def scenario(pool: AggregatorPool) -> None:
        async with pool.open(facts(), None, None) as call:
            phase = (await call.close()).next_phase
        async with pool.open(facts(), phase, None) as call:
            added = [
                call.add("a-1", "a", store.put(counts(3)).digest),
                call.add("b-1", "b", store.put(counts(-1)).digest),
                call.add("c-1", "c", store.put(counts(4)).digest),
            ]
            good, bad, other = await asyncio.gather(*added)
            assert (good, other) == (None, None)
            assert bad.code == "BELOW_ZERO"
            assert bad.sentence == "b counts below zero."
            assert values(await call.close())["total"] == 7

    play(scenario, store, remote.address)


def test_a_failing_plugin_is_named_to_the_caller_and_traced_in_the_log_alone(play, remote, tmp_path):
    store = LocalStore(tmp_path)
    job = facts(fail="there are no apples")

    async def scenario(pool: AggregatorPool) -> HanseError:
        async with pool.open(job, None, None) as call:
            phase = (await call.close()).next_phase
        async with pool.open(job, phase, None) as call:
            await call.add("a-1", "a", store.put(counts(3)).digest)
            with pytest.raises(MethodError) as error:
                await call.close()
        return error.value

    error = play(scenario, store, remote.address)
    assert error.sentence == "plug-in 'tally' failed: ZeroDivisionError: there are no apples"
    assert not error.retryable
    assert "Traceback" in remote.log.read_text()


def test_an_artifact_that_neither_side_has_ends_the_call_with_its_name(play, remote, tmp_path):
    store = LocalStore(tmp_path)
    lost = payload_pb2.PayloadSource(artifact=payload_pb2.ArtifactRef(digest=bytes(32), size=10**6))
    phase = aggregator_pb2.PhaseDescription(name="count", round=1, purpose="train", audience="all", instruction=lost)

    async def scenario(pool: AggregatorPool) -> None:
        async with pool.open(facts(), phase, None) as call:
            with pytest.raises(NotFound, match="0000000000000000…"):
                await call.close()

    play(scenario, store, remote.address)


@pytest.mark.parametrize(
    "identity", [Identity.service("dashboard"), Identity.node("coordinator"), Identity.bootstrap("coordinator")]
)
def test_nobody_but_the_coordinator_may_call(authority, remote, shared_store, identity):
    async def scenario() -> None:
        async with pool_of(authority, authority.issue(identity), shared_store, remote.address) as pool:
            with pytest.raises(Forbidden, match="coordinator alone"):
                await pool.describe()
            with pytest.raises(Forbidden, match="coordinator alone"):
                async with pool.open(facts(), None, None) as call:
                    await call.close()

    asyncio.run(scenario())


def test_an_aggregator_that_is_killed_in_a_call_is_unreachable_and_the_next_one_gives_the_same_bytes(
    play, start_aggregator, remote, tmp_path
):
    store, doomed = LocalStore(tmp_path / "store"), start_aggregator()

    async def scenario(pool: AggregatorPool) -> None:
        outcomes = []
        for _ in range(2):
            async with pool.open(facts(), None, None) as call:
                phase = (await call.close()).next_phase
            async with pool.open(facts(length=LARGE), phase, None) as call:
                await call.add("a-1", "a", store.put(large_counts(1)).digest)
                outcomes.append(await call.close())
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        pool._turn = 1  # the doomed one is next
        async with pool.open(facts(length=LARGE, wait_for=str(pipe)), phase, None) as call:
            await call.add("a-1", "a", store.put(large_counts(1)).digest)
            closing = asyncio.ensure_future(call.close())
            doomed.kill()
            with pytest.raises(Unreachable, match=doomed.address) as error:
                await closing
            assert error.value.retryable
            with pytest.raises(Unreachable, match=doomed.address):
                await call.add("b-1", "b", store.put(counts(1)).digest)
        assert outcomes[0] == outcomes[1]

    play(scenario, store, doomed.address, remote.address)


def test_calls_do_not_wait_for_each_others_plugin_code(play, remote, tmp_path):
    store, pipe = LocalStore(tmp_path / "store"), tmp_path / "pipe"
    os.mkfifo(pipe)

    async def scenario(pool: AggregatorPool) -> None:
        job = facts(wait_for=str(pipe))
        async with pool.open(job, None, None) as call:
            phase = (await call.close()).next_phase
        async with pool.open(job, phase, None) as slow:
            await slow.add("a-1", "a", store.put(counts(3)).digest)
            closing = asyncio.ensure_future(slow.close())
            writer = await asyncio.to_thread(pipe.open, "w")  # opens once the plug-in reads
            assert "tally" in await pool.describe(refresh=True)
            async with pool.open(facts(), phase, None) as quick:
                await quick.add("a-1", "a", store.put(counts(2)).digest)
                assert values(await quick.close())["total"] == 2
            assert not closing.done()
            writer.close()
            assert values(await closing)["total"] == 3

    play(scenario, store, remote.address)


def test_sigterm_lets_the_running_call_finish_and_takes_no_other(play, start_aggregator, tmp_path):
    store = LocalStore(tmp_path)
    leaving = start_aggregator(health_listen="127.0.0.1:0", ports_file=tmp_path / "ports.json")
    ports = json.loads((tmp_path / "ports.json").read_text())
    assert leaving.address.endswith(f":{ports['aggregator']}")

    async def scenario(pool: AggregatorPool) -> None:
        async with pool.open(facts(), None, None) as call:
            phase = (await call.close()).next_phase
        async with (
            grpc.aio.insecure_channel(f"127.0.0.1:{ports['health']}") as channel,
            pool.open(facts(), phase, None) as call,
        ):
            await call.add("a-1", "a", store.put(counts(3)).digest)
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            leaving.process.send_signal(signal.SIGTERM)
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert values(await call.close())["total"] == 3
        assert await asyncio.to_thread(leaving.process.wait) == 0
        with pytest.raises(Unreachable):
            await pool.describe(refresh=True)

    play(scenario, store, leaving.address)


def test_a_program_of_another_protocol_is_told_which_to_update(authority, coordinator_pair, remote):
    async def scenario() -> None:
        credentials = channel_credentials(authority.certificate_pem, coordinator_pair)
        options = channel_options(server_name="aggregator.hanse.internal", proxy=False)
        old = version("hanse-coordinator")
        old.protocol = 0
        async with grpc.aio.secure_channel(remote.address, credentials, options) as channel:
            stub = aggregator_pb2_grpc.AggregatorServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError, match="Update hanse-coordinator"):
                await stub.Describe(aggregator_pb2.DescribeRequest(version=old))

    asyncio.run(scenario())


def test_a_wrong_setting_stops_the_start_with_one_clear_line(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("certificate: a\nauthority: b\nlisten_on: c\n")
    command = [sys.executable, "-m", "hanse_aggregator.main", "--config", str(config)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.startswith(f"hanse-aggregator: {config}:3: unknown key 'listen_on'")
    assert result.stderr.count("\n") == 1
