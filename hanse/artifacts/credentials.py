"""Credentials for a bucket from a mounted secret: a folder with a file for each."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from hanse.errors import PlatformError

if TYPE_CHECKING:
    from obstore.store import S3Credential

AGE = timedelta(minutes=5)
"""The files are read again when what they said is this old."""


class MountedCredentials:
    """Reads the files whenever obstore asks, so that a secret can be changed while the program runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.fault: PlatformError | None = None
        """Why the files could not be read the last time."""

    def __call__(self) -> S3Credential:
        """The credentials that the files hold now.

        Raises:
            PlatformError: a file is missing, empty or unreadable; the sentence names it.
        """
        try:
            found = {
                "access_key_id": self._read("access_key_id"),
                "secret_access_key": self._read("secret_access_key"),
                "token": self._read("session_token", needed=False),
            }
        except PlatformError as error:
            self.fault = error
            raise
        self.fault = None
        return {
            "access_key_id": found["access_key_id"],
            "secret_access_key": found["secret_access_key"],
            "token": found["token"] or None,
            "expires_at": datetime.now(UTC) + AGE,
        }

    def _read(self, name: str, *, needed: bool = True) -> str:
        path = self._folder / name
        try:
            text = path.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            text = ""
        except (OSError, UnicodeDecodeError) as error:
            raise _unusable(path, f"cannot be read ({getattr(error, 'strerror', None) or error})") from error
        if needed and not text:
            raise _unusable(path, "is missing or empty")
        return text


def _unusable(path: Path, what: str) -> PlatformError:
    return PlatformError(
        f"the credential file {path} {what}.",
        remedy="Mount the secret at the folder that artifact_credentials names.",
        code="ARTIFACT_CREDENTIALS",
    )
