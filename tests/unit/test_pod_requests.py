"""What a pod takes from its node, as Kubernetes counts it."""

from typing import Any

import pytest

from trainmaster.protocol.admission import pod_requests

GIB = 2**30


def container(always: bool = False, limits: dict[str, Any] | None = None, **requests: Any) -> dict[str, Any]:
    resources = {"requests": requests} | ({"limits": limits} if limits else {})
    return {"resources": resources} | ({"restartPolicy": "Always"} if always else {})


def pod(*containers: dict[str, Any], init: list[dict[str, Any]] | None = None, **spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": list(containers), "initContainers": init or [], **spec}}


CASES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "containers add up": (pod(container(cpu="1", memory="1Gi"), container(cpu="500m")), {"cpu": 1500, "memory": GIB}),
    "a limit counts where nothing is requested": (
        pod(container(cpu=1, limits={"cpu": 4, "nvidia.com/gpu": 8})),
        {"cpu": 1000, "nvidia.com/gpu": 8},
    ),
    "a request of nothing is a request": (pod(container(cpu=0, limits={"cpu": 4})), {}),
    "the largest init container counts when it is larger": (
        pod(container(cpu=1, memory="2Gi"), init=[container(cpu=3), container(cpu=2, memory="1Gi")]),
        {"cpu": 3000, "memory": 2 * GIB},
    ),
    "a sidecar runs beside the containers": (
        pod(container(cpu=2), init=[container(always=True, cpu=1)]),
        {"cpu": 3000},
    ),
    "a sidecar runs beside the init containers after it": (
        pod(container(cpu=1), init=[container(always=True, cpu=1), container(cpu=4)]),
        {"cpu": 5000},
    ),
    "a sidecar does not run beside the init containers before it": (
        pod(container(cpu=1), init=[container(cpu=4), container(always=True, cpu=1)]),
        {"cpu": 4000},
    ),
    "overhead comes on top": (pod(container(cpu=1), overhead={"cpu": "250m"}), {"cpu": 1250}),
    "the pod's own request counts when it is larger": (
        pod(container(cpu=1, memory="1Gi"), resources={"requests": {"cpu": 3}}),
        {"cpu": 3000, "memory": GIB},
    ),
    "the pod's own limit counts where nothing is requested": (
        pod(container(cpu=1), resources={"limits": {"cpu": 3, "memory": "1Gi"}}),
        {"cpu": 1000, "memory": GIB},
    ),
    "a pod that asks for nothing": (pod({"name": "main"}), {}),
    "an empty template": ({}, {}),
}


@pytest.mark.parametrize(("template", "expected"), CASES.values(), ids=CASES.keys())
def test_effective_requests(template: dict[str, Any], expected: dict[str, int]) -> None:
    assert pod_requests(template) == expected


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a word": (pod(container(cpu="many")), r"^spec\.containers\[0\]\.resources\.requests\.cpu: 'many' is not"),
    "less than nothing": (pod(container(), container(memory="-1")), r"^spec\.containers\[1\].*negative"),
    "a list": (pod(init=[container(cpu=["1"])]), r"^spec\.initContainers\[0\]\.resources\.requests\.cpu: must be"),
    "a number beyond all": (pod(container(cpu=10**5000)), r"^spec\.containers\[0\]"),
    "a text beyond all": (pod(container(cpu="9" * 2_000_000)), r"^spec\.containers\[0\]"),
    "nothing": (pod(container(cpu=None)), r"^spec\.containers\[0\].*not null"),
    "no number": (pod(container(cpu=float("nan"))), r"^spec\.containers\[0\]"),
    "a dotted resource": (pod(container(limits={"nvidia.com/gpu": "x"})), r'limits\["nvidia\.com/gpu"\]: '),
    "too much together": (
        pod(*[container(memory="4Ei")] * 2),
        r"^spec: the containers together request too much 'memory'",
    ),
    "an overhead that is no mapping": (pod(overhead=[]), r"^spec\.overhead: must be a mapping, not a list"),
}


@pytest.mark.parametrize(("template", "message"), BAD.values(), ids=BAD.keys())
def test_what_cannot_be_read_is_named_with_its_path(template: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pod_requests(template)
