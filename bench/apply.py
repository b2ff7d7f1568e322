"""Applying a folder of documents: how long it takes, and how long a change beside it waits.

    python -m bench.apply [--documents 1000] [--times 3]

Real processes on this machine: Postgres, Redis, an api and a scheduler. The documents are queues below one, priority classes,
clusters, price books and burst policies. They are applied first, and again as they are; then with other weights, while a queue
below the same parent is changed again and again: ``beside`` has the waits of those changes.
"""

import argparse
import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx

from bench.numbers import stores, summary
from bench.stage import ADMIN_KEY, Stage

_SHARES = {"PriorityClass": 0.05, "PriceBook": 0.05, "Cluster": 0.05, "BurstPolicy": 0.05}


def documents(many: int, weight: float) -> list[dict[str, Any]]:
    """Return ``many`` documents that refer to each other, queues last."""
    each = {kind: max(1, int(share * many)) for kind, share in _SHARES.items()}
    found: list[dict[str, Any]] = [{"kind": "Queue", "path": "org"}]
    found += [{"kind": "PriorityClass", "name": f"class-{n}", "value": 100 + n} for n in range(each["PriorityClass"])]
    found += [{"kind": "PriceBook", "name": f"book-{n}", "onDemand": {"cpu": 0.04}} for n in range(each["PriceBook"])]
    found += [
        {"kind": "Cluster", "name": f"cloud-{n}", "clusterKind": "public", "priceBook": f"book-{n % each['PriceBook']}"}
        for n in range(each["Cluster"])
    ]
    queues = many - sum(each.values()) - 1
    found += [
        {
            "kind": "BurstPolicy",
            "name": f"policy-{n}",
            "queues": [f"org/team-{n % queues}"],
            "clusters": [f"cloud-{n % each['Cluster']}"],
            "budget": {"day": 10},
        }
        for n in range(each["BurstPolicy"])
    ]
    found += [
        {
            "kind": "Queue",
            "path": f"org/team-{n}",
            "weight": weight,
            "defaultPriorityClass": f"class-{n % each['PriorityClass']}",
            "limits": {"cpu": 8},
        }
        for n in range(queues)
    ]
    return found


def apply(http: httpx.Client, what: list[dict[str, Any]]) -> float:
    """Apply documents; return how many seconds it took."""
    began = time.perf_counter()
    answer = http.post("/v1/apply", json={"documents": what, "applier": "bench"})
    seconds = time.perf_counter() - began
    if answer.status_code != 200:
        raise RuntimeError(answer.text[:500])
    return seconds


def put_until(url: str, ended: threading.Event, waits: list[float]) -> None:
    """Change one queue again and again; keep how many seconds each change took."""
    with client(url) as http:
        number = 0
        while not ended.wait(0.05):
            number += 1
            began = time.perf_counter()
            http.put("/v1/queues/org/beside", json={"path": "org/beside", "weight": number}).raise_for_status()
            waits.append(time.perf_counter() - began)


def client(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, timeout=120, headers={"Authorization": f"Bearer {ADMIN_KEY}"})


def measure(stage: Stage, many: int, times: int) -> dict[str, Any]:
    url = stage.urls[0]
    with client(url) as http:
        first = apply(http, documents(many, 1))
        again = [apply(http, documents(many, 1)) for _ in range(times)]
        ended, waits = threading.Event(), list[float]()
        beside = threading.Thread(target=put_until, args=(url, ended, waits))
        beside.start()
        changed = [apply(http, documents(many, 2 + n)) for n in range(times)]
        ended.set()
        beside.join()
    return {
        "documents": many,
        "first_seconds": round(first, 2),
        "unchanged": summary(again),
        "changed": summary(changed),
        "beside": {"changes": len(waits), **summary(waits)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1000)
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder), [])
        try:
            stage.start()
            print(json.dumps({**measure(stage, options.documents, options.times), **stores(stage.database_url)}))
        finally:
            stage.stop()


if __name__ == "__main__":
    main()
