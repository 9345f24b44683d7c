"""Models that methods train: named arrays with roles, made from a seed. Found through the entry points `hanse.models`.

This is the contract between a plug-in, which holds only arrays, and learners, which compute with them. It needs
NumPy alone; what a model is made of (torch, say) is the business of its own module.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from importlib.metadata import entry_points
from typing import Any, ClassVar, Protocol

from numpy.typing import NDArray
from pydantic import BaseModel

from hanse.errors import OperatorError
from hanse.settings import validate

__all__ = ["SHARED", "Model", "Role", "load_model"]


class Role(StrEnum):
    """What happens to a named array of a model. The roles of a model partition its whole state."""

    GLOBAL = "global"  # averaged, sent to all
    PERSONAL = "personal"  # never leaves the node
    EVALUATION_ONLY = "evaluation_only"  # leaves, is averaged, goes to unseen nodes alone
    SELECTIVE = "selective"  # global, and also scored between nodes


SHARED = frozenset({Role.GLOBAL, Role.SELECTIVE})
"""Roles of the arrays that every node receives."""


class Model(Protocol):
    """A registered model. `Config` is the pydantic model of `method_config.model` in the job file."""

    Config: ClassVar[type[BaseModel]]

    def __init__(self, config: Any) -> None: ...

    def initial_state(self, seed: int) -> Mapping[str, NDArray[Any]]:
        """The whole state before training, in canonical order; the same for the same seed."""

    def roles(self) -> Mapping[str, Role]:
        """The role of every array of the state; the keys are exactly those of `initial_state`."""


def load_model(name: str, config: Mapping[str, Any]) -> Model:
    """Make a registered model with its configuration.

    Raises:
        OperatorError: there is no such model here, or the configuration does not fit.
    """
    known = {entry.name: entry for entry in entry_points(group="hanse.models")}
    if name not in known:
        raise OperatorError(
            f"there is no model '{name}' here.",
            remedy=f"Known are: {', '.join(sorted(known)) or 'none'}. A model is installed, never sent.",
            code="UNKNOWN_MODEL",
        )
    cls: type[Model] = known[name].load()
    return cls(validate(cls.Config, dict(config), source=f"method_config.model of '{name}'"))
