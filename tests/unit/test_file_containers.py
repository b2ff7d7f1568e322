"""Containers that fetch and store files of members: what a pod gets, and what of the member stays as it is."""

from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.test_kubernetes_manifests import made, role
from trainmaster.protocol.jobs import JobSpec
from trainmaster_agent.runtime.kubernetes.config import FilesConfig, KubernetesCluster

CONFIG = FilesConfig(image="registry.example.com/agent:1", upload_time="5m")
INPUT = {"files": f"sha256:{'a' * 64}"}
OUTPUT = {"name": "model", "path": "out"}


def containers(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in pod["spec"].get("initContainers", ())}


class TestInputs:
    def test_an_init_container_fetches_them_to_the_members_working_directory(self) -> None:
        pod = made(role(), files=CONFIG, inputs=[INPUT]).pod("worker", 0)
        fetch = containers(pod)["fetch-files"]
        assert fetch["image"] == CONFIG.image
        assert fetch["command"][-3:] == ["fetch", "--folder", "/work"]
        assert {one["name"]: one["value"] for one in fetch["env"]} == {
            "TM_FILES_URL": "http://agent:8471/v1/files/RUN",
            "TM_FILES_TOKEN": "secret",
        }
        main = pod["spec"]["containers"][0]
        assert main["workingDir"] == "/work"
        (volume,) = [one["name"] for one in main["volumeMounts"] if one["mountPath"] == "/work"]
        assert {"name": volume, "mountPath": "/work"} in fetch["volumeMounts"]
        assert {"name": volume, "emptyDir": {}} in pod["spec"]["volumes"]

    def test_every_member_gets_them_and_none_gets_the_token(self) -> None:
        manifests = made(role(replicas=2), files=CONFIG, inputs=[INPUT])
        for index in range(2):
            pod = manifests.pod("worker", index)
            assert "fetch-files" in containers(pod)
            assert "secret" not in str(pod["spec"]["containers"])

    def test_the_folder_is_at_the_working_directory_of_the_template(self) -> None:
        pod = made(role(template={"workingDir": "/src"}), files=CONFIG, inputs=[INPUT]).pod("worker", 0)
        assert containers(pod)["fetch-files"]["command"][-1] == "/src"
        assert pod["spec"]["containers"][0]["workingDir"] == "/src"

    def test_the_pod_needs_no_more_than_the_member(self) -> None:
        resources = {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "1"}
        pod = made(role(template={"resources": resources}), files=CONFIG, inputs=[INPUT]).pod("worker", 0)
        amounts = {"cpu": "2", "memory": "1Gi"}
        assert containers(pod)["fetch-files"]["resources"] == {"requests": amounts, "limits": amounts}


class TestOutputs:
    def test_a_sidecar_of_the_first_member_stores_them_once_the_member_has_ended(self) -> None:
        manifests = made(role(replicas=2), files=CONFIG, outputs=[OUTPUT])
        pod = manifests.pod("worker", 0)
        store = containers(pod)["store-files"]
        assert store["restartPolicy"] == "Always"
        assert store["command"][-3:] == ["store", "--folder", "/work"]
        assert pod["spec"]["terminationGracePeriodSeconds"] == 300
        other = manifests.pod("worker", 1)
        assert "store-files" not in containers(other)
        assert other["spec"]["terminationGracePeriodSeconds"] == 10

    def test_it_requests_nothing_and_a_longer_grace_of_the_job_stays(self) -> None:
        pod = made(role(), files=CONFIG, outputs=[OUTPUT], stopGrace="8m").pod("worker", 0)
        assert "resources" not in containers(pod)["store-files"]
        assert pod["spec"]["terminationGracePeriodSeconds"] == 480

    def test_inputs_are_fetched_before_it_starts(self) -> None:
        pod = made(role(), files=CONFIG, inputs=[INPUT], outputs=[OUTPUT]).pod("worker", 0)
        assert list(containers(pod)) == ["fetch-files", "store-files"]


def test_the_containers_pass_the_restricted_profile() -> None:
    pod = made(role(), files=CONFIG, inputs=[INPUT], outputs=[OUTPUT], run_as_user=65532).pod("worker", 0)
    assert pod["spec"]["securityContext"].items() >= {"runAsNonRoot": True, "runAsUser": 65532}.items()
    for container in containers(pod).values():
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert context["readOnlyRootFilesystem"] is True


def test_a_job_without_files_has_none_of_it() -> None:
    assert made(role()).pod("worker", 0)["spec"].get("initContainers") is None
    assert "workingDir" not in made(role()).pod("worker", 0)["spec"]["containers"][0]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"roles": [{"name": "a", "replicas": 1, "podTemplate": {"spec": {"containers": []}}}]},
            "need roles with a template",
        ),
        ({"topology": {"numa": "singleNode"}, "outputs": [OUTPUT]}, "cannot be combined with topology.numa"),
        ({"roles": [role(template={"workingDir": "src"})]}, "workingDir of role 'worker' is an absolute path"),
        ({"roles": [role(template={"workingDir": "/"})]}, "workingDir of role 'worker' is an absolute path"),
    ],
)
def test_what_files_cannot_be_combined_with(fields: dict[str, Any], words: str) -> None:
    spec = {"name": "bert", "queue": "default", "roles": [role()], "inputs": [INPUT], **fields}
    with pytest.raises(ValidationError, match=words):
        JobSpec.model_validate(spec)


def test_the_agent_needs_its_server_for_files() -> None:
    with pytest.raises(ValidationError, match="files needs arrays"):
        KubernetesCluster.model_validate({"cluster": "north", "files": {"image": "agent:1"}})
    with pytest.raises(ValidationError, match="uploads take 10s to 1d"):
        FilesConfig.model_validate({"image": "agent:1", "uploadTime": "1s"})
