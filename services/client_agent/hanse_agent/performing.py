"""One assignment from its instruction to a spooled contribution: policy, download, worker, policy again, disk."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hanse.errors import HanseError, PlatformError, SiteError
from hanse.observability.tracing import within
from hanse.payload.header import MAX_HEADER_BYTES, PREFIX, read_header
from hanse.payload.transfer import download
from hanse.v1 import node_pb2, payload_pb2
from hanse_agent.approvals import Approvals
from hanse_agent.catalogue import Catalogue, dataset_command
from hanse_agent.jobs import JobFolder, Jobs
from hanse_agent.link import Link, Links
from hanse_agent.policy import Word
from hanse_agent.pool import WorkerPool
from hanse_agent.settings import AgentConfig
from hanse_agent.spooled import Attempt, Spooled, Task

if TYPE_CHECKING:
    from hanse_agent.work import Work

T = TypeVar("T")

PROGRESS_EVERY_S = 1.0
LONGEST_CHECK_S = 10.0


class Performing:
    """Works on assignments of one node."""

    def __init__(
        self,
        *,
        node: str,
        config: AgentConfig,
        jobs: Jobs,
        links: Links,
        pool: WorkerPool,
        catalogue: Catalogue,
        approvals: Approvals,
    ) -> None:
        self._node = node
        self._config = config
        self._jobs = jobs
        self._links = links
        self._pool = pool
        self._catalogue = catalogue
        self._approvals = approvals

    async def perform(self, work: Work, assign: node_pb2.Assign) -> Spooled:
        """Do the work; the contribution that is returned lies safely on disk and has not left.

        Raises:
            PolicyRefusal: the site does not allow the work, or its result to leave.
            HanseError: why it could not be done: the data, the learner, the worker.
            OSError: the state folder cannot be written.
        """
        self._check(assign)
        folder, job = self._jobs.open(assign.job.id), assign.job
        folder.remember(job=job.id, name=job.name, method=job.method, dataset=job.dataset)
        progress = _Progress(self._links, work)
        used: set[str] = set()

        async def fetch(digest: str) -> str | None:
            used.add(digest)
            try:
                return str(await self._fetch(assign, digest, 0, folder, progress))
            except PlatformError:
                raise
            except HanseError:
                return None

        with within("download", parent=work.span.traceparent):
            instruction, personal = await self._inputs(assign, folder, used, progress)
        task = _task(assign, work.fence, instruction)
        attempt = folder.begin(task)
        try:
            progress.begin("train")
            with within("train", parent=work.span.traceparent, method=assign.job.method):
                result = await self._pool.run(
                    self._command(assign, folder, attempt, instruction, personal),
                    key=f"{self._node}/{assign.job.id}/{assign.job.dataset}",
                    on_progress=lambda fraction, note: progress.tell("train", fraction, note),
                    on_fetch=fetch,
                    on_alive=lambda: progress.tell("train", work.fraction, "", now=True),
                    check_every=min(LONGEST_CHECK_S, assign.lease_s / 4 or LONGEST_CHECK_S),
                )
            progress.end()
            header = _header(attempt.image)  # a few kB that were written just now
            self._catalogue.policy.check_payload(header, result["size"])
            spooled = await _to_the_end(asyncio.to_thread(_commit, folder, task, attempt, header, result))
        except BaseException:
            progress.end()
            folder.discard(attempt)
            raise
        folder.trim_cache(used)
        return spooled

    async def forget(self, job: str) -> None:
        """Let workers drop what they keep warm for a job that is over."""
        await self._pool.forget(job)

    def _check(self, assign: node_pb2.Assign) -> None:
        unreadable = self._catalogue.unavailable.get(assign.job.dataset)
        if unreadable is not None:
            raise SiteError(unreadable.sentence, remedy=unreadable.remedy, code=unreadable.code)
        said = self._approvals.get(assign.job.id)
        word, why = (said.word, said.why) if said else (Word.NONE, "")
        self._catalogue.policy.check_assignment(assign.job, assign.purpose, word, why)

    async def _inputs(
        self, assign: node_pb2.Assign, folder: JobFolder, used: set[str], progress: _Progress
    ) -> tuple[Path, Path | None]:
        async def obtain(source: payload_pb2.PayloadSource) -> Path:
            if source.HasField("inline"):
                digest = hashlib.sha256(source.inline).hexdigest()
                used.add(digest)
                path = folder.cached(digest)
                if not path.exists():  # under its name it is whole: who finds it there reads it unseen
                    draft = path.with_name(f".{digest}.new")
                    draft.write_bytes(source.inline)
                    draft.replace(path)
                return path
            digest = source.artifact.digest.hex()
            used.add(digest)
            return await self._fetch(assign, digest, source.artifact.size, folder, progress)

        instruction = await obtain(assign.instruction)
        personal = await obtain(assign.personal) if assign.HasField("personal") else None
        return instruction, personal

    async def _fetch(
        self, assign: node_pb2.Assign, digest: str, size: int, folder: JobFolder, progress: _Progress
    ) -> Path:
        path = folder.cached(digest)

        async def over(link: Link) -> None:
            await download(
                link.stub,
                assignment=assign.assignment,
                digest=bytes.fromhex(digest),
                into=path,
                size=size or None,
                on_progress=lambda done, of: progress.tell("download", done / max(of, 1), ""),
                peer=link.peer,
            )

        if not path.exists():
            await self._links.over(over)
        return path

    def _command(
        self, assign: node_pb2.Assign, folder: JobFolder, attempt: Attempt, instruction: Path, personal: Path | None
    ) -> dict[str, Any]:
        job, before = assign.job, folder.spooled()
        return {
            "do": "perform",
            "assignment": assign.assignment,
            "node": self._node,
            "job": {
                "id": job.id,
                "name": job.name,
                "method": job.method,
                "dataset": job.dataset,
                "rounds": job.rounds,
                "seed": job.seed,
                "model": job.model,
                "config": job.config.decode() or "{}",
            },
            "dataset": dataset_command(self._config, job.dataset),
            "phase": assign.phase,
            "round": assign.round,
            "purpose": assign.purpose,
            "unseen": job.unseen,
            "instruction": str(instruction),
            "personal": str(personal) if personal else "",
            "state": str(attempt.state) if attempt.state else "",
            "state_of": before.task.assignment if before and before.version == attempt.base else "",
            "next_state": str(attempt.next_state),
            "output": str(attempt.image),
            "limits": {
                "minimum_rows_per_atom": self._config.policy.minimum_rows_per_atom,
                "small_atoms": self._config.policy.small_atoms,
            },
        }


class _Progress:
    """Tells the coordinator how one assignment gets on, which renews its lease; not more often than is useful."""

    def __init__(self, links: Links, work: Work) -> None:
        self._links = links
        self._work = work
        self._told = time.monotonic()
        self._beginning: asyncio.TimerHandle | None = None

    def begin(self, stage: str) -> None:
        """A stage has begun of which nobody knows how long it takes: what is over in a moment is not worth a word."""
        loop = asyncio.get_running_loop()
        self._beginning = loop.call_later(PROGRESS_EVERY_S, lambda: self.tell(stage, self._work.fraction, ""))

    def end(self) -> None:
        """The stage is over."""
        if self._beginning is not None:
            self._beginning.cancel()

    def tell(self, stage: str, fraction: float, note: str, *, now: bool = False) -> None:
        self._work.fraction = fraction
        if (link := self._links.current) is None:
            return
        clock = time.monotonic()
        if not now and clock - self._told < PROGRESS_EVERY_S:
            return
        self._told = clock
        link.send(
            progress=node_pb2.Progress(
                assignment=self._work.assignment, fence=self._work.fence, stage=stage, fraction=fraction, note=note
            )
        )


def _task(assign: node_pb2.Assign, fence: int, instruction: Path) -> Task:
    return Task(
        assignment=assign.assignment,
        fence=fence,
        job=assign.job.id,
        job_name=assign.job.name,
        phase=assign.phase,
        round=assign.round,
        purpose=assign.purpose,
        attempt=assign.attempt,
        instruction=instruction.name,
    )


def _header(image: Path) -> payload_pb2.PayloadHeader:
    with image.open("rb") as file:
        header, _ = read_header(file.read(PREFIX.size + MAX_HEADER_BYTES))
    return header


def _commit(
    folder: JobFolder, task: Task, attempt: Attempt, header: payload_pb2.PayloadHeader, result: dict[str, Any]
) -> Spooled:
    arrays = [{"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape)} for spec in header.arrays]
    kind = header.WhichOneof("kind") or ""
    return folder.commit(task, attempt, kind=kind, arrays=arrays, size=result["size"], digest=result["digest"])


async def _to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Await something that must not be left half done: being cancelled waits for its end first."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
