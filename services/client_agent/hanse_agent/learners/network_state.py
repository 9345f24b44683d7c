"""What a node keeps of a network between assignments: its own arrays, the optimiser, and what it measured.

Where the method chooses which round's model is the job's result (gPerXAN's `select`), the node also keeps its own
arrays of the rounds that may still be it: at most two states beside the newest. All in one safetensors file in the
state folder; nothing is pickled. Unlike the margins of boosting, none of it can be computed again: a file that cannot
be read is a fault that a person hears of.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from hanse.errors import InvalidPayload, NotFound, OperatorError, SiteError
from hanse.method import JobContext
from hanse.payload.kinds import ConfusionSum, MetricSum, RatioSum
from hanse.payload.safetensors import read_safetensors, safetensors_file
from hanse.v1 import payload_pb2

FILE = "network.safetensors"
MODEL_FILE = "model.safetensors"
_FORMAT = 1
_OWN, _OPTIMISER, _FITTED, _EARLIER, _FACTS = "own:", "optimiser:", "fitted:", "earlier:", "facts"

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class NetworkState:
    """After the round `round`: `own`, the arrays that are not everybody's; `optimiser` by `PARAMETER/KEY`;
    `fitted`, evaluation sums of the model as trained here, before it was averaged; `earlier`, the own arrays after
    earlier rounds whose model may be the job's result, by round."""

    round: int = 0
    own: Arrays = field(default_factory=dict)
    optimiser: Arrays = field(default_factory=dict)
    fitted: Arrays = field(default_factory=dict)
    earlier: Mapping[int, Arrays] = field(default_factory=dict)

    def own_of(self, model_round: int) -> tuple[int, Arrays]:
        """The own arrays that go with the model of a round, and the round after which they were so.

        They are those of the newest round up to it; where nothing is left of these, the oldest that there are. The
        round is 0, and there are none, where the node never trained.
        """
        every = self._by_round()
        if not every:
            return 0, {}
        found = max((number for number in every if number <= model_round), default=min(every))
        return found, every[found]

    def for_later(self, header: payload_pb2.ModelState) -> Mapping[int, Arrays]:
        """What a node that is about to train keeps of its past, by the instruction's header.

        `selected` is the round that was ahead when the instruction was made. Only that round, and the one of the
        instruction itself (`version`), which had not been judged then, may be ahead now: at most two states.
        """
        if not header.HasField("selected"):
            return {}
        every = self._by_round()
        wanted = ((number for number in every if number <= limit) for limit in (header.selected, header.version))
        return {number: every[number] for number in sorted({max(each, default=0) for each in wanted}) if number}

    def _by_round(self) -> dict[int, Arrays]:
        newest = {self.round: self.own} if self.round and self.own else {}
        return {**self.earlier, **newest}

    def save(self, folder: Path) -> None:
        """Write into an empty folder."""
        parts = {_OWN: self.own, _OPTIMISER: self.optimiser, _FITTED: self.fitted}
        parts |= {f"{_EARLIER}{number}:": part for number, part in self.earlier.items()}
        arrays = {start + name: array for start, part in parts.items() for name, array in part.items()}
        arrays[_FACTS] = np.array([_FORMAT, self.round], dtype=np.int64)
        with (folder / FILE).open("wb") as file:
            file.write(safetensors_file(arrays).data)

    @classmethod
    def load(cls, folder: Path | None) -> NetworkState:
        """What a folder holds; nothing before the first round.

        Raises:
            SiteError: the file is damaged or of another version.
        """
        if folder is None or not (folder / FILE).exists():
            return cls()
        try:
            arrays = read_safetensors(np.fromfile(folder / FILE, dtype=np.uint8), str(folder / FILE))
            format_, round_number = (int(fact) for fact in arrays.pop(_FACTS))
            rounds = sorted({int(name.split(":", 2)[1]) for name in arrays if name.startswith(_EARLIER)})
            if format_ != _FORMAT:
                raise InvalidPayload(f"it is of format {format_}, not {_FORMAT}.")
        except (OSError, KeyError, ValueError, InvalidPayload) as error:
            raise SiteError(
                f"What this node keeps of the job ({folder / FILE}) cannot be read: {error}",
                code="STATE_DAMAGED",
                remedy="Restore the agent's state folder from a backup, or start a new job.",
            ) from error

        def part(start: str) -> Arrays:
            return {name[len(start) :]: array for name, array in arrays.items() if name.startswith(start)}

        return cls(
            round=round_number,
            own=part(_OWN),
            optimiser=part(_OPTIMISER),
            fitted=part(_FITTED),
            earlier={number: part(f"{_EARLIER}{number}:") for number in rounds},
        )


def keep_model(folder: Path, arrays: Arrays, job: JobContext, *, rounds: int | None = None) -> None:
    """The finished model beside the node's own arrays, in the form in which a person pulls it: for `predict`.

    `rounds`: of training behind it, where that is not all of the job's.
    """
    config = json.dumps(dict(job.config), sort_keys=True)
    metadata = {
        "format": "pt",
        "model": job.model,
        "method": job.method,
        "rounds": str(job.rounds if rounds is None else rounds),
        "seed": str(job.seed),
        "config": config,
    }
    with (folder / MODEL_FILE).open("wb") as file:
        file.write(safetensors_file(arrays, metadata).data)


def read_metadata(model: Path) -> Mapping[str, str]:
    """What a model's file says of itself: `model`, `method`, and more. Raises as `read_model`."""
    with _opened(model) as (metadata, _):
        return metadata


def read_model(model: Path) -> tuple[Mapping[str, str], Arrays]:
    """The metadata and the arrays of a model's file, or of the folder that holds it: kept here, or pulled.

    Raises:
        NotFound: there is none.
        OperatorError: the file is not a network of Hanse.
    """
    with _opened(model) as (metadata, file):
        return metadata, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping


@contextmanager
def _opened(model: Path) -> Iterator[tuple[Mapping[str, str], Any]]:
    path = model / MODEL_FILE if model.is_dir() else model
    if not path.is_file():
        raise NotFound(
            f"There is no finished model ({MODEL_FILE}) in {model}.",
            remedy="Wait for the job's last evaluation, or pull it: hanse model pull JOB -o FOLDER. "
            "Models of trees are used with xgboost.",
            code="NO_MODEL",
        )
    try:
        with safe_open(str(path), framework="np") as file:
            metadata = file.metadata() or {}
            if not metadata.get("model") or not metadata.get("method"):
                raise OperatorError(f"{path} does not say which model of which method it is.", code="NO_MODEL")
            yield metadata, file
    except (SafetensorError, OSError) as error:
        raise OperatorError(f"{path} is not a model file: {error}.", code="NO_MODEL") from error


def members_of(arrays: Arrays) -> dict[str, dict[str, NDArray[Any]]]:
    """The own arrays of every node that trained, by its number, where unseen nodes are given them (`NUMBER/NAME`)."""
    members: dict[str, dict[str, NDArray[Any]]] = {}
    for name, array in arrays.items():
        member, mark, rest = name.partition("/")
        if mark:
            members.setdefault(member, {})[rest] = array
    return members


def carry_over(source: Path | None, target: Path) -> None:
    """The state is as before: a further name of the same file where the disk allows it."""
    if source is None or not (source / FILE).exists():
        return
    try:
        os.link(source / FILE, target / FILE)
    except OSError:
        shutil.copyfile(source / FILE, target / FILE)


def with_bits(each: MetricSum) -> NDArray[np.int64]:
    """Sums as one flat array: form, fraction bits, then the numbers."""
    return np.concatenate([np.array([each.form, each.fraction_bits], dtype=np.int64), each.array.ravel()])


def without_bits(array: NDArray[np.int64]) -> MetricSum:
    """The inverse of `with_bits`; for confusion matrices and ratios."""
    form, bits, numbers = int(array[0]), int(array[1]), array[2:]
    if form == ConfusionSum.form:
        side = round(len(numbers) ** 0.5)
        return ConfusionSum(numbers.reshape(side, side))
    return RatioSum(numbers, bits)
