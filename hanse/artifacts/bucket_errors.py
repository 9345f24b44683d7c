"""What obstore raises, as sentences: which bucket, what the server said, which setting to correct."""

from __future__ import annotations

import re

from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

from hanse.artifacts.location import S3Location
from hanse.errors import PlatformError, Unreachable

_CODE = re.compile(r"<Code>([A-Za-z]+)</Code>")
_STATUS = re.compile(r"status code: (\d{3} [A-Za-z ]+)")
_REGION = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
_CREDENTIALS = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "AccessDenied"}


def is_missing(error: BaseException) -> bool:
    """Whether the object is not there, in a bucket that is."""
    return isinstance(error, FileNotFoundError) and _code(error) != "NoSuchBucket"


def bucket_failure(error: BaseException, location: S3Location, action: str) -> PlatformError:
    """The fault of a call; `action` is what was tried: read, write, list, delete."""
    code, server = _code(error), location.endpoint or "Amazon S3"
    if code == "NoSuchBucket":
        return PlatformError(
            f"artifacts: there is no bucket '{location.bucket}' at {server}.",
            remedy="Create it, or correct the key `artifacts`.",
            code="ARTIFACT_BUCKET",
        )
    if code == "RequestTimeTooSkewed":
        return PlatformError(
            f"artifacts: {server} refuses this machine's clock.", remedy="Set the clock (NTP).", code="CLOCK"
        )
    if code in _REGION or "redirect" in str(error):
        return PlatformError(
            f"artifacts: the bucket '{location.bucket}' is in another region than '{location.region or 'us-east-1'}'.",
            remedy="Give the right one in the key `artifacts`: …?region=NAME",
            code="ARTIFACT_REGION",
        )
    denied = isinstance(error, PermissionDeniedError | UnauthenticatedError | PermissionError)
    if denied or code in _CREDENTIALS or "credential" in str(error).lower():
        return PlatformError(
            f"artifacts: {server} does not let this program {action} in the bucket '{location.bucket}' "
            f"({code or 'no valid credentials'}).",
            remedy="Check the credentials (artifact_credentials, or the AWS_… variables) and what the bucket's policy "
            "allows them.",
            code="ARTIFACT_CREDENTIALS",
        )
    said = code or (found[1].strip() if (found := _STATUS.search(str(error))) else "")
    if said:
        return PlatformError(
            f"artifacts: {server} cannot {action} in the bucket '{location.bucket}': it answered {said}.",
            remedy="It was tried again for a while; look at the store's own log.",
            code="ARTIFACT_STORE",
        )
    return Unreachable(
        f"artifacts: {server} does not answer ({_first_line(error)}).",
        remedy="Check the endpoint in the key `artifacts`, the network and its certificate; it was tried for a while.",
        code="ARTIFACT_STORE_UNREACHABLE",
    )


def _code(error: BaseException) -> str:
    found = _CODE.search(str(error))
    return found[1] if found else ""


def _first_line(error: BaseException) -> str:
    text = " ".join(str(error).partition("Debug source")[0].split())
    return re.sub(r"^Generic S3 error: (Error performing )?", "", text)[:300]
