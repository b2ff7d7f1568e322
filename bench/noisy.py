"""What a noisy tenant costs a quiet one: the quiet one's submissions, lists and starts, alone and beside each noise and all of them.

    python -m bench.noisy [--seconds 20] [--kinds calls,events,logs,shapes,keys]

Starts the whole system as real processes with three tiny simulated clusters. The noise comes from a process of its own, with a key and
to a queue of its own, whose quota leaves room for the quiet tenant: what is measured is interference, not a full cluster. The ratios
are those of the 99th percentiles, beside by alone, which is measured before and after.
"""

import argparse
import http.client
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from bench.numbers import stores, summary
from bench.stage import ADMIN_KEY, Stage
from trainmaster.client.http import Client

KINDS = ("calls", "events", "logs", "shapes", "keys")
_PAUSE_SECONDS = 0.1
_SETTLE_SECONDS = 3.0
"""For the noise to be up, and to be gone."""


def fleet() -> list[dict[str, Any]]:
    group = {"name": "nodes", "count": 4, "resources": {"cpu": "8", "memory": "32Gi"}}
    return [{"name": f"c{number}", "groups": [group]} for number in range(3)]


class Caller:
    """One kept connection with one key."""

    def __init__(self, url: str, key: str) -> None:
        address = urlsplit(url)
        self._connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    def call(self, method: str, path: str, value: Any = None) -> Any:
        """Return the value of a 2xx answer. Raises RuntimeError for any other: a quiet tenant is refused nothing."""
        body = None if value is None else orjson.dumps(value)
        self._connection.request(method, path, body, self._headers)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {text[:300]!r}")
        return orjson.loads(text) if text else None

    def close(self) -> None:
        """Drop the connection, which the api may have ended while it was idle; the next call opens another."""
        self._connection.close()


def quiet_job() -> dict[str, Any]:
    template = {"command": ["true"], "resources": {"cpu": "100m"}, "env": {"SIM_RUN_TIME": "200ms"}}
    return {"kind": "Job", "name": "quiet", "queue": "quiet", "roles": [{"name": "main", "template": template}]}


_STARTS = """
    SELECT extract(epoch FROM e.at - j.submitted_at)::float8 FROM jobs j
    JOIN events e ON e.job_id = j.id AND e.kind = 'dispatched' JOIN queues q ON q.id = j.queue_id
    WHERE q.path = 'quiet' AND j.id > %s
"""


@dataclass
class Phase:
    """The quiet tenant's times beside one noise, in seconds, and what the noise was answered."""

    submits: list[float]
    lists: list[float]
    starts: list[float]
    said: dict[str, int]

    def __add__(self, other: "Phase") -> "Phase":
        return Phase(self.submits + other.submits, self.lists + other.lists, self.starts + other.starts, {})

    def figures(self) -> dict[str, Any]:
        return {
            "submit": summary(self.submits),
            "list": summary(self.lists),
            "start": summary(self.starts) if self.starts else {},
            "submitted": len(self.submits),
            "never_started": len(self.submits) - len(self.starts),
            "noise": self.said,
        }


def phase(stage: Stage, quiet: Caller, noise: str, noisy_key: str, job: str, seconds: float) -> Phase:
    """Measure the quiet tenant's times beside a noise; without one when ``noise`` is empty."""
    with stage.sql() as connection:
        last = connection.execute("SELECT coalesce(max(id), 0) FROM jobs").fetchone()
    process = None
    if noise:
        whole = seconds + 2 * _SETTLE_SECONDS
        command = [sys.executable, "-m", "bench.noise", noise, stage.urls[0], noisy_key, str(whole), job]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    time.sleep(_SETTLE_SECONDS)
    quiet.close()
    quiet.call("GET", "/v1/jobs?limit=1")
    submits, lists = [], []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        began = time.monotonic()
        quiet.call("POST", "/v1/jobs", quiet_job())
        submits.append(time.monotonic() - began)
        began = time.monotonic()
        quiet.call("GET", "/v1/jobs?limit=20")
        lists.append(time.monotonic() - began)
        time.sleep(_PAUSE_SECONDS)
    said: dict[str, int] = {}
    if process is not None:
        out, _ = process.communicate(timeout=seconds + 120)
        said = json.loads(out.splitlines()[-1]) if out.strip() else {"the noise failed": process.returncode}
    time.sleep(_SETTLE_SECONDS)
    with stage.sql() as connection:
        starts = [float(row[0]) for row in connection.execute(_STARTS, last)]
    return Phase(submits, lists, starts, said)


def _calm(admin: Caller) -> None:
    """Cancel the waiting jobs of the noisy tenant. The job that is followed runs."""
    admin.close()
    admin.call("POST", "/v1/jobs/cancel", {"filter": {"queue": "noisy", "states": ["queued", "held"]}})
    time.sleep(_SETTLE_SECONDS)


def run(seconds: float, kinds: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="trainmaster-bench-") as folder:
        stage = Stage(Path(folder), fleet(), queues=("quiet", "noisy"))
        try:
            stage.start()
            return _measure(stage, seconds, kinds)
        finally:
            stage.stop()


def _measure(stage: Stage, seconds: float, kinds: list[str]) -> dict[str, Any]:
    admin = Caller(stage.urls[0], ADMIN_KEY)
    admin.call("PUT", "/v1/queues/noisy", {"path": "noisy", "limits": {"cpu": "8"}})
    keys = {
        name: str(admin.call("POST", "/v1/keys", {"name": name, "role": "user", "queues": [name]})["key"])
        for name in ("quiet", "noisy")
    }
    job = _followed(stage.urls[0], keys["noisy"])
    quiet = Caller(stage.urls[0], keys["quiet"])
    phase(stage, quiet, "", "", "", min(5.0, seconds))  # warm
    alone = phase(stage, quiet, "", "", "", seconds)
    beside: dict[str, dict[str, Any]] = {}
    for noise in [*kinds, ",".join(kinds)] if len(kinds) > 1 else kinds:
        beside[noise] = phase(stage, quiet, noise, keys["noisy"], job, seconds).figures()
        _calm(admin)
    # Before and after: a machine that is shared with others is not as fast all the time.
    by_itself = (alone + phase(stage, quiet, "", "", "", seconds)).figures()
    return {
        "bench": "noisy",
        "seconds": seconds,
        "alone": by_itself,
        "beside": beside,
        "p99_ratios": {name: _ratios(by_itself, one) for name, one in beside.items()},
        "rss_bytes": stage.rss_bytes(),
        "stores": stores(stage.database_url),
    }


def _followed(url: str, key: str) -> str:
    """Start a job of the noisy tenant that runs all the time; return its id."""
    template = {"command": ["true"], "resources": {"cpu": "500m"}, "env": {"SIM_RUN_TIME": "3600s"}}
    spec = {"kind": "Job", "name": "followed", "queue": "noisy", "roles": [{"name": "main", "template": template}]}
    with Client(url, key) as client:
        job = client.submit([spec])[0]
        ends = time.monotonic() + 30
        while client.job(job).state != "running":
            if time.monotonic() > ends:
                raise TimeoutError("the job that is to be followed does not run")
            time.sleep(0.1)
    return job


def _ratios(alone: dict[str, Any], beside: dict[str, Any]) -> dict[str, float]:
    return {
        what: round(beside[what]["p99_seconds"] / max(alone[what]["p99_seconds"], 0.0001), 2)
        for what in ("submit", "list", "start")
        if beside[what] and alone[what]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--kinds", default=",".join(KINDS))
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    if unknown := sorted(set(kinds) - set(KINDS)):
        parser.error(f"no such noise: {', '.join(unknown)}; there are {', '.join(KINDS)}")
    print(json.dumps(run(options.seconds, kinds), indent=2))


if __name__ == "__main__":
    main()
