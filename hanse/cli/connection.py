"""How the command line reaches a coordinator: which address, which authority, whose token.

Each of the three is looked for in this order: the folder given by `--state`, the environment
(`HANSE_COORDINATOR`, `HANSE_AUTHORITY`, `HANSE_TOKEN_FILE`), the folder named by `HANSE_STATE`, `./hanse-state`.
A folder tells all three in its `client.yaml`. The token itself never stands on a command line.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from hanse.errors import HanseError, OperatorError, PlatformError, Unauthenticated, Unreachable
from hanse.rpc import REASON_KEY, check_version, error_from_call, version
from hanse.security import Address, OperatorToken, channel_credentials, channel_options, check_server, internal_name
from hanse.settings import Settings, load_yaml
from hanse.v1 import control_pb2, control_pb2_grpc

CLIENT_FILE = "client.yaml"
DEFAULT_STATE = Path("hanse-state")
SERVER_NAME = internal_name("coordinator")
CALL_TIMEOUT_S = 60.0

_LONGEST_FILE = 64 * 1024


class ClientSettings(Settings):
    """`client.yaml`: what the command line needs to know. Relative paths are relative to the file."""

    coordinator: str
    """`host:port` of the control port."""
    authority: Path
    """The federation's root certificate, PEM."""
    token_file: Path
    """A file that holds an operator token and nothing else."""


@dataclass(frozen=True, kw_only=True)
class Connection:
    """Where to connect, whom to trust and whose token to show."""

    address: Address
    authority: bytes
    token: OperatorToken

    @property
    def peer(self) -> str:
        """What errors call the server."""
        return f"coordinator {self.address}"


def find_connection(state: Path | None, environment: Mapping[str, str] | None = None) -> Connection:
    """Put the connection together: flag, then environment, then file, then the default folder.

    Raises:
        OperatorError: nothing says where the coordinator is, or a file is missing or wrong.
        Unauthenticated: there is no token, or what the file holds is none.
    """
    environment = os.environ if environment is None else environment
    folder = state or Path(environment.get("HANSE_STATE") or DEFAULT_STATE)
    told = {} if state else _from_environment(environment)
    complete = {"coordinator", "authority", "token_file"} <= told.keys()
    if not complete:
        path = folder / CLIENT_FILE
        if path.exists():
            told = _from_file(path) | told
        elif state or environment.get("HANSE_STATE") or not told:
            raise OperatorError(
                f"{folder} holds no federation: there is no {CLIENT_FILE}.",
                remedy="Start one with `hanse up`, name its folder with --state, "
                "or set HANSE_COORDINATOR, HANSE_AUTHORITY and HANSE_TOKEN_FILE.",
                code="NO_CONNECTION",
            )
    missing = [name for key, name in _VARIABLES.items() if key not in told]
    if missing:
        raise OperatorError(
            f"The connection is incomplete: {' and '.join(missing)} not set.",
            remedy="Set all three variables, or name a state folder with --state.",
            code="NO_CONNECTION",
        )
    return Connection(
        address=Address.parse(told["coordinator"]),
        authority=_read(Path(told["authority"]), "authority's certificate"),
        token=_read_token(Path(told["token_file"])),
    )


_VARIABLES = {
    "coordinator": "HANSE_COORDINATOR",
    "authority": "HANSE_AUTHORITY",
    "token_file": "HANSE_TOKEN_FILE",
}


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {key: environment[name] for key, name in _VARIABLES.items() if environment.get(name)}


def _from_file(path: Path) -> dict[str, str]:
    settings = load_yaml(ClientSettings, path)
    return {
        "coordinator": settings.coordinator,
        "authority": str(path.parent / settings.authority.expanduser()),
        "token_file": str(path.parent / settings.token_file.expanduser()),
    }


def _read(path: Path, what: str) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_LONGEST_FILE)
    except OSError as error:
        raise OperatorError(
            f"The {what} cannot be read from {path}: {error.strerror or error}.",
            remedy="Check the path and its permissions.",
            code="NO_CONNECTION",
        ) from error


def _read_token(path: Path) -> OperatorToken:
    try:
        return OperatorToken.parse(_read(path, "operator token").decode(errors="replace"))
    except Unauthenticated as error:
        raise Unauthenticated(
            f"{path} does not hold an operator token.", remedy=error.remedy, code=error.code
        ) from error
    except OperatorError as error:
        raise Unauthenticated(
            error.sentence, remedy="Ask an admin for a token, or name its file.", code="NO_TOKEN"
        ) from error


class Control:
    """The coordinator's control service. Failed calls raise the server's own reason."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._checked = False
        credentials = grpc.composite_channel_credentials(
            channel_credentials(connection.authority),
            grpc.access_token_call_credentials(connection.token.text()),
        )
        options = channel_options(server_name=SERVER_NAME, proxy=not _is_loopback(connection.address))
        self._channel = grpc.secure_channel(str(connection.address), credentials, options=options)
        self._stub = control_pb2_grpc.ControlServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    @property
    def reached(self) -> bool:
        """Whether the coordinator has answered at least once."""
        return self._checked

    def federation(self) -> control_pb2.Federation:
        """The handshake: what the federation is, and who we are to it.

        Raises:
            Conflict: the two programs are too far apart in age.
        """
        request = control_pb2.GetFederationRequest(version=version("hanse"))
        try:
            federation = self._stub.GetFederation(request, timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            raise self.explain(error) from error
        check_version(federation.version)
        self._checked = True
        return federation

    def call(self, method: str, request: Any) -> Any:
        """One call, for instance `call("ListNodes", ListNodesRequest())`.

        Raises:
            HanseError: the server's reason; Unreachable, with the cause, when there is no server.
        """
        self._shake_hands()
        try:
            return getattr(self._stub, method)(request, timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            raise self.explain(error) from error

    def stream(self, method: str, request: Any, *, timeout_s: float | None = None) -> Iterator[Any]:
        """A call that answers with a stream; errors as `call`."""
        self._shake_hands()
        answers = getattr(self._stub, method)(request, timeout=timeout_s)
        try:
            yield from answers
        except grpc.RpcError as error:
            raise self.explain(error) from error
        finally:
            answers.cancel()

    def pages(self, method: str, request: Any, read: Callable[[Any], Any], *, most: int) -> list[Any]:
        """All rows of a paged list, up to `most`."""
        rows: list[Any] = []
        while True:
            request.limit = min(most - len(rows), 500)
            response = self.call(method, request)
            page = list(read(response))
            rows += page
            if not response.next or not page or len(rows) >= most:
                return rows[:most]
            request.after = response.next

    def explain(self, error: grpc.RpcError) -> HanseError:
        """A failed call as the error that a person can act on."""
        explained = error_from_call(error, peer=self.connection.peer)
        if not isinstance(explained, Unreachable):
            return explained
        if _has_reason(error):
            return PlatformError(explained.sentence, remedy=explained.remedy, code=explained.code)
        if error.code() is grpc.StatusCode.UNAVAILABLE and not self._checked:
            try:  # gRPC says no more than "failed to connect": look why
                check_server(
                    self.connection.address,
                    authority_pem=self.connection.authority,
                    server_name=SERVER_NAME,
                    timeout_s=5.0,
                )
            except HanseError as cause:
                return Unreachable(cause.sentence, remedy=cause.remedy, code=cause.code)
        return explained

    def _shake_hands(self) -> None:
        if not self._checked:
            self.federation()


def _has_reason(error: grpc.RpcError) -> bool:
    metadata: Any = error.trailing_metadata() if isinstance(error, grpc.Call) else None
    return any(key == REASON_KEY for key, _ in metadata or ())


def _is_loopback(address: Address) -> bool:
    try:
        return ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        return address.host == "localhost"
