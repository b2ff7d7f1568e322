"""What a specification gains when its job goes by a burst policy: a time limit, and nodes that its members are kept to."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.jobs import AffinityTerm, JobSpec
from trainmaster_dispatcher.domain.burst_binding import bound_spec

SPOT = ("trainmaster.dev/spot", "In", ("true",))
SPOT_TERM = {"key": "trainmaster.dev/spot", "operator": "In", "values": ["true"]}
NEVER = (("cloud/lifecycle", "NotIn", ("preemptible", "spot")), ("trainmaster.dev/spot", "NotIn", ("true",)))
NEVER_TERMS = [
    {"key": "cloud/lifecycle", "operator": "NotIn", "values": ["preemptible", "spot"]},
    {"key": "trainmaster.dev/spot", "operator": "NotIn", "values": ["true"]},
]
ZONE = {"key": "zone", "operator": "In", "values": ["a", "b"]}
FAST = {"key": "speed", "operator": "Gt", "values": ["3"]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def templated(*affinity: dict[str, Any], name: str = "main", **fields: Any) -> dict[str, Any]:
    """Return a role with a template."""
    template = {
        "command": ["true"],
        "resources": {"cpu": "1"},
        **({"nodeAffinity": list(affinity)} if affinity else {}),
    }
    return {"name": name, "replicas": 2, "template": template | fields}


def whole_pod(name: str = "main", **spec: Any) -> dict[str, Any]:
    """Return a role with a whole pod."""
    body = {"containers": [{"name": "main", "image": "busybox"}], **spec}
    return {"name": name, "podTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": body}}


def node_affinity(*terms: dict[str, Any], **beside: Any) -> dict[str, Any]:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}, **beside}}


def job(*roles: dict[str, Any], **fields: Any) -> dict[str, Any]:
    spec = {"kind": "Job", "name": "bert", "queue": "q", "roles": list(roles or [templated()]), **fields}
    JobSpec.model_validate(spec)
    return spec


def terms_of(role: Mapping[str, Any]) -> Any:
    return role["podTemplate"]["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]


# Time limits


@pytest.mark.parametrize("limit", [3600.0, 0.5, 86399.9996, 1e8])
def test_a_job_without_a_time_limit_gets_one(limit: float) -> None:
    bound = JobSpec.model_validate(bound_spec(job(), limit))
    assert bound.time_limit is not None
    assert parse_duration(bound.time_limit) == pytest.approx(limit, abs=0.0005)


@pytest.mark.parametrize("own", ["5m", "100d", "0s"])
def test_a_job_with_a_time_limit_keeps_it(own: str) -> None:
    assert bound_spec(job(timeLimit=own), 3600.0, [SPOT])["timeLimit"] == own


def test_without_a_binding_only_the_limit_is_new() -> None:
    spec = job(templated(ZONE), labels={"a": "b"}, priority=3)
    assert bound_spec(spec, 60.0) == spec | {"timeLimit": "60.000s"}
    assert bound_spec(spec, 60.0, []) == spec | {"timeLimit": "60.000s"}


# Templates


@pytest.mark.parametrize("affinity", [(), (ZONE,), (ZONE, FAST)], ids=["none", "one term", "several terms"])
def test_a_template_keeps_its_terms_and_gains_those_of_the_binding(affinity: tuple[dict[str, Any], ...]) -> None:
    spec = job(templated(*affinity, nodeSelector={"disk": "ssd"}))
    bound = bound_spec(spec, 60.0, NEVER)
    template = bound["roles"][0]["template"]
    assert template["nodeAffinity"] == [*affinity, *NEVER_TERMS]
    assert {**template, "nodeAffinity": []} == {**spec["roles"][0]["template"], "nodeAffinity": []}


def test_an_empty_template_is_bound_too() -> None:
    bound = bound_spec(job({"name": "main", "template": {}}), 60.0, [SPOT])
    assert bound["roles"] == [{"name": "main", "template": {"nodeAffinity": [SPOT_TERM]}}]


def test_all_roles_are_bound_each_in_its_form() -> None:
    bound = bound_spec(job(templated(name="driver"), templated(ZONE, name="worker"), whole_pod("server")), 60.0, [SPOT])
    driver, worker, server = bound["roles"]
    assert driver["template"]["nodeAffinity"] == [SPOT_TERM]
    assert worker["template"]["nodeAffinity"] == [ZONE, SPOT_TERM]
    assert terms_of(server) == [{"matchExpressions": [SPOT_TERM]}]
    assert (driver["replicas"], worker["name"], server["name"]) == (2, "worker", "server")


# Whole pods

PODS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "none, without any affinity": ({}, [{"matchExpressions": [SPOT_TERM]}]),
    "none, where affinity is left empty": ({"affinity": None}, [{"matchExpressions": [SPOT_TERM]}]),
    "none, where that of nodes is left empty": (
        {"affinity": {"nodeAffinity": None}},
        [{"matchExpressions": [SPOT_TERM]}],
    ),
    "none, where nothing is required": (
        {"affinity": {"nodeAffinity": {REQUIRED: None}}},
        [{"matchExpressions": [SPOT_TERM]}],
    ),
    "one": (
        {"affinity": node_affinity({"matchExpressions": [ZONE]})},
        [{"matchExpressions": [ZONE, SPOT_TERM]}],
    ),
    "one of several expressions": (
        {"affinity": node_affinity({"matchExpressions": [ZONE, FAST]})},
        [{"matchExpressions": [ZONE, FAST, SPOT_TERM]}],
    ),
    "several, of which one has to hold": (
        {"affinity": node_affinity({"matchExpressions": [ZONE]}, {"matchExpressions": [FAST]})},
        [{"matchExpressions": [ZONE, SPOT_TERM]}, {"matchExpressions": [FAST, SPOT_TERM]}],
    ),
    "one by fields": (
        {"affinity": node_affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]})},
        [
            {
                "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}],
                "matchExpressions": [SPOT_TERM],
            }
        ],
    ),
    "one by fields whose expressions are left empty": (
        {"affinity": node_affinity({"matchFields": [FAST], "matchExpressions": None})},
        [{"matchFields": [FAST], "matchExpressions": [SPOT_TERM]}],
    ),
}


@pytest.mark.parametrize("sentence", PODS)
def test_each_term_of_a_whole_pod_gains_those_of_the_binding_where_it_has(sentence: str) -> None:
    spec, expected = PODS[sentence]
    assert terms_of(bound_spec(job(whole_pod(**spec)), 60.0, [SPOT])["roles"][0]) == expected


def test_what_else_a_whole_pod_says_is_kept() -> None:
    wished = [{"weight": 1, "preference": {"matchExpressions": [FAST]}}]
    apart = {REQUIRED: [{"topologyKey": "rack"}]}
    affinity = {**node_affinity({"matchExpressions": [ZONE]}, **{PREFERRED: wished}), "podAntiAffinity": apart}
    spec = job(whole_pod(affinity=affinity, nodeSelector={"disk": "ssd"}, priorityClassName="high"))
    before = spec["roles"][0]["podTemplate"]
    after = bound_spec(spec, 60.0, [SPOT])["roles"][0]["podTemplate"]
    assert after["metadata"] == before["metadata"]
    assert {**after["spec"], "affinity": None} == {**before["spec"], "affinity": None}
    assert after["spec"]["affinity"]["podAntiAffinity"] == apart
    assert after["spec"]["affinity"]["nodeAffinity"][PREFERRED] == wished


def test_a_whole_pod_that_says_nothing_is_bound_too() -> None:
    for pod in ({}, {"spec": None}):
        role = bound_spec(job({"name": "main", "podTemplate": pod}), 60.0, [SPOT])["roles"][0]
        assert terms_of(role) == [{"matchExpressions": [SPOT_TERM]}]


# Whatever is bound

labels = {"zone": ["a", "b", "c"], "speed": ["1", "5", "fast"], "spot": ["true", "no"]}
nodes = st.fixed_dictionaries({}, optional={key: st.sampled_from(values) for key, values in labels.items()})


@st.composite
def terms(draw: st.DrawFn) -> dict[str, Any]:
    key = draw(st.sampled_from(sorted(labels)))
    operator = draw(st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]))
    if operator in ("Exists", "DoesNotExist"):
        return {"key": key, "operator": operator}
    return {"key": key, "operator": operator, "values": draw(st.lists(st.sampled_from(labels[key]), min_size=1))}


bindings = st.lists(
    st.tuples(
        st.sampled_from(sorted(labels)), st.sampled_from(["In", "NotIn"]), st.lists(st.sampled_from(["true", "a", "1"]))
    ).filter(lambda one: bool(one[2])),
    max_size=2,
)
conjunctions = st.lists(terms(), min_size=1, max_size=2)


def hold(found: Sequence[Mapping[str, Any]], node: Mapping[str, str]) -> bool:
    return all(AffinityTerm.model_validate(one).holds(node) for one in found)


def takes(role: Mapping[str, Any], node: Mapping[str, str]) -> bool:
    """Return whether members of the role may be on a node, as Kubernetes reads it."""
    if "template" in role:
        return hold(role["template"].get("nodeAffinity", ()), node)
    affinity = role["podTemplate"]["spec"].get("affinity")
    return affinity is None or any(hold(one["matchExpressions"], node) for one in terms_of(role))


def bound_by(choices: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Return a role with a whole pod whose node has to meet all expressions of one of ``choices``."""
    affinity = node_affinity(*({"matchExpressions": one} for one in choices)) if choices else None
    return whole_pod(affinity=affinity)


roles = st.lists(terms(), max_size=3).map(lambda found: templated(*found)) | st.lists(conjunctions, max_size=3).map(
    bound_by
)


@given(roles, bindings, nodes)
def test_members_may_be_where_they_might_before_and_the_binding_holds(
    role: dict[str, Any], binding: list[tuple[str, str, list[str]]], node: dict[str, str]
) -> None:
    wanted = [{"key": key, "operator": operator, "values": values} for key, operator, values in binding]
    bound = bound_spec(job(role), 60.0, binding)["roles"][0]
    assert takes(bound, node) == (takes(role, node) and hold(wanted, node))


@given(st.lists(roles, min_size=1, max_size=3), bindings, st.none() | st.just("5m"))
def test_what_is_bound_is_a_job_still_and_what_it_was_made_of_stays_as_it_was(
    found: list[dict[str, Any]], binding: list[tuple[str, str, list[str]]], own: str | None
) -> None:
    named = [role | {"name": f"role-{number}"} for number, role in enumerate(found)]
    spec = job(*named, **({} if own is None else {"timeLimit": own}))
    before = deepcopy(spec)
    bound = bound_spec(spec, 60.0, binding)
    assert spec == before
    assert JobSpec.model_validate(bound).members == JobSpec.model_validate(spec).members
    stored = JobSpec.model_validate(spec).to_wire()
    JobSpec.model_validate(bound_spec(stored, 60.0, binding))
