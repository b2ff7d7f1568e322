"""Volumes, secrets, shared memory and files of a template: what is valid, what is allowed, and what pods get of them."""

from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.test_kubernetes_manifests import RUN, made, role
from trainmaster.cluster_model.capabilities import Capability
from trainmaster.protocol.admission import check_role
from trainmaster.protocol.admission_policy import AdmissionPolicy
from trainmaster.protocol.jobs import JobSpec, Role
from trainmaster_agent.kube.paths import CONFIG_MAPS
from trainmaster_dispatcher.domain.shapes import shape_of

MEMORY = {"cpu": "1", "memory": "4Gi"}


def of_template(**template: Any) -> Role:
    return Role.model_validate(role(template=template))


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ({"volumes": [{"path": "/data"}]}, "exactly one of claim, secret, configMap and scratch"),
        ({"volumes": [{"path": "/data", "claim": "a", "secret": "b"}]}, "exactly one of"),
        ({"volumes": [{"path": "data", "claim": "a"}]}, "begins with '/'"),
        ({"volumes": [{"path": "/", "claim": "a"}]}, "at least 2 characters"),
        ({"volumes": [{"path": "/a/../b", "claim": "a"}]}, "'..' as a part"),
        ({"volumes": [{"path": "/a:b", "claim": "a"}]}, "':'"),
        ({"volumes": [{"path": "/a", "claim": "A_b"}]}, "should match pattern"),
        ({"volumes": [{"path": "/a", "claim": "a", "subPath": "/b"}]}, "does not begin with '/'"),
        ({"volumes": [{"path": "/a", "claim": "a"}], "files": {"/a": "x"}}, "have the path /a"),
        ({"files": {"/dev/shm": "x"}, "sharedMemory": "1Gi", "resources": MEMORY}, "have the path /dev/shm"),
        ({"files": {"etc/x": "x"}}, "begins with '/'"),
        ({"files": {"/etc/x/": "x"}}, "ends with '/'"),
        ({"files": {"/etc/trainmaster/roster": "x"}}, "list of members"),
        ({"volumes": [{"path": "/a", "claim": "a", "readOnly": True}], "files": {"/a/b": "x"}}, "which is readOnly"),
        ({"volumes": [{"path": "/a", "scratch": "0"}]}, "above 0"),
        ({"sharedMemory": "0", "resources": MEMORY}, "above 0"),
        ({"files": {"/a": "x" * 200_000, "/b": "y" * 100_000}}, "262144 bytes together"),
        ({"sharedMemory": "1Gi"}, "sharedMemory is part of the member's memory"),
        ({"sharedMemory": "5Gi", "resources": MEMORY}, "sharedMemory is part of the member's memory"),
        ({"volumes": [{"path": "/a", "scratch": "1Gi"}]}, "at least as much ephemeral-storage"),
        ({"secretEnv": {"A": {"secret": "b", "key": "c"}}, "env": {"A": "x"}}, "secretEnv has A"),
        ({"secretEnv": {"TRAINMASTER_X": {"secret": "b", "key": "c"}}}, "the agent sets"),
    ],
)
def test_what_cannot_be_is_refused(template: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        of_template(**template)
    assert words in str(caught.value)


EVERYTHING: dict[str, Any] = {
    "resources": MEMORY | {"ephemeral-storage": "20Gi"},
    "volumes": [
        {"path": "/data", "claim": "team-data", "readOnly": True},
        {"path": "/keys", "secret": "keys"},
        {"path": "/conf", "configMap": "conf", "subPath": "a.yaml"},
        {"path": "/cache", "scratch": "20Gi"},
    ],
    "secretEnv": {"API_KEY": {"secret": "wandb", "key": "api-key"}},
    "sharedMemory": "2Gi",
    "files": {"/etc/train/config.yaml": "epochs: 3", "/etc/other": "text"},
}


def test_a_pod_gets_them() -> None:
    spec = made(role(template=EVERYTHING)).pod("worker", 0)["spec"]
    (container,) = spec["containers"]
    sources = {one["name"]: {key: value for key, value in one.items() if key != "name"} for one in spec["volumes"]}
    mounts = {
        one["mountPath"]: (sources[one["name"]], one.get("subPath"), one.get("readOnly", False))
        for one in container["volumeMounts"]
    }
    files = {"configMap": {"name": f"{RUN}-worker-files"}}
    assert mounts == {
        "/data": ({"persistentVolumeClaim": {"claimName": "team-data"}}, None, True),
        "/keys": ({"secret": {"secretName": "keys"}}, None, False),
        "/conf": ({"configMap": {"name": "conf"}}, "a.yaml", False),
        "/cache": ({"emptyDir": {"sizeLimit": "20Gi"}}, None, False),
        "/dev/shm": ({"emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}, None, False),
        "/etc/train/config.yaml": (files, "file-0", True),
        "/etc/other": (files, "file-1", True),
    }
    assert {"name": "API_KEY", "valueFrom": {"secretKeyRef": {"name": "wandb", "key": "api-key"}}} in container["env"]


def test_the_files_of_a_role_are_created_before_its_pods() -> None:
    found = made(role(template=EVERYTHING), role("other")).objects()
    maps = {one.body["metadata"]["name"]: one.body["data"] for one in found if one.resource == CONFIG_MAPS}
    assert maps[f"{RUN}-worker-files"] == {"file-0": "epochs: 3", "file-1": "text"}
    assert f"{RUN}-other-files" not in maps


def test_without_them_a_pod_has_no_volumes() -> None:
    assert "volumes" not in made(role()).pod("worker", 0)["spec"]


def refused(template: dict[str, Any], **policy: Any) -> list[str]:
    return [one.path for one in check_role(of_template(**template), AdmissionPolicy.model_validate(policy))]


def test_nothing_that_is_named_is_allowed_by_default() -> None:
    assert refused(EVERYTHING) == [
        "template.volumes[0].claim",
        "template.volumes[1].secret",
        "template.volumes[2].configMap",
        "template.secretEnv.API_KEY.secret",
    ]


def test_what_the_policy_names_is_allowed() -> None:
    allowed = {"claims": ["team-*"], "secrets": ["keys", "wandb"], "configMaps": ["conf"]}
    assert refused(EVERYTHING, **allowed) == []
    assert refused(EVERYTHING, **allowed | {"volumeTypes": ["secret", "configMap", "emptyDir"]}) == [
        "template.volumes[0]"
    ]
    assert refused(EVERYTHING, **allowed | {"volumeTypes": ["persistentVolumeClaim", "secret"]}) == [
        "template.volumes[2]",
        "template.volumes[3]",
        "template.sharedMemory",
        "template.files",
    ]


@pytest.mark.parametrize("name", [f"{RUN}-roster", f"{RUN}-worker-files", f"{RUN}-a-b-files"])
def test_the_files_of_another_run_are_never_allowed(name: str) -> None:
    template = {"volumes": [{"path": "/x", "configMap": name}]}
    assert refused(template, configMaps=["*"]) == ["template.volumes[0].configMap"]


def test_jobs_with_them_go_to_clusters_that_offer_them() -> None:
    for template in (
        {"sharedMemory": "1Gi", "resources": MEMORY},
        {"files": {"/a": "x"}},
        {"volumes": [{"path": "/a", "claim": "b"}]},
        {"secretEnv": {"A": {"secret": "b", "key": "c"}}},
    ):
        spec = JobSpec.model_validate({"name": "a", "queue": "b", "roles": [role(template=template)]})
        assert Capability.MOUNTS in shape_of(spec)["capabilities"]
    plain = JobSpec.model_validate({"name": "a", "queue": "b", "roles": [role()]})
    assert Capability.MOUNTS not in shape_of(plain).get("capabilities", [])
