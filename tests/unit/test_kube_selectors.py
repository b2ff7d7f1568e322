"""Selectors, objects and tables of the Kubernetes API."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.states import HoldCause, JobState
from trainmaster_dispatcher.api.kube import discovery, objects, schemas, tables
from trainmaster_dispatcher.api.kube.resources import RESOURCES
from trainmaster_dispatcher.api.kube.selectors import parse_fields, parse_labels
from trainmaster_dispatcher.api.kube.status import status_of
from trainmaster_dispatcher.domain.namespaces import namespace_of
from trainmaster_dispatcher.services.job_objects import ReadJob
from trainmaster_dispatcher.store.job_objects import ObjectRow

LABELS = {"team": "a", "tier": "front", "x.io/y": ""}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("", True),
        ("team=a", True),
        ("team==a,tier=front", True),
        ("team=b", False),
        ("team!=b", True),
        ("other!=b", True),
        ("team in (b, a)", True),
        ("team in (b,c),tier=front", False),
        ("team notin (b,c)", True),
        ("other notin (b)", True),
        ("team notin (a)", False),
        ("team", True),
        ("!team", False),
        ("!other", True),
        ("x.io/y=", True),
        ("x.io/y in ()", True),
        ("team==", False),
    ],
)
def test_label_selectors_hold_as_in_kubernetes(text: str, holds: bool) -> None:
    assert all(one.holds(LABELS) for one in parse_labels(text)) is holds


@pytest.mark.parametrize("text", ["=a", "!!", "team in a", "team in (a", "a b", "team=a b", "-a=b", "x" * 5000])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ProblemError) as refused:
        parse_labels(text)
    assert (refused.value.code, refused.value.mistakes[0].path) == (Code.INVALID_PARAMETER, "labelSelector")


@given(st.text(max_size=40))
def test_a_selector_is_parsed_or_refused(text: str) -> None:
    for parse in (parse_labels, lambda one: parse_fields(one, ("metadata.name",), "jobs")):
        with suppress(ProblemError):
            parse(text)


def test_field_selectors_name_what_they_know() -> None:
    found = parse_fields("metadata.name=a,metadata.namespace!=b", ("metadata.name", "metadata.namespace"), "jobs")
    assert [(one.holds("a"), one.holds("b")) for one in found] == [(True, False), (True, False)]
    with pytest.raises(ProblemError, match=r"not selected by 'spec.x', but by: metadata.name"):
        parse_fields("spec.x=1", ("metadata.name",), "jobs")


def test_names_of_queues_are_told_apart_and_namespaces_may_be_shared() -> None:
    queues = ["a/b", "a-b", "c"]
    assert len({objects.object_name(one) for one in queues}) == 3
    assert [namespace_of(one) for one in queues] == ["a-b", "a-b", "c"]


def line(state: JobState, **more: Any) -> dict[str, Any]:
    fields = {"state": state, "shownState": more.get("wish") or state, "submittedAt": "2026-11-28T06:00:00.123Z"}
    return {"id": "j-1", "name": "j", "queue": "a/b", "priority": 0, "priorityClass": "normal", **fields, **more}


def read_job(spec: dict[str, Any] | None = None, state: JobState = JobState.QUEUED, **more: Any) -> ReadJob:
    return ReadJob(1, line(state, **more), ObjectRow(1, 7, None, None, None, None, None), 1, spec)


@pytest.mark.parametrize(
    ("state", "more", "conditions"),
    [
        (JobState.QUEUED, {}, [("Queued", "Queued", "2026-11-28T06:00:00Z")]),
        (JobState.HELD, {"holdCause": HoldCause.BACK_OFF}, [("Queued", "BackOff", "2026-11-28T06:00:00Z")]),
        (
            JobState.HELD,
            {"holdCause": HoldCause.SUSPENDED},
            [("Queued", "Suspended", "2026-11-28T06:00:00Z"), ("Suspended", "Suspended", "2026-11-28T06:00:00Z")],
        ),
        (
            JobState.RUNNING,
            {"startedAt": "2026-11-28T06:01:00.000Z", "runningSince": "2026-11-28T07:00:00.000Z", "wish": "cancelling"},
            [("Running", "Cancelling", "2026-11-28T07:00:00Z")],
        ),
        (
            JobState.SUCCEEDED,
            {"endedAt": "2026-11-28T08:00:00.9Z"},
            [("Complete", "Succeeded", "2026-11-28T08:00:00Z")],
        ),
        (JobState.CANCELLED, {"endedAt": "2026-11-28T08:00:00.9Z"}, [("Failed", "Cancelled", "2026-11-28T08:00:00Z")]),
    ],
)
def test_conditions_follow_the_state(state: JobState, more: dict[str, Any], conditions: list[Any]) -> None:
    found = objects.conditions_of(read_job(None, state, **more))
    assert [(one["type"], one["reason"], one["lastTransitionTime"]) for one in found] == conditions
    assert all(one["status"] == "True" for one in found)


def test_every_state_has_a_condition_and_an_object() -> None:
    for state in JobState:
        made = objects.job_object(read_job({"kind": "Job", "name": "j", "queue": "a/b", "roles": []}, state))
        assert made["status"]["conditions"]
        assert made["metadata"]["namespace"] == "a-b"
        assert made["spec"] == {"queue": "a/b", "roles": []}


def test_tables_have_a_cell_for_each_column() -> None:
    job = RESOURCES["jobs"]
    items = [objects.job_object(read_job(None, state, message="")) for state in JobState]
    table = tables.table_of(job.columns, items, tables.Included.METADATA, objects.ListMetadata(7, "next"))
    assert {len(row["cells"]) for row in table["rows"]} == {len(table["columnDefinitions"])}
    assert table["metadata"]["continue"] == "next"
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    assert (
        tables.table_of(job.columns, items, tables.Included.NONE, objects.ListMetadata())["rows"][0]["object"] is None
    )


def test_ages_have_two_units() -> None:
    now = datetime(2026, 11, 28, 8, tzinfo=UTC)
    written = (now - timedelta(days=2, hours=3, minutes=4)).isoformat()
    assert tables.age(written, now) == "2d3h"
    assert tables.age(None, now) == "<unknown>"


def test_discovery_says_the_same_in_both_forms() -> None:
    groups = discovery.aggregated_groups()["items"]
    names_of_groups = [one["name"] for one in discovery.groups()["groups"]]
    assert [one["metadata"]["name"] for one in groups] == names_of_groups
    assert names_of_groups[0] == objects.GROUP, "a name of several groups is that of the first one"
    for group in groups:
        name = group["metadata"]["name"]
        listed_versions = [one["version"] for one in discovery.group(name)["versions"]]
        assert [one["version"] for one in group["versions"]] == listed_versions
        for version in group["versions"]:
            found = discovery.resources(f"{name}/{version['version']}", discovery.GROUPS[name][version["version"]])
            plain = {one["name"]: one for one in found["resources"]}
            subresources = {
                f"{one['resource']}/{sub['subresource']}": sub
                for one in version["resources"]
                for sub in one.get("subresources", ())
            }
            for path, sub in subresources.items():
                listed = plain.pop(path)
                assert sub["responseKind"] == {field: listed[field] for field in ("group", "version", "kind")}
                assert sub["verbs"] == listed["verbs"]
            assert {one["resource"] for one in version["resources"]} == plain.keys()
            for one in version["resources"]:
                listed = plain[one["resource"]]
                kind = {"group": name, "version": version["version"], "kind": listed["kind"]}
                assert one["responseKind"] == kind
                assert (one["scope"] == "Namespaced") is listed["namespaced"]
                assert (one["verbs"], one["shortNames"]) == (listed["verbs"], listed["shortNames"])
            names = [name for one in plain.values() for name in (one["name"], one["singularName"], *one["shortNames"])]
            assert len(names) == len(set(names))


def test_each_kind_has_a_schema_and_every_reference_leads_somewhere() -> None:
    document = schemas.document(objects.GROUP, objects.VERSION)
    found = document["components"]["schemas"]
    kinds = {gvk["kind"] for one in found.values() for gvk in one.get("x-kubernetes-group-version-kind", ())}
    assert kinds == {one.kind for one in RESOURCES.values()}

    def references(value: Any) -> set[str]:
        if isinstance(value, list):
            return set().union(*map(references, value))
        if not isinstance(value, dict):
            return set()
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set[str]()
        return own.union(*map(references, value.values()))

    assert {one.removeprefix("#/components/schemas/") for one in references(document)} <= found.keys()
    roles = found["dev.trainmaster.v1.Job"]["properties"]["spec"]["properties"]
    assert "description" in roles["queue"]


def test_errors_are_status_objects() -> None:
    made = status_of(ProblemError(Code.NOT_FOUND, "no such thing"))
    assert (made["kind"], made["code"], made["reason"], made["message"]) == ("Status", 404, "NotFound", "no such thing")
    for code in Code:
        assert status_of(ProblemError(code, "x"))["reason"]
