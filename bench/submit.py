"""How fast jobs are taken: whole specifications in large calls, one specification with parameter sets, single POSTs.

    python -m bench.submit [--seconds 10]

Real HTTP to one api process, real Postgres with its durability settings, and a scheduler that takes in what comes; no cluster is
connected, so nothing starts. Each figure is of jobs stored and acknowledged, by ``--callers`` callers at once, counted in the
store afterwards. Before each, every caller makes one call that does not count: an api starts the processes that read large bodies
when the first ones come.
"""

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from bench.flow import spec
from bench.numbers import stores, summary
from bench.posting import Poster
from bench.stage import Stage


def whole_specs(call: int) -> bytes:
    """Return a call of specifications that all differ."""
    return orjson.dumps({"jobs": [spec(index) for index in range(call)]})


def parameter_sets(call: int) -> bytes:
    job = spec(0)
    template = job["roles"][0]["template"] | {"args": ["--item", "${item}", "--rate", "${rate}"]}
    job["roles"] = [{"name": "main", "template": template}]
    return orjson.dumps(
        {"job": job, "parameters": [{"item": index, "rate": f"{index / 7:.4f}"} for index in range(call)]}
    )


def measure(stage: Stage, make: Callable[[int], bytes], call: int, callers: int, seconds: float) -> dict[str, Any]:
    """Submit for ``seconds``; return the jobs per second from the first call to the last answer."""
    body = make(call) if call > 1 else orjson.dumps(spec(0))
    _at_once(callers, lambda: Poster(stage.urls[0]).post("/v1/jobs", body))
    times: list[float] = []
    with stage.sql() as connection:
        before = _count(connection)
    cpu = stage.cpu_seconds()
    began = time.monotonic()

    def submit() -> None:
        poster = Poster(stage.urls[0])
        while time.monotonic() - began < seconds:
            sent = time.monotonic()
            poster.post("/v1/jobs", body)
            times.append(time.monotonic() - sent)
        poster.close()

    _at_once(callers, submit)
    took = time.monotonic() - began
    after = stage.cpu_seconds()
    with stage.sql() as connection:
        stored = _count(connection) - before
    assert stored == len(times) * call, "every acknowledged job is stored, and none twice"
    return {
        "jobs_per_second": round(stored / took, 1),
        "jobs": stored,
        "jobs_per_call": call,
        "callers": callers,
        "body_bytes": len(body),
        "answer": summary(times),
        "cpu_microseconds_per_job": {name: round((after[name] - cpu[name]) / stored * 1e6, 1) for name in after},
    }


def _at_once(many: int, act: Callable[[], object]) -> None:
    threads = [threading.Thread(target=act) for _ in range(many)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _count(connection: Any) -> int:
    return int(connection.execute("SELECT count(*) FROM jobs").fetchone()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--callers", type=int, default=2, help="of large calls; single POSTs have four times as many")
    parser.add_argument("--sets", type=int, default=50_000, help="parameter sets in one call")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trainmaster-bench-") as temporary:
        stage = Stage(Path(temporary), [])
        try:
            stage.start()
            result = {
                "bench": "submit",
                "single_posts": measure(stage, whole_specs, 1, options.callers * 4, options.seconds),
                "whole_specs": measure(stage, whole_specs, 10_000, options.callers, options.seconds),
                "parameter_sets": measure(stage, parameter_sets, options.sets, options.callers, options.seconds),
                "stores": stores(stage.database_url),
                "rss_bytes": stage.rss_bytes(),
            }
        finally:
            stage.stop()
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
