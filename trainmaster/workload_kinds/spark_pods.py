"""Pods of Spark: what they request by Spark's own rules, and templates with all that a SparkApplication says of them. Pure.

The operator hands the templates to Spark, and its webhook leaves pods with a template alone: so what the webhook would do to them is
in the templates. Rules: https://spark.apache.org/docs/latest/running-on-kubernetes.html#spark-properties
"""

import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from trainmaster.protocol.json_limits import JsonNode, shown
from trainmaster.workload_kinds.kind import Wire, number

DRIVER, EXECUTOR = "driver", "executor"
CONTAINERS: Mapping[str, str] = {DRIVER: "spark-kubernetes-driver", EXECUTOR: "spark-kubernetes-executor"}
"""Names by which the operator tells Spark the container of a template that is Spark's own."""
APPENDED = frozenset(("hostAliases", "initContainers", "tolerations"))
TAKEN_OVER: Mapping[str, str] = {
    **{field: field for field in ("affinity", "dnsConfig", "hostNetwork", "nodeSelector", "shareProcessNamespace")},
    **{field: field for field in sorted(APPENDED)},
    "podSecurityContext": "securityContext",
    "terminationGracePeriodSeconds": "terminationGracePeriodSeconds",
}
"""Fields of a driver or an executor with those of a pod that they become."""
OF_CONTAINER = ("env", "envFrom", "lifecycle", "ports", "securityContext", "volumeMounts")
"""Fields of a driver or an executor that its container has by the same name."""
DERIVED = ("annotations", "configMaps", "envSecretKeyRefs", "envVars", "gpu", "labels", "secrets", "sidecars")
"""Fields of a driver or an executor that become something else in its template."""
SHARED = ("hadoopConfigMap", "imagePullSecrets", "nodeSelector", "volumes")
"""Fields of a SparkApplication that become those of both templates."""

_HADOOP_CONF = "/etc/hadoop/conf"
_KEYS = {"GCPServiceAccount": "key.json", "HadoopDelegationToken": "hadoop.token"}
_KEY_VARIABLES = {
    "GCPServiceAccount": "GOOGLE_APPLICATION_CREDENTIALS",
    "HadoopDelegationToken": "HADOOP_TOKEN_FILE_LOCATION",
}
_LEAST_OVERHEAD = 384
_OF_JVM, _OF_OTHERS = 0.1, 0.4
_UNITS = {"b": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_MEMORY = re.compile(r"([0-9]{1,18})(?:(b)|([kmgtp])b?)?")
_FACTOR = "spark.kubernetes.memoryOverheadFactor"
_NAMED_RESOURCE = re.compile(r"spark\.(driver|executor)\.resource\.([^.]+)\.amount")


class _PodNeeds(NamedTuple):
    """Needs of one pod: ``extended``: devices by the names of their resources."""

    requests: Mapping[str, str]
    limits: Mapping[str, str]
    extended: Mapping[str, str]


class SparkProperties:
    """The properties that Spark will have, by a SparkApplication's specification. Mistakes are added to its document."""

    def __init__(self, spec: JsonNode) -> None:
        self._spec = spec
        self._conf = spec.get("sparkConf")

    def executors(self) -> int:
        """Return the largest number of executors that run at a time."""
        dynamic = self._spec.get("dynamicAllocation")
        if dynamic.get("enabled").flag():
            most = dynamic.get("maxExecutors")
            if not most.is_set:
                most.refuse("must be given: without it no quota can be kept, and no room be found")
                return 1
            return number(most, 1)
        given = self._spec.get(EXECUTOR).get("instances")
        if given.is_set:
            return number(given, 1)
        return self._whole(self._conf.get("spark.executor.instances"), 1)

    def needs(self, role: str) -> _PodNeeds:
        """Return what a pod of a role requests, and its limits."""
        cores = self._cores(role)
        memory = f"{self._memory(role)}Mi"
        limit = self._text(self._spec.get(role).get("coreLimit"), f"spark.kubernetes.{role}.limit.cores")
        limits = {"memory": memory} | ({"cpu": limit.value} if isinstance(limit.value, str) else {})
        return _PodNeeds({"cpu": cores, "memory": memory}, limits, self._extended(role))

    def _cores(self, role: str) -> str:
        precise = self._text(self._spec.get(role).get("coreRequest"), f"spark.kubernetes.{role}.request.cores")
        given = self._spec.get(role).get("cores")
        whole = number(given, 1) if given.is_set else self._whole(self._conf.get(f"spark.{role}.cores"), 1)
        return precise.value if isinstance(precise.value, str) else str(whole)

    def _memory(self, role: str) -> int:
        """Return the MiB of a pod: the memory of its JVM, and what runs and lies beside that."""
        of_jvm = self._mebibytes(self._text(self._spec.get(role).get("memory"), f"spark.{role}.memory"), 1024)
        overhead = self._text(self._spec.get(role).get("memoryOverhead"), f"spark.{role}.memoryOverhead")
        least = self._mebibytes(self._conf.get(f"spark.{role}.minMemoryOverhead"), _LEAST_OVERHEAD)
        share = max(int(self._overhead_factor(role) * of_jvm), least)
        found = of_jvm + self._mebibytes(overhead, share)
        if role == EXECUTOR:
            if self._main_file().endswith(".py"):
                found += self._mebibytes(self._conf.get("spark.executor.pyspark.memory"), 0)
            if str(self._conf.get("spark.memory.offHeap.enabled").value).lower() == "true":
                found += self._mebibytes(self._conf.get("spark.memory.offHeap.size"), 0, unit=0)
        return found

    def _overhead_factor(self, role: str) -> float:
        default = _OF_OTHERS if self._main_file().endswith((".py", ".R")) else _OF_JVM
        # Properties come after the field on the command line, and so before it.
        places = (
            self._conf.get(f"spark.{role}.memoryOverheadFactor"),
            self._conf.get(_FACTOR),
            self._spec.get("memoryOverheadFactor"),
        )
        given = next((one for one in places if one.is_set), None)
        if given is None:
            return default
        if isinstance(given.value, str) and re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,17})?|\.[0-9]{1,17}", given.value):
            return float(given.value)
        given.refuse(f'must be a text such as "0.2", not {shown(given.value)}')
        return default

    def _main_file(self) -> str:
        # Spark decides by the name of the file; the type is for the operator.
        value = self._spec.get("mainApplicationFile").value
        return value if isinstance(value, str) else ""

    def _extended(self, role: str) -> Mapping[str, str]:
        found: dict[str, str] = {}
        gpu = self._spec.get(role).get("gpu")
        if gpu.is_set and gpu.get("name").text() and number(gpu.get("quantity"), 0, least=0):
            found[str(gpu.get("name").value)] = str(gpu.get("quantity").value)
        for key, node in self._conf.fields():
            named = _NAMED_RESOURCE.fullmatch(key)
            if named is None or named[1] != role:
                continue
            vendor = self._conf.get(f"spark.{role}.resource.{named[2]}.vendor")
            if not vendor.text():
                vendor.refuse("must be given: it is the first part of the name of the resource in Kubernetes")
            found[f"{vendor.value}/{named[2]}"] = str(self._whole(node, 1, least=0))
        return found

    def _text(self, field: JsonNode, key: str) -> JsonNode:
        """Return the field, or the property where it is not set, whose value has to be a text."""
        found = field if field.is_set else self._conf.get(key)
        found.text()
        return found

    def _mebibytes(self, node: JsonNode, default: int, unit: int = 2) -> int:
        """Return an amount of memory as Spark reads it; ``unit``: the power of 1024 of a number without one."""
        if not node.is_set:
            return default
        text = node.value.strip().lower() if isinstance(node.value, str) else ""
        read = _MEMORY.fullmatch(text)
        if read is None:
            node.refuse(f"must be an amount of memory as Spark reads it, such as 512m or 4g, not {shown(node.value)}")
            return default
        suffix = read[2] or read[3]
        power: int = _UNITS[suffix] if suffix else unit
        return int(int(read[1]) * 1024**power // 1024**2)

    def _whole(self, node: JsonNode, default: int, least: int = 1) -> int:
        """Return a whole number in a property."""
        if not node.is_set:
            return default
        if isinstance(node.value, str) and re.fullmatch("[0-9]{1,9}", node.value) and int(node.value) >= least:
            return int(node.value)
        node.refuse(f'must be a whole number of at least {least} as text, such as "2", not {shown(node.value)}')
        return max(default, least)


def completed_spec(spec: Wire) -> Wire:
    """Return a specification whose pod templates say all that it says of its pods; what has another shape stays where it is."""
    made = deepcopy(spec)
    roles = [made.get(role) for role in (DRIVER, EXECUTOR)]
    if not all(isinstance(one, dict) and isinstance(one.get("template", {}), dict) for one in roles):
        return made
    for role in (DRIVER, EXECUTOR):
        if _is_well_formed(made[role]):
            _complete(made, role)
    for field in SHARED:
        # Else they are a mistake, which is told where it is.
        if isinstance(
            made.get(field), str if field == "hadoopConfigMap" else dict if field == "nodeSelector" else list
        ):
            del made[field]
    made.setdefault("mode", "cluster")
    if not _is_dynamic(made):
        reader = SparkProperties(JsonNode(made, "", []))
        made[EXECUTOR].setdefault("instances", reader.executors())
    return made


def _is_dynamic(spec: Wire) -> bool:
    dynamic = spec.get("dynamicAllocation")
    return isinstance(dynamic, dict) and dynamic.get("enabled") is True


def _is_well_formed(part: Wire) -> bool:
    template = part.get("template") or {}
    pod = template.get("spec", {})
    return (
        isinstance(template.get("metadata", {}), dict)
        and isinstance(pod, dict)
        and isinstance(pod.get("containers", []), list)
        and all(isinstance(one, dict) for one in pod.get("containers", []))
    )


def spark_container(role: str, containers: Iterable[Any]) -> Wire | None:
    """Return the container of a pod template that Spark takes as its own: the one with its name, or else the first."""
    found = [one for one in containers if isinstance(one, dict)]
    return next((one for one in found if one.get("name") == CONTAINERS[role]), found[0] if found else None)


def _complete(spec: Wire, role: str) -> None:
    """Make the pod template of a role say what the specification says of it."""
    part = spec[role]
    needs_of = JsonNode(spec, "", [])
    needs = SparkProperties(needs_of).needs(role)
    template = part.setdefault("template", {})
    pod = template.setdefault("spec", {})
    containers = pod.setdefault("containers", [])
    container = spark_container(role, containers)
    if container is None:
        container = {"name": CONTAINERS[role]}
        containers.append(container)
    _move_properties(spec, role, template)
    for field, becomes in TAKEN_OVER.items():
        _move(part, field, pod, becomes)
    if pod.get("hostNetwork") is True:
        pod.setdefault("dnsPolicy", "ClusterFirstWithHostNet")
    for field in OF_CONTAINER:
        if (role, field) != (EXECUTOR, "ports"):  # which Spark replaces
            _move(part, field, container, field)
    for field in ("labels", "annotations"):
        if isinstance(part.get(field), dict):
            _move(part, field, template.setdefault("metadata", {}), field)
    _add_variables(part, container)
    _add_files(spec, part, pod, container)
    if isinstance(part.get("sidecars"), list):
        containers += part.pop("sidecars")
    _add_shared(spec, pod, containers)
    _set_account(spec, role, pod)
    image = part.get("image") or spec.get("image") or container.get("image")
    if isinstance(image, str):
        part["image"] = container["image"] = image
    if isinstance(container.get("imagePullPolicy"), str):
        spec.setdefault("imagePullPolicy", container["imagePullPolicy"])
    if not needs_of.mistakes:
        part.pop("gpu", None)
        given = container.get("resources")
        given = given if isinstance(given, dict) else {}
        amounts = (given.get(field) for field in ("requests", "limits"))
        requests, limits = (one if isinstance(one, dict) else {} for one in amounts)
        container["resources"] = {
            **given,
            "requests": {**requests, **needs.extended, **needs.requests},
            "limits": {**limits, **needs.extended, **needs.limits},
        }


def _move_properties(spec: Wire, role: str, template: Wire) -> None:
    """Move the properties that are labels and the like of a role's pods, which would else be stronger than its template."""
    conf = spec.get("sparkConf")
    if not isinstance(conf, dict):
        return
    for begin, parent, field in (
        (f"spark.kubernetes.{role}.label.", "metadata", "labels"),
        (f"spark.kubernetes.{role}.annotation.", "metadata", "annotations"),
        (f"spark.kubernetes.{role}.node.selector.", "spec", "nodeSelector"),
    ):
        found = {key.removeprefix(begin): value for key, value in conf.items() if key.startswith(begin)}
        into = template.setdefault(parent, {}) if found else {}
        if found and isinstance(into.get(field, {}), dict):
            into[field] = {**into.get(field, {}), **found}
            conf = {key: value for key, value in conf.items() if not key.startswith(begin)}
    spec["sparkConf"] = conf


def _move(part: Wire, field: str, into: Wire, name: str) -> None:
    """Move a field to where a template has it: lists are appended, and labels and the like added one by one."""
    new = part.get(field)
    old = into.get(name)
    if new is None:
        return
    if field in APPENDED or field in ("env", "envFrom", "ports", "volumeMounts"):
        if not isinstance(new, list) or not isinstance(old or [], list):
            return
        into[name] = [*(old or []), *new]
    elif field in ("nodeSelector", "labels", "annotations"):
        if not isinstance(new, dict) or not isinstance(old or {}, dict):
            return
        into[name] = {**(old or {}), **new}
    else:
        into[name] = new
    del part[field]


def _add_variables(part: Wire, container: Wire) -> None:
    found: list[Wire] = []
    if isinstance(part.get("envVars"), dict):
        found += [{"name": name, "value": value} for name, value in _by_name(part.pop("envVars"))]
    references = part.get("envSecretKeyRefs")
    if isinstance(references, dict) and all(isinstance(one, dict) for one in references.values()):
        del part["envSecretKeyRefs"]
        found += [
            {"name": name, "valueFrom": {"secretKeyRef": {"name": one.get("name"), "key": one.get("key")}}}
            for name, one in _by_name(references)
        ]
    if found and isinstance(container.get("env", []), list):
        container["env"] = [*container.get("env", []), *found]


def _by_name(fields: Wire) -> list[tuple[str, Any]]:
    return sorted(fields.items(), key=lambda field: str(field[0]))


def _add_files(spec: Wire, part: Wire, pod: Wire, container: Wire) -> None:
    """Add the volumes of ConfigMaps and secrets, with the variables that name files in them."""
    for field in ("configMaps", "secrets"):
        listed = part.get(field)
        if not isinstance(listed, list) or not all(
            isinstance(one, dict) and isinstance(one.get("name"), str) and isinstance(one.get("path"), str)
            for one in listed
        ):
            continue
        del part[field]
        for one in listed:
            name, path = one["name"], one["path"]
            source = {"secret": {"secretName": name}} if field == "secrets" else {"configMap": {"name": name}}
            _mount(pod, container, f"{field[:-1].lower()}-{name.replace('.', '-')}"[:63].rstrip("-"), path, source)
            kind = str(one.get("secretType"))
            if field == "secrets" and kind in _KEYS:
                _set_variable(container, _KEY_VARIABLES[kind], f"{path.rstrip('/')}/{_KEYS[kind]}")
    hadoop = spec.get("hadoopConfigMap")
    if isinstance(hadoop, str):
        _mount(pod, container, "hadoop-configmap-volume", _HADOOP_CONF, {"configMap": {"name": hadoop}})
        _set_variable(container, "HADOOP_CONF_DIR", _HADOOP_CONF)


def _mount(pod: Wire, container: Wire, name: str, path: str, source: Wire) -> None:
    for owner, field, new in (
        (pod, "volumes", {"name": name, **source}),
        (container, "volumeMounts", {"name": name, "mountPath": path, "readOnly": True}),
    ):
        if isinstance(owner.get(field, []), list):
            owner[field] = [*owner.get(field, []), new]


def _set_variable(container: Wire, name: str, value: str) -> None:
    if isinstance(container.get("env", []), list):
        container["env"] = [*container.get("env", []), {"name": name, "value": value}]


def _add_shared(spec: Wire, pod: Wire, containers: list[Any]) -> None:
    """Add what a specification says of both roles: volumes that containers mount, secrets of images, and the node selector."""
    starting = pod.get("initContainers")
    everyone = [*containers, *(starting if isinstance(starting, list) else [])]
    mounts = [one.get("volumeMounts") for one in everyone if isinstance(one, dict)]
    mounted = {name for some in mounts if isinstance(some, list) for name in _names(some)}
    own = pod.get("volumes", [])
    if isinstance(spec.get("volumes"), list) and isinstance(own, list):
        wanted = mounted - set(_names(own))
        more = [one for one in spec["volumes"] if any(name in wanted for name in _names([one]))]
        if more:
            pod["volumes"] = [*own, *deepcopy(more)]
    secrets = pod.get("imagePullSecrets", [])
    if isinstance(spec.get("imagePullSecrets"), list) and isinstance(secrets, list):
        pod["imagePullSecrets"] = [*secrets, *({"name": name} for name in spec["imagePullSecrets"])]
    selector = pod.get("nodeSelector", {})
    if isinstance(spec.get("nodeSelector"), dict) and isinstance(selector, dict):
        pod["nodeSelector"] = {**selector, **spec["nodeSelector"]}


def _names(listed: Iterable[Any]) -> list[str]:
    return [one["name"] for one in listed if isinstance(one, dict) and isinstance(one.get("name"), str)]


def _set_account(spec: Wire, role: str, pod: Wire) -> None:
    """Name the service account in both places: Spark gives executors the driver's where they have none of their own."""
    names = (spec[role].get("serviceAccount"), pod.get("serviceAccountName"), pod.get("serviceAccount"))
    name = next((one for one in names if one), None if role == DRIVER else spec[DRIVER].get("serviceAccount"))
    if name is None:
        return
    pod.pop("serviceAccount", None)
    spec[role]["serviceAccount"] = pod["serviceAccountName"] = name
    if role == DRIVER:
        # It creates the executors as this account, for which it needs its token.
        pod.setdefault("automountServiceAccountToken", True)
