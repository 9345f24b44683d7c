"""An S3-compatible store for the `dev` overlay: everything in memory, gone when it ends. Never for production.

python dev_store.py --listen 0.0.0.0:9000 --bucket hanse
"""

from __future__ import annotations

import argparse
import signal
import threading

from moto.server import ThreadedMotoServer


def main() -> None:
    """Serve an empty bucket until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen", required=True, metavar="HOST:PORT")
    parser.add_argument("--bucket", required=True, metavar="NAME", help="made at the start")
    arguments = parser.parse_args()
    host, _, port = arguments.listen.rpartition(":")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server = ThreadedMotoServer(ip_address=host, port=int(port), verbose=False)
    server.start()
    _make_bucket(f"http://127.0.0.1:{server.get_host_and_port()[1]}", arguments.bucket)
    print(f"bucket {arguments.bucket} on {arguments.listen}; it lives as long as this process", flush=True)  # noqa: T201
    stop.wait()
    server.stop()


def _make_bucket(endpoint: str, name: str) -> None:
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="anybody",
        aws_secret_access_key="anything",  # noqa: S106 - the server asks for no particular one
    )
    client.create_bucket(Bucket=name)


if __name__ == "__main__":
    main()
