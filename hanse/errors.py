"""Every error that a person may see, sorted by who must act.

The class says whose move it is (`owner`) and whether trying again can help (`retryable`). The sentence
names the thing, the value and the remedy. One table here maps errors to gRPC status codes; a reason can be
stored in the ledger and shown by the command line, the pages and the API without loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar


class Owner(StrEnum):
    """Who can mend a fault."""

    SITE = "site"
    METHOD = "method"
    OPERATOR = "operator"
    PLATFORM = "platform"


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why something is not plain success: the same four facts wherever it is shown.

    `code` is stable and greppable (`QUORUM_NOT_MET`); `sentence` is for a person; `remedy` says what to do next.
    """

    code: str
    sentence: str
    owner: Owner
    remedy: str = ""

    def __str__(self) -> str:
        """One line for logs and terminals."""
        return f"{self.sentence} {self.remedy}".strip()


class HanseError(Exception):
    """Base of all errors with a known owner.

    `code` is a stable upper-case word; `remedy` is the next thing to do. `retryable` tells callers
    whether the same call may succeed later without anybody changing anything.
    """

    owner: ClassVar[Owner] = Owner.PLATFORM
    retryable: ClassVar[bool] = False
    default_code: ClassVar[str] = "ERROR"

    def __init__(self, sentence: str, *, remedy: str = "", code: str | None = None) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.remedy = remedy
        self.code = code or self.default_code

    @property
    def reason(self) -> Reason:
        """The error as data for the ledger and the wire."""
        return Reason(code=self.code, sentence=self.sentence, owner=self.owner, remedy=self.remedy)

    def __str__(self) -> str:
        return f"{self.sentence} {self.remedy}".strip()


class OperatorError(HanseError):
    """The operator or researcher asked for something that cannot be done as asked."""

    owner = Owner.OPERATOR
    default_code = "INVALID"


class NotFound(OperatorError):
    """The named thing does not exist."""

    default_code = "NOT_FOUND"


class Conflict(OperatorError):
    """The thing exists, but its state does not allow the request."""

    default_code = "CONFLICT"


class Unauthenticated(OperatorError):
    """No credential, or one that is expired, revoked or unknown."""

    default_code = "UNAUTHENTICATED"


class Forbidden(OperatorError):
    """The credential is good, but its role (or a revocation) does not allow this."""

    default_code = "FORBIDDEN"


class SiteError(HanseError):
    """Something at the node's site: its data, its policy, its machine."""

    owner = Owner.SITE
    default_code = "SITE"


class PolicyRefusal(SiteError):
    """The site's policy forbids it; `rule` names the key of the policy."""

    default_code = "POLICY"

    def __init__(self, sentence: str, *, rule: str, remedy: str = "") -> None:
        super().__init__(sentence, remedy=remedy, code=f"POLICY_{rule.upper()}")
        self.rule = rule


class MethodError(HanseError):
    """The method's own code (plug-in or learner) cannot go on."""

    owner = Owner.METHOD
    default_code = "METHOD"


class RejectedContribution(MethodError):
    """An aggregator plug-in does not accept a contribution; the others go on without it."""

    owner = Owner.SITE
    default_code = "REJECTED"


class PlatformError(HanseError):
    """Hanse itself or the machine under it: network, disk, database."""

    owner = Owner.PLATFORM
    retryable = True
    default_code = "PLATFORM"


class Unreachable(PlatformError):
    """A server does not answer."""

    default_code = "UNREACHABLE"


class InvalidPayload(HanseError):
    """Foreign bytes that are not a payload, or a payload that breaks its own header."""

    owner = Owner.SITE
    default_code = "INVALID_PAYLOAD"


class FencedOut(PlatformError):
    """A write by somebody who no longer holds the right to it: a newer holder has a higher number."""

    retryable = False
    default_code = "FENCED_OUT"


class OldFence(FencedOut):
    """The assignment was handed on to another agent process of the same node, under a higher fencing number."""

    default_code = "OLD_FENCE"


# One table for every server and every client. Keys are looked up along the class hierarchy.
GRPC_STATUS: dict[type[HanseError], str] = {
    NotFound: "NOT_FOUND",
    Conflict: "FAILED_PRECONDITION",
    Unauthenticated: "UNAUTHENTICATED",
    Forbidden: "PERMISSION_DENIED",
    FencedOut: "ABORTED",
    Unreachable: "UNAVAILABLE",
    InvalidPayload: "INVALID_ARGUMENT",
    OperatorError: "INVALID_ARGUMENT",
    SiteError: "FAILED_PRECONDITION",
    MethodError: "FAILED_PRECONDITION",
    PlatformError: "UNAVAILABLE",
    HanseError: "INTERNAL",
}


def grpc_status_name(error: HanseError) -> str:
    """The gRPC status code's name for an error."""
    for cls in type(error).__mro__:
        if cls in GRPC_STATUS:
            return GRPC_STATUS[cls]
    return "INTERNAL"


_HTTP_STATUS: dict[str, int] = {
    "NOT_FOUND": 404,
    "FAILED_PRECONDITION": 409,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "ABORTED": 409,
    "UNAVAILABLE": 503,
    "INVALID_ARGUMENT": 400,
}


def http_status(error: HanseError) -> int:
    """The HTTP status for an error."""
    return _HTTP_STATUS.get(grpc_status_name(error), 500)
