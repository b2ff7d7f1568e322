"""SparkApplication of Kubeflow's Spark operator: https://www.kubeflow.org/docs/components/spark-operator/"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from trainmaster.protocol.json_limits import JsonNode, shown
from trainmaster.protocol.quantities import parse_quantity
from trainmaster.workload_kinds.kind import PodSet, Wire, WorkloadEnd, WorkloadKind, at, number, refuse_set
from trainmaster.workload_kinds.spark_pods import (
    CONTAINERS,
    DERIVED,
    DRIVER,
    EXECUTOR,
    OF_CONTAINER,
    SHARED,
    TAKEN_OVER,
    SparkProperties,
    completed_spec,
    spark_container,
)

_NO_SCHEDULER = "cannot be honoured: gangs are placed by the cluster's own scheduler, as its agent tells it"
_NO_WAY_IN = "cannot be honoured: what leads into the cluster from outside is its owner's to make"
_NO_TEMPLATE = "cannot be honoured: the operator does it only to pods without a template; put it into the pod templates"
_NO_NAME = "cannot be honoured: pods are named after the run, as a job may run more than once"
_BY_DISPATCHER = "cannot be honoured: the priority class of the job decides; name that by the label or annotation"
_OF_SPARK = "cannot be honoured: Spark sets it itself"
_REFUSED = {
    "batchScheduler": _NO_SCHEDULER,
    "batchSchedulerOptions": _NO_SCHEDULER,
    "driverIngressOptions": _NO_WAY_IN,
    "sparkUIOptions": _NO_WAY_IN,
    "monitoring": _NO_TEMPLATE,
    "sparkConfigMap": "cannot be honoured: Spark looks for its settings elsewhere; give them in sparkConf",
}
_KNOWN = frozenset(
    (
        *(
            "arguments",
            "deps",
            "driver",
            "driverPodDisruptionBudget",
            "dynamicAllocation",
            "executor",
            "failureRetries",
        ),
        *("hadoopConf", "image", "imagePullPolicy", "mainApplicationFile", "mainClass", "memoryOverheadFactor", "mode"),
        *("proxyUser", "pythonVersion", "restartPolicy", "retryInterval", "sparkConf", "sparkVersion", "suspend"),
        *("timeToLiveSeconds", "type", *_REFUSED, *SHARED),
    )
)
_REFUSED_OF_ROLE = {
    "kubernetesMaster": "cannot be honoured: the driver creates its executors on the cluster where it runs",
    "memoryLimit": "cannot be honoured: Spark limits memory to what it requests; raise memoryOverhead",
    "podName": _NO_NAME,
    "priorityClassName": _BY_DISPATCHER,
    "schedulerName": _NO_SCHEDULER,
}
_OF_SERVICE = ("serviceAnnotations", "serviceLabels")
_MOVED = frozenset((*DERIVED, *OF_CONTAINER, *TAKEN_OVER))
_OF_ROLE = frozenset(
    (
        *("coreLimit", "coreRequest", "cores", "deleteOnTermination", "image", "instances", "javaOptions", "memory"),
        *("memoryOverhead", "serviceAccount", "template"),
        *(*_MOVED, *_OF_SERVICE, *_REFUSED_OF_ROLE),
    )
)
_PROPERTIES = (
    *("spark.kubernetes.allocation.", "spark.kubernetes.driverEnv.", "spark.kubernetes.executor.decommission"),
    *("spark.kubernetes.jars.", "spark.kubernetes.local.dirs."),
)
"""Begins of properties for Kubernetes that say nothing of a pod's place, size or rights."""
_CHECKED = ("spark.kerberos.", "spark.kubernetes.", "spark.yarn.")
"""Begins of properties that are taken only if they are known: of YARN's some are older names of those that are counted here; and a
keytab is a file that the operator reads in its own pod.
"""
_PROPERTY_NAMES = frozenset(
    f"spark.kubernetes.{name}"
    for name in (
        *("appKillPodDeletionGracePeriod", "driver.limit.cores", "driver.request.cores", "executor.apiPollingInterval"),
        *("driver.service.deleteOnTermination", "executor.checkAllContainers", "executor.deleteOnTermination"),
        *("executor.enableApiPolling", "executor.eventProcessingInterval", "executor.limit.cores"),
        *("executor.missingPodDetectDelta", "executor.request.cores", "memoryOverheadFactor"),
        *("pyspark.pythonVersion", "report.interval"),
    )
)
_OTHER_PLACES = {
    "spark.dynamicAllocation.enabled": "dynamicAllocation.enabled",
    "spark.dynamicAllocation.initialExecutors": "dynamicAllocation.initialExecutors",
    "spark.dynamicAllocation.maxExecutors": "dynamicAllocation.maxExecutors",
    "spark.dynamicAllocation.minExecutors": "dynamicAllocation.minExecutors",
}
_SERVICE_PROPERTY = re.compile(r"spark\.kubernetes\.driver\.service\.(?:annotation|label)\.([^=]+)")
_NOT_TAKEN = frozenset(("spark.kubernetes.allocation.pods.allocator", "spark.master", "spark.submit.deployMode"))
_THROWN = re.compile(r"^(?:Exception in thread \S+|Caused by:) (.*)$", re.MULTILINE)
_OF_API_SERVER = re.compile("Message: (.*?)(?: Received status:|$)")
_ENDS = {"COMPLETED": True, "FAILED": False}
_ROLES = (DRIVER, EXECUTOR)


class SparkApplication(WorkloadKind):
    """A Spark driver, and the executors that it creates once it runs."""

    api_version, kind, plural = "sparkoperator.k8s.io/v1beta2", "SparkApplication", "sparkapplications"
    needs = "Kubeflow's Spark operator, 2.0 or later"
    name_labels = ("sparkoperator.k8s.io/app-name",)
    short_names = ("sparkapp",)
    manager_path = ()
    time_to_live_path = ("spec", "timeToLiveSeconds")

    def pod_sets(self, manifest: JsonNode) -> list[PodSet]:
        many = SparkProperties(manifest.get("spec")).executors()
        driver, executors = (("spec", role, "template") for role in _ROLES)
        return [PodSet(DRIVER, driver, 1), PodSet(EXECUTOR, executors, many, is_late=True)]

    def completed(self, manifest: Wire) -> Wire:
        spec = manifest.get("spec")
        return {**manifest, "spec": completed_spec(spec)} if isinstance(spec, dict) else manifest

    def check(self, manifest: JsonNode) -> None:
        spec = manifest.get("spec")
        spec.only(_KNOWN)
        for field, message in _REFUSED.items():
            refuse_set(manifest, ("spec", field), message)
        for field in SHARED:
            if spec.get(field).is_set:
                spec.get(field).refuse(f"must be {_shape_of(field)}, not {shown(spec.get(field).value)}")
        if spec.get("mode").value not in (None, "cluster"):
            spec.get("mode").refuse("cannot be honoured: the driver has to be a pod; give cluster")
        _check_version(spec.get("sparkVersion"))
        _check_program(spec)
        if spec.get("restartPolicy").get("type").value == "Always":
            spec.get("restartPolicy").get("type").refuse("cannot be honoured: a job comes to an end; give OnFailure")
        _check_allocation(spec)
        _check_properties(spec.get("sparkConf"))
        for role in _ROLES:
            _check_role(spec, role)

    def check_template(self, role: str, template: JsonNode, manifest: JsonNode) -> None:
        needs = SparkProperties(manifest.get("spec")).needs(role)
        account = template.get("spec").get("serviceAccountName")
        if account.value != (wanted := manifest.get("spec").get(role).get("serviceAccount").value):
            account.refuse(f"must be {shown(wanted)}, the account that the manifest names, not {shown(account.value)}")
        containers = template.get("spec").get("containers")
        own = spark_container(role, [one.value for one in containers.items()]) or {}
        for name, amount in (*needs.requests.items(), *needs.extended.items()):
            given = at(own, ("resources", "requests", name)) or at(own, ("resources", "limits", name))
            if not _is_same(name, given, amount):
                containers.refuse(
                    f"must request {amount} of {name} in {own.get('name', CONTAINERS[role])}, as Spark will by "
                    f"the manifest's {role}, not {shown(given)}"
                )

    def finished(self, body: Wire) -> Wire:
        for role in _ROLES:
            pod = at(body, ("spec", role, "template", "spec"))
            if not isinstance(pod, dict):
                continue
            containers = pod.get("containers")
            own = spark_container(role, containers if isinstance(containers, list) else []) or {}
            for field, value in (("image", own.get("image")), ("serviceAccount", pod.get("serviceAccountName"))):
                if value:
                    body["spec"][role][field] = value
        return body

    def end_of(self, stored: Mapping[str, Any]) -> WorkloadEnd | None:
        state = at(stored, ("status", "applicationState", "state"))
        if not isinstance(state, str) or state not in _ENDS:
            return None
        words = at(stored, ("status", "applicationState", "errorMessage"))
        return WorkloadEnd(True) if _ENDS[state] else WorkloadEnd(False, _cause(str(words or "")))

    def ended_status(self, status: Mapping[str, Any], end: WorkloadEnd, reason: str, when: str) -> Wire:
        words = {} if end.has_succeeded else {"errorMessage": end.message or reason}
        state = {"state": "COMPLETED" if end.has_succeeded else "FAILED", **words}
        return {**status, "applicationState": state, "terminationTime": status.get("terminationTime") or when}

    def progress(self, status: Mapping[str, Any]) -> str:
        executors = status.get("executorState")
        states = Counter(str(one).lower() for one in executors.values()) if isinstance(executors, Mapping) else {}
        many = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
        state = at(dict(status), ("applicationState", "state"))
        return ", ".join(filter(None, (str(state or ""), f"executors: {many}" if many else "")))


def _cause(words: str) -> str:
    """Return what an error message says, without the log and the stack that a failed submission leaves in it."""
    thrown = _THROWN.search(words)
    if thrown is None:
        return words
    said = _OF_API_SERVER.search(thrown[1])
    return f"{words.partition(':')[0]}: {thrown[1] if said is None else said[1]}"


def _shape_of(field: str) -> str:
    return {"hadoopConfigMap": "a text", "nodeSelector": "a mapping"}.get(field, "a list")


def _check_version(version: JsonNode) -> None:
    first = re.match(r"v?([0-9]{1,6})\.", version.value) if isinstance(version.value, str) else None
    if first is None or int(first[1]) < 3:
        version.refuse(f"must be 3.0.0 or later, which have pod templates, not {shown(version.value)}")


def _check_program(spec: JsonNode) -> None:
    main = spec.get("mainApplicationFile")
    text = main.text() or ""
    scheme, separator, _ = text.partition(":")
    # An option there would be one of spark-submit; and a file without a scheme, one of the operator's own pod.
    if text != "spark-internal" and not (separator and scheme.isalnum() and scheme != "file"):
        main.refuse(
            f"must name a file with its scheme, such as local:///opt/app.jar for one of the image, not {shown(main.value)}"
        )
    for field in spec.get("arguments").items():
        field.must_be_text()


def _check_allocation(spec: JsonNode) -> None:
    dynamic = spec.get("dynamicAllocation")
    if not dynamic.get("enabled").flag() or not dynamic.get("maxExecutors").is_set:
        return
    most = number(dynamic.get("maxExecutors"), 1)
    for field in (dynamic.get("initialExecutors"), dynamic.get("minExecutors"), spec.get(EXECUTOR).get("instances")):
        if number(field, 0, least=0) > most:
            field.refuse(f"must be at most {most}, the maxExecutors that are counted")


def _check_properties(conf: JsonNode) -> None:
    for key, value in conf.fields():
        value.must_be_text()
        is_kept = key in _PROPERTY_NAMES or key.startswith(_PROPERTIES)
        is_of_pods = key.startswith(_CHECKED)
        if key in _OTHER_PLACES:
            value.refuse(f"cannot be honoured: give it as spec.{_OTHER_PLACES[key]}")
        elif (service := _SERVICE_PROPERTY.fullmatch(key)) is not None:
            _check_of_service(service[1], value)
        elif key in _NOT_TAKEN or "=" in key or (is_of_pods and not is_kept):
            value.refuse(
                "cannot be honoured: it changes what is counted, placed or allowed; use the fields of the spec"
            )


def _check_of_service(key: str, value: JsonNode) -> None:
    """Refuse an annotation or label of the driver's Service by which software of a cluster may make it known outside."""
    if ("/" in key or "." in key) and not key.startswith("prometheus.io/"):
        value.refuse(_NO_WAY_IN)


def _check_role(spec: JsonNode, role: str) -> None:
    part = spec.get(role)
    part.only(_OF_ROLE)
    for field, message in _REFUSED_OF_ROLE.items():
        if part.get(field).value not in (None, "", {}):
            part.get(field).refuse(message)
    for field in _OF_SERVICE:
        for key, value in part.get(field).entries():
            _check_of_service(key, value)
    SparkProperties(spec).needs(role)
    if role == EXECUTOR and part.get("ports").is_set:
        part.get("ports").refuse(_OF_SPARK)
    for field in sorted(_MOVED - ({"ports"} if role == EXECUTOR else set())):
        if part.get(field).is_set and not (field == "gpu" and spec.mistakes):
            part.get(field).refuse("cannot be read: it has another shape than in the definition of the kind")
    if not part.get("image").text():
        part.get("image").refuse("must be given, here or as spec.image")
    if role == DRIVER and not part.get("serviceAccount").text():
        part.get("serviceAccount").refuse("must be given: as this account the driver creates its executors")
    _check_template(spec, part.get("template"), role)


def _check_template(spec: JsonNode, template: JsonNode, role: str) -> None:
    """Refuse what Spark replaces in a template."""
    if not isinstance(template.value, dict):
        return
    pod = template.get("spec")
    if pod.get("restartPolicy").value not in (None, "Never"):
        pod.get("restartPolicy").refuse(_OF_SPARK)
    if role == EXECUTOR and pod.get("hostname").is_set:
        pod.get("hostname").refuse(_OF_SPARK)
    own = spark_container(role, [one.value for one in pod.get("containers").items()])
    for one in pod.get("containers").items():
        if one.value is not own:
            continue
        policy = one.get("imagePullPolicy")
        if policy.is_set and policy.value != spec.get("imagePullPolicy").value:
            policy.refuse("must be that of spec.imagePullPolicy, which Spark gives to both roles")
        if role == EXECUTOR and one.get("ports").is_set:
            one.get("ports").refuse(_OF_SPARK)


def _is_same(name: str, given: object, amount: str) -> bool:
    try:
        return parse_quantity(name, str(given)) == parse_quantity(name, amount)
    except ValueError:
        return False
