"""`hanse-aggregator`: hosts aggregator plug-ins for a coordinator until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import grpc.aio
import typer

from hanse import __version__
from hanse.artifacts import open_store
from hanse.errors import HanseError, OperatorError
from hanse.logs import configure, logger
from hanse.observability import PlainPort, tracing
from hanse.rpc import ErrorInterceptor, add_health_and_reflection, listen, set_serving
from hanse.security import KeyPair, ServerCertificate, follow_certificate, server_options, write_atomically
from hanse.v1 import aggregator_pb2_grpc
from hanse_aggregator.metrics import AggregatorMetrics
from hanse_aggregator.registry import Registry
from hanse_aggregator.service import SERVICE, AggregatorService
from hanse_aggregator.settings import AggregatorSettings, configuration

CONNECTION_AGE_MS = 5 * 60 * 1000
"""After so long the coordinator is asked to connect anew, and so to look up which replicas there are; calls that are
under way go on."""
LARGEST_MESSAGE = 64 * 1024 * 1024
"""The facts of a job list every node's columns; on this inner link alone they may outgrow gRPC's usual limit."""


async def serve(settings: AggregatorSettings, stop: asyncio.Event) -> None:
    """Serve until `stop`, then let running calls finish within the grace period.

    Raises:
        OperatorError: a certificate cannot be used, or an address is taken.
        PlatformError: a folder cannot be used.
    """
    pair = KeyPair.load(settings.certificate, settings.key)
    authority = _read(settings.authority)
    registry = Registry.discover()
    metrics = AggregatorMetrics(registry.methods)
    tracing.configure("hanse-aggregator", settings.traces)
    metrics.certificate(pair.certificate.not_valid_after_utc.timestamp())
    with _scratch(settings) as scratch:
        store = await asyncio.to_thread(open_store, settings, cache=scratch / "copies")
        service = AggregatorService(
            registry, store=store, scratch=scratch, cache=settings.cache, threads=settings.threads, metrics=metrics
        )
        options = dict(server_options()) | {
            "grpc.max_receive_message_length": LARGEST_MESSAGE,
            "grpc.max_connection_age_ms": CONNECTION_AGE_MS,
        }
        server = grpc.aio.server(interceptors=[ErrorInterceptor()], options=list(options.items()))
        aggregator_pb2_grpc.add_AggregatorServiceServicer_to_server(service, server)
        health = add_health_and_reflection(server, [SERVICE])
        plain = PlainPort(metrics.registry, health)
        certificate = ServerCertificate(pair)
        ports = {"aggregator": listen(server, settings.listen, certificate.mutual_credentials(authority))}
        if settings.health_listen:
            ports["health"] = await plain.start(settings.health_listen)
        await server.start()
        await set_serving(health, [SERVICE], True)
        _announce(settings, ports, registry)

        def renewed(pair: KeyPair) -> None:
            certificate.replace(pair)
            metrics.certificate(pair.certificate.not_valid_after_utc.timestamp())

        following = asyncio.create_task(follow_certificate(settings.certificate, settings.key, pair, renewed))
        try:
            await stop.wait()
        finally:
            following.cancel()
            await set_serving(health, [SERVICE], False)
            logger().info("stopping", grace_s=settings.grace.total_seconds())
            await server.stop(settings.grace.total_seconds())
            await plain.close()
            service.close()
            await asyncio.to_thread(tracing.close)


@contextlib.contextmanager
def _scratch(settings: AggregatorSettings) -> Iterator[Path]:
    """A folder of this process's own for artifacts that are streamed, removed at the end."""
    try:
        if settings.scratch is not None:
            settings.scratch.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(
            prefix="hanse-aggregator-", dir=settings.scratch, ignore_cleanup_errors=True
        )
    except OSError as error:
        raise OperatorError(f"the scratch folder cannot be used: {error}", remedy="Check `scratch`.") from error
    with folder as path:
        yield Path(path)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise OperatorError(f"cannot read {path}: {error.strerror}", remedy="Check the path.") from error


def _announce(settings: AggregatorSettings, ports: dict[str, int], registry: Registry) -> None:
    if settings.ports_file is not None:
        write_atomically(settings.ports_file, json.dumps(ports).encode() + b"\n", mode=0o644)
    host = settings.listen.rpartition(":")[0]
    typer.echo(f"hanse-aggregator {__version__} listens on {host}:{ports['aggregator']}")
    sys.stdout.flush()
    logger().info("serving", methods=list(registry.methods), broken=sorted(registry.broken), **ports)


async def _until_told(settings: AggregatorSettings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await serve(settings, stop)


def _command(
    config: Annotated[
        Path | None, typer.Option(help="Configuration file (YAML); HANSE_AGGREGATOR_… variables win over it.")
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print every value and where it comes from, and end.")
    ] = False,
) -> None:
    """Host aggregator plug-ins for a coordinator."""
    try:
        loaded = configuration(config)
        if print_config:
            typer.echo(loaded.text())
            return
        settings = loaded.settings
        configure(json=settings.log_json, level=settings.log_level)
        asyncio.run(_until_told(settings))
    except HanseError as error:
        typer.echo(f"hanse-aggregator: {error}", err=True)
        raise typer.Exit(1) from None
    sys.stdout.flush()
    os._exit(0)  # a plug-in that outlived the grace period must not hold the process


def main() -> None:
    """Entry point of `hanse-aggregator`."""
    typer.run(_command)


if __name__ == "__main__":
    main()
