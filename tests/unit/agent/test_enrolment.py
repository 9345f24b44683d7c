"""Joining: an invitation becomes a certificate, through interruptions, and only for the right coordinator."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from hanse.errors import Conflict, OperatorError, SiteError, Unauthenticated, Unreachable
from hanse.security import Address, Authority, Invitation, KeyPair
from hanse_agent import enrolment, reconnecting
from hanse_agent.enrolment import Joined, join, joined_before
from hanse_agent.folder import StateFolder
from hanse_agent.identity import NodeIdentity
from hanse_agent.settings import AgentConfig
from tests.unit.agent.fake_coordinator import FakeCoordinator
from tests.unit.agent.living import a_coordinator
from tests.unit.agent.probe import eventually, write_config

pytestmark = pytest.mark.usefixtures("probe")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnecting, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(reconnecting, "SHORT_PAUSE_S", 0.05)


def config(coordinator: FakeCoordinator, folder: Path) -> AgentConfig:
    return AgentConfig.load(write_config(folder, coordinator=coordinator.address))


async def joined(config: AgentConfig, invitation: Invitation, steps: list[str] | None = None) -> Joined:
    return await join(config, invitation, (steps if steps is not None else []).append)


async def test_each_step_is_told_and_the_key_stays_private(authority: Authority, tmp_path: Path) -> None:
    steps: list[str] = []
    async with a_coordinator(authority, tmp_path) as coordinator:
        coordinator.approved.set()
        settings = config(coordinator, tmp_path)
        done = await joined(settings, coordinator.invitation(), steps)

    assert [step.split()[0] for step in steps] == ["coordinator", "its", "key", "waiting", "certificate"]
    assert not done.already
    folder = settings.state / "identity"
    assert (folder / "node.pem").stat().st_mode & 0o077 == 0
    assert sorted(path.name for path in folder.iterdir()) == ["authority.crt", "node.crt", "node.json", "node.pem"]
    identity = NodeIdentity.require(folder)
    assert identity.node == "site-a"
    assert identity.authority_pem == authority.certificate_pem
    assert identity.pair.is_consistent()


async def test_the_fingerprint_that_is_shown_is_of_the_key_that_is_certified(
    authority: Authority, tmp_path: Path
) -> None:
    from hanse.security import fingerprint_words

    steps: list[str] = []
    async with a_coordinator(authority, tmp_path) as coordinator:
        coordinator.approved.set()
        done = await joined(config(coordinator, tmp_path), coordinator.invitation(), steps)

    assert fingerprint_words(done.identity.pair.certificate) in " ".join(steps)


async def test_joining_that_was_interrupted_goes_on_with_the_same_key(authority: Authority, tmp_path: Path) -> None:
    first: list[str] = []
    second: list[str] = []
    async with a_coordinator(authority, tmp_path) as coordinator:
        settings, invitation = config(coordinator, tmp_path), coordinator.invitation()
        attempt = asyncio.create_task(joined(settings, invitation, first))
        await eventually(lambda: len(first) == 4)
        attempt.cancel()
        with suppress(asyncio.CancelledError):
            await attempt
        coordinator.approved.set()
        await joined(settings, invitation, second)

    assert first[3] == second[3]


async def test_waiting_survives_a_coordinator_that_restarts(authority: Authority, tmp_path: Path) -> None:
    steps: list[str] = []
    async with a_coordinator(authority, tmp_path) as coordinator:
        attempt = asyncio.create_task(joined(config(coordinator, tmp_path), coordinator.invitation(), steps))
        await eventually(lambda: len(steps) == 4)
        await coordinator.stop()
        await coordinator.start()
        coordinator.approved.set()
        await attempt

        assert len(coordinator.enrolments) >= 2
        assert len(steps) == 5


async def test_who_has_joined_stays_joined(authority: Authority, tmp_path: Path) -> None:
    async with a_coordinator(authority, tmp_path) as coordinator:
        coordinator.approved.set()
        settings, invitation = config(coordinator, tmp_path), coordinator.invitation()
        first = await joined(settings, invitation)
        again = await joined(settings, invitation)

        assert again.already
        assert again.identity.peer.serial == first.identity.peer.serial
        assert len(coordinator.enrolments) == 1


async def test_another_invitation_for_the_same_node_gives_a_new_key_and_keeps_the_rest(
    authority: Authority, tmp_path: Path
) -> None:
    async with a_coordinator(authority, tmp_path) as coordinator:
        coordinator.approved.set()
        settings = config(coordinator, tmp_path)
        first = await joined(settings, coordinator.invitation(number=1))
        (settings.state / "egress.jsonl").write_text('{"when": "then"}\n')
        second = await joined(settings, coordinator.invitation(number=2))

    assert not second.already
    assert second.identity.pair.key_pem != first.identity.pair.key_pem
    assert (settings.state / "egress.jsonl").read_text() == '{"when": "then"}\n'


async def test_a_state_folder_belongs_to_one_node(authority: Authority, tmp_path: Path) -> None:
    async with a_coordinator(authority, tmp_path) as coordinator:
        coordinator.approved.set()
        settings = config(coordinator, tmp_path)
        await joined(settings, coordinator.invitation())
        with pytest.raises(Conflict, match="belongs to node site-a; the invitation is for site-b"):
            await joined(settings, coordinator.invitation("site-b", number=2))


async def test_an_expired_node_is_told_to_be_invited_again(authority: Authority, tmp_path: Path) -> None:
    async with a_coordinator(authority, tmp_path) as coordinator:
        coordinator.enrol(tmp_path / "state" / "identity", life=timedelta(microseconds=1))
        with pytest.raises(Unauthenticated, match="hanse node invite site-a --again"):
            joined_before(StateFolder(tmp_path / "state"), coordinator.invitation())


async def test_all_addresses_are_tried(authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enrolment, "REACH_S", 2.0)
    async with a_coordinator(authority, tmp_path) as coordinator:
        coordinator.approved.set()
        addresses = (Address("127.0.0.1", 1), Address("127.0.0.1", coordinator.port))
        invitation = Invitation.create(authority, invitation_id="inv-1", node="site-a", addresses=addresses)
        settings = AgentConfig.load(write_config(tmp_path, coordinator="127.0.0.1:1"))

        assert (await joined(settings, invitation)).identity.node == "site-a"


async def test_a_coordinator_that_nobody_reaches_is_named_with_the_cause(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enrolment, "REACH_S", 0.3)
    invitation = Invitation.create(
        authority, invitation_id="inv-1", node="site-a", addresses=(Address("127.0.0.1", 1),)
    )
    settings = AgentConfig.load(write_config(tmp_path, coordinator="127.0.0.1:1"))
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1 cannot be reached: Connection refused"):
        await joined(settings, invitation)


async def test_a_coordinator_of_another_authority_gets_no_call(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enrolment, "REACH_S", 1.0)
    stranger = Authority.create(tmp_path / "stranger")
    async with a_coordinator(stranger, tmp_path) as coordinator:
        address = Address("127.0.0.1", coordinator.port)
        invitation = Invitation.create(authority, invitation_id="inv-1", node="site-a", addresses=(address,))
        with pytest.raises(SiteError, match="authority did not issue"):
            await joined(config(coordinator, tmp_path), invitation)

        assert coordinator.enrolments == []


async def test_another_fingerprint_at_the_coordinator_stops_the_joining(authority: Authority, tmp_path: Path) -> None:
    async with a_coordinator(authority, tmp_path) as coordinator:
        coordinator.fingerprint = "other-words"
        with pytest.raises(OperatorError, match="another key's fingerprint"):
            await joined(config(coordinator, tmp_path), coordinator.invitation())


async def test_an_identity_that_is_not_whole_is_named(authority: Authority, tmp_path: Path) -> None:
    async with a_coordinator(authority, tmp_path) as coordinator:
        folder = tmp_path / "state" / "identity"
        coordinator.enrol(folder)
        (folder / "node.json").unlink()
        with pytest.raises(SiteError, match="is not whole"):
            NodeIdentity.require(folder)


def test_who_never_joined_is_told_how(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match="has not joined") as caught:
        NodeIdentity.require(tmp_path)

    assert "hanse-agent join CONFIG --token file:PATH" in caught.value.remedy


def test_the_identity_does_not_show_its_key(authority: Authority, identity_pair: KeyPair) -> None:
    identity = NodeIdentity(
        node="site-a",
        pair=identity_pair,
        authority_pem=authority.certificate_pem,
        addresses=(),
        server_name="",
        invitation="inv-1",
    )

    assert "PRIVATE" not in repr(identity)
