"""Who is connected: the live sessions, and how long a node that went away still counts as present."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from hanse.errors import Conflict, HanseError
from hanse.v1 import node_pb2

__all__ = ["NodeSession", "Sessions"]

_WORK = {"offer", "assign"}


@dataclass(eq=False)
class NodeSession:
    """One open stream to a node. `send` never blocks: the stream's writer takes directives from `outgoing`."""

    node: str
    hello: node_pb2.Hello
    last_heard: float = 0.0
    outgoing: asyncio.Queue[node_pb2.Directive | HanseError | None] = field(default_factory=asyncio.Queue)
    labels: dict[str, str] = field(init=False)
    """What the site says of itself; once the ledger was asked, what the invitation said where the site says nothing."""

    held: bool = field(default=False, init=False)
    """Set when no more work goes out over this session: the next coordinator gives it out."""

    def __post_init__(self) -> None:
        self.labels = dict(self.hello.labels)

    def dataset(self, name: str) -> node_pb2.DatasetOffer | None:
        """The dataset of that name, when the node offers it."""
        return next((offer for offer in self.hello.datasets if offer.name == name), None)

    def send(self, **directive: object) -> None:
        """Queue a directive: `send(assign=…)`. Offers and assignments of a session that is held stay here."""
        if self.held and not directive.keys().isdisjoint(_WORK):
            return
        self.outgoing.put_nowait(node_pb2.Directive(**directive))  # type: ignore[arg-type]

    def close(self, error: HanseError | None = None) -> None:
        """End the stream after what is queued; with an error, its reason reaches the node."""
        self.outgoing.put_nowait(error)


class Sessions:
    """All live sessions, and the memory of nodes that were here a moment ago.

    A node is *present* while it is connected and for one lease after: a restart or a cut connection is no
    absence.
    """

    def __init__(self, *, lease: float, heartbeat: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.lease = lease
        self.heartbeat = heartbeat
        self._clock = clock
        self._live: dict[str, NodeSession] = {}
        self._left: dict[str, float] = {}
        self._instances: dict[str, bytes] = {}
        self._slow: set[str] = set()

    def __iter__(self) -> Iterator[NodeSession]:
        return iter(list(self._live.values()))

    def __len__(self) -> int:
        return len(self._live)

    def open(self, session: NodeSession) -> bool:
        """Register a session; True when this is another agent process than the one before.

        The same process again replaces its old stream. Another process replaces one that has missed two
        heartbeats.

        Raises:
            Conflict: an agent with this identity is connected and alive.
        """
        old = self._live.get(session.node)
        if old is not None:
            silent = self._clock() - old.last_heard
            if old.hello.instance != session.hello.instance and silent < 2 * self.heartbeat:
                raise Conflict(
                    f"another agent is connected as node '{session.node}' (heard of {silent:.0f} s ago).",
                    remedy="Stop one of the two: an identity belongs to one agent.",
                    code="NODE_ALREADY_CONNECTED",
                )
            old.close(Conflict("this session was replaced by a newer one.", code="SESSION_REPLACED"))
        session.last_heard = self._clock()
        self._live[session.node] = session
        self._left.pop(session.node, None)
        before = self._instances.get(session.node)
        self._instances[session.node] = session.hello.instance
        return before is not None and before != session.hello.instance

    def heard(self, session: NodeSession) -> None:
        """Note that the node said something."""
        session.last_heard = self._clock()

    def end(self, session: NodeSession) -> bool:
        """The stream has ended; True when the node is now without one (and not already on a newer)."""
        if self._live.get(session.node) is not session:
            return False
        del self._live[session.node]
        self._left[session.node] = self._clock()
        return True

    def get(self, node: str) -> NodeSession | None:
        """The node's session, if it is connected."""
        return self._live.get(node)

    def silent(self) -> list[NodeSession]:
        """Sessions that have missed three heartbeats: half-open connections."""
        limit = self._clock() - 3 * self.heartbeat
        return [session for session in self._live.values() if session.last_heard < limit]

    def present(self, node: str) -> bool:
        """Whether the node is connected, or gone for less than a lease."""
        if node in self._live:
            return True
        left = self._left.get(node)
        return left is not None and self._clock() - left < self.lease

    def presume_present(self, nodes: Iterable[str]) -> None:
        """After a restart: these were connected when the coordinator died; give them one lease to return."""
        now = self._clock()
        self._left.update({node: now for node in nodes if node not in self._live})

    def forget(self, node: str) -> None:
        """The node is not coming back (it said goodbye, or was revoked)."""
        self._left.pop(node, None)

    def note_slow(self, node: str) -> None:
        """An assignment of the node ran out: perhaps its line is too slow for much inside the session, where nothing
        shows how far it is. From now on it transfers what it can, which may take longer than a lease."""
        self._slow.add(node)

    def slow(self, node: str) -> bool:
        """Whether the node should transfer rather than be sent much inside its session."""
        return node in self._slow

    def absence_ends_in(self, node: str) -> float | None:
        """Seconds until a node that left stops counting as present; None when it is connected or long gone."""
        left = self._left.get(node)
        if left is None:
            return None
        remaining = self.lease - (self._clock() - left)
        return remaining if remaining > 0 else None
