"""An outcome's payloads go to the artifact store before the ledger hears of them."""

from __future__ import annotations

from hanse.artifacts import ArtifactStore
from hanse.errors import MethodError
from hanse.payload import Payload
from hanse.rpc import from_proto
from hanse.v1 import aggregator_pb2, payload_pb2
from hanse_coordinator.phase import OpenPhase
from hanse_coordinator.writes import StoredOutcome

__all__ = ["store"]


def store(artifacts: ArtifactStore, message: aggregator_pb2.OutcomeMessage, phase: OpenPhase | None) -> StoredOutcome:
    """Keep every payload of an outcome; return their digests. Blocks on the disk.

    Raises:
        MethodError: the outcome names an artifact that is not in the store.
        InvalidPayload: an inline payload that is none.
    """
    keeper = _Keeper(artifacts)
    next_phase = message.next_phase if message.HasField("next_phase") else None
    stored = StoredOutcome(
        message=message,
        state=keeper.keep(message.state, "state") if message.HasField("state") else None,
        model=keeper.keep(message.model, "model") if message.HasField("model") else None,
        pictures=tuple((p.name, p.kind, p.title, keeper.keep(p.payload, "picture")) for p in message.pictures),
        instruction=keeper.keep(next_phase.instruction, "instruction") if next_phase else None,
        personal={node: keeper.keep(payload, "personal") for node, payload in sorted(next_phase.personal.items())}
        if next_phase
        else {},
        rejections={item.assignment: from_proto(item.reason) for item in message.rejected},
        artifacts=(),
    )
    for reference in message.stored:
        keeper.keep(payload_pb2.PayloadSource(artifact=reference), "stored")
    unknown = set(stored.rejections) - set(phase.assignments if phase else ())
    if unknown:
        raise MethodError(f"the aggregator rejected assignments that it was never given: {sorted(unknown)[:3]}.")
    return stored.with_artifacts(keeper.kept)


class _Keeper:
    """Puts payloads into the store and remembers what it put there."""

    def __init__(self, artifacts: ArtifactStore) -> None:
        self._artifacts = artifacts
        self._kept: dict[str, tuple[str, int, str]] = {}

    @property
    def kept(self) -> tuple[tuple[str, int, str], ...]:
        return tuple(self._kept.values())

    def keep(self, source: payload_pb2.PayloadSource, kind: str) -> str:
        if source.WhichOneof("source") == "inline":
            artifact = self._artifacts.put(Payload.from_image(source.inline))
            digest, size = artifact.digest, artifact.size
        else:
            digest, size = source.artifact.digest, source.artifact.size
            if not self._artifacts.exists(digest):
                raise MethodError(
                    f"the aggregator named artifact {digest.hex()[:12]}… as {kind}, but did not deliver it.",
                    code="ARTIFACT_MISSING",
                )
        self._kept.setdefault(digest.hex(), (digest.hex(), size, kind))
        return digest.hex()
