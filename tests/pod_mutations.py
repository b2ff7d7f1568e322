"""Pod templates with every feature, and mutations of them: what tenants may send by mistake or on purpose."""

import copy
import random
from collections.abc import Iterator
from typing import Any

SAFE_CONTEXT: dict[str, Any] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}

RICH: dict[str, Any] = {
    "metadata": {"labels": {"team": "vision"}, "annotations": {"note": "nightly"}},
    "spec": {
        "automountServiceAccountToken": False,
        "activeDeadlineSeconds": 600,
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {"key": "gpu.example.com/product", "operator": "In", "values": ["a100", "h100"]},
                                {"key": "generation", "operator": "Gt", "values": ["3"]},
                                {"key": "fast", "operator": "Exists"},
                            ]
                        }
                    ]
                },
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 10,
                        "preference": {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]},
                    }
                ],
            },
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 1,
                        "podAffinityTerm": {
                            "labelSelector": {"matchLabels": {"team": "vision"}},
                            "topologyKey": "kubernetes.io/hostname",
                        },
                    }
                ]
            },
        },
        "containers": [
            {
                "name": "main",
                "image": "example/train:1",
                "command": ["python", "train.py"],
                "args": ["--epochs", "3"],
                "workingDir": "/work",
                "env": [
                    {"name": "LOG", "value": "debug"},
                    {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                    {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                ],
                "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
                "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "2Gi"}},
                "securityContext": SAFE_CONTEXT,
                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch", "subPath": "own"}],
                "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 5},
                "livenessProbe": {"exec": {"command": ["true"]}, "failureThreshold": 3},
                "lifecycle": {"preStop": {"sleep": {"seconds": 1}}},
                "terminationMessagePolicy": "FallbackToLogsOnError",
            },
            {"name": "sidecar", "image": "example/logs:1", "securityContext": SAFE_CONTEXT},
        ],
        "dnsConfig": {
            "nameservers": ["10.0.0.10"],
            "searches": ["example.com"],
            "options": [{"name": "ndots", "value": "2"}],
        },
        "hostAliases": [{"ip": "10.0.0.5", "hostnames": ["store.example.com"]}],
        "initContainers": [
            {
                "name": "fetch",
                "image": "example/fetch:1",
                "restartPolicy": "Always",
                "securityContext": SAFE_CONTEXT,
                "resources": {"requests": {"cpu": "100m"}},
            }
        ],
        "nodeSelector": {"disk": "ssd"},
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "fsGroup": 1000,
            "supplementalGroups": [2000],
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "zone",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchExpressions": [{"key": "team", "operator": "In", "values": ["vision"]}]},
            }
        ],
        "volumes": [
            {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}},
            {
                "name": "facts",
                "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]},
            },
        ],
    },
}
"""A pod that every policy allows."""

NASTY: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 65536, 2**31, 2**63, 2**64, 10**30, 1.5, 1e308, "", " ", "x", "http", "-", "a/b/c", "../..",
    "A" * 300, "0", "1", "-1", "+5", "1e9", "1e400", "500m", "4Gi", "ü", "\u0000", "\ud800", "Exists", "In", "Always",
    "NoExecute", [], {}, [None], [{}], {"": ""}, {"name": "x"}, {"key": None}, ["x"], [["x"]], {"a": {"b": {}}}, "true",
)  # fmt: skip
_FIELDS = (
    "name", "value", "valueFrom", "key", "operator", "values", "effect", "containerPort", "hostPort", "image", "restartPolicy",
    "matchFields", "matchLabels", "namespaceSelector", "resources", "limits", "requests", "exec", "grpc", "tcpSocket", "port",
    "runAsUser", "overhead", "os", "hostUsers", "emptyDir", "configMap", "claims", "resourceClaims", "unknown", "podAffinity",
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield all paths of a document, without its root."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        yield (*path, key)
        yield from places(one, (*path, key))


_PLACES = tuple(places(RICH))


def mutated(chance: random.Random, base: dict[str, Any] = RICH) -> dict[str, Any]:
    """Return the base with one to three places changed."""
    template = copy.deepcopy(base)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        path = chance.choice(_PLACES)
        at: Any = template
        try:
            for step in path[:-1]:
                at = at[step]
            _change(chance, at, path[-1])
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took the place away
    return template


def _change(chance: random.Random, at: Any, last: Any) -> None:
    match chance.randrange(6):
        case 0:
            del at[last]
        case 1 if isinstance(at[last], dict):
            at[last][chance.choice(_FIELDS)] = copy.deepcopy(chance.choice(NASTY))
        case 2 if isinstance(at[last], list):
            at[last].append(copy.deepcopy(chance.choice((*at[last], *NASTY))))
        case 3:
            at[last] = [at[last]]
        case _:
            at[last] = copy.deepcopy(chance.choice(NASTY))
