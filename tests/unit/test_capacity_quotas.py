"""What ResourceQuotas leave for a run."""

from typing import Any

import pytest

from trainmaster_agent.capacity.quotas import PodTraits, Quotas

GIB = 2**30


def quota(
    hard: dict[str, Any], used: dict[str, Any] | None = None, name: str = "team-a", **spec: Any
) -> dict[str, Any]:
    status = {"hard": hard, "used": used or {}}
    return {"metadata": {"namespace": "jobs", "name": name}, "spec": {"hard": hard, **spec}, "status": status}


def with_quota(*quotas: dict[str, Any]) -> Quotas:
    made = Quotas()
    for one in quotas:
        made.put(one)
    return made


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str | None]] = {
    "pods": (
        {"pods": "10"},
        {"pods": "8"},
        "quota team-a in namespace jobs: 2 pods of 10 are left, the run needs 9",
    ),
    "pods by count": ({"count/pods": 10}, {"count/pods": 1}, None),
    "cores": (
        {"requests.cpu": "20"},
        {"requests.cpu": "2500m"},
        "quota team-a in namespace jobs: 17.5 of 20 requests.cpu are left, the run needs 18",
    ),
    "cores by their short name": (
        {"cpu": "17"},
        {},
        "quota team-a in namespace jobs: 17 of 17 cpu are left, the run needs 18",
    ),
    "memory, to the byte": (
        {"requests.memory": "36Gi"},
        {"requests.memory": "1"},
        "quota team-a in namespace jobs: 38654705663 of 36Gi requests.memory are left, the run needs 38654705664",
    ),
    "devices": (
        {"requests.nvidia.com/gpu": "8"},
        {"requests.nvidia.com/gpu": "12"},
        "quota team-a in namespace jobs: 0 of 8 requests.nvidia.com/gpu are left, the run needs 8",
    ),
    "limits": (
        {"limits.memory": "40Gi"},
        {},
        "quota team-a in namespace jobs: 40Gi of 40Gi limits.memory are left, the run needs 72Gi",
    ),
    "what is not of pods": ({"count/jobs.batch": "0", "requests.storage": "0", "services": "0"}, {}, None),
    "what the run does not ask for": ({"requests.ephemeral-storage": "0"}, {}, None),
}


@pytest.mark.parametrize(("hard", "used", "expected"), CASES.values(), ids=CASES.keys())
def test_the_first_line_with_too_little_is_told(
    hard: dict[str, Any], used: dict[str, Any], expected: str | None
) -> None:
    requests = {"cpu": 18_000, "memory": 36 * GIB, "nvidia.com/gpu": 8}
    assert with_quota(quota(hard, used)).shortfall("jobs", requests, 9, {"memory": 72 * GIB}) == expected


SCOPES: dict[str, tuple[dict[str, Any], PodTraits, bool]] = {
    "terminating, and the pods have a deadline": ({"scopes": ["Terminating"]}, PodTraits(terminating=True), True),
    "terminating, and the pods have none": ({"scopes": ["Terminating"]}, PodTraits(), False),
    "not terminating": ({"scopes": ["NotTerminating"]}, PodTraits(), True),
    "best effort": ({"scopes": ["BestEffort"]}, PodTraits(), False),
    "both must hold": ({"scopes": ["NotTerminating", "NotBestEffort"]}, PodTraits(best_effort=True), False),
    "another's scope": ({"scopes": ["CrossNamespacePodAffinity"]}, PodTraits(), False),
}
CLASSES: dict[str, tuple[str, list[str], bool]] = {
    "its class": ("In", ["high", "low"], True),
    "another class": ("In", ["high"], False),
    "all but another class": ("NotIn", ["high"], True),
    "any class": ("Exists", [], True),
    "no class": ("DoesNotExist", [], False),
}


@pytest.mark.parametrize(("spec", "traits", "counts"), SCOPES.values(), ids=SCOPES.keys())
def test_scopes_say_for_which_pods_a_quota_is(spec: dict[str, Any], traits: PodTraits, counts: bool) -> None:
    shortfall = with_quota(quota({"pods": "0"}, **spec)).shortfall("jobs", {}, 1, traits=traits)
    assert (shortfall is not None) == counts


@pytest.mark.parametrize(("operator", "values", "counts"), CLASSES.values(), ids=CLASSES.keys())
def test_scopes_may_select_priority_classes(operator: str, values: list[str], counts: bool) -> None:
    selector = {"matchExpressions": [{"scopeName": "PriorityClass", "operator": operator, "values": values}]}
    made = with_quota(quota({"pods": "0"}, scopeSelector=selector))
    assert (made.shortfall("jobs", {}, 1, traits=PodTraits(priority_class="low")) is not None) == counts


def test_all_quotas_of_the_namespace_bind_and_those_of_others_do_not() -> None:
    made = with_quota(quota({"pods": "5"}), quota({"pods": "1"}, name="team-b"))
    assert made.shortfall("jobs", {}, 3) == "quota team-b in namespace jobs: 1 pod of 1 is left, the run needs 3"
    assert made.shortfall("elsewhere", {}, 3) is None
    made.relisted(["jobs/team-a"])
    assert made.shortfall("jobs", {}, 3) is None


def test_a_new_quota_binds_before_its_status_is_there() -> None:
    made = with_quota(quota({"pods": "1"}) | {"status": {}})
    assert made.shortfall("jobs", {}, 2) is not None
    made.drop("jobs/team-a")
    assert made.shortfall("jobs", {}, 2) is None
