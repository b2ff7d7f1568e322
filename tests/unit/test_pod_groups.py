"""Groups of pods: what a pod says of its group, and the job that its pods are together."""

from typing import Any

import pytest

from trainmaster.protocol.jobs import JobSpec
from trainmaster.workload_kinds.pod_groups import (
    GROUP_LABEL,
    GroupError,
    PodGroup,
    group_of,
    job_of,
    without_group,
)

TOTAL = "kueue.x-k8s.io/pod-group-total-count"
RING = PodGroup("ring", 3)


def alone(image: str = "i", **fields: Any) -> dict[str, Any]:
    container = {"name": "main", "image": image, "resources": {"requests": {"cpu": "1"}}}
    role = {"name": "pod", "replicas": 1, "podTemplate": {"spec": {"containers": [container]}}}
    return {"kind": "Job", "name": "a", "queue": "default", "roles": [role], "workload": {}, **fields}


def test_a_pod_without_the_label_is_one_by_itself() -> None:
    assert group_of({}, {TOTAL: "3"}) is None
    assert group_of({GROUP_LABEL: "ring"}, {TOTAL: "3"}) == RING
    assert without_group({GROUP_LABEL: "ring", "app": "x"}) == {"app": "x"}


@pytest.mark.parametrize("total", ["", "0", "-1", "three", "1.5", "10001", "٣"])
def test_a_count_is_a_number_of_pods(total: str) -> None:
    with pytest.raises(GroupError) as error:
        group_of({GROUP_LABEL: "ring"}, {TOTAL: total})
    assert error.value.mistake.path == f'metadata.annotations["{TOTAL}"]'


def test_equal_pods_are_a_role_whose_name_is_what_theirs_have_in_common() -> None:
    pods = {
        "ring-worker-10": alone(stopGrace="90s", labels={"app": "x", "rank": "10"}),
        "ring-worker-2": alone(stopGrace="2m", labels={"app": "x", "rank": "2"}),
        "boss": alone("lead", labels={"app": "x"}),
    }
    spec, members = job_of(RING, pods)
    assert [(role["name"], role["replicas"]) for role in spec["roles"]] == [("boss", 1), ("ring-worker", 2)]
    assert members == {"boss": ("boss", 0), "ring-worker-2": ("ring-worker", 0), "ring-worker-10": ("ring-worker", 1)}
    assert (spec["name"], spec["stopGrace"], spec["labels"]) == ("ring", "2m", {"app": "x", GROUP_LABEL: "ring"})
    assert JobSpec.model_validate(spec).workload is None


def test_pods_with_nothing_in_common_but_their_specification_have_the_name_of_the_group() -> None:
    spec, _ = job_of(RING, {"a": alone(), "b": alone(), "b-2": alone("other")})
    assert [role["name"] for role in spec["roles"]] == ["ring", "b-2"]


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        ("timeLimit", "60s", "spec.activeDeadlineSeconds"),
        ("priorityClass", "high", "metadata.labels"),
        ("queue", "other", "spec"),
    ],
)
def test_what_is_of_the_whole_job_is_the_same_for_all_pods(field: str, value: str, path: str) -> None:
    with pytest.raises(GroupError) as error:
        job_of(RING, {"a": alone(), "b": alone(**{field: value})})
    assert error.value.mistake.path == path
