"""A program's configuration: a YAML file, and variables of the environment, which win over it.

Every value has an origin (default, `FILE:LINE`, `variable NAME`), which `--print-config` shows beside it and every
complaint names. Secrets are masked wherever a value is shown.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from hanse.errors import OperatorError
from hanse.settings import masked, problems, read_yaml, require_mapping

__all__ = ["Loaded", "Value", "load_configuration"]

DEFAULT = "default"
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, kw_only=True)
class Value:
    """One value as people are shown it."""

    key: str
    """Dotted: `policy.methods`."""
    value: Any
    """As it would stand in the file; secrets are masked."""
    origin: str


@dataclass(frozen=True, kw_only=True)
class Loaded(Generic[Model]):
    """Checked settings, and where each of their values comes from."""

    settings: Model
    origins: Mapping[str, str] = field(default_factory=dict)
    """By dotted key; what is not here has its default."""

    def values(self, *, transparent: Sequence[str] = ()) -> list[Value]:
        """Every value; the parts of keys that are `transparent` stand in the model and not in the file."""
        found = []
        for path, value in _leaves(self.settings.model_dump(mode="json"), ()):
            written = tuple(part for part in path if part not in transparent)
            found.append(
                Value(key=".".join(written), value=masked(written[-1], value), origin=_origin(self.origins, written))
            )
        return found

    def text(self, *, transparent: Sequence[str] = ()) -> str:
        """What `--print-config` prints: `key: value  # origin`, one a line."""
        values = self.values(transparent=transparent)
        left = [f"{item.key}: {_written(item.value)}" for item in values]
        width = min(max((len(line) for line in left), default=0), 72)
        return "\n".join(f"{line.ljust(width)}  # {item.origin}" for line, item in zip(left, values, strict=True))


def load_configuration(
    model: type[Model],
    path: Path | None,
    *,
    environment: Mapping[str, str],
    prefix: str = "",
    variables: Mapping[str, str] = {},
) -> Loaded[Model]:
    """Read the file, if there is one, and the environment.

    With `prefix`, every key can be given as the variable PREFIX + KEY in capitals; `variables` adds names for keys. A
    list is written with commas. Other variables are ignored, since Kubernetes adds some for every Service.

    Raises:
        OperatorError: unreadable, or a wrong, unknown or missing key; the sentence names its origin, key and value.
    """
    document, origins = _read(path) if path is not None else ({}, {})
    names = dict(variables)
    if prefix:
        names |= {prefix + key.upper(): key for key in model.model_fields}
    for name, key in names.items():
        if given := environment.get(name):
            document[key] = _split(given) if _is_list(model, key) else given
            for stale in [other for other in origins if other == key or other.startswith(f"{key}.")]:
                del origins[stale]
            origins[key] = f"variable {name}"
    try:
        return Loaded(settings=model.model_validate(document), origins=origins)
    except ValidationError as error:
        source = str(path) if path is not None else "the environment"
        said = [
            f"{_origin(origins, location, otherwise=source)}: {sentence}"
            for location, sentence in problems(error, model)
        ]
        raise OperatorError(
            "; ".join(said) + ".",
            remedy="Correct it there; --print-config shows every value of a whole configuration and where it is from.",
            code="INVALID_CONFIGURATION",
        ) from None


def _read(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The document, and the line of each of its keys."""
    document, tree = read_yaml(path)
    if document is None:
        return {}, {}
    return require_mapping(document, path), dict(_lines(tree, path, ()))


def _lines(node: Any, path: Path, above: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if not isinstance(node, yaml.MappingNode):
        return
    seen: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        name = str(key.value)
        if name in seen:
            raise OperatorError(
                f"{path}:{line}: key '{'.'.join((*above, name))}' stands there twice, first in line {seen[name]}.",
                remedy="Remove one of them.",
                code="INVALID_CONFIGURATION",
            )
        seen[name] = line
        yield ".".join((*above, name)), f"{path}:{line}"
        yield from _lines(value, path, (*above, name))


def _origin(origins: Mapping[str, str], location: Sequence[str | int], otherwise: str = DEFAULT) -> str:
    """Of the innermost key on the way to `location` that has one."""
    parts = [str(part) for part in location]
    for length in range(len(parts), 0, -1):
        if (found := origins.get(".".join(parts[:length]))) is not None:
            return found
    return otherwise


def _leaves(value: Any, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict) and (value or not above):
        for key, inner in value.items():
            yield from _leaves(inner, (*above, str(key)))
    else:
        yield above, value


def _written(value: Any) -> str:
    """As YAML reads it back; text stands bare where it can."""
    if isinstance(value, str):
        with suppress(yaml.YAMLError):
            if yaml.safe_load(f"key: {value}") == {"key": value}:
                return value
    return json.dumps(value, ensure_ascii=False)


def _is_list(model: type[BaseModel], key: str) -> bool:
    annotation = model.model_fields[key].annotation
    return any(typing.get_origin(part) is tuple for part in (annotation, *typing.get_args(annotation)))


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
