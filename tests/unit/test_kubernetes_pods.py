"""What the agent sees in the statuses that kubelets write, as real ones (1.36, containerd) were seen to write them."""

from typing import Any

import pytest

from trainmaster.protocol.states import FailureCategory
from trainmaster_agent.kube.pods import RESULTS_PATH, PodSight, memory_limit_of, see
from trainmaster_agent.runtime.kubernetes.failure_classification import Failure, Loss, classify, shortened


def status(phase: str, *ended: dict[str, Any], **more: Any) -> dict[str, Any]:
    containers = [{"name": f"c{number}", "state": {"terminated": one}} for number, one in enumerate(ended)]
    return {"phase": phase, "containerStatuses": containers, **more}


def seen(of: dict[str, Any], **metadata: Any) -> PodSight:
    labels = {"trainmaster.dev/run": "a-r1", "trainmaster.dev/role": "worker", "trainmaster.dev/index": "1"}
    pod = {
        "metadata": {"name": "p", "namespace": "jobs", "uid": "u", "labels": labels, **metadata},
        "spec": {"nodeName": "n3", "containers": [{"name": "main"}]},
        "status": of,
    }
    sight = see(pod)
    assert sight is not None
    return sight


CRASHED = {
    "exitCode": 255,
    "reason": "Unknown",
    "startedAt": "2026-11-22T10:00:00Z",
    "finishedAt": "2026-11-22T10:05:00Z",
}
NOT_FOUND = {"exitCode": 137, "reason": "ContainerStatusUnknown", "startedAt": None, "finishedAt": None}
NO_COMMAND = {
    "exitCode": 128,
    "reason": "StartError",
    "message": 'exec: "/opt/none": stat /opt/none: no such file or directory: unknown',
    "startedAt": "1970-01-01T00:00:00Z",
    "finishedAt": "2026-11-22T10:00:00Z",
}
EXITED = {"exitCode": 255, "reason": "Error", "startedAt": "2026-11-22T10:00:00Z", "finishedAt": "2026-11-22T10:05:00Z"}


@pytest.mark.parametrize("ended", [CRASHED, NOT_FOUND], ids=["containerd", "kubelet"])
def test_a_container_whose_end_nobody_saw_has_neither_exit_code_nor_signal_and_went_with_its_node(
    ended: dict[str, Any],
) -> None:
    sight = seen(status("Failed", ended))
    assert (sight.exit_code, sight.signal) == (None, None)
    judged = classify(sight)
    assert isinstance(judged, Loss)
    assert judged.category is FailureCategory.NODE_LOST
    assert "node n3" in judged.message


def test_a_program_that_ends_with_255_has_failed_by_itself() -> None:
    judged = classify(seen(status("Failed", EXITED)))
    assert isinstance(judged, Failure)
    assert (judged.end.category, judged.end.exit_code) == (FailureCategory.EXIT, 255)


def test_where_one_container_failed_by_itself_that_is_what_is_told() -> None:
    judged = classify(seen(status("Failed", CRASHED, EXITED)))
    assert isinstance(judged, Failure)
    assert judged.end.exit_code == 255


def test_a_member_that_never_began_did_not_die_by_a_signal() -> None:
    sight = seen(status("Failed", NOT_FOUND), deletionTimestamp="2026-11-22T10:00:00Z")
    assert (sight.signal, sight.exit_code, sight.has_started) == (None, None, False)


def test_a_command_that_cannot_be_started_is_a_mistake_of_the_job_with_the_runtimes_words() -> None:
    sight = seen(status("Failed", NO_COMMAND))
    assert not sight.has_started, "1970 is no time at which it started"
    judged = classify(sight)
    assert isinstance(judged, Failure)
    assert (judged.end.category, judged.end.exit_code) == (FailureCategory.CONFIG, None)
    assert "no such file or directory" in judged.end.message


def leaving(ended: dict[str, Any], path: str = RESULTS_PATH) -> PodSight:
    """Return the sight of a pod whose first container has this end, and another one as well."""
    labels = {"trainmaster.dev/run": "a-r1", "trainmaster.dev/role": "worker", "trainmaster.dev/index": "0"}
    sidecar = {"exitCode": 0, "reason": "Completed", "message": "bye"}
    containers = [{"name": "c1", "state": {"terminated": sidecar}}, {"name": "c0", "state": {"terminated": ended}}]
    pod = {
        "metadata": {"name": "p", "namespace": "jobs", "uid": "u", "labels": labels},
        "spec": {"nodeName": "n3", "containers": [{"name": "c0", "terminationMessagePath": path}, {"name": "c1"}]},
        "status": {"phase": "Failed" if ended["exitCode"] else "Succeeded", "containerStatuses": containers},
    }
    sight = see(pod)
    assert sight is not None
    return sight


@pytest.mark.parametrize("code", [0, 3])
def test_what_the_first_container_leaves_is_results_and_no_message(code: int) -> None:
    sight = leaving({"exitCode": code, "reason": "Error", "message": '{"a": 1}'})
    assert (sight.results, sight.message) == ('{"a": 1}', "")


def test_a_message_at_another_path_is_no_result() -> None:
    sight = leaving({"exitCode": 3, "reason": "Error", "message": "out of luck"}, "/dev/termination-log")
    assert (sight.results, sight.message) == ("", "out of luck")


def test_the_runtimes_words_on_a_command_that_cannot_be_started_are_no_results() -> None:
    sight = leaving(NO_COMMAND)
    assert (sight.results, sight.message) == ("", NO_COMMAND["message"])


def test_an_evicted_member_is_evicted_though_its_container_was_not_found() -> None:
    judged = classify(seen(status("Failed", NOT_FOUND, reason="Evicted", message="low on ephemeral-storage")))
    assert isinstance(judged, Failure)
    assert judged.end.category is FailureCategory.EVICTED


@pytest.mark.parametrize("most", [20, 60, 100])
def test_what_is_too_long_keeps_its_end(most: int) -> None:
    text = "failed to create: " + "x" * 200 + " no such file"
    short = shortened(text, most)
    assert len(short) <= most
    assert short.startswith("fail")
    assert short.endswith("file")
    assert shortened("two\nlines ", most) == "two lines"


def waits(reason: str, name: str = "main") -> dict[str, Any]:
    return {"name": name, "state": {"waiting": {"reason": reason, "message": f"of {name}"}}}


def test_an_init_container_whose_image_cannot_be_pulled_is_told_and_not_the_container_that_waits_for_it() -> None:
    of = {"phase": "Pending", "containerStatuses": [waits("PodInitializing")]}
    sight = seen(of | {"initContainerStatuses": [waits("ImagePullBackOff", "data"), waits("PodInitializing", "next")]})
    assert (sight.stage, sight.reason, sight.message) == ("bound", "ImagePullBackOff", "of data")


def test_an_entry_point_that_cannot_be_read_fails_as_an_image_does_and_says_why() -> None:
    ended = {"exitCode": 82, "reason": "Error", "message": "registry a.io does not have image a.io/x:1"}
    reads = {"name": "read-entry-point", "state": {"terminated": ended}}
    of = {"phase": "Failed", "containerStatuses": [waits("PodInitializing")], "initContainerStatuses": [reads]}
    judged = classify(seen(of))
    assert isinstance(judged, Failure)
    assert (judged.end.category, judged.end.exit_code) == (FailureCategory.IMAGE, None)
    words = "the entry point of the image of worker-1 was not read: registry a.io does not have image a.io/x:1"
    assert judged.end.message == words


def test_the_same_exit_code_of_another_container_is_an_exit() -> None:
    judged = classify(seen(status("Failed", EXITED | {"exitCode": 82})))
    assert isinstance(judged, Failure)
    assert (judged.end.category, judged.end.exit_code) == (FailureCategory.EXIT, 82)


def test_members_that_only_initialize_say_so() -> None:
    sight = seen({"phase": "Pending", "containerStatuses": [waits("PodInitializing")]})
    assert (sight.stage, sight.reason) == ("bound", "PodInitializing")


def test_restarts_ends_for_lack_of_memory_and_limits_are_those_of_all_containers() -> None:
    def container(restarts: int, **state: str) -> dict[str, Any]:
        ends = {name: {"terminated": {"reason": reason, "exitCode": 137}} for name, reason in state.items()}
        return {"name": "main", "restartCount": restarts, "state": {"running": {}}, **ends}

    pod = {
        "phase": "Running",
        "containerStatuses": [container(2, lastState="OOMKilled"), container(1, lastState="Error")],
    }
    found = seen(pod)
    assert (found.restarts, found.oom_kills, found.memory_limit) == (3, 1, None)
    assert seen({"phase": "Failed", "containerStatuses": [container(0, state="OOMKilled")]}).oom_kills == 1


@pytest.mark.parametrize(
    ("limits", "total"),
    [
        ((), None),
        (({"memory": "1Gi"},), 2**30),
        (({"memory": "1Gi"}, {"memory": "512Mi"}), 3 * 2**29),
        (({"memory": "1Gi"}, {}), None),
    ],
)
def test_the_memory_limit_is_unknown_where_a_container_has_none(
    limits: tuple[dict[str, str], ...], total: int | None
) -> None:
    containers = [{"name": f"c{place}", "resources": {"limits": one}} for place, one in enumerate(limits)]
    assert memory_limit_of({"containers": containers}) == total
