"""Mutated pod templates: no admission raises, and of what is admitted everything can be made, by dispatcher and agent.

Some hundreds of templates; with TRAINMASTER_DEEP=1 the 20,000 of the deep form.
"""

import os
import random
from typing import Any

import orjson
import pytest

from tests.pod_mutations import RICH, mutated
from tests.unit.test_placement_golden import KAI, KUEUE, NATIVE, NATIVE_1_37, VOLCANO, YUNIKORN
from trainmaster.protocol.admission import AdmissionPolicy, check_pod_template
from trainmaster.protocol.agent import StartRun
from trainmaster.protocol.jobs import JobSpec
from trainmaster_agent.placement.coscheduling import Coscheduling
from trainmaster_agent.placement.gates import Gates
from trainmaster_agent.placement.port import PlacementPort
from trainmaster_agent.runtime.kubernetes.manifests import Manifests
from trainmaster_agent.runtime.kubernetes.node_capacity import _need
from trainmaster_agent.runtime.kubernetes.record import KubeRunRecord
from trainmaster_agent.runtime.kubernetes.run_spec import facts_of
from trainmaster_dispatcher.domain.burst_binding import bound_spec
from trainmaster_dispatcher.domain.shapes import shape_bytes, shape_from

SEEDS = 10
EACH = 2000 if os.environ.get("TRAINMASTER_DEEP") == "1" else 50
POLICIES = (AdmissionPolicy(), AdmissionPolicy(level="baseline", service_accounts=("default",), secrets=("x", "http")))
PLACEMENTS: tuple[PlacementPort, ...] = (NATIVE, NATIVE_1_37, Gates(), VOLCANO, KAI, YUNIKORN, Coscheduling(), KUEUE)
BINDING = (("trainmaster.dev/spot", "NotIn", ("true",)),)


def make_everything(template: dict[str, Any], policy: AdmissionPolicy) -> None:
    """Build everything that dispatcher and agent make of an admitted template, for a member alone and for a gang."""
    for replicas in (1, 3):
        role = {"name": "worker", "replicas": replicas, "podTemplate": template, "maxPerNode": 1}
        raw = {"kind": "Job", "name": "fuzz", "queue": "q", "roles": [role]}
        spec = JobSpec.model_validate(raw)
        shape, _ = shape_bytes(spec)
        shape_from(orjson.loads(shape))
        for wire in (spec.to_wire(), bound_spec(spec.to_wire(), 60.0, BINDING)):
            start = StartRun(
                run="fuzz-0000001-r1",
                job="fuzz-0000001",
                queue="q",
                attempt=1,
                token=1,
                generation=1,
                spec=orjson.loads(orjson.dumps(wire)),
                sizes={"worker": replicas},
                placement_timeout_seconds=60,
            )
            facts = facts_of(start)
            for placement in PLACEMENTS:
                manifests = Manifests(
                    KubeRunRecord(start, "jobs", 1, uid="u"),
                    facts,
                    placement,
                    agent="north",
                    levels={},
                    policy=policy,
                    priority_class="trainmaster",
                    port=29500,
                    products=lambda _: {},
                )
                for one in manifests.objects():
                    orjson.dumps(one.body)
                for beside in (None, {"zone": "a"}):
                    orjson.dumps(manifests.pod("worker", 0, beside=beside))
                for gang_role in manifests.gang.roles:
                    _need(gang_role.name, 1, facts.roles["worker"].requests, gang_role.pod, 1, "none")


def test_the_pod_that_is_mutated_is_allowed_by_every_policy() -> None:
    for policy in POLICIES:
        assert check_pod_template(RICH, policy) == ()
        make_everything(RICH, policy)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_admitted_templates_make_manifests_and_no_template_raises(seed: int) -> None:
    chance = random.Random(seed)
    admitted = 0
    for _ in range(EACH):
        template = mutated(chance)
        for policy in POLICIES:
            mistakes = check_pod_template(template, policy)
            for mistake in mistakes:
                orjson.dumps(mistake.model_dump(mode="json"))
            if not mistakes:
                admitted += 1
                make_everything(template, policy)
    assert admitted, "the mutations are not so wild that all are refused"
