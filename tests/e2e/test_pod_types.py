"""The admission's table of pod fields, and what it lets through, beside a real API server."""

import asyncio
import copy
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import need_programs, plane
from tests.pod_mutations import RICH, mutated
from trainmaster.protocol.admission import AdmissionPolicy, check_pod_template
from trainmaster.protocol.agent import StartRun
from trainmaster.protocol.pod_types import POD_TYPES
from trainmaster_agent.placement.gates import Gates
from trainmaster_agent.runtime.kubernetes.manifests import Manifests
from trainmaster_agent.runtime.kubernetes.record import KubeRunRecord
from trainmaster_agent.runtime.kubernetes.run_spec import facts_of

__all__ = ["plane"]

need_programs(whole_module=True)

_TEMPLATES = 1500
_SERVERS_OWN = {"ClaimMetadata"}
"""Types that the table has narrowed."""
_STRICTER = {("Container", "image"), ("ConfigMapVolumeSource", "name"), ("ConfigMapEnvSource", "name")} | {
    ("ConfigMapKeySelector", "name"),
    ("ConfigMapProjection", "name"),
}
"""Fields that are required here, as a pod without them can never start."""
_LETS_THROUGH = 0.02
"""At most this part of what is admitted may be refused by the API server. Its run then fails with the server's words."""


def _name(reference: str) -> str:
    return reference.rpartition(".")[2]


async def test_the_table_has_the_fields_of_the_api_server(plane: ControlPlane) -> None:
    async with plane.client() as api:
        document = await api.get("/openapi/v3/api/v1")
    schemas = {_name(name): one for name, one in document["components"]["schemas"].items() if ".core.v1." in name} | {
        "LabelSelector": next(
            one for name, one in document["components"]["schemas"].items() if name.endswith(".LabelSelector")
        ),
        "LabelSelectorRequirement": next(
            one for name, one in document["components"]["schemas"].items() if name.endswith(".LabelSelectorRequirement")
        ),
    }
    for kind, fields in POD_TYPES.items():
        if kind in _SERVERS_OWN:
            continue
        assert fields.keys() == schemas[kind]["properties"].keys(), kind
        required = {field for field, (_, is_required) in fields.items() if is_required}
        stricter = {field for of, field in _STRICTER if of == kind}
        assert required - stricter == set(schemas[kind].get("required", ())), kind


def _pod(template: dict[str, Any], policy: AdmissionPolicy) -> dict[str, Any]:
    start = StartRun(
        run="fuzz-0000001-r1",
        job="fuzz-0000001",
        queue="q",
        attempt=1,
        token=1,
        generation=1,
        spec={
            "kind": "Job",
            "name": "fuzz",
            "queue": "q",
            "roles": [{"name": "worker", "replicas": 1, "podTemplate": template}],
        },
        sizes={"worker": 1},
        placement_timeout_seconds=60,
    )
    manifests = Manifests(
        KubeRunRecord(start, "default", 1, uid="00000000-0000-0000-0000-000000000000"),
        facts_of(start),
        Gates(),
        agent="north",
        levels={},
        policy=policy,
        priority_class="",
        port=29500,
        products=lambda _: {},
    )
    body = manifests.pod("worker", 0)
    del body["spec"]["priorityClassName"], body["metadata"]["ownerReferences"]
    return body


async def test_an_api_server_takes_nearly_all_that_is_admitted(
    plane: ControlPlane, record_property: Callable[[str, object], None]
) -> None:
    policy = AdmissionPolicy()
    chance = random.Random(1)
    admitted = [copy.deepcopy(RICH)]
    while len(admitted) < _TEMPLATES:
        template = mutated(chance)
        if not check_pod_template(template, policy):
            admitted.append(template)
    refused: Counter[str] = Counter()
    async with plane.client() as api:

        async def has_account() -> None:
            try:
                await api.post("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
            except ApiError as error:
                if error.status != 409:  # the controller manager was quicker
                    raise

        async def send(template: dict[str, Any]) -> None:
            try:
                await api.post(
                    "/api/v1/namespaces/default/pods?dryRun=All&fieldValidation=Strict", _pod(template, policy)
                )
            except ApiError as error:
                refused[str(error)[:300]] += 1

        await has_account()
        for begin in range(0, len(admitted), 50):
            await asyncio.gather(*(send(one) for one in admitted[begin : begin + 50]))
    record_property("refused", dict(refused))
    assert sum(refused.values()) <= _LETS_THROUGH * len(admitted), refused.most_common()
