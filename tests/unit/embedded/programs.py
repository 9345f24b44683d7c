"""Small programs for a supervisor to look after: `python -m programs NAME …` with this folder on the path."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent import futures
from pathlib import Path


def serve(config: str) -> None:
    """Plays a service: binds its health port, says so in its ports file, serves until SIGTERM."""
    import grpc
    import yaml
    from grpc_health.v1 import health, health_pb2, health_pb2_grpc

    settings = yaml.safe_load(Path(config).read_text())
    server = grpc.server(futures.ThreadPoolExecutor(2))
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port(settings["health_listen"])
    server.start()
    servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    if "first_token" in settings:
        Path(settings["first_token"]).write_text("hanse_token\n")
    print("serving", flush=True)
    temporary = Path(settings["ports_file"] + ".new")
    temporary.write_text(json.dumps({"health": port, "pid": os.getpid()}))
    temporary.replace(settings["ports_file"])
    signal.sigwait({signal.SIGTERM})
    print("drained", flush=True)
    server.stop(0).wait()


def pages(config: str) -> None:
    """Plays the dashboard: says that it is ready."""
    import http.server

    import yaml

    class Ready(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/readyz" else 404)
            self.end_headers()

    host, _, port = yaml.safe_load(Path(config).read_text())["listen"].rpartition(":")
    http.server.HTTPServer((host, int(port)), Ready).serve_forever()


def main() -> None:
    name, *arguments = sys.argv[1:]
    if name == "--config" and "dashboard" in arguments[0]:
        pages(arguments[0])
    elif name == "--config":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        serve(arguments[0])
    elif name == "fail":
        print("the configuration is wrong", file=sys.stderr)
        sys.exit(3)
    elif name == "sleep":
        print(f"pid {os.getpid()}", flush=True)
        time.sleep(600)
    elif name == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("deaf", flush=True)
        time.sleep(600)
    elif name == "parent":
        worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print(f"worker {worker.pid}", flush=True)
        time.sleep(600)
    elif name == "environment":
        print(json.dumps(dict(os.environ)), flush=True)
        time.sleep(600)
    elif name == "supervise":
        from hanse.embedded import Child

        child = Child("inner", ["programs", "sleep"], say=print)
        child.start()
        child.assume_ready()
        time.sleep(600)


if __name__ == "__main__":
    main()
