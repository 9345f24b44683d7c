"""`agent.yaml`: what a site offers, and what it allows. Every key does something; an unknown key is an error."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer, PrivateAttr, model_validator

from hanse.configuration import Loaded, load_configuration
from hanse.errors import OperatorError
from hanse.security.addresses import Address
from hanse.settings import Duration, Settings, Size
from hanse_agent.registry import installed_kinds, open_dataset

ENVIRONMENT = {"HANSE_AGENT_COORDINATOR": "coordinator", "HANSE_AGENT_STATE": "state"}
"""What may be given by the environment, since it differs between machines that share a file."""
TRANSPARENT = ("options",)
"""A part of keys that stands in the model and not in the file."""

ENVIRONMENT = {"HANSE_AGENT_COORDINATOR": "coordinator", "HANSE_AGENT_STATE": "state"}
"""What may be given by the environment, since it differs between machines that share a file."""
TRANSPARENT = ("options",)
"""A part of keys that stands in the model and not in the file."""

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
Name = Annotated[str, Field(pattern=NAME)]


def _address(value: object) -> Address:
    if isinstance(value, Address):
        return value
    try:
        return Address.parse(str(value))
    except OperatorError as error:
        raise ValueError(str(error)) from None


NodeAddress = Annotated[Address, BeforeValidator(_address), PlainSerializer(str, return_type=str)]


def _listed(value: object) -> object:
    return value if isinstance(value, list | tuple) else (value,)


NodeAddresses = Annotated[tuple[NodeAddress, ...], BeforeValidator(_listed), Field(min_length=1, max_length=20)]


class DatasetSettings(Settings):
    """A source of records: its kind, and whatever options the kind has."""

    kind: str
    """Name of an installed dataset class (entry points `hanse.datasets`): `table`, …"""
    options: dict[str, Any] = Field(default_factory=dict)
    """All other keys of the block; the kind's own `Options` checks them."""

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, value: Any) -> Any:
        if not isinstance(value, dict) or set(value) == {"kind", "options"}:
            return value
        return {
            **({"kind": value["kind"]} if "kind" in value else {}),
            "options": {str(key): option for key, option in value.items() if key != "kind"},
        }

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.kind not in installed_kinds():
            raise ValueError(f"no dataset kind '{self.kind}' is installed (known: {', '.join(installed_kinds())})")
        return self


class PrivacyBudget(Settings):
    """The most that all jobs together may reveal about one record."""

    epsilon: float = Field(gt=0)
    delta: float = Field(gt=0, lt=1)


class Policy(Settings):
    """What the site allows. The agent enforces it; a refusal names the key."""

    methods: tuple[Name, ...]
    """Only these methods may run here."""
    datasets: tuple[Name, ...] | None = None
    """Only these datasets are offered; absent: all that are declared."""
    models: tuple[Name, ...] | None = None
    """Only these models may be trained, by methods that train a named one; absent: any that is installed."""
    minimum_rows: int = Field(1, ge=1)
    """A dataset with fewer rows takes part in no job."""
    largest_payload: Size = Field(200_000_000, ge=1)
    """The largest contribution that may leave, in bytes of its image."""
    minimum_rows_per_atom: int = Field(5, ge=1)
    """Atoms (sums of rows that share all their bins) over fewer rows than this do not leave; see `small_atoms`."""
    small_atoms: Literal["refuse", "coarsen"] = "refuse"
    """What becomes of an assignment with smaller atoms: it is refused, or neighbouring bins are joined until no atom is
    small (and refused where that does not help)."""
    compression: Literal["allowed", "forbidden"] = "allowed"
    """`forbidden`: no job runs here that has contributions compressed with loss (`method_config.compression`)."""
    secure_aggregation: Literal["required", "not_required"] = "not_required"
    """`required`: no job runs whose sums are not masked. Hanse cannot mask yet, so that every offer is refused."""
    privacy_budget: PrivacyBudget | None = None
    """Set: no job runs without accounting against it. Hanse cannot account yet, so that every offer is refused."""
    approve: Literal["automatically", "by_hand"] = "automatically"
    """`by_hand`: each job waits until a person says `hanse-agent approvals approve JOB`."""

    @property
    def digest(self) -> bytes:
        """SHA-256 over the policy's canonical JSON: lets the coordinator see that it changed, not what it says."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).digest()


class WorkerSettings(Settings):
    """The processes in which learners run. Identities with equal settings share them."""

    threads: int = Field(1, ge=1, le=1024)
    """Threads of a worker's numerical libraries."""
    memory: Size = Field(4_000_000_000, ge=64_000_000)
    """The most data memory of a worker. One that needs more is started again once; then the assignment fails."""
    processes: int = Field(1, ge=1, le=1024)
    """How many workers may run at once."""
    idle_after: Duration = Field(timedelta(minutes=5), ge=timedelta(0))
    """A worker without work for so long is stopped; the next assignment starts it again."""
    learners: int = Field(8, ge=1)
    """How many learners, with their data in memory, one worker keeps warm; the least recently used makes room."""


class AgentConfig(Settings):
    """One node identity of an agent: `agent.yaml`. Relative paths in it are relative to the file's folder."""

    coordinator: NodeAddresses
    """Where coordinators listen for nodes, `host:port` or a list of them; the invitation's are tried after these."""
    state: Path
    """Folder for identity, learner states and the egress journal; it belongs to this node alone."""
    labels: dict[Name, Annotated[str, Field(max_length=200)]] = Field(default_factory=dict)
    """What jobs may select nodes by."""
    datasets: dict[Name, DatasetSettings] = Field(min_length=1)
    """The records that this node offers, by name."""
    policy: Policy
    worker: WorkerSettings = WorkerSettings()

    _folder: Path = PrivateAttr(default=Path("."))

    @model_validator(mode="after")
    def _offered_are_declared(self) -> Self:
        for name in self.policy.datasets or ():
            if name not in self.datasets:
                raise ValueError(f"policy.datasets names '{name}', which is not declared under datasets")
        return self

    @property
    def folder(self) -> Path:
        """The folder of the file: what relative paths are relative to."""
        return self._folder

    @property
    def offered(self) -> tuple[str, ...]:
        """The datasets that the policy lets out of the house: their shape and schema, never records."""
        return tuple(sorted(self.datasets if self.policy.datasets is None else self.policy.datasets))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read `agent.yaml`.

        The options of datasets are not looked at here, since that needs the kind's own libraries: see
        `check_datasets`.

        Raises:
            OperatorError: the file cannot be read, or a key is wrong, unknown or missing.
        """
        return cls.configuration(path).settings

    @classmethod
    def configuration(cls, path: Path, environment: Mapping[str, str] = os.environ) -> Loaded[Self]:
        """Read `agent.yaml` and the environment, with the origin of each value.

        Raises:
            OperatorError: as `load`; the sentence names where the value stands.
        """
        loaded = load_configuration(cls, path, environment=environment, variables=ENVIRONMENT)
        folder = path.resolve().parent
        config = loaded.settings.model_copy(update={"state": folder / loaded.settings.state.expanduser()})
        config._folder = folder
        return replace(loaded, settings=config)

    def check_datasets(self) -> None:
        """Check every dataset's options against its kind (imports the kind's libraries).

        Raises:
            OperatorError: a wrong, unknown or missing option; the sentence names it.
        """
        for name, dataset in self.datasets.items():
            open_dataset(name, dataset.kind, dataset.options)
