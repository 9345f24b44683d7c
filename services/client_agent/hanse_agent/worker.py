"""The worker process: `python -m hanse_agent.worker`. Learners run here, away from the agent's sockets.

Control is one JSON object a line, both ways, on the pipes that were standard input and output at the start; what a
learner prints goes to standard error. Payloads and states are files, whose paths are in the messages.

    agent → worker   {"do": "describe", "datasets": [...], "methods": [...]}
                     {"do": "perform", "job": {...}, "dataset": {...}, "phase": ..., paths and limits}
                     {"do": "forget", "job": ID}
                     {"path": PATH} or {"missing": true}          the answer to a fetch
    worker → agent   {"progress": FRACTION, "note": TEXT}
                     {"fetch": DIGEST}
                     {"done": {...}}
                     {"failed": {code, sentence, owner, remedy}, "detail": TRACEBACK, "memory": BOOL}

The process ends when the agent does: it reads the end of its input, and on Linux the kernel kills it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import queue
import re
import resource
import shutil
import signal
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import IO, Any

from hanse.errors import HanseError, MethodError, SiteError

_PR_SET_PDEATHSIG = 1
_PROGRESS_EVERY_S = 0.2
_DIGEST = re.compile("[0-9a-f]{64}")


class Control:
    """The line to the agent. A thread reads, so that the agent's end is noticed in the middle of work too."""

    def __init__(self, incoming: IO[bytes], outgoing: IO[bytes]) -> None:
        self._outgoing = outgoing
        self._lines: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(incoming,), daemon=True).start()

    def receive(self) -> dict[str, Any]:
        """The next message."""
        return self._lines.get()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message; the agent's end ends this process."""
        try:
            self._outgoing.write(json.dumps(message).encode() + b"\n")
            self._outgoing.flush()
        except OSError:
            os._exit(0)

    def _read(self, incoming: IO[bytes]) -> None:
        for line in incoming:
            self._lines.put(json.loads(line))
        os._exit(0)


class Worker:
    """Performs what the agent asks for, one thing at a time, and keeps learners warm."""

    def __init__(self, control: Control, *, learners: int) -> None:
        self._control = control
        self._most = learners
        self._told = 0.0
        # (node, job, dataset) -> the assignment whose state the learner wrote last, and the learner
        self._warm: OrderedDict[tuple[str, str, str], tuple[str, Any]] = OrderedDict()
        self._commands: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "describe": self._describe,
            "perform": self._perform,
            "forget": self._forget,
        }

    def serve(self) -> None:
        """Answer for ever."""
        while True:
            command = self._control.receive()
            try:
                answer = {"done": self._commands[command["do"]](command)}
            except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a learner raises becomes a reason
                answer = failure(error)
            self._control.send(answer)

    def _describe(self, command: dict[str, Any]) -> dict[str, Any]:
        datasets = {dataset["name"]: _attempt(partial(_description, dataset)) for dataset in command["datasets"]}
        methods = {method: _attempt(partial(_abilities, method)) for method in command["methods"]}
        return {"datasets": datasets, "methods": methods}

    def _forget(self, command: dict[str, Any]) -> dict[str, Any]:
        for key in [key for key in self._warm if key[1] == command["job"]]:
            del self._warm[key]
        return {}

    def _perform(self, command: dict[str, Any]) -> dict[str, Any]:
        from hanse.method import Assignment, JobContext, LearnerLimits, Purpose
        from hanse.payload import Payload

        job, node, dataset = command["job"], command["node"], command["dataset"]
        key = (node, job["id"], dataset["name"])
        learner = self._learner(key, job["method"], dataset, command["state_of"])
        next_state, output = Path(command["next_state"]), Path(command["output"])
        shutil.rmtree(next_state, ignore_errors=True)
        next_state.mkdir()
        payload = learner.perform(
            Assignment(
                job=JobContext(**{**job, "config": json.loads(job["config"])}, fetch=self._fetch),
                node=node,
                phase=command["phase"],
                round=command["round"],
                purpose=Purpose(command["purpose"]),
                instruction=_cached(command["instruction"]),
                personal=_cached(command["personal"]) if command["personal"] else None,
                unseen=command["unseen"],
                state=Path(command["state"]) if command["state"] else None,
                next_state=next_state,
                limits=LearnerLimits(**command["limits"]),
                fetch=self._fetch,
                progress=self._progress,
            )
        )
        if not isinstance(payload, Payload):
            raise MethodError(
                f"the learner of '{job['method']}' returned {type(payload).__name__}, not a payload.",
                remedy="Tell the method's author.",
                code="LEARNER_FAILED",
            )
        digest = payload.write(output)
        self._warm[key] = (command["assignment"], learner)
        while len(self._warm) > self._most:
            self._warm.popitem(last=False)
        return {"digest": digest.hex(), "size": output.stat().st_size}

    def _learner(self, key: tuple[str, str, str], method: str, dataset: dict[str, Any], state_of: str) -> Any:
        """The warm learner, if it wrote the very state that it is to go on from; else a new one.

        It is put back only when it has done its work: one that failed may be in any state.
        """
        from hanse_agent.registry import learner_class

        wrote, learner = self._warm.pop(key, ("", None))
        if learner is not None and wrote == state_of:
            return learner
        return learner_class(method)(_open(dataset))

    def _fetch(self, digest: bytes) -> Any:
        from hanse.payload import Payload

        self._control.send({"fetch": digest.hex()})
        answer = self._control.receive()
        if "path" not in answer:
            raise KeyError(digest.hex())
        return Payload.open(Path(answer["path"]), digest=digest)

    def _progress(self, fraction: float, note: str = "") -> None:
        now = time.monotonic()
        if now - self._told >= _PROGRESS_EVERY_S:
            self._told = now
            self._control.send({"progress": float(fraction), "note": str(note)[:200]})


def failure(error: BaseException) -> dict[str, Any]:
    """What the agent is told of an exception: a reason for everybody, the traceback for the agent's log alone."""
    memory = isinstance(error, MemoryError) or "bad_alloc" in str(error)
    if memory:
        known: HanseError = SiteError(
            "the worker ran out of memory.",
            remedy="Raise worker.memory in agent.yaml, or offer fewer rows.",
            code="OUT_OF_MEMORY",
        )
    elif isinstance(error, HanseError):
        known = error
    else:
        known = MethodError(
            f"the learner failed with {type(error).__name__}: {' '.join(str(error).split())[:500]}",
            remedy="The agent's log has the details; tell the method's author.",
            code="LEARNER_FAILED",
        )
    reason = known.reason
    detail = "".join(traceback.format_exception(error))[-20_000:]
    return {"failed": {**asdict(reason), "owner": reason.owner.value}, "detail": detail, "memory": memory}


def _cached(path: str) -> Any:
    """An input of the assignment. The agent names it by the digest that it has verified: it is not hashed again."""
    from hanse.payload import Payload

    name = Path(path).name
    return Payload.open(Path(path), digest=bytes.fromhex(name) if _DIGEST.fullmatch(name) else None)


def _open(dataset: dict[str, Any]) -> Any:
    from hanse_agent.registry import open_dataset

    os.chdir(dataset["folder"])  # what relative paths in agent.yaml are relative to
    return open_dataset(dataset["name"], dataset["kind"], dataset["options"])


def _description(dataset: dict[str, Any]) -> dict[str, Any]:
    described = _open(dataset).describe()
    return {
        "rows": int(described.rows),
        "columns": [[column.name, column.dtype] for column in described.columns],
        "target": described.target,
        "facts": {str(key): str(value) for key, value in described.facts.items()},
    }


def _abilities(method: str) -> dict[str, Any]:
    from hanse_agent.registry import learner_class

    found = learner_class(method)
    return {"version": str(found.version), "kinds": list(found.dataset_kinds)}


def _attempt(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - one bad dataset must not hide the others
        return failure(error)


def _die_with(parent: int) -> None:
    """Let the kernel kill this process with the agent, even if it is stopped at that moment (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _take_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Keep the control pipes for ourselves: learners find an empty input, and print to standard error."""
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    return incoming, outgoing


def main() -> None:
    """Serve the agent that started this process."""
    parser = argparse.ArgumentParser(prog="hanse_agent.worker")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--memory", type=int, required=True)
    parser.add_argument("--learners", type=int, required=True)
    options = parser.parse_args()
    _die_with(options.parent)
    resource.setrlimit(resource.RLIMIT_DATA, (options.memory, options.memory))
    Worker(Control(*_take_pipes()), learners=options.learners).serve()


if __name__ == "__main__":
    main()
