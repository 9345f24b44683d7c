"""What this node offers: row counts and schemas, looked at by a worker process and remembered here."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hanse.errors import HanseError, OperatorError, Reason
from hanse.logs import logger
from hanse.rpc import to_proto
from hanse.v1 import node_pb2
from hanse_agent.policy import OfferedDataset, SitePolicy
from hanse_agent.pool import WorkerPool, error_from
from hanse_agent.registry import installed_methods
from hanse_agent.settings import AgentConfig


class Catalogue:
    """The datasets and methods of one node, as last described."""

    def __init__(self, config: AgentConfig, pool: WorkerPool) -> None:
        self._config = config
        self._pool = pool
        self._datasets: dict[str, dict[str, Any]] = {}
        self._methods: dict[str, tuple[str, ...]] = {}
        self.unavailable: dict[str, Reason] = {}
        """Datasets that cannot be read, and why."""

    async def refresh(self) -> None:
        """Describe everything anew, in a worker.

        A dataset that cannot be read is no error here: the node stays, and the dataset does not count.

        Raises:
            OperatorError: the options of a dataset are wrong.
        """
        wanted = sorted(set(self._config.policy.methods) & set(installed_methods()))
        command = {
            "do": "describe",
            "datasets": [dataset_command(self._config, name) for name in self._config.offered],
            "methods": wanted,
        }
        try:
            found = await self._pool.run(command)
        except OperatorError:
            raise
        except HanseError as error:  # the worker itself does not live: nothing can be offered
            failed = {"failed": {**asdict(error.reason), "owner": error.owner.value}}
            found = {"datasets": dict.fromkeys(self._config.offered, failed), "methods": {}}
        self._take_datasets(found["datasets"])
        self._take_methods(found["methods"])

    def offers(self) -> list[node_pb2.DatasetOffer]:
        """The datasets for the session's hello."""
        offers = []
        for name in self._config.offered:
            kind = self._config.datasets[name].kind
            if name in self.unavailable:
                reason = to_proto(self.unavailable[name])
                offers.append(node_pb2.DatasetOffer(name=name, kind=kind, unavailable=reason))
                continue
            known = self._datasets[name]
            offers.append(
                node_pb2.DatasetOffer(
                    name=name,
                    kind=kind,
                    rows=known["rows"],
                    columns=[node_pb2.Column(name=column, dtype=dtype) for column, dtype in known["columns"]],
                    target=known["target"],
                    facts=known["facts"],
                )
            )
        return offers

    @property
    def methods(self) -> list[str]:
        """The methods that are allowed, installed and can be loaded."""
        return sorted(self._methods)

    @property
    def policy(self) -> SitePolicy:
        """The site's policy over what is here."""
        known = {
            name: OfferedDataset(kind=self._config.datasets[name].kind, rows=described["rows"])
            for name, described in self._datasets.items()
        }
        return SitePolicy(policy=self._config.policy, datasets=known, methods=self._methods)

    def _take_datasets(self, found: dict[str, dict[str, Any]]) -> None:
        self._datasets, self.unavailable = {}, {}
        for name, described in found.items():
            if "failed" not in described:
                self._datasets[name] = described
                continue
            error = error_from(described["failed"])
            if isinstance(error, OperatorError):
                raise error
            logger(dataset=name).warning("dataset cannot be read", reason=str(error))
            self.unavailable[name] = error.reason

    def _take_methods(self, found: dict[str, dict[str, Any]]) -> None:
        self._methods = {}
        for name in self._config.policy.methods:
            described = found.get(name)
            if described is None:
                logger(method=name).warning("method is allowed, but no learner for it is installed")
            elif "failed" in described:
                logger(method=name).warning("learner cannot be loaded", reason=described["failed"]["sentence"])
            else:
                self._methods[name] = tuple(described["kinds"])


def dataset_command(config: AgentConfig, name: str) -> dict[str, Any]:
    """How a worker is told of a dataset."""
    dataset = config.datasets[name]
    return {"name": name, "kind": dataset.kind, "options": dataset.options, "folder": str(config.folder)}
