"""An S3 server for the tests, started as a process, that checks credentials."""

from __future__ import annotations

import importlib.util
import itertools
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hanse.embedded.folder import free_port

HAS_S3 = all(importlib.util.find_spec(name) for name in ("moto", "obstore", "boto3"))
REGION = "eu-central-1"


@dataclass(frozen=True, kw_only=True)
class S3Server:
    """A running server, and an account on it that may do everything."""

    endpoint: str
    access_key_id: str
    secret_access_key: str

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which programs find the account."""
        return {"AWS_ACCESS_KEY_ID": self.access_key_id, "AWS_SECRET_ACCESS_KEY": self.secret_access_key}

    def client(self, service: str = "s3") -> Any:
        """Another S3 client than Hanse's."""
        import boto3

        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=self.access_key_id,
            aws_secret_access_key=self.secret_access_key,
        )

    def location(self, bucket: str, prefix: str = "artifacts") -> str:
        """The setting `artifacts` for a bucket here."""
        return f"s3://{bucket}/{prefix}?endpoint={self.endpoint}&region={REGION}&plain_http=true"


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The server; from the account on, every request must be signed by somebody it knows."""
    if not HAS_S3:
        pytest.skip("needs the packages moto[s3,server] and obstore")
    port = free_port("127.0.0.1")
    log = tmp_path_factory.mktemp("s3") / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=out,
            stderr=out,
            env=os.environ | {"AWS_DEFAULT_REGION": REGION},
        )
    try:
        yield _account(f"http://127.0.0.1:{port}", process, log)
    finally:
        process.terminate()
        process.wait(30)


def _account(endpoint: str, process: subprocess.Popen[bytes], log: Path) -> S3Server:
    deadline = time.monotonic() + 60
    while True:
        with suppress(urllib.error.URLError, ConnectionError):
            urllib.request.urlopen(f"{endpoint}/moto-api/data.json", timeout=30).close()
            break
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, "the S3 server did not start"
        time.sleep(0.05)
    anybody = S3Server(endpoint=endpoint, access_key_id="anybody", secret_access_key="anything")
    users = anybody.client("iam")
    users.create_user(UserName="hanse")
    key = users.create_access_key(UserName="hanse")["AccessKey"]
    policy = '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"*","Resource":"*"}]}'
    users.put_user_policy(UserName="hanse", PolicyName="all", PolicyDocument=policy)
    from_now_on = urllib.request.Request(
        f"{endpoint}/moto-api/reset-auth", data=b"0", method="POST", headers={"Content-Type": "text/plain"}
    )
    urllib.request.urlopen(from_now_on, timeout=30).close()
    return S3Server(endpoint=endpoint, access_key_id=key["AccessKeyId"], secret_access_key=key["SecretAccessKey"])


_NUMBERS = itertools.count()


@pytest.fixture
def new_bucket(s3_server: S3Server) -> Callable[[], str]:
    """A function that makes an empty bucket and returns its name."""

    def make() -> str:
        name = f"bucket-{next(_NUMBERS)}"
        s3_server.client().create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
        return name

    return make
