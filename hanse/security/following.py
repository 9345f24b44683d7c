"""A certificate that somebody else renews: its files are read again while the program runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

from hanse.errors import HanseError
from hanse.logs import logger
from hanse.security.keys import KeyPair

LOOK_EVERY = timedelta(seconds=20)
"""Kubernetes brings a changed Secret to its files within about a minute; this adds little to it."""


async def follow_certificate(
    certificate: Path,
    key: Path | None,
    pair: KeyPair,
    changed: Callable[[KeyPair], None],
    *,
    every: timedelta = LOOK_EVERY,
) -> NoReturn:
    """Look at the files of `pair` until cancelled, and hand on each other pair that lies there.

    Files that cannot be read, or a key beside the certificate of another, are told once in the log and looked at
    again: what is in use stays in use.
    """
    told = ""
    while True:
        await asyncio.sleep(every.total_seconds())
        try:
            found = await asyncio.to_thread(KeyPair.load, certificate, key)
        except HanseError as error:
            if str(error) != told:
                logger().warning("the certificate's files cannot be used; the old one stays", reason=str(error))
            told = str(error)
            continue
        told = ""
        if found != pair:
            pair = found
            changed(pair)
            until = pair.certificate.not_valid_after_utc.isoformat()
            logger().info("another certificate is shown from now on", file=str(certificate), until=until)
