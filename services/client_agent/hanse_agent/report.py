"""`hanse-agent report`: one archive that helps others to help, without keys, secrets or records.

It holds versions, the configuration, what `doctor` found, the status, a summary of the egress journal and the last
lines of the log. Nothing else of the state folder is read: no key, no learner's state, no contribution, no dataset.
With `redact`, the site's own words (node, hosts, datasets, columns, paths, labels) are replaced by placeholders, the
same word by the same placeholder everywhere.
"""

from __future__ import annotations

import json
import os
import platform
import re
import socket
import sys
import zipfile
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from hanse import __version__
from hanse.configuration import Loaded
from hanse.errors import Conflict, SiteError
from hanse_agent.doctor import Finding, text
from hanse_agent.egress import EgressJournal
from hanse_agent.folder import StateFolder, utc_now
from hanse_agent.settings import TRANSPARENT, AgentConfig
from hanse_agent.status import read_status

LOG_LINES = 500
_SECRETS = (
    re.compile(r"HNS1_[A-Z2-7_a-z0-9]+"),
    re.compile(r"-----BEGIN [A-Z ]+-----.*?(-----END [A-Z ]+-----|$)", re.DOTALL),
    re.compile(r"(?i)(?<=bearer )[A-Za-z0-9._~+/=-]+"),
    re.compile(r"(?<=://)[^/@\s]+(?=@)"),
    re.compile(r"(?i)(?:(?<=password=)|(?<=secret=)|(?<=token=))[^\s&'\"]+"),
)
_LEAST_WORD = 3
"""Shorter words of the site would be replaced inside of others."""


def make_report(
    loaded: Loaded[AgentConfig], findings: Sequence[Finding], *, logs: Iterable[Path], output: Path, redact: bool
) -> list[str]:
    """Write the archive; returns the names of its files.

    Raises:
        Conflict: `output` is there already.
        SiteError: a log cannot be read, or `output` cannot be written.
    """
    config = loaded.settings
    files = {
        "versions.json": _json(_versions()),
        "configuration.txt": loaded.text(transparent=TRANSPARENT) + "\n",
        "doctor.json": _json([item.document() for item in findings]),
        "doctor.txt": text(findings) + "\n",
        "status.json": _json(_status(config)),
        "egress.json": _json(_egress(config)),
        "log.txt": "".join(_last_lines(path) for path in logs),
    }
    words = _site_words(config, findings) if redact else {}
    files = {name: _clean(content, words) for name, content in files.items()}
    contents = [{"file": name, "bytes": len(content.encode())} for name, content in files.items()]
    manifest = {"made": utc_now(), "hanse": __version__, "redacted": redact, "contents": contents}
    _write(output, {"contents.json": _json(manifest), **files})
    return ["contents.json", *files]


def _versions() -> dict[str, Any]:
    return {
        "hanse": __version__,
        "python": sys.version,
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "packages": dict(sorted((found.name, found.version) for found in distributions() if found.name)),
        "variables": sorted(name for name in os.environ if re.search(r"(?i)^hanse_|proxy$|^grpc_", name)),
    }


def _status(config: AgentConfig) -> dict[str, Any]:
    try:
        return read_status(config)
    except SiteError as error:
        return {"unreadable": str(error)}


def _egress(config: AgentConfig) -> list[dict[str, Any]]:
    """What left, added up by job and kind; the journal itself stays."""
    sums: dict[tuple[str, str, str], dict[str, Any]] = {}
    for line in EgressJournal(StateFolder(config.state).egress).entries():
        key = (str(line.get("job")), str(line.get("kind")), str(line.get("event")))
        total = sums.setdefault(
            key,
            {"job": key[0], "kind": key[1], "event": key[2], "payloads": 0, "bytes": 0, "first": line.get("when")},
        )
        total["payloads"] += 1
        total["bytes"] += int(line.get("bytes", 0))
        total["last"] = line.get("when")
    return list(sums.values())


def _last_lines(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return f"# {path}\n" + "".join(deque(file, LOG_LINES))
    except OSError as error:
        raise SiteError(
            f"cannot read the log {path}: {error.strerror}.", remedy="Give the right path to --log."
        ) from error


def _site_words(config: AgentConfig, findings: Sequence[Finding]) -> dict[str, str]:
    """The site's own words, and what stands for them."""
    words: dict[str, str] = {}

    def name(kind: str, found: Iterable[object]) -> None:
        for number, word in enumerate(dict.fromkeys(str(item) for item in found), 1):
            if len(word) >= _LEAST_WORD:
                words.setdefault(word, f"<{kind}-{number}>")

    node = read_node(config)
    name("node", [node] if node else [])
    addresses = [fact for item in findings if item.check == "dns" for fact in item.facts.get("addresses", ())]
    name("host", [*(address.host for address in config.coordinator), socket.gethostname(), *addresses])
    name("folder", [config.state, config.folder, Path.home()])
    name("dataset", config.datasets)
    for dataset in config.datasets.values():
        name("option", _texts(dataset.options))
    name("label", [text for pair in config.labels.items() for text in pair])
    for item in findings:
        if item.check == "datasets":
            for facts in item.facts.values():
                if isinstance(facts, Mapping):
                    name("column", [facts.get("target", ""), *(column for column, _ in facts.get("columns", ()))])
    return words


def read_node(config: AgentConfig) -> str | None:
    """The node's name, if the identity can be read."""
    node = _status(config).get("node")
    return str(node) if node else None


def _texts(options: Any) -> list[str]:
    if isinstance(options, Mapping):
        return [text for value in options.values() for text in _texts(value)]
    if isinstance(options, list | tuple):
        return [text for value in options for text in _texts(value)]
    return [options] if isinstance(options, str) else []


def _clean(content: str, words: Mapping[str, str]) -> str:
    for pattern in _SECRETS:
        content = pattern.sub("***", content)
    for word in sorted(words, key=len, reverse=True):
        content = re.sub(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", words[word], content)
    return content


def _json(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False, default=str) + "\n"


def _write(output: Path, files: Mapping[str, str]) -> None:
    try:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise Conflict(
            f"{output} exists already and is not overwritten.", remedy="Choose another path.", code="FILE_EXISTS"
        ) from error
    except OSError as error:
        raise SiteError(f"{output} cannot be written: {error.strerror}.", remedy="Choose another path.") from error
    with os.fdopen(descriptor, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
