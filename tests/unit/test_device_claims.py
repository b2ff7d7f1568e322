"""What ResourceClaimTemplates ask for, as agents report it and the dispatcher reads it."""

from typing import Any

import pytest
from pydantic import ValidationError

from trainmaster.protocol.device_claims import (
    ClaimTemplate,
    claim_named,
    claim_template,
    claimed,
    named_claims,
    offers_claim,
    parse_claim,
    parse_claim_template,
    read_claim_template,
    read_resource_claim,
    uncounted_claims,
    why_no_claim_template,
)
from trainmaster.protocol.jobs import JobSpec, Role
from trainmaster.protocol.validation_errors import mistakes_of
from trainmaster_agent.capacity.claim_templates import ClaimTemplates, NamedClaims
from trainmaster_dispatcher.domain.run_orders import NarrowedDevice, RunOrders
from trainmaster_dispatcher.domain.shapes import shape_of
from trainmaster_dispatcher.domain.spec_rendering import apply_orders

GPU, NIC = "deviceclass.resource.kubernetes.io/gpu", "deviceclass.resource.kubernetes.io/nic"


def template(name: str = "two", namespace: str = "jobs", **devices: Any) -> dict[str, Any]:
    devices.setdefault("requests", [exactly(count=2)])
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"spec": {"devices": devices}}}


def exactly(of: str = "gpu", **fields: Any) -> dict[str, Any]:
    return {"name": of, "exactly": {"deviceClassName": of, **fields}}


def pod(*names: str, **spec: Any) -> dict[str, Any]:
    claims = [{"name": f"c{index}", "resourceClaimTemplateName": name} for index, name in enumerate(names)]
    return {"spec": {"containers": [{"name": "main", "image": "x"}], "resourceClaims": claims, **spec}}


def test_exact_numbers_are_counted_by_class() -> None:
    requests = [exactly(count=2), exactly("nic", allocationMode="ExactCount"), exactly(count=1)]
    found = read_claim_template(template(requests=requests))
    assert found.devices == (("gpu", 3), ("nic", 1))
    assert parse_claim_template(found.capability) == found == claim_template("two", {"nic": 1, "gpu": 3})


@pytest.mark.parametrize(
    ("devices", "fault"),
    [
        ({"requests": [exactly(allocationMode="All")]}, "allocationMode All"),
        ({"requests": [exactly(adminAccess=True)]}, "adminAccess"),
        ({"requests": [exactly(capacity={"requests": {"memory": "1Gi"}})]}, "capacity"),
        ({"requests": [{"name": "a", "firstAvailable": [{"name": "b", "deviceClassName": "gpu"}]}]}, "firstAvailable"),
        ({"requests": [{"name": "a", "later": {}}]}, "unknown kind"),
        ({"requests": [{"name": "a", "exactly": {}}]}, "no device class"),
        ({"constraints": [{"matchAttribute": "example.com/numa"}]}, "matchAttribute"),
        ({"requests": []}, "no requests"),
        ({"requests": [exactly()] * 33}, "too many requests"),
        ({"requests": [exactly("x" * 200), exactly("y" * 100)]}, "too many classes"),
    ],
)
def test_what_cannot_be_counted_says_why(devices: dict[str, Any], fault: str) -> None:
    capability = read_claim_template(template(**devices)).capability
    assert len(capability) <= 253
    found = parse_claim_template(capability)
    assert found is not None
    assert (found.name, found.devices) == ("two", ())
    assert fault in found.fault


@pytest.mark.parametrize(
    "capability", ["claimtemplate:two", "claimtemplate:two devices=gpu", "claimtemplate:two devices=gpu:x"]
)
def test_a_report_that_cannot_be_read_is_not_countable(capability: str) -> None:
    found = parse_claim_template(capability)
    assert found is not None
    assert (found.name, bool(found.fault)) == ("two", True)


def test_each_claim_of_a_pod_counts() -> None:
    templates = {"two": {"gpu": 2}, "card": {"nic": 1}}
    assert claimed(pod("two", "card", "two"), templates) == {GPU: 4, NIC: 1}
    role = Role(name="main", pod_template=pod("two", "card"), claim_templates=templates)
    assert role.amounts == {GPU: 2, NIC: 1}
    assert role.to_wire()["claimTemplates"] == templates


def test_devices_by_claims_and_by_name_are_added() -> None:
    containers = [{"name": "main", "image": "x", "resources": {"requests": {"cpu": "1", GPU: "1"}}}]
    role = Role(name="main", pod_template=pod("two", containers=containers), claim_templates={"two": {"gpu": 2}})
    assert role.amounts == {"cpu": 1000, GPU: 3}


def test_an_agent_refuses_claims_that_were_not_counted() -> None:
    (mistake,) = uncounted_claims(pod("two", "card"), {"two": {"gpu": 2}})
    assert mistake.path == "spec.resourceClaims[1].resourceClaimTemplateName"
    assert uncounted_claims(pod("two"), {"two": {"gpu": 2}}) == ()


def test_why_a_cluster_is_not_eligible_names_the_template() -> None:
    wanted = claim_template("two", {"gpu": 2}).capability
    assert why_no_claim_template("gang", ()) is None
    assert why_no_claim_template(wanted, ["gang"]) == (
        "its agent reports no ResourceClaimTemplate two in the namespaces of jobs"
    )
    assert why_no_claim_template(wanted, [claim_template("two", {"gpu": 1}).capability]) == (
        "its ResourceClaimTemplate two asks for 1 of gpu, and the job was counted with 2 of gpu"
    )
    every = read_claim_template(template(requests=[exactly(allocationMode="All")])).capability
    assert "allocationMode All" in str(why_no_claim_template(wanted, [every]))


def test_an_agent_reports_templates_that_are_the_same_in_all_namespaces() -> None:
    made = ClaimTemplates("trainmaster.dev/agent")
    made.put(template())
    two = claim_template("two", {"gpu": 2}).capability
    assert made.capabilities(["jobs"]) == {two}
    (other,) = made.capabilities(["jobs", "others"])
    assert "all namespaces" in other
    made.put(template(namespace="others"))
    assert made.capabilities(["jobs", "others"]) == {two}
    made.put(template(namespace="others", requests=[exactly(count=1)]))
    assert two not in made.capabilities(["jobs", "others"])
    own = template("of-a-run")
    own["metadata"]["labels"] = {"trainmaster.dev/agent": "here"}
    made.put(own)
    made.drop(template())
    assert made.capabilities(["jobs"]) == frozenset()


def spec_with(*devices: dict[str, Any], **resources: str) -> JobSpec:
    template = {"command": ["true"], "resources": resources, "devices": list(devices)}
    return JobSpec.model_validate(
        {"kind": "Job", "name": "j", "queue": "q", "roles": [{"name": "main", "template": template}]}
    )


def test_devices_of_a_template_are_counted_by_class_and_need_a_cluster_that_makes_claims() -> None:
    spec = spec_with({"name": "a", "class": "gpu", "count": 2}, {"name": "b", "class": "gpu"}, cpu="1", **{GPU: "1"})
    assert spec.roles[0].amounts == {"cpu": 1000, GPU: 4}
    shape = shape_of(spec)
    assert (shape["roles"][0]["needs"], shape["capabilities"]) == ({"cpu": 1000, GPU: 4}, ["devices"])
    assert JobSpec.model_validate(spec.to_wire()) == spec
    assert spec.to_wire()["roles"][0]["template"]["devices"][1] == {"name": "b", "class": "gpu"}


@pytest.mark.parametrize(
    ("devices", "path"),
    [
        ([{"name": "a"}], "devices[0].class"),
        ([{"name": "A", "class": "gpu"}], "devices[0].name"),
        ([{"name": "a", "class": "no/class"}], "devices[0].class"),
        ([{"name": "a", "class": "gpu", "count": 0}], "devices[0].count"),
        ([{"name": "a", "class": "gpu", "selectors": [""]}], "devices[0].selectors[0]"),
        ([{"name": "a", "class": "gpu", "many": 2}], "devices[0].many"),
        ([{"name": "a", "class": "gpu"}] * 2, "devices"),
        ([{"name": f"a{one}", "class": "gpu", "count": 5} for one in range(7)], "devices"),
        ([{"name": f"a{one}", "class": "gpu"} for one in range(17)], "devices"),
    ],
)
def test_devices_are_checked_with_their_paths(devices: list[dict[str, Any]], path: str) -> None:
    with pytest.raises(ValidationError) as caught:
        spec_with(*devices)
    assert mistakes_of(caught.value)[0].path == f"roles[0].template.{path}"


def test_members_that_have_a_product_narrowed_may_have_it_by_claims() -> None:
    narrowed = RunOrders(narrowed=NarrowedDevice(resource=GPU, selector={"product": "a100"}))
    by_template = spec_with({"name": "a", "class": "gpu"}).to_wire()
    assert apply_orders(by_template, narrowed)["roles"][0]["template"]["nodeSelector"] == {"product": "a100"}
    role = {"name": "main", "podTemplate": pod("two"), "claimTemplates": {"two": {"gpu": 2}}}
    made = apply_orders({"roles": [role]}, narrowed)
    assert made["roles"][0]["podTemplate"]["spec"]["nodeSelector"] == {"product": "a100"}


def resource_claim(name: str = "big", namespace: str = "jobs", **metadata: Any) -> dict[str, Any]:
    devices = {"requests": [exactly(count=2)]}
    return {"metadata": {"name": name, "namespace": namespace, **metadata}, "spec": {"devices": devices}}


def test_claims_are_reported_with_what_they_ask_for() -> None:
    found = read_resource_claim(resource_claim())
    assert found.capability == "claim:big devices=gpu:2"
    assert parse_claim(found.capability) == found == ClaimTemplate("big", (("gpu", 2),), is_claim=True)
    assert parse_claim_template(found.capability) is None
    assert parse_claim(claim_template("big", {"gpu": 2}).capability) is None
    all_of_them = resource_claim()
    all_of_them["spec"]["devices"]["requests"] = [exactly(allocationMode="All")]
    assert read_resource_claim(all_of_them).capability.startswith("claim:big uncountable=")


def test_a_pod_runs_where_a_claim_of_the_name_is_whatever_it_has() -> None:
    wanted = claim_named("big")
    assert offers_claim(wanted, ["gang", "claim:big devices=gpu:2"])
    assert offers_claim(wanted, ["claim:big uncountable=it has too many requests"])
    assert not offers_claim(wanted, ["claim:bigger devices=gpu:2", "claimtemplate:big devices=gpu:2"])
    assert not offers_claim("gang", ["claim:big devices=gpu:2"])
    assert why_no_claim_template(wanted, []) == "its agent reports no ResourceClaim big in the namespaces of jobs"


def test_claims_that_a_pod_names_are_needed_and_counted_on_nobody() -> None:
    of_pod = pod("two")
    of_pod["spec"]["resourceClaims"].append({"name": "shared", "resourceClaimName": "big"})
    assert list(named_claims(of_pod)) == [("spec.resourceClaims[1].resourceClaimName", "big")]
    role = {"name": "a", "podTemplate": of_pod, "claimTemplates": {"two": {"gpu": 2}}}
    spec = JobSpec.model_validate({"name": "j", "queue": "q", "roles": [role]})
    made = shape_of(spec)
    assert made["capabilities"] == ["claim:big", "claimtemplate:two devices=gpu:2", "podTemplate"]
    assert made["roles"][0]["needs"] == {GPU: 2}


class TestNamedClaims:
    def test_claims_in_all_namespaces_for_jobs_are_reported(self) -> None:
        made = NamedClaims("trainmaster.dev/agent")
        for obj in (resource_claim(), resource_claim(namespace="more"), resource_claim("one")):
            made.put(obj)
        assert made.capabilities(["jobs"]) == {"claim:big devices=gpu:2", "claim:one devices=gpu:2"}
        assert made.capabilities(["jobs", "more"]) == {"claim:big devices=gpu:2"}
        assert made.capabilities([]) == frozenset()
        made.drop(resource_claim())
        assert made.capabilities(["jobs"]) == {"claim:one devices=gpu:2"}

    def test_different_claims_of_a_name_are_reported_as_that(self) -> None:
        made = NamedClaims("trainmaster.dev/agent")
        other = resource_claim(namespace="more")
        other["spec"]["devices"]["requests"] = [exactly(count=1)]
        made.put(resource_claim())
        made.put(other)
        (found,) = made.capabilities(["jobs", "more"])
        assert found == "claim:big uncountable=it is not the same in all namespaces for jobs"

    def test_claims_of_pods_and_of_runs_are_left_out(self) -> None:
        made = NamedClaims("trainmaster.dev/agent")
        made.put(resource_claim("run-r1-main-0", labels={"trainmaster.dev/agent": "north"}))
        made.put(resource_claim("pod-gpu-x7k2p", ownerReferences=[{"kind": "Pod", "name": "pod"}]))
        assert made.capabilities(["jobs"]) == frozenset()
