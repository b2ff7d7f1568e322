"""Hostile specifications and reports through the real api, with a real Postgres and a real scheduler: no 5xx, and all others go on.

After each batch the api answers, the leader decides a job of another tenant on another cluster, and lists can be read.
With ``TRAINMASTER_DEEP=1`` 15,000 specifications, 3,000 declared objects and 5,000 messages of agents.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import httpx

from tests.conftest import FakeAgent, Service, job
from tests.fuzz.values import IS_DEEP, LARGE, NASTY, RAW, Mutant, mutants, to_json
from trainmaster.protocol.states import ClusterKind

VALUES: dict[str, Any] = NASTY | LARGE | RAW
SPECIFICATIONS, DECLARED, MESSAGES = (15_000, 3_000, 5_000) if IS_DEEP else (100, 60, 100)
BATCH = 500 if IS_DEEP else 50
AT_ONCE = 4
_TRIES = 50
"""Of a call that is asked to come again, as this test's key makes more calls than a person."""

CONTAINER: dict[str, Any] = {
    "name": "main",
    "image": "busybox",
    "command": ["true"],
    "env": [{"name": "A", "value": "b"}],
    "ports": [{"name": "http", "containerPort": 80}],
    "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}},
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}
JOBS: dict[str, Any] = {
    "job": {
        "kind": "Job",
        "name": "fuzz",
        "queue": "fuzz",
        "priorityClass": None,
        "priority": 1,
        "labels": {"team": "a"},
        "minMember": 1,
        "topology": {"required": "rack", "preferred": "zone", "numa": "none", "exclusive": "node"},
        "placement": {
            "clusters": ["private"],
            "kinds": ["private"],
            "regions": ["eu"],
            "preferred": [{"selector": {"a": "b"}, "weight": 2}],
            "selector": {"name": "private"},
            "datasets": ["d"],
            "profile": {"money": 5},
            "emulatedGang": True,
        },
        "timeLimit": "1h",
        "stopGrace": "10s",
        "checkpoint": {"signal": "SIGUSR1", "wait": "30s"},
        "retries": {"limit": 1, "exitCodes": [1], "categories": ["exit"], "backOff": "2s", "mostBackOff": "10m"},
        "memberFailure": {"action": "restartMember", "limit": 3, "backOff": "1s"},
        "success": {"role": "main"},
        "onDisconnect": {"requeueAfter": "30s"},
        "notify": [],
        "suspend": False,
        "roles": [
            {
                "name": "main",
                "replicas": 2,
                "minReplicas": 1,
                "maxPerNode": 1,
                "memberFailure": {"action": "failRun"},
                "template": {
                    "image": "busybox",
                    "command": ["sh", "-c"],
                    "args": ["true"],
                    "env": {"A": "b"},
                    "workingDir": "/",
                    "resources": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": 1},
                    "ports": [{"name": "http", "port": 80}],
                    "nodeSelector": {"disk": "ssd"},
                    "nodeAffinity": [{"key": "a", "operator": "In", "values": ["b"]}],
                    "tolerations": [{"key": "spot", "operator": "Exists", "value": "", "effect": "NoSchedule"}],
                },
            }
        ],
    },
    "small job": job("fuzz", "fuzz"),
    "job of a pod": {
        "name": "fuzz",
        "queue": "fuzz",
        "elastic": {"step": 1, "coolDown": "30s"},
        "roles": [
            {
                "name": "main",
                "replicas": 2,
                "minReplicas": 1,
                "podTemplate": {
                    "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
                    "spec": {
                        "automountServiceAccountToken": False,
                        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                        "containers": [CONTAINER],
                        "nodeSelector": {"a": "b"},
                    },
                },
            }
        ],
    },
    "jobs": {"jobs": [job("fuzz", "fuzz"), job("fuzz", "fuzz")]},
    "parameter sets": {
        "job": job("fuzz", "fuzz") | {"roles": [{"name": "main", "template": {"command": ["x", "${lr}"]}}]},
        "parameters": [{"lr": 1}, {"lr": 2}],
    },
}
OBJECTS: dict[str, tuple[str, dict[str, Any]]] = {
    "queue": (
        "/v1/queues/fuzzed",
        {
            "path": "fuzzed",
            "weight": 2,
            "startsWhen": {
                "utilisation": {"below": 0.5, "until": 0.7},
                "hours": [{"days": ["mon"], "start": "20:00", "end": "06:00", "timeZone": "Europe/Berlin"}],
                "price": {"below": "2.5"},
            },
            "resources": {"cpu@kind=public": {"guaranteed": 1, "limit": "2", "borrowingLimit": 1, "weight": 1}},
            "order": "strict",
            "defaultTimeLimit": "1h",
            "minRunTime": "1m",
            "mostStopGrace": "1m",
            "maxQueued": 5,
            "allowedKinds": ["private"],
            "allowedRegions": ["eu"],
            "profile": "balanced",
            "priceFactor": "1.5",
        },
    ),
    "class": (
        "/v1/priority-classes/fuzzed",
        {"name": "fuzzed", "value": 5, "longestWait": "1h", "profile": "fastest", "priceFactor": 2},
    ),
    "cluster": (
        "/v1/clusters/fuzzed",
        {
            "name": "fuzzed",
            "clusterKind": "edge",
            "region": "eu",
            "labels": {"a": "b"},
            "priceCorrection": "1.1",
            "uplink": "1Gi",
            "connected": [{"days": ["mon"], "start": "08:00", "end": "18:00", "timeZone": "UTC"}],
            "onlyQueues": ["fuzz"],
            "placementTimeout": "5m",
        },
    ),
    "price book": (
        "/v1/price-books/fuzzed",
        {
            "name": "fuzzed",
            "onDemand": {"cpu": "0.1", "devices": {"nvidia.com/gpu": 2}},
            "egress": 1,
            "exchangeRate": 1,
        },
    ),
    "dataset": ("/v1/datasets/fuzzed", {"name": "fuzzed", "size": "1Gi", "clusters": ["edge"], "regions": ["eu"]}),
    "reservation": (
        "/v1/reservations/fuzzed",
        {
            "name": "fuzzed",
            "queue": "fuzz",
            "clusters": ["private"],
            "nodes": 1,
            "nodeSelector": {"a": "b"},
            "start": "2036-11-28T00:00:00Z",
            "end": "2036-11-30T00:00:00Z",
        },
    ),
    "role binding": (
        "/v1/role-bindings/fuzzed",
        {
            "name": "fuzzed",
            "users": ["ana@example.com"],
            "groups": ["fuzz"],
            "role": "user",
            "queues": ["fuzz"],
            "clusters": [],
            "description": "fuzz",
        },
    ),
    "burst policy": (
        "/v1/burst-policies/fuzzed",
        {
            "name": "fuzzed",
            "queues": ["fuzz"],
            "clusters": ["public"],
            "choose": "order",
            "when": {"after": "5m", "expectedWait": "1h", "utilisation": {"above": 0.9, "until": 0.8}},
            "atMost": {"jobs": 5, "nodes": 2, "resources": {"cpu": 4}, "ramp": {"jobs": 1, "every": "1m"}},
            "budget": {"hour": 1, "month": "100", "job": 3, "warnAt": [0.5]},
            "timeLimit": "1h",
            "hours": [{"start": "22:00", "end": "06:00"}],
        },
    ),
    "bulk": (
        "/v1/jobs/cancel",
        {"filter": {"queue": "fuzz", "states": ["queued"], "name": "x*", "labels": {"a": "b"}}},
    ),
}
GROUP: dict[str, Any] = {
    "name": "node",
    "count": 2,
    "free": {"cpu": 8000, "memory": 2**34},
    "labels": {"disk": "ssd"},
    "taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}],
    "topology": [["zone", "a"], ["rack", "r1"]],
    "occupied": False,
    "numa": {"policy": "restricted", "zones": [{"cpu": 4000}, {"cpu": 4000}]},
}


@dataclass
class FuzzTarget:
    """The api under fire, and a quiet tenant beside it."""

    service: Service
    quiet: FakeAgent
    answers: Counter[str] = field(default_factory=Counter)

    async def send(self, method: str, path: str, content: bytes, key: str | None = None) -> httpx.Response:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        for _ in range(_TRIES):
            answer = await self.service.http.request(method, path, content=content, headers=headers)
            if answer.status_code not in (429, 503) or "retry-after" not in answer.headers:
                break
            await asyncio.sleep(float(answer.headers["retry-after"]))
        return answer

    async def check(self, what: str, method: str, path: str, content: bytes, key: str | None = None) -> None:
        """Make one call and check its answer: accepted, or refused with a short text; no error of the server."""
        answer = await self.send(method, path, content, key)
        code = "" if answer.status_code < 400 else answer.json()["code"]
        self.answers[f"{answer.status_code} {code}".strip()] += 1
        assert answer.status_code < 500, f"{what}: {answer.text[:1000]}"
        assert answer.status_code < 400 or len(answer.content) < 200_000, f"{what}: {len(answer.content)} bytes"

    async def goes_on(self) -> None:
        """Check that the api answers, lists can be read, and a job of the quiet tenant is decided."""
        http = self.service.http
        for path in ("/healthz", "/v1/jobs?limit=1000", "/v1/clusters", "/v1/queues?usage=true", "/v1/burst-policies"):
            answer = await self.send("GET", path, b"")
            assert answer.status_code == 200, f"{path}: {answer.text[:1000]}"
        await self.quiet.sync()
        made = await self.send("POST", "/v1/jobs", to_json(job("quiet", "default")))
        assert made.status_code == 201, made.text
        while (await self.quiet.next_start())["job"] != made.json()["id"]:
            pass  # a job that is valid although it was fuzzed, and that may go to this cluster, too
        await self.send("POST", "/v1/jobs/cancel", b'{"filter": {"queue": "fuzz"}}')
        assert (await http.get("/v1/jobs", params={"queue": "fuzz", "state": "queued"})).json()["jobs"] == []


async def fuzz_target(service: Service) -> FuzzTarget:
    kinds = [kind.value for kind in ClusterKind]
    answer = await service.http.put("/v1/queues/fuzz", json={"path": "fuzz", "allowedKinds": kinds})
    assert answer.status_code == 201, answer.text
    quiet = service.agent("edge", session="quiet", holder="quiet")
    await quiet.connect(cpu=100, nodes=1000)
    return FuzzTarget(service, quiet)


async def batches(target: FuzzTarget, given: Iterator[Mutant], send: Any) -> None:
    while batch := list(islice(given, BATCH)):
        for begin in range(0, len(batch), AT_ONCE):
            await asyncio.gather(*(send(mutant) for mutant in batch[begin : begin + AT_ONCE]))
        await target.goes_on()
    print(dict(target.answers))


async def test_specifications(service: Service) -> None:
    target = await fuzz_target(service)

    async def submit(mutant: Mutant) -> None:
        await target.check(mutant.what, "POST", "/v1/jobs", to_json(mutant.document))

    await batches(target, mutants(JOBS, SPECIFICATIONS, seed=1, values=VALUES), submit)
    assert target.answers["422 invalid-spec"] > SPECIFICATIONS / 4


async def test_dry_runs(service: Service) -> None:
    target = await fuzz_target(service)

    async def submit(mutant: Mutant) -> None:
        await target.check(mutant.what, "POST", "/v1/jobs?dryRun=true", to_json(mutant.document))

    await batches(target, mutants(JOBS, SPECIFICATIONS // 10, seed=2, values=VALUES), submit)


async def test_declared_objects(service: Service) -> None:
    target = await fuzz_target(service)

    async def declare(mutant: Mutant) -> None:
        path = OBJECTS[mutant.what.partition(":")[0]][0]
        method = "POST" if path.endswith("/cancel") else "PUT"
        await target.check(mutant.what, method, path, to_json(mutant.document))

    documents = {name: document for name, (_, document) in OBJECTS.items()}
    await batches(target, mutants(documents, DECLARED, seed=3, values=VALUES), declare)


async def test_messages_of_agents(service: Service) -> None:
    target = await fuzz_target(service)
    evil = service.agent("private", session="evil", holder="evil")
    await evil.connect(cpu=100, nodes=100)
    made = await service.http.post("/v1/jobs", json=job("held", "fuzz", placement={"clusters": ["private"]}))
    run = (await evil.next_start())["run"]
    assert made.status_code == 201
    pool = GROUP | {"name": "pool", "most": 5}
    report = {
        "groups": [GROUP],
        "runtime": "test",
        "scheduler": "test",
        "capabilities": ["gang"],
        "diesWithoutAgent": True,
        "pools": [pool],
        "datasets": ["d"],
        "notCounted": ["n"],
        "startSeconds": 1.5,
        "closed": "",
        "admission": {
            "needsImage": True,
            "policy": {"images": ["registry.example.com/*"], "tolerations": ["gpu"]},
            "queues": [{"queue": "fuzz", "policy": {"level": "baseline"}}],
        },
    }
    state = {
        "run": run,
        "generation": 1,
        "seq": 1,
        "state": "running",
        "message": "m",
        "end": {"category": "exit", "exitCode": 1, "signal": 9, "member": "m", "message": "e"},
        "placement": {"node": {"main": 1}},
        "members": [{"role": "main", "index": 0, "state": "running", "node": "n", "restarts": 0, "message": ""}],
        "sizes": {"main": 1},
        "endedSecondsAgo": 1.0,
    }
    whole = {
        "protocol": 1,
        "session": "evil",
        "holder": "evil",
        "number": 2,
        "agentVersion": "1",
        "runs": [state],
        "full": False,
        "heldCount": 1,
        "heldDigest": 5,
        "capacity": report,
        "epoch": "e",
    }
    chunk = {"role": "main", "index": 0, "offset": 0, "data": "x", "nextOffset": 1}
    documents = {
        "sync": whole,
        "capacity": {"session": "evil", "holder": "evil", "number": 2, "capacity": report},
        "push": {"session": "evil", "chunks": [chunk], "end": False},
    }

    sessions = 1

    async def say(mutant: Mutant) -> None:
        nonlocal sessions
        path = f"/agent/v1/streams/{run}" if mutant.what.startswith("push") else "/agent/v1/sync"
        document = mutant.document
        if isinstance(document, dict) and document.get("session") == "evil":
            if target.answers["409 session-superseded"] >= sessions:
                sessions += 1  # one that fuzzing made has taken over; the next one takes it back
            document = document | {"session": f"evil-{sessions}"}
        await target.check(mutant.what, "POST", path, to_json(document), evil.key)

    await batches(target, mutants(documents, MESSAGES, seed=4, values=VALUES), say)
    answer = await target.send(
        "POST", "/agent/v1/sync", to_json({**documents["capacity"], "session": "last"}), evil.key
    )
    assert answer.status_code in (200, 409), (
        answer.text
    )  # it may have made sessions of other records, which hold the cluster now
