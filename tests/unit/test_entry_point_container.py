"""The container that reads the entry point of a member's image: what a pod gets, and what of it the member's own container sees."""

from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.test_file_containers import CONFIG as FILES
from tests.unit.test_file_containers import INPUT, containers
from tests.unit.test_kubernetes_manifests import made, role
from trainmaster_agent.runtime.kubernetes.config import ImageEntryPoints

PLAIN = ImageEntryPoints(image="registry.example.com/agent:1")
CONFIG = ImageEntryPoints(
    image="registry.example.com/agent:1",
    pull_secrets=("regcred", "other"),
    ca_config_map="authorities",
    registries={"docker.io": "https://mirror.example.com/hub", "registry:5000": "http://registry:5000"},
)


def pod_of(config: ImageEntryPoints | None = CONFIG, *, index: int = 0, **fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = made(role(replicas=2), entry_points=config, run_as_user=65532, **fields).pod(
        "worker", index
    )
    return found


@pytest.mark.parametrize("index", [0, 1])
def test_each_member_gets_a_container_that_reads_its_image(index: int) -> None:
    reads = containers(pod_of(index=index))["read-entry-point"]
    assert reads["image"] == CONFIG.image
    assert reads["command"][:4] == ["python", "-I", "-m", "trainmaster_agent.images.program"]
    assert reads["command"][4:] == [
        *("--image=train:1", "--file", "/run/trainmaster-image/entrypoint.json"),
        *("--folder", "/run/trainmaster-registry"),
        *("--registry", "docker.io=https://mirror.example.com/hub", "--registry", "registry:5000=http://registry:5000"),
    ]


def test_the_members_own_container_gets_the_file_and_nothing_that_opens_registries() -> None:
    pod = pod_of()
    (main,) = pod["spec"]["containers"]
    mounts = {one["name"]: one for one in main["volumeMounts"]}
    assert mounts["trainmaster-image"] == {
        "name": "trainmaster-image",
        "mountPath": "/run/trainmaster-image",
        "readOnly": True,
    }
    assert "trainmaster-registry" not in mounts
    volumes = {one["name"]: one for one in pod["spec"]["volumes"]}
    assert volumes["trainmaster-registry"]["projected"]["sources"] == [
        {"secret": {"name": "regcred", "optional": True, "items": [{"key": ".dockerconfigjson", "path": "00.json"}]}},
        {"secret": {"name": "other", "optional": True, "items": [{"key": ".dockerconfigjson", "path": "01.json"}]}},
        {"configMap": {"name": "authorities", "optional": True, "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    ]
    assert "emptyDir" in volumes["trainmaster-image"]


def test_without_credentials_there_is_no_volume_for_them() -> None:
    pod = pod_of(PLAIN)
    assert "trainmaster-registry" not in {one["name"] for one in pod["spec"]["volumes"]}
    (mount,) = containers(pod)["read-entry-point"]["volumeMounts"]
    assert mount == {"name": "trainmaster-image", "mountPath": "/run/trainmaster-image"}


def test_the_pod_needs_no_more_than_the_member() -> None:
    resources = {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "1"}
    pod = made(role(template={"resources": resources}), entry_points=CONFIG).pod("worker", 0)
    amounts = {"cpu": "2", "memory": "1Gi"}
    assert containers(pod)["read-entry-point"]["resources"] == {"requests": amounts, "limits": amounts}


def test_it_passes_the_restricted_profile() -> None:
    context = containers(pod_of())["read-entry-point"]["securityContext"]
    assert context == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_files_are_fetched_beside_it() -> None:
    pod = pod_of(files=FILES, inputs=[INPUT])
    assert list(containers(pod)) == ["fetch-files", "read-entry-point"]


def test_members_with_a_command_have_none_of_it() -> None:
    spec = pod_of(None)["spec"]
    assert "initContainers" not in spec
    assert "trainmaster-image" not in str(spec)


def test_a_run_that_needs_it_is_refused_by_an_agent_without_it() -> None:
    (mistake,) = made(role(), reads_entry_point=True).mistakes()
    assert mistake.path == "roles.worker.template.command"
    assert mistake.message == "is needed here: the agent reads no entry points of images"
    assert made(role(), entry_points=CONFIG).mistakes() == ()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"image": ""}, "image"),
        ({"pullSecrets": ["UPPER"]}, "pullSecrets"),
        ({"registries": {"docker.io": "mirror.example.com"}}, "registries"),
        ({"registries": {"docker.io": "ftp://mirror.example.com"}}, "registries"),
        ({"registries": {"docker.io/library": "https://mirror.example.com"}}, "registries"),
        ({"registries": {"docker.io": "https://user:word@mirror.example.com"}}, "registries"),
    ],
)
def test_settings_that_mean_nothing_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        ImageEntryPoints.model_validate({"image": "agent:1"} | fields)
