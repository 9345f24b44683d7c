"""Model states and differences of them as payloads, and the model file that a person pulls.

A training instruction is a `ModelState`; a node's reply is a `WeightDelta` that names the instruction by its digest.
The reader of a difference knows the shapes to expect, checks them before anything is decoded, and hands out one array
at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from hanse.errors import InvalidPayload, RejectedContribution
from hanse.learning.arrays import Float32
from hanse.learning.compression import CompressionOptions
from hanse.models import Role
from hanse.payload.encodings import NAMES, Encoded
from hanse.payload.payload import Payload
from hanse.v1 import payload_pb2

DELIVERED = "model.delivered"
"""The document of a node's reply to the phase `deliver`: the model that is the job's result has come."""
MOST_EXAMPLES = 2**32
"""A node with more training examples in one round than this is not believed."""


def model_state_payload(
    model: str,
    version: int,
    arrays: Mapping[str, NDArray[Any]],
    roles: Mapping[str, Role],
    *,
    selected: int | None = None,
    judge: bool = False,
) -> Payload:
    """Named arrays of a model after `version` rounds of training, with the role of each.

    `selected`: the round whose model is the job's result as far as rounds have been judged (0: none yet); None where
    the result is always the newest model. Nodes keep their own arrays of that round. `judge`: nodes that train from it
    judge what they have trained before it leaves, since an evaluation follows.
    """
    kind = payload_pb2.ModelState(
        model=model,
        version=version,
        roles={name: Role(roles[name]).value for name in arrays},
        selected=selected,
        judge=judge,
    )
    return Payload.build(kind, arrays)


def read_roles(payload: Payload) -> dict[str, Role]:
    """The roles of a model state's arrays, in the order of the arrays.

    Raises:
        InvalidPayload: another kind, an unknown role, or arrays and roles that are not the same.
    """
    if payload.kind != "model_state":
        raise InvalidPayload(f"a model state was expected, not a payload of kind '{payload.kind}'.")
    given = payload.header.model_state.roles
    if set(given) != set(payload.arrays) or payload.encoded:
        raise InvalidPayload("the roles of a model state are not those of its arrays.")
    try:
        return {name: Role(given[name]) for name in payload.arrays}
    except ValueError as error:
        raise InvalidPayload(f"a model state has an unknown role: {error}.") from None


def delta_payload(base_digest: bytes, examples: int, arrays: Mapping[str, NDArray[Any] | Encoded]) -> Payload:
    """What a node has learned from `examples` records on top of the model state `base_digest`.

    `arrays`: float32 differences of the shared arrays, absolute values of those that only unseen nodes receive.
    """
    return Payload.build(payload_pb2.WeightDelta(base_digest=base_digest, examples=examples), arrays)


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a difference must look like: shapes of the `shared` arrays and of the `absolute` ones.

    Integer arrays of the model (`counters`) may come along; nobody looks at them.
    """

    base_digest: bytes
    shared: Mapping[str, tuple[int, ...]]
    absolute: Mapping[str, tuple[int, ...]]
    counters: frozenset[str] = frozenset()
    compression: CompressionOptions = field(default_factory=CompressionOptions)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """All that must be there."""
        return {**self.shared, **self.absolute}


class Delta(Mapping[str, Float32]):
    """A checked difference. An encoded array is decoded whenever it is asked for, and not kept."""

    def __init__(self, payload: Payload, names: tuple[str, ...]) -> None:
        self.examples = int(payload.header.weight_delta.examples)
        self.bytes = payload.size
        self._payload = payload
        self._names = names

    def __getitem__(self, name: str) -> Float32:
        if name not in self._payload.encoded:
            return self._payload.arrays[name]
        try:
            decoded: Float32 = self._payload.encoded[name].decode()
        except InvalidPayload as error:
            raise RejectedContribution(f"the array '{name}': {error.sentence}", remedy=error.remedy) from None
        return decoded

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def read_delta(payload: Payload, expected: Expected) -> Delta:
    """Check a difference against what is expected; its numbers are not looked at yet.

    Raises:
        RejectedContribution: another kind, a wrong base, no or too many examples, an array that is missing, unknown,
            of another shape or dtype, or in a form that the job has not agreed on. The sentence names it.
    """
    if payload.kind != "weight_delta":
        raise RejectedContribution(
            f"a difference of weights was expected, not a payload of kind '{payload.kind}'.",
            remedy="Check that the node runs the same version of the method.",
        )
    header = payload.header.weight_delta
    if header.base_digest != expected.base_digest:
        raise RejectedContribution(
            f"it was measured against the model {header.base_digest.hex()[:12] or '(none)'}…, "
            f"not {expected.base_digest.hex()[:12]}…, which this phase sent.",
            remedy="The node must start from the instruction of this very phase.",
            code="WRONG_BASE",
        )
    if not 0 < header.examples <= MOST_EXAMPLES:
        raise RejectedContribution(
            f"it says that it comes from {header.examples} examples; between 1 and {MOST_EXAMPLES} are believed.",
            remedy="A node without training examples refuses the assignment instead.",
            code="EXAMPLES",
        )
    shapes = expected.shapes
    found = {spec.name: spec for spec in payload.header.arrays}
    for name in shapes:
        if name not in found:
            raise RejectedContribution(
                f"the array '{name}' is missing.",
                remedy="Check that the node has the same model with the same configuration.",
            )
    for name, spec in found.items():
        if name in expected.counters:
            continue
        if name not in shapes:
            raise RejectedContribution(
                f"the array '{name[:100]}' is not one that this model shares.",
                remedy="Check that the node has the same model, and that personal arrays stay there.",
            )
        _check_array(spec, shapes[name], absolute=name in expected.absolute, compression=expected.compression)
    return Delta(payload, tuple(shapes))


def _check_array(
    spec: payload_pb2.ArraySpec, shape: tuple[int, ...], *, absolute: bool, compression: CompressionOptions
) -> None:
    if tuple(spec.shape) != shape:
        raise RejectedContribution(
            f"the array '{spec.name}' has shape {tuple(spec.shape)}, not {shape}.",
            remedy="Check that the node has the same model with the same configuration.",
        )
    if spec.dtype != "float32":
        raise RejectedContribution(
            f"the array '{spec.name}' is of {spec.dtype}, not of float32.", remedy="Differences travel as float32."
        )
    encoding = NAMES.get(spec.encoding, "unknown")
    agreed = {"raw"} | ({"zstd"} if compression.lossless else set())
    if compression.scheme != "none" and not absolute:
        agreed.add(compression.scheme)
    if encoding not in agreed:
        raise RejectedContribution(
            f"the array '{spec.name}' arrives as {encoding}; the job agreed on {' or '.join(sorted(agreed))}.",
            remedy="Set method_config.compression in the job file, or update the node.",
        )
