"""SparkApplication as a job: what its pods request is what Spark asks for, and its templates say all that is said of them."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.workload_manifests import SAMPLES, template
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.json_limits import JsonNode
from trainmaster.protocol.pod_requests import pod_requests
from trainmaster.workload_kinds.kind import at, put
from trainmaster.workload_kinds.spark import SparkApplication
from trainmaster.workload_kinds.spark_pods import CONTAINERS, completed_spec
from trainmaster.workload_kinds.specification import (
    ManifestError,
    assembled,
    check_workload,
    late_roles,
    translated,
)

Wire = dict[str, Any]
MANIFEST = SAMPLES["sparkoperator.k8s.io/v1beta2 SparkApplication"].manifest
PYTHON = {"mainApplicationFile": "local:///opt/train.py"}
MEBI = 1024**2


def with_fields(
    driver: Wire | None = None, executor: Wire | None = None, conf: Wire | None = None, **spec: Any
) -> Wire:
    made = deepcopy(MANIFEST)
    made["spec"] |= spec
    made["spec"]["driver"] |= driver or {}
    made["spec"]["executor"] |= executor or {}
    if conf is not None:
        made["spec"]["sparkConf"] = conf
    return made


def spec_of(value: Wire) -> JobSpec:
    return JobSpec.model_validate(translated(value).spec)


def templates_of(value: Wire) -> dict[str, Wire]:
    return {role.name: role.pod_template or {} for role in spec_of(value).roles}


def mistakes(value: Wire) -> list[tuple[str, str]]:
    with pytest.raises(ManifestError) as error:
        translated(value)
    return [(one.path, one.message) for one in error.value.mistakes]


def own(pod: Wire) -> Wire:
    container: Wire = pod["spec"]["containers"][0]
    return container


@pytest.mark.parametrize(
    ("fields", "driver", "executor"),
    [
        ({"driver": {"memory": "512m"}, "executor": {"memory": "512m"}}, (1000, 896), (2000, 896)),
        ({"driver": {"memory": "4g"}, "executor": {"memory": "10g"}}, (1000, 4505), (2000, 11264)),
        ({"driver": {"memory": "1500m"}, "executor": {"memory": "1g"}, **PYTHON}, (1000, 2100), (2000, 1433)),
        ({"driver": {"memory": "4096"}, "executor": {"memory": "1073741824b"}}, (1000, 4505), (2000, 1408)),
        (
            {"driver": {"memory": "2GB", "memoryOverhead": "100"}, "executor": {"memory": "1t"}},
            (1000, 2148),
            (2000, 1153433),
        ),
        ({"memoryOverheadFactor": "0.6", "driver": {"memory": "1g"}}, (1000, 1638), (2000, 13107)),
        (
            {"memoryOverheadFactor": "0.6", "conf": {"spark.kubernetes.memoryOverheadFactor": "0.5"}},
            (1000, 896),
            (2000, 12288),
        ),
        ({"conf": {"spark.executor.memoryOverheadFactor": "0.25"}, **PYTHON}, (1000, 896), (2000, 10240)),
        ({"conf": {"spark.driver.minMemoryOverhead": "1g"}}, (1000, 1536), (2000, 9011)),
        ({"driver": {"coreRequest": "250m"}, "executor": {"coreRequest": "1.5"}}, (250, 896), (1500, 9011)),
        ({"conf": {"spark.executor.pyspark.memory": "1g"}}, (1000, 896), (2000, 9011)),
        ({"conf": {"spark.executor.pyspark.memory": "1g"}, **PYTHON}, (1000, 896), (2000, 12492)),
        (
            {"conf": {"spark.memory.offHeap.enabled": "true", "spark.memory.offHeap.size": "536870912"}},
            (1000, 896),
            (2000, 9523),
        ),
        ({"conf": {"spark.memory.offHeap.size": "1g"}}, (1000, 896), (2000, 9011)),
    ],
)
def test_pods_are_counted_as_spark_requests_them(
    fields: Wire, driver: tuple[int, int], executor: tuple[int, int]
) -> None:
    found = {name: pod_requests(one) for name, one in templates_of(with_fields(**fields)).items()}
    assert found == {
        name: {"cpu": cpu, "memory": mebi * MEBI} for name, (cpu, mebi) in (("driver", driver), ("executor", executor))
    }


def test_properties_count_where_the_specification_says_nothing() -> None:
    value = with_fields(
        conf={
            "spark.driver.cores": "3",
            "spark.executor.memory": "2g",
            "spark.executor.instances": "7",
            "spark.kubernetes.executor.request.cores": "500m",
            "spark.executor.resource.gpu.amount": "2",
            "spark.executor.resource.gpu.vendor": "nvidia.com",
        }
    )
    for role, fields in (("driver", ("cores",)), ("executor", ("cores", "memory", "instances"))):
        for field in fields:
            del value["spec"][role][field]
    spec = spec_of(value)
    assert [role.replicas for role in spec.roles] == [1, 7]
    driver, executor = (pod_requests(role.pod_template or {}) for role in spec.roles)
    assert driver == {"cpu": 3000, "memory": 896 * MEBI}
    assert executor == {"cpu": 500, "memory": 2432 * MEBI, "nvidia.com/gpu": 2}
    bare = with_fields()
    bare["spec"] |= {"driver": {"serviceAccount": "spark"}, "executor": {}}
    spec = spec_of(bare)
    assert [role.replicas for role in spec.roles] == [1, 1]
    assert {pod_requests(role.pod_template or {})["memory"] for role in spec.roles} == {1408 * MEBI}
    assert spec.workload is not None
    assert spec.workload.manifest["spec"]["executor"]["instances"] == 1, "the operator has no other default"


def test_executors_are_counted_at_the_most_that_run_at_a_time_and_wait_for_the_driver() -> None:
    dynamic = {"enabled": True, "minExecutors": 1, "initialExecutors": 2, "maxExecutors": 6}
    spec = spec_of(with_fields(dynamicAllocation=dynamic))
    assert [role.replicas for role in spec.roles] == [1, 6]
    assert spec.workload is not None
    assert late_roles(spec.workload) == {"executor"}
    off = with_fields(dynamicAllocation={"enabled": False, "maxExecutors": 6})
    assert spec_of(off).roles[1].replicas == 3
    ((path, _),) = mistakes(with_fields(dynamicAllocation={"enabled": True}))
    assert path == "spec.dynamicAllocation.maxExecutors"
    ((path, _),) = mistakes(with_fields(dynamicAllocation=dynamic | {"maxExecutors": 2}))
    assert path == "spec.executor.instances"


def test_all_that_is_said_of_a_pod_is_in_its_template() -> None:
    value = with_fields(
        driver={
            "labels": {"version": "1"},
            "env": [{"name": "A", "value": "1"}],
            "envVars": {"C": "3", "B": "2"},
            "envSecretKeyRefs": {"KEY": {"name": "keys", "key": "one"}},
            "configMaps": [{"name": "my.files", "path": "/files"}],
            "secrets": [{"name": "gcp", "path": "/gcp", "secretType": "GCPServiceAccount"}],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            "sidecars": [{"name": "proxy", "image": "proxy:1"}],
            "nodeSelector": {"disk": "ssd"},
            "podSecurityContext": {"runAsUser": 185},
            "terminationGracePeriodSeconds": 60,
            "coreLimit": "2",
        },
        executor={
            "annotations": {"note": "x"},
            "gpu": {"name": "nvidia.com/gpu", "quantity": 1},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "hostNetwork": True,
            "template": template("other", cpu="64", nodeSelector={"rack": "1"}),
        },
        conf={"spark.kubernetes.driver.label.team": "a", "spark.eventLog.enabled": "true"},
        volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "mine"}}, {"name": "unused", "emptyDir": {}}],
        imagePullSecrets=["registry"],
        nodeSelector={"zone": "a"},
        hadoopConfigMap="hadoop",
    )
    spec = spec_of(value)
    pods = templates_of(value)
    driver, executor = pods["driver"], pods["executor"]
    assert driver["metadata"]["labels"] == {"version": "1", "team": "a"}
    assert [one["name"] for one in driver["spec"]["containers"]] == ["spark-kubernetes-driver", "proxy"]
    assert [one["name"] for one in own(driver)["env"]] == [
        *("A", "B", "C", "KEY", "GOOGLE_APPLICATION_CREDENTIALS", "HADOOP_CONF_DIR"),
    ]
    assert own(driver)["env"][4]["value"] == "/gcp/key.json"
    assert [one["name"] for one in driver["spec"]["volumes"]] == [
        *("configmap-my-files", "secret-gcp", "hadoop-configmap-volume", "data"),
    ]
    assert [one["mountPath"] for one in own(driver)["volumeMounts"]] == [
        *("/data", "/files", "/gcp", "/etc/hadoop/conf"),
    ]
    assert driver["spec"]["nodeSelector"] == {"disk": "ssd", "zone": "a"}
    assert driver["spec"]["securityContext"]["runAsUser"] == 185
    assert driver["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert driver["spec"]["automountServiceAccountToken"] is True
    assert own(driver)["resources"]["limits"] == {"cpu": "2", "memory": "896Mi"}
    assert spec.stop_grace == "60s"
    assert executor["metadata"]["annotations"] == {"note": "x"}
    assert executor["spec"]["serviceAccountName"] == "spark", "as Spark gives it the driver's"
    assert "automountServiceAccountToken" not in executor["spec"]
    assert executor["spec"]["nodeSelector"] == {"rack": "1", "zone": "a"}
    assert executor["spec"]["hostNetwork"] is True, "which the policy of a queue refuses"
    assert (own(executor)["name"], own(executor)["image"]) == ("other", "docker.io/apache/spark:4.0.4")
    assert pod_requests(executor) == {"cpu": 2000, "memory": 9011 * MEBI, "nvidia.com/gpu": 1}
    assert spec.workload is not None
    kept = spec.workload.manifest["spec"]
    assert kept["sparkConf"] == {"spark.eventLog.enabled": "true"}
    assert kept["driver"].keys() == {"cores", "coreLimit", "image", "memory", "serviceAccount", "template"}
    assert not kept.keys() & {"volumes", "imagePullSecrets", "nodeSelector", "hadoopConfigMap"}
    assert check_workload(spec) == ()


def test_a_template_of_its_own_names_image_and_account() -> None:
    value = with_fields()
    del value["spec"]["image"]
    pod = template(CONTAINERS["driver"], serviceAccount="spark")
    own(pod)["imagePullPolicy"] = "Always"
    value["spec"]["driver"] = {"template": pod}
    value["spec"]["executor"]["image"] = "executor:1"
    spec = spec_of(value)
    assert spec.workload is not None
    kept = spec.workload.manifest["spec"]
    assert kept["driver"] == {
        "image": "registry.example.com/train:1",
        "serviceAccount": "spark",
        "template": {},
    }
    assert kept["imagePullPolicy"] == "Always", "Spark has one for both roles, and replaces that of a template"
    ((path, _),) = mistakes(value | {"spec": value["spec"] | {"imagePullPolicy": "Never"}})
    assert path == "spec.driver.template.spec.containers[0].imagePullPolicy"


def test_the_object_that_is_created_says_the_same_as_its_templates() -> None:
    spec = spec_of(with_fields())
    templates = templates_of(with_fields())
    own(templates["driver"])["image"] = "mirror.example.com/spark:4"
    assert spec.workload is not None
    made = assembled(spec.workload, templates)
    assert made["spec"]["driver"]["image"] == "mirror.example.com/spark:4"
    assert made["spec"]["executor"]["image"] == "docker.io/apache/spark:4.0.4"


@pytest.mark.parametrize(
    ("name", "amount"), [("cpu", "1m"), ("memory", "1Mi"), ("cpu", None), ("memory", ["x"]), ("nvidia.com/gpu", "0")]
)
def test_templates_by_hand_that_count_less_than_spark_will_ask_are_refused(name: str, amount: Any) -> None:
    written = spec_of(
        with_fields(
            conf={
                "spark.executor.resource.gpu.amount": "1",
                "spark.executor.resource.gpu.vendor": "nvidia.com",
            }
        )
    ).to_wire()
    resources = own(written["roles"][1]["podTemplate"])["resources"]
    resources["requests"][name] = resources["limits"][name] = amount
    ((path, message),) = [
        (one.path, one.message) for one in check_workload(JobSpec.model_validate(written | {"roles": written["roles"]}))
    ]
    assert path == "roles[1].podTemplate.spec.containers"
    assert f"of {name} in spark-kubernetes-executor" in message


@pytest.mark.parametrize("role", [0, 1])
def test_an_account_beside_the_template_that_a_policy_checks_is_refused(role: int) -> None:
    written = spec_of(with_fields()).to_wire()
    name = ("driver", "executor")[role]
    written["workload"]["manifest"]["spec"][name]["serviceAccount"] = "powerful"
    ((path, _),) = [(one.path, one.message) for one in check_workload(JobSpec.model_validate(written))]
    assert path == f"roles[{role}].podTemplate.spec.serviceAccountName"
    del written["roles"][role]["podTemplate"]["spec"]["serviceAccountName"]
    assert check_workload(JobSpec.model_validate(written))


CANNOT = "cannot be honoured"


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("mode",), "client", CANNOT),
        (("batchScheduler",), "volcano", CANNOT),
        (("batchSchedulerOptions",), {"queue": "q"}, CANNOT),
        (("driverIngressOptions",), [{"servicePort": 1}], CANNOT),
        (("sparkUIOptions",), {"servicePort": 1}, CANNOT),
        (("monitoring",), {"exposeDriverMetrics": True}, CANNOT),
        (("sparkConfigMap",), "conf", CANNOT),
        (("restartPolicy", "type"), "Always", CANNOT),
        (("sparkVersion",), "2.4.8", "3.0.0 or later"),
        (("sparkVersion",), None, "3.0.0 or later"),
        (("mainApplicationFile",), "--conf", "with its scheme"),
        (("mainApplicationFile",), "--conf=spark.master:x", "with its scheme"),
        (("mainApplicationFile",), "/var/run/secrets/token", "with its scheme"),
        (("mainApplicationFile",), "file:///var/run/secrets/token", "with its scheme"),
        (("sparkConf", "spark.kubernetes.file.upload.path"), "s3a://bucket", CANNOT),
        (("sparkConf", "spark.kerberos.keytab"), "/var/run/secrets/token", CANNOT),
        (("sparkConf", "spark.kubernetes.submission.waitAppCompletion"), "true", CANNOT),
        (("arguments",), [7], "must be a text"),
        (("unheardOf",), 1, "unknown field"),
        (("memoryOverheadFactor",), "many", "such as"),
        (("driver", "unheardOf"), 1, "unknown field"),
        (("driver", "memoryLimit"), "2g", CANNOT),
        (("driver", "podName"), "mine", CANNOT),
        (("driver", "priorityClassName"), "high", CANNOT),
        (("driver", "schedulerName"), "other", CANNOT),
        (("driver", "kubernetesMaster"), "https://elsewhere", CANNOT),
        (("driver", "serviceAnnotations"), {"external-dns.alpha.kubernetes.io/hostname": "x"}, CANNOT),
        (("sparkConf", "spark.kubernetes.driver.service.label.example.com/a"), "b", CANNOT),
        (("sparkConf", "spark.yarn.executor.memoryOverhead"), "1m", CANNOT),
        (("sparkConf", "spark.executor.cores=9"), "1", CANNOT),
        (("driver", "serviceAccount"), None, "must be given"),
        (("driver", "memory"), "512Mi", "as Spark reads it"),
        (("driver", "cores"), 0, "whole number"),
        (("driver", "labels"), ["a"], "another shape"),
        (("driver", "env"), {"a": "b"}, "another shape"),
        (("executor", "ports"), [{"name": "a", "containerPort": 1}], CANNOT),
        (("executor", "memoryOverhead"), 512, "must be a text"),
        (("image",), None, "must be given"),
        (("volumes",), {"name": "x"}, "a list"),
        (("executor", "template"), {"spec": {"containers": [], "restartPolicy": "OnFailure"}}, CANNOT),
        (("sparkConf", "spark.master"), "local", CANNOT),
        (("sparkConf", "spark.dynamicAllocation.enabled"), "true", "spec.dynamicAllocation.enabled"),
        (("sparkConf", "spark.kubernetes.namespace"), "kube-system", CANNOT),
        (("sparkConf", "spark.kubernetes.driver.podTemplateFile"), "/x", CANNOT),
        (("sparkConf", "spark.kubernetes.scheduler.name"), "other", CANNOT),
        (("sparkConf", "spark.kubernetes.executor.volumes.hostPath.x.mount.path"), "/", CANNOT),
        (("sparkConf", "spark.kubernetes.allocation.pods.allocator"), "statefulset", CANNOT),
        (("sparkConf", "spark.executor.pyspark.memory"), 7, "must be a text"),
        (("sparkConf", "spark.executor.resource.gpu.vendor"), "", "first part of the name"),
    ],
)
def test_what_cannot_be_honoured_is_refused_where_it_is(path: Sequence[str], value: Any, words: str) -> None:
    made = with_fields(conf={"spark.executor.resource.gpu.amount": "1", "spark.executor.resource.gpu.vendor": "v"})
    parent = at(made["spec"], path[:-1])
    if parent is None:
        put(made["spec"], path[:-1], {})
    put(made["spec"], path, value)
    found = mistakes(made)
    places = {place.partition("[")[0] for place, _ in found}
    assert any(words in message for _, message in found)
    expected = ".".join(("spec", *path)).partition(".spark.")[0]
    assert any(place.startswith(expected) or (value is None and "image" in place) for place in places)


def test_properties_that_say_nothing_of_a_pods_size_or_place_are_kept() -> None:
    conf = {
        "spark.sql.shuffle.partitions": "7",
        "spark.kubernetes.allocation.batch.size": "20",
        "spark.kubernetes.driver.service.annotation.prometheus.io/scrape": "true",
        "spark.kubernetes.driver.service.label.team": "a",
        "spark.dynamicAllocation.executorIdleTimeout": "60s",
    }
    spec = spec_of(with_fields(conf=conf))
    assert spec.workload is not None
    assert spec.workload.manifest["spec"]["sparkConf"] == conf


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({}, ""),
        ({"applicationState": {"state": "SUBMITTED"}}, "SUBMITTED"),
        (
            {
                "applicationState": {"state": "RUNNING"},
                "executorState": {"a-1": "RUNNING", "a-2": "RUNNING", "a-3": "FAILED"},
            },
            "RUNNING, executors: 1 failed, 2 running",
        ),
    ],
)
def test_its_state_and_that_of_its_executors_are_its_progress(status: Wire, words: str) -> None:
    assert SparkApplication().progress(status) == words


def test_a_failed_submission_says_what_the_api_server_has_said() -> None:
    log = "failed to submit spark application: failed to run spark-submit: WARNING: Using incubator modules\n26/11/29 INFO Client\n"
    thrown = (
        'Exception in thread "main" io.fabric8.KubernetesClientException: Failure executing: POST at: https://x/pods. '
    )
    said = 'Message: pods "a-driver" is forbidden: serviceaccount "nobody" not found. Received status: Status(...).'
    stack = "\n\tat io.fabric8.OperationSupport.requestFailure(OperationSupport.java:1)\nCaused by: x: Message: other."
    for words, found in (
        (
            log + thrown + said + stack,
            'failed to submit spark application: pods "a-driver" is forbidden: serviceaccount "nobody" not found.',
        ),
        (
            log + 'Exception in thread "main" java.lang.Exception: no' + stack,
            "failed to submit spark application: java.lang.Exception: no",
        ),
        ("driver container failed with ExitCode: 1", "driver container failed with ExitCode: 1"),
    ):
        status = {"applicationState": {"state": "FAILED", "errorMessage": words}}
        end = SparkApplication().end_of({"status": status})
        assert end is not None
        assert end.message == found


def test_a_failed_submission_that_is_tried_again_is_no_end() -> None:
    kind = SparkApplication()
    for state in ("SUBMISSION_FAILED", "FAILING", "SUCCEEDING", "PENDING_RERUN", "UNKNOWN"):
        assert kind.end_of({"status": {"applicationState": {"state": state}}}) is None


_FIELDS = (
    *("template", "metadata", "spec", "containers", "resources", "requests", "labels", "env", "envVars", "volumes"),
    *("volumeMounts", "name", "path", "secrets", "configMaps", "gpu", "quantity", "image", "serviceAccount", "cores"),
    *("memory", "memoryOverhead", "coreRequest", "sidecars", "initContainers", "nodeSelector", "envSecretKeyRefs"),
)
_SHAPES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_FIELDS), inner, max_size=5),
    max_leaves=20,
)
_PARTS = st.dictionaries(st.sampled_from(_FIELDS), _SHAPES, max_size=8)
_SHARED = ("sparkConf", "volumes", "imagePullSecrets", "nodeSelector", "dynamicAllocation", "memoryOverheadFactor")


@given(_PARTS | _SHAPES, _PARTS | _SHAPES, st.dictionaries(st.sampled_from(_SHARED), _SHAPES, max_size=4))
def test_any_shape_is_answered_with_mistakes_or_a_job(driver: Any, executor: Any, shared: Wire) -> None:
    value = deepcopy(MANIFEST)
    value["spec"] |= {"driver": driver, "executor": executor, **shared}
    again = completed_spec(completed_spec(value["spec"]))
    assert isinstance(again, dict)
    try:
        made = translated(value)
    except ManifestError:
        return
    assert [role["name"] for role in made.spec["roles"]] == ["driver", "executor"]
    kind = SparkApplication()
    manifest = JsonNode(made.spec["workload"]["manifest"], "", [])
    for role in made.spec["roles"]:
        kind.check_template(role["name"], JsonNode(role["podTemplate"], "", []), manifest)
