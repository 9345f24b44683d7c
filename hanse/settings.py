"""Reading configuration that people write: durations (`10m`), sizes (`200MB`), files whose every key counts."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, ValidationError

from hanse.errors import OperatorError

__all__ = [
    "Duration",
    "Settings",
    "Size",
    "explain",
    "load_yaml",
    "masked",
    "parse_duration",
    "parse_size",
    "problems",
    "validate",
]

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB)")
_BYTES = {
    "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip


def parse_duration(value: object) -> timedelta:
    """Read `30s`, `10m`, `1h30m`, `2d`.

    Raises:
        ValueError: anything else; a bare number is refused, since nobody can see its unit.
    """
    if isinstance(value, timedelta):
        return value
    text = str(value).strip()
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"'{value}' is not a duration; write it with a unit, for instance 30s, 10m or 1h30m")
    return timedelta(seconds=sum(float(number) * _SECONDS[unit] for number, unit in parts))


def format_duration(value: timedelta) -> str:
    """The shortest exact form that `parse_duration` reads."""
    seconds = value.total_seconds()
    for unit in ("d", "h", "m", "s"):
        if seconds and seconds % _SECONDS[unit] == 0:
            return f"{int(seconds / _SECONDS[unit])}{unit}"
    return f"{seconds * 1000:g}ms"


def parse_size(value: object) -> int:
    """Read `200MB`, `4GiB`.

    Raises:
        ValueError: anything else; a bare number is refused, since nobody can see its unit.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        raise ValueError(f"'{value}' is not a size; write it with a unit, for instance 200MB or 4GiB")
    match = _SIZE.fullmatch(str(value).strip())
    if not match:
        raise ValueError(f"'{value}' is not a size; write it with a unit, for instance 200MB or 4GiB")
    return int(float(match[1]) * _BYTES[match[2]])


Duration = Annotated[
    timedelta, BeforeValidator(parse_duration), PlainSerializer(format_duration, return_type=str, when_used="json")
]
Size = Annotated[
    int, BeforeValidator(parse_size), PlainSerializer(lambda n: f"{n}B", return_type=str, when_used="json")
]


class Settings(BaseModel):
    """Base of every model that is read from a file: frozen, and unknown keys are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


Model = TypeVar("Model", bound=BaseModel)


def load_yaml(model: type[Model], path: Path) -> Model:
    """Read a YAML file into a settings model.

    Raises:
        OperatorError: the file cannot be read, is not YAML, or has a wrong or unknown key. The sentence names
            file, key and value.
    """
    document, _ = read_yaml(path)
    return validate(model, require_mapping(document, path), source=str(path))


def read_yaml(path: Path) -> tuple[Any, yaml.Node | None]:
    """A YAML file's document, and its tree, which knows the line of every key; None and None for an empty file.

    Raises:
        OperatorError: the file cannot be read, or is not YAML.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OperatorError(f"cannot read {path}: {error}", remedy="Check the path and its permissions.") from error
    loader = None
    try:
        loader = yaml.SafeLoader(text)
        tree = loader.get_single_node()
        return (None if tree is None else loader.construct_document(tree)), tree
    except (yaml.YAMLError, ValueError) as error:  # ValueError: what looks like a date and is none
        raise OperatorError(
            f"{path} is not YAML: {' '.join(str(error).split())}", remedy="Correct the file at that line."
        ) from error
    finally:
        if loader is not None:
            loader.dispose()


def require_mapping(document: Any, path: Path) -> dict[str, Any]:
    """The document of a file that holds keys and values.

    Raises:
        OperatorError: it holds something else.
    """
    if not isinstance(document, dict):
        raise OperatorError(
            f"{path} must hold a mapping of keys to values, not {type(document).__name__}.",
            remedy="Write one `key: value` a line.",
        )
    return document


def validate(model: type[Model], document: dict[str, Any], *, source: str) -> Model:
    """Check a document against a settings model.

    Raises:
        OperatorError: a wrong or unknown key; the sentence names `source`, key and value.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise OperatorError(f"{source}: {explain(error, model)}", code="INVALID_CONFIGURATION") from None


def explain(error: ValidationError, model: type[BaseModel] | None = None) -> str:
    """A pydantic error as sentences: key, what is wrong, the value that was given, and the known keys."""
    return "; ".join(sentence for _, sentence in problems(error, model)) + "."


def problems(error: ValidationError, model: type[BaseModel] | None = None) -> list[tuple[tuple[int | str, ...], str]]:
    """A pydantic error, fault by fault: where it is, and the sentence without its full stop. Secrets are masked."""
    found = []
    for item in error.errors(include_url=False):
        location = item["loc"]
        key = ".".join(str(part) for part in location) or "(the whole)"
        if item["type"] == "extra_forbidden":
            known = _keys_at(model, location[:-1])
            sentence = f"unknown key '{key}'" + (f" (known here: {', '.join(known)})" if known else "")
        elif item["type"] == "missing":
            sentence = f"key '{key}' is missing"
        else:
            message = item["msg"].removeprefix("Value error, ")
            given = repr(masked(str(location[-1]) if location else "", item["input"]))
            sentence = f"{key}: {message} (given: {given[:80]})"
        found.append((location, sentence))
    return found


def _is_path(key: str, value: str) -> bool:
    return key.endswith(("_file", "_path")) or value.startswith(("/", "./", "../", "~"))


_SECRET_KEY = re.compile(r"(^|_)(password|passwd|secret|token|credential|api_?key|access_?key)s?($|_)", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(?<=://)([^/@\s:]*):[^/@\s]+(?=@)")
_QUERY_SECRET = re.compile(r"([?&](?:password|passwd|secret|token|sslpassword)=)[^&\s]+", re.IGNORECASE)
MASK = "***"


def masked(key: str, value: Any) -> Any:
    """A value as people may see it: the password of a URL, and whatever a key of such a name holds, is hidden.

    Paths are shown, since they say where a secret is and not what.
    """
    if isinstance(value, dict):
        return {name: masked(str(name), inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [masked(key, inner) for inner in value]
    if not isinstance(value, str):
        return value
    if _SECRET_KEY.search(key) and value and not _is_path(key, value):
        return MASK
    return _QUERY_SECRET.sub(rf"\1{MASK}", _URL_PASSWORD.sub(rf"\1:{MASK}", value))


def _keys_at(model: type[BaseModel] | None, location: tuple[int | str, ...]) -> list[str]:
    for part in location:
        if model is None or not isinstance(part, str) or part not in model.model_fields:
            return []
        annotation = model.model_fields[part].annotation
        model = annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
    return sorted(model.model_fields) if model else []
