"""What ResourceClaimTemplates ask for, as agents report it and the dispatcher reads it."""

from typing import Any

import pytest

from trainmaster.protocol.device_claims import (
    claim_template,
    claimed,
    parse_claim_template,
    read_claim_template,
    uncounted_claims,
    why_no_claim_template,
)
from trainmaster.protocol.jobs import Role
from trainmaster_agent.capacity.claim_templates import ClaimTemplates

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


@pytest.mark.parametrize("capability", ["claimtemplate:two", "claimtemplate:two devices=gpu", "claimtemplate:two devices=gpu:x"])
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
