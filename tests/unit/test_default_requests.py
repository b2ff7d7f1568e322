"""What members are given that request nothing."""

from typing import Any

import orjson
import pytest

from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.pod_requests import pod_requests
from trainmaster_dispatcher.domain.default_requests import read_requests, with_requests
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.services.submission_parsing import Most, prepare

DEFAULTS = {"cpu": "100m", "memory": "64Mi"}
FLOOR = {"cpu": 100, "memory": 64 << 20}
GPU = "nvidia.com/gpu"


def spec_of(**role: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "j", "queue": "q", "roles": [{"name": "main", **role}]})


@pytest.mark.parametrize(
    ("resources", "given"),
    [
        ({}, DEFAULTS),
        ({"cpu": "0"}, DEFAULTS),
        ({"cpu": "0.0", "memory": "0Mi"}, DEFAULTS),
        ({"cpu": "0.5"}, {"cpu": "0.5", "memory": "64Mi"}),
        ({GPU: "1", "memory": "1Gi"}, {GPU: "1", "memory": "1Gi", "cpu": "100m"}),
        ({"cpu": "1m", "memory": "1"}, {"cpu": "1m", "memory": "1"}),
    ],
)
def test_a_template_requests_what_it_lacks(resources: dict[str, str], given: dict[str, str]) -> None:
    template = with_requests(spec_of(template={"resources": resources}), DEFAULTS).roles[0].template
    assert template is not None
    assert template.resources == given


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    named = [{"name": f"c{number}", "image": "i", **one} for number, one in enumerate(containers)]
    return {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": named, **spec}}


@pytest.mark.parametrize(
    ("template", "amounts", "first"),
    [
        (pod({}, {}), FLOOR, {"requests": DEFAULTS}),
        (pod({}, {"resources": {"requests": {"cpu": "2"}}}), FLOOR | {"cpu": 2000}, {"requests": {"memory": "64Mi"}}),
        (
            pod({"resources": {"limits": {"cpu": "50m"}, "requests": {"cpu": "0"}}}),
            FLOOR | {"cpu": 50},
            {"limits": {"cpu": "50m"}, "requests": {"cpu": "50m", "memory": "64Mi"}},
        ),
        (
            pod({"resources": {"limits": {"cpu": "0", GPU: "1"}}}),
            FLOOR | {GPU: 1},
            {"limits": {GPU: "1"}, "requests": DEFAULTS},
        ),
        (pod({"resources": {"requests": {"cpu": 0, "memory": 0}}}), FLOOR, {"requests": DEFAULTS}),
    ],
)
def test_a_pod_requests_what_it_lacks(template: dict[str, Any], amounts: dict[str, int], first: dict[str, Any]) -> None:
    before = orjson.dumps(template)
    done = with_requests(spec_of(podTemplate=template), DEFAULTS).roles[0].pod_template
    assert done is not None
    assert pod_requests(done) == amounts
    assert done["spec"]["containers"][0]["resources"] == first
    assert (done["metadata"], orjson.dumps(template)) == (template["metadata"], before)


def test_what_requests_enough_is_left_alone() -> None:
    whole = pod({"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}})
    for spec in (spec_of(podTemplate=whole), spec_of(template={"resources": {"cpu": "1", "memory": "1"}})):
        assert with_requests(spec, DEFAULTS) is spec
    nothing = spec_of(template={})
    assert with_requests(nothing, {}) is nothing


def test_a_submission_is_stored_and_shaped_with_it() -> None:
    body = orjson.dumps({"name": "j", "queue": "q", "roles": [{"name": "main", "template": {"command": ["true"]}}]})
    prepared = prepare(body, Most(default_requests=DEFAULTS))
    assert orjson.loads(prepared.specs[0].spec)["roles"][0]["template"]["resources"] == DEFAULTS
    assert orjson.loads(prepared.shapes[prepared.specs[0].shape_hash])["roles"][0]["needs"] == FLOOR


def test_how_the_setting_is_read() -> None:
    assert read_requests(" cpu=1, memory=1Gi,") == {"cpu": "1", "memory": "1Gi"}
    assert read_requests("") == {}
    assert read_requests(Settings.model_validate({"database_url": "postgresql://x/y"}).default_requests) == DEFAULTS
    for wrong in ("cpu", "cpu=0", "cpu=1,cpu=2", "disk=1", "cpu=x"):
        with pytest.raises(ValueError, match=r"is not cpu=QUANTITY|must be above 0|is not a Kubernetes quantity"):
            read_requests(wrong)


@pytest.mark.parametrize(
    ("template", "limits"),
    [
        (pod({}), {"memory": "1Gi"}),
        (pod({"resources": {"limits": {"cpu": "1"}}}, {}), {"cpu": "1", "memory": "1Gi"}),
        (pod({"resources": {"limits": {"memory": 0}}}), {"memory": "1Gi"}),
        (pod({"resources": {"limits": {"memory": "32Mi"}}}), {"memory": "32Mi"}),
        (pod({"resources": {"requests": {"memory": "128Mi"}}}), None),
        (pod({}, resources={"limits": {"memory": "4Gi"}}), None),
    ],
)
def test_a_container_that_names_no_memory_has_the_default_limit(
    template: dict[str, Any], limits: dict[str, str] | None
) -> None:
    made = with_requests(spec_of(podTemplate=template), DEFAULTS, "1Gi").roles[0].pod_template
    assert made is not None
    assert made["spec"]["containers"][0].get("resources", {}).get("limits") == limits


def test_the_default_limit_is_not_below_the_request() -> None:
    made = with_requests(spec_of(podTemplate=pod({})), {"memory": "2Gi"}, "1Gi").roles[0].pod_template
    assert made is not None
    assert made["spec"]["containers"][0]["resources"] == {"requests": {"memory": "2Gi"}, "limits": {"memory": "2Gi"}}


@pytest.mark.parametrize("text", ["0", "-1", "much"])
def test_the_default_limit_is_memory(text: str) -> None:
    with pytest.raises(ValueError, match="default_memory_limit"):
        Settings(default_memory_limit=text)
