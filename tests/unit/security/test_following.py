"""A certificate that is renewed in its files is shown by a running server; a half pair is waited out."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hanse.security import Authority, Identity, KeyPair, ServerCertificate, follow_certificate, write_atomically

OFTEN = timedelta(milliseconds=10)
HOSTS = ("localhost", "127.0.0.1")


def lay(pair: KeyPair, folder: Path) -> tuple[Path, Path]:
    """As a Secret is mounted: two files."""
    certificate, key = folder / "service.crt", folder / "service.key"
    write_atomically(key, pair.key_pem)
    write_atomically(certificate, pair.certificate_pem)
    return certificate, key


def test_another_pair_is_handed_on_once_and_a_half_one_never(authority: Authority, tmp_path: Path) -> None:
    first, second = (authority.issue(Identity.service("aggregator")) for _ in range(2))
    certificate, key = lay(first, tmp_path)
    seen: list[KeyPair] = []
    came = asyncio.Event()

    def changed(pair: KeyPair) -> None:
        seen.append(pair)
        came.set()

    async def scenario() -> None:
        following = asyncio.create_task(follow_certificate(certificate, key, first, changed, every=OFTEN))
        write_atomically(certificate, second.certificate_pem)  # the key is still that of the first
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert not seen
        certificate.unlink()
        lay(second, tmp_path)
        async with asyncio.timeout(60):
            await came.wait()
        for _ in range(20):
            await asyncio.sleep(0.01)
        following.cancel()

    asyncio.run(scenario())
    assert seen == [KeyPair.load(certificate, key)]
    assert seen[0].certificate.serial_number == second.certificate.serial_number


def test_a_running_server_shows_the_new_one(serve, call, authority: Authority, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The old one has run out: whoever connects afterwards gets in by the new one alone."""
    past = datetime.now(UTC) - timedelta(days=30)
    first = authority.issue(Identity.service("coordinator"), hosts=HOSTS, lifetime=timedelta(days=1), now=past)
    certificate, key = lay(first, tmp_path)
    shown = ServerCertificate(KeyPair.load(certificate, key))
    port = serve(shown.mutual_credentials(authority.certificate_pem))
    lay(authority.issue(Identity.service("coordinator"), hosts=HOSTS), tmp_path)
    came = asyncio.Event()

    def changed(pair: KeyPair) -> None:
        shown.replace(pair)
        came.set()

    async def scenario() -> None:
        following = asyncio.create_task(follow_certificate(certificate, key, shown.pair, changed, every=OFTEN))
        async with asyncio.timeout(60):
            await came.wait()
        following.cancel()

    asyncio.run(scenario())
    client = authority.issue(Identity.service("dashboard"))
    assert call(port, authority, client) == "service dashboard"
