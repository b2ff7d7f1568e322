"""What clusters refuse of a job, by what their agents reported when it was submitted."""

from typing import Any

import pytest

from tests.unit.building import StateBuilder, gang, nodes, role
from trainmaster.protocol.admission_policy import AdmissionPolicy
from trainmaster.protocol.agent import CapacityReport, ReportedAdmission
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.reasons import Check, Token
from trainmaster.protocol.states import ClusterKind
from trainmaster_dispatcher.domain.cluster_admission import ClusterRefusal, fingerprint_of
from trainmaster_dispatcher.domain.shapes import shape_from, shape_of
from trainmaster_dispatcher.scheduling.selection.admission import refusals
from trainmaster_dispatcher.scheduling.state.declared_objects import Cluster

PODS = ReportedAdmission(needs_image=True)
SAFE: dict[str, Any] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def cluster(name: str, admission: ReportedAdmission | None = PODS, **fields: Any) -> Cluster:
    if "report" not in fields:
        capabilities = ("gang", "gangStrict", *(("podTemplate",) if admission else ()))
        fields["report"] = CapacityReport(
            groups=(), runtime="kubernetes", scheduler="native", capabilities=capabilities, admission=admission
        )
    return Cluster(1, name, fields.pop("kind", ClusterKind.PRIVATE), **fields)


def admitting(**policy: Any) -> ReportedAdmission:
    return ReportedAdmission.model_validate({"needsImage": True, "policy": policy})


def job(*roles: dict[str, Any], queue: str = "team", **fields: Any) -> JobSpec:
    whole = {
        "kind": "Job",
        "name": "j",
        "queue": queue,
        "roles": [{"name": f"r{i}", **one} for i, one in enumerate(roles)],
    }
    return JobSpec.model_validate(whole | fields)


def runs(image: str = "", **fields: Any) -> dict[str, Any]:
    return {"template": {"image": image, "command": ["true"], **fields}}


def pod(**container: Any) -> dict[str, Any]:
    return {
        "podTemplate": {
            "spec": {
                "containers": [{"name": "main", "securityContext": SAFE, **container}],
                "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            }
        }
    }


def names(given: JobSpec, *clusters: Cluster) -> list[str]:
    return [one.cluster for one in refusals(given, clusters)[0]]


def test_members_that_are_pods_need_an_image() -> None:
    refused, mistakes = refusals(job(runs("a/b:1"), runs()), [cluster("north")])
    assert refused == [ClusterRefusal("north", fingerprint_of(PODS), ("roles[1].template.image",))]
    (mistake,) = mistakes
    assert mistake.path == "roles[1].template.image"
    assert "cluster north: must name an image" in mistake.message
    assert refusals(job(runs("a/b:1")), [cluster("north")]) == ([], [])
    assert refusals(job(pod(image="a/b:1")), [cluster("north")]) == ([], [])


def test_where_one_cluster_takes_it_nothing_is_a_mistake() -> None:
    refused, mistakes = refusals(job(runs()), [cluster("north"), cluster("west", None)])
    assert [one.cluster for one in refused] == ["north"]
    assert mistakes == []


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        ({"clusters": ["north"]}, True),
        ({"clusters": ["west"]}, False),
        ({"clusters": ["elsewhere"]}, False),  # nobody knows that one yet
        ({"kinds": ["edge"]}, True),
        ({"kinds": ["private"]}, False),
        ({"regions": ["eu"]}, True),
        ({"selector": {"tier": "gold"}}, True),
        ({"selector": {"tier": "iron"}}, False),
    ],
)
def test_only_clusters_that_come_into_question_count(placement: dict[str, Any], expected: bool) -> None:
    north = cluster("north", kind=ClusterKind.EDGE, labels={"region": "eu", "tier": "gold"})
    west = cluster("west", None)
    assert bool(refusals(job(runs(), placement=placement), [north, west])[1]) == expected


def test_a_cluster_that_lacks_what_the_job_needs_does_not_count() -> None:
    alone = CapacityReport(groups=(), runtime="local", scheduler="local")
    assert refusals(job(runs(), runs()), [cluster("north"), cluster("west", report=alone)])[1], "it starts no gangs"
    assert refusals(job(runs()), [cluster("north"), cluster("west", report=alone)])[1] == []


def test_a_cluster_that_has_told_nothing_yet_may_take_it() -> None:
    silent = cluster("new", report=None)
    assert refusals(job(pod()), [cluster("north"), silent])[1] == []
    without_pods = cluster("local", None)
    assert refusals(job(pod()), [cluster("north"), without_pods])[1], "its runtime runs no pod templates"


def test_policies_of_clusters_are_applied_by_queue() -> None:
    by_queue = ReportedAdmission.model_validate(
        {
            "policy": {"images": ["registry.example.com/*"]},
            "queues": [{"queue": "team/lab", "policy": {"images": ["*"]}}],
        }
    )
    north = cluster("north", by_queue)
    assert names(job(runs("docker.io/x:1")), north) == ["north"]
    assert names(job(runs("registry.example.com/x:1")), north) == []
    assert names(job(runs("docker.io/x:1"), queue="team/lab/deep"), north) == []
    assert names(job(runs("docker.io/x:1"), queue="team/labs"), north) == ["north"]


def test_what_is_refused_is_part_of_the_shape_and_is_read_back() -> None:
    given = job(runs())
    refused = refusals(given, [cluster("north"), cluster("west", None)])[0]
    assert shape_from(shape_of(given, refused)).wishes.refused_by == tuple(refused)
    assert "refusedBy" not in shape_of(given)


def test_a_shape_that_was_stored_before_refuses_nothing() -> None:
    assert shape_from(shape_of(job(runs()))).wishes.refused_by == ()


def looked_at(admission: ReportedAdmission | None, refused_by: ClusterRefusal) -> Any:
    builder = (
        StateBuilder().cluster("north", nodes(), admission=admission).job("j", gang(role(), refused_by=(refused_by,)))
    )
    return builder.cycle()


def test_a_cluster_that_refuses_it_is_ruled_out() -> None:
    outcome = looked_at(PODS, ClusterRefusal("north", fingerprint_of(PODS), ("roles[0].template.image",)))
    verdict = outcome.verdict("j", "north")
    assert verdict.check is Check.ADMISSION
    assert verdict.sentence == "its agent does not admit roles[0].template.image of the job"
    assert outcome.reason("j").token is Token.NOT_SUPPORTED


@pytest.mark.parametrize("now", [admitting(images=["new/*"]), None], ids=["another policy", "no policy any more"])
def test_a_cluster_that_checks_by_another_policy_by_now_is_asked(now: ReportedAdmission | None) -> None:
    assert looked_at(now, ClusterRefusal("north", fingerprint_of(PODS), ("x",))).started == ["j"]


def test_a_refusal_of_one_cluster_rules_out_no_other() -> None:
    assert looked_at(PODS, ClusterRefusal("west", fingerprint_of(PODS), ("x",))).started == ["j"]


def test_a_policy_as_agents_of_the_release_before_report_it_is_read_with_the_defaults_of_what_is_new() -> None:
    policy = {"level": "baseline", "images": ["*"], "annotations": [], "labels": [], "tolerations": None}
    report = CapacityReport.model_validate(
        {
            "groups": [],
            "runtime": "kubernetes",
            "scheduler": "native",
            "admission": {"needsImage": True, "policy": policy},
        }
    )
    assert report.admission is not None
    assert report.admission.policy == AdmissionPolicy(level="baseline")


def test_a_policy_that_uses_nothing_new_is_reported_as_the_release_before_reads_it() -> None:
    lists = "serviceAccounts secrets configMaps claims csiDrivers runtimeClasses resourceClaims images annotations labels tolerations"
    known = {*lists.split(), "level", "volumeTypes", "nodeLabels", "mostContainers"}
    assert AdmissionPolicy().model_dump(mode="json", by_alias=True).keys() == known
    new = AdmissionPolicy(storage_classes=("fast",), most_volume_size="2Ti").model_dump(mode="json", by_alias=True)
    assert new.keys() - known == {"storageClasses", "mostVolumeSize"}


MANY = {"queue": "q", "policy": {"images": [f"i{number}" for number in range(400)]}}


@pytest.mark.parametrize(
    ("admission", "is_read"),
    [
        ({"policy": {"newField": 1}}, False),
        ({"queues": [MANY] * 4}, True),
        ({"queues": [MANY] * 5}, False),
        ({"queues": [{"queue": f"q{number}", "policy": {}} for number in range(1001)]}, False),
        ("all", False),
        ({}, True),
    ],
)
def test_a_policy_that_is_too_long_or_cannot_be_read_costs_no_report(admission: Any, is_read: bool) -> None:
    report = CapacityReport.model_validate(
        {"groups": [], "runtime": "kubernetes", "scheduler": "native", "admission": admission}
    )
    assert (report.admission is not None) == is_read
