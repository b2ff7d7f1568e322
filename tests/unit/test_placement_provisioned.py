"""Requests to the Cluster Autoscaler for the nodes of a gang."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.test_placement_gangs import LAUNCHER, RUN, WHOLE, a_pod
from trainmaster_agent.placement.choose import PlacementConfig, PlacementUnavailableError, ServedApis, choose
from trainmaster_agent.placement.gates import GATE, Gates
from trainmaster_agent.placement.native import Native
from trainmaster_agent.placement.port import GangState
from trainmaster_agent.placement.provisioned import Provisioned

ATOMIC = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
AWAITING = replace(WHOLE, awaits_nodes=True)
PLACEMENT = Provisioned(Gates(), ATOMIC)


def request(**conditions: str) -> dict[str, Any]:
    """Return a request as a watch tells of it, with conditions ``TYPE="STATUS REASON MESSAGE"``."""
    found = []
    for kind, text in conditions.items():
        status, reason, message = text.split(" ", 2)
        found.append({"type": kind, "status": status, "reason": reason, "message": message})
    return {"spec": {"provisioningClassName": ATOMIC}, "status": {"conditions": found}}


def test_a_gang_for_nodes_to_come_has_a_template_for_each_role_and_one_request() -> None:
    launcher, worker, made = PLACEMENT.objects(AWAITING)
    assert [one.body["metadata"]["name"] for one in (launcher, worker, made)] == [
        f"{RUN}-launcher",
        f"{RUN}-worker",
        RUN,
    ]
    assert worker.body["template"]["spec"] == WHOLE.roles[1].pod
    assert made.body["spec"]["provisioningClassName"] == ATOMIC
    assert made.body["spec"]["podSets"] == [
        {"count": 1, "podTemplateRef": {"name": f"{RUN}-launcher"}},
        {"count": 8, "podTemplateRef": {"name": f"{RUN}-worker"}},
    ]
    for resource, body in (launcher, worker, made):
        assert resource in PLACEMENT.created
        assert body["metadata"]["ownerReferences"] == [dict(WHOLE.owner)]
        assert body["metadata"]["labels"] == dict(WHOLE.labels)


def test_its_pods_name_the_request_so_that_they_are_not_counted_twice() -> None:
    pod = a_pod(AWAITING, LAUNCHER)
    PLACEMENT.dress(AWAITING, LAUNCHER, pod)
    assert pod["metadata"]["annotations"] == {
        **a_pod(AWAITING, LAUNCHER)["metadata"].get("annotations", {}),
        "autoscaling.x-k8s.io/consume-provisioning-request": RUN,
        "autoscaling.x-k8s.io/provisioning-class-name": ATOMIC,
    }
    assert {"name": GATE} in pod["spec"]["schedulingGates"]


def test_other_gangs_are_placed_as_without_requests() -> None:
    assert PLACEMENT.objects(WHOLE) == Gates().objects(WHOLE)
    pod, plain = a_pod(WHOLE, LAUNCHER), a_pod(WHOLE, LAUNCHER)
    PLACEMENT.dress(WHOLE, LAUNCHER, pod)
    Gates().dress(WHOLE, LAUNCHER, plain)
    assert pod == plain
    assert PLACEMENT.read(WHOLE, [request(Failed="True X y")], ()) == GangState()
    native = Provisioned(Native(), ATOMIC)
    assert (native.name, native.emulated, native.rejoins) == ("native", False, Native().rejoins)
    assert native.capabilities == Native().capabilities
    assert native.for_workloads == Native().for_workloads
    assert (native.requests_nodes, Native().requests_nodes) == (True, False)


ANSWERS = {
    "none": ({}, "the autoscaler has not answered the request for its nodes yet"),
    "accepted": ({"Accepted": "True Accepted ok"}, "the autoscaler has accepted the request for its nodes"),
    "not found": (
        {"Accepted": "True Accepted ok", "Provisioned": "False CapacityIsNotFound Capacity is not found"},
        "the autoscaler has no nodes for it yet: CapacityIsNotFound: Capacity is not found",
    ),
    "provisioned": (
        {"Accepted": "True Accepted ok", "Provisioned": "True CapacityIsFound found"},
        "the autoscaler has provided its nodes",
    ),
    "expired": (
        {"Provisioned": "True CapacityIsFound found", "BookingExpired": "True Expired too late"},
        "the autoscaler no longer reserves its nodes: Expired: too late",
    ),
    "revoked": (
        {"Provisioned": "True CapacityIsFound found", "CapacityRevoked": "True Gone nodes are gone"},
        "the autoscaler has revoked its nodes: Gone: nodes are gone",
    ),
}


@pytest.mark.parametrize(("conditions", "message"), ANSWERS.values(), ids=ANSWERS.keys())
def test_answers_are_the_message_of_the_run(conditions: dict[str, str], message: str) -> None:
    assert PLACEMENT.read(AWAITING, [request(**conditions)], ()) == GangState(message=message)


def test_a_request_that_failed_returns_the_run() -> None:
    state = PLACEMENT.read(AWAITING, [request(Accepted="True Accepted ok", Failed="True Quota none is left")], ())
    assert state.refused == "the autoscaler provides no nodes for it: Quota: none is left"


def test_requests_are_made_where_the_cluster_takes_them_and_nobody_else_makes_any() -> None:
    served = ServedApis(provisioning=True, kueue="v1beta2")
    assert choose(PlacementConfig(), served, ATOMIC) == PLACEMENT
    assert choose(PlacementConfig(), served) == Gates()
    with pytest.raises(PlacementUnavailableError, match="does not serve provisioningrequests of"):
        choose(PlacementConfig(), ServedApis(), ATOMIC)
    with pytest.raises(PlacementUnavailableError, match="kueue, which makes such requests by itself"):
        choose(PlacementConfig(scheduler="kueue", default_queue="main"), served, ATOMIC)
