"""The whole examination, before any invitation or after; the consequences of a fault are left out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hanse.errors import HanseError
from hanse.security import Address, Invitation
from hanse.security.probe import Shown
from hanse_agent.doctor.findings import TITLES, Finding, State, failure, skipped
from hanse_agent.doctor.machine import examine_clock, examine_disk, examine_memory, no_clock
from hanse_agent.doctor.network import LONGEST_IDLE_S, Blocked, Trust, examine_way, hold_open
from hanse_agent.doctor.site import examine_certificate, examine_datasets, examine_policy
from hanse_agent.doctor.speaking import examine_speech
from hanse_agent.folder import StateFolder
from hanse_agent.identity import NodeIdentity, all_addresses
from hanse_agent.settings import AgentConfig

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is examined."""

    config: AgentConfig | None = None
    addresses: tuple[Address, ...] = ()
    """Where the coordinator should be; those of the configuration and the identity are added."""
    invitation: Invitation | None = None
    identity: NodeIdentity | None = None

    @property
    def trust(self) -> Trust:
        """What is known of the coordinator; a certificate that ran out proves nothing any more."""
        if self.identity is not None:
            return Trust(
                authority_pem=self.identity.authority_pem,
                server_name=self.identity.server_name,
                pair=self.identity.pair if self._current() else None,
            )
        if self.invitation is not None:
            return Trust(
                authority_pem=self.invitation.authority_pem,
                server_name=self.invitation.server_name,
                pair=self.invitation.key_pair,
            )
        return Trust()

    @property
    def way(self) -> tuple[Address, ...]:
        """All addresses, in the order in which an agent tries them."""
        told = self.identity.addresses if self.identity else self.invitation.addresses if self.invitation else ()
        configured = self.config.coordinator if self.config and not self.addresses else ()
        return all_addresses((*self.addresses, *configured), told if not self.addresses else ())

    def _current(self) -> bool:
        try:
            assert self.identity is not None
            self.identity.require_current()
        except HanseError:
            return False
        return True


def subject(config: AgentConfig | None, pre: Address | None, invitation: Invitation | None) -> Subject:
    """What a person asks to have examined.

    Raises:
        SiteError: the node's identity is not whole.
    """
    identity = None
    if config is not None and pre is None and invitation is None:
        identity = NodeIdentity.load(StateFolder(config.state).identity)
    return Subject(config=config, addresses=(pre,) if pre else (), invitation=invitation, identity=identity)


async def examine(who: Subject, *, idle_s: float, tell: Tell = lambda _: None) -> list[Finding]:
    """Make every check. Addresses are tried one after the other until one is well; else the first one's faults count.

    `tell` hears of checks that take long.
    """
    found: list[Finding] = []
    ways = []
    for address in who.way:
        ways.append(await _way(address, who.trust, idle_s, tell))
        if not any(item.state is State.FAILED for item in ways[-1]):
            break
    if ways:
        found += next((way for way in ways if way is ways[-1] and not _failed(way)), ways[0])
    config = who.config
    folder = StateFolder(config.state) if config else None
    found.append(
        await asyncio.to_thread(examine_disk, folder.root if folder else Path.cwd(), config.policy if config else None)
    )
    found.append(await asyncio.to_thread(examine_memory, config.worker if config else None))
    if config is not None and folder is not None:
        found.append(examine_certificate(folder, who.identity))
        tell("reading the datasets …")
        found.append(await examine_datasets(config))
        found.append(examine_policy(config.policy))
    order = list(TITLES)
    return sorted(found, key=lambda item: order.index(item.check))


async def _way(address: Address, trust: Trust, idle_s: float, tell: Tell) -> list[Finding]:
    found: list[Finding] = []
    shown: Shown | None = None
    try:
        for step in await asyncio.to_thread(_until_blocked, examine_way(address, trust)):
            if isinstance(step, Shown):
                shown = step
            else:
                found.append(step)
    except HanseError as error:
        found.append(failure("tls", error, "The server's certificate cannot be judged."))
    if shown is None:
        return [*found, no_clock(), skipped("idle", "needs a connection")]
    clock = examine_clock(address, shown.certificate)
    if _failed([*found, clock]) or trust.pair is None:
        if idle_s <= 0:
            return [*found, clock, skipped("idle", "not asked for (--idle 0s)")]
        seconds = min(idle_s, LONGEST_IDLE_S)
        tell(f"holding a silent connection to {address} for {seconds:.0f} s …")
        return [*found, clock, await asyncio.to_thread(hold_open, address, trust, seconds)]
    found = [item for item in found if item.check != "http2"]
    tell(f"speaking to {address}; an idle connection is held for {idle_s:.0f} s …")
    async for item in examine_speech(address, trust, trust.pair, idle_s):
        found.append(item)
    return found


def _until_blocked(steps: Iterator[Finding | Shown]) -> list[Finding | Shown]:
    made: list[Finding | Shown] = []
    try:
        for step in steps:
            made.append(step)  # noqa: PERF402 - what came before `Blocked` counts
    except Blocked:
        pass
    return made


def _failed(found: Sequence[Finding]) -> bool:
    return any(item.state is State.FAILED for item in found)
