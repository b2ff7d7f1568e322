"""Admission of tenants' pod templates: checked when a job is submitted and again by the agent that starts it.

Pure. Kubernetes' Pod Security Standards are in ``pod_security.py``; this module has what a tenant may use in a shared namespace
and which fields only the agent sets. Unknown fields are refused, so that a new field of Kubernetes has to be
reviewed before a tenant can use it.
"""

# ruff: noqa: SIM905 -- lists of words are read more easily than one name a line

from collections.abc import Iterator
from typing import Any

from trainmaster.protocol.admission_policy import AdmissionPolicy, is_allowed
from trainmaster.protocol.errors import Mistake
from trainmaster.protocol.jobs import MemberTemplate, Role
from trainmaster.protocol.json_limits import JsonNode, is_too_large, shown
from trainmaster.protocol.pod_allowances import (
    check_allowances,
    check_image,
    check_name,
    check_node_label,
    check_toleration,
)
from trainmaster.protocol.pod_requests import pod_requests, read_requests
from trainmaster.protocol.pod_security import BASELINE, RESTRICTED, Pod, read_pod, volume_sources
from trainmaster.protocol.pod_structure import check_structure

__all__ = ["AdmissionPolicy", "check_image_named", "check_metadata", "check_pod_template", "check_role", "pod_requests"]

DEFAULT = AdmissionPolicy()
MOST_MISTAKES = 100
"""The most mistakes reported at once: the answer must stay small, however large the template is."""

_NO_IMAGE = "must name an image, such as registry.example.com/team/train:1: its members are pods"
_SET_BY_AGENT = frozenset(
    "nodeName preemptionPolicy priority priorityClassName schedulerName schedulingGates schedulingGroup "
    "workloadRef".split()
)
_LABELS_OF_AGENT = frozenset(("app.kubernetes.io/managed-by",))
"""Labels of every pod of an agent, beside those of reserved domains: by them a pod could select those of all other jobs."""
_RESERVED_DOMAINS = (
    "trainmaster.dev",
    "hami.io",
    "kueue.x-k8s.io",
    "scheduling.k8s.io",
    "scheduling.sigs.k8s.io",
    "scheduling.x-k8s.io",
    "volcano.sh",
    "kai.scheduler",
    "yunikorn.apache.org",
)
"""Domains, with their subdomains, whose labels and annotations schedulers obey."""
_RESERVED_KEYS = frozenset(("applicationId", "pod-group-name", "queue", "spark-app-selector"))
"""Keys without a domain that schedulers obey: of YuniKorn all but ``pod-group-name``, which is KAI's."""


def check_role(role: Role, policy: AdmissionPolicy | None) -> tuple[Mistake, ...]:
    """Return what ``policy`` refuses in a role's template, with paths from the role on; without one, what every policy refuses."""
    if role.pod_template is not None:
        found = check_pod_template(role.pod_template, policy)
        return tuple(Mistake(path=f"podTemplate.{one.path}", message=one.message) for one in found)
    if role.template is None or policy is None or (policy == DEFAULT and not _needs_a_look(role)):
        return ()
    mistakes: list[Mistake] = []
    template = JsonNode(role.template.model_dump(mode="json", by_alias=True), "template", mistakes)
    check_image(template.get("image"), policy)
    if role.template.run_as_user == 0 and policy.level == "restricted":
        template.get("runAsUser").refuse(
            "must not be 0, which is root; leave it out to run as the user that the cluster gives"
        )
    _check_mounts(role.template, template, policy)
    for toleration in template.get("tolerations").items():
        check_toleration(toleration, policy)
    for key, value in template.get("nodeSelector").entries():
        check_node_label(value, key, policy)
    for term in template.get("nodeAffinity").items():
        label = term.get("key")
        if isinstance(label.value, str) and term.get("operator").value not in ("NotIn", "DoesNotExist"):
            check_node_label(label, label.value, policy)
    return tuple(mistakes)


_OBJECTS = {"claim": "claim", "configMap": "ConfigMap"}
"""Kinds of the objects that volumes of templates name, by field."""


def _check_mounts(of: MemberTemplate, template: JsonNode, policy: AdmissionPolicy) -> None:
    kinds = [(one.kind, node) for one, node in zip(of.volumes, template.get("volumes").items(), strict=True)]
    kinds += [("emptyDir", template.get("sharedMemory"))] if of.shared_memory is not None else []
    kinds += [("configMap", template.get("files"))] if of.files else []
    for kind, node in kinds:
        if policy.volume_types is not None and kind not in policy.volume_types:
            node.refuse(f"volumes of the type {kind} are not allowed here")
    for one, node in zip(of.volumes, template.get("volumes").items(), strict=True):
        for field, kind in _OBJECTS.items():
            if node.get(field).value is not None:
                check_name(kind, node.get(field), policy)
        if one.secret is not None:
            _check_secret(node.get("secret"), policy)
    for _, variable in template.get("secretEnv").entries():
        _check_secret(variable.get("secret"), policy)


def _check_secret(name: JsonNode, policy: AdmissionPolicy) -> None:
    text = name.text()
    if not text:
        name.refuse("must name a secret")
    elif not is_allowed(text, policy.secrets):
        name.refuse(f"secret {shown(text)} is not allowed here")


def check_image_named(role: Role) -> tuple[Mistake, ...]:
    """Return a mistake if a template names no image, which a pod needs. Pod templates always have to name one."""
    if role.template is None or role.template.image:
        return ()
    return (Mistake(path="template.image", message=_NO_IMAGE),)


def _needs_a_look(role: Role) -> bool:
    """Return whether the default policy could refuse anything in the role's template."""
    of = role.template
    if of is None:
        return False
    return bool(of.tolerations or of.node_selector or of.node_affinity or of.run_as_user == 0) or of.has_mounts


def check_pod_template(template: dict[str, Any], policy: AdmissionPolicy | None) -> tuple[Mistake, ...]:
    """Return what ``policy`` refuses in a pod template (``metadata`` and ``spec``); empty when it is allowed.

    Without a policy: what every policy refuses. Never raises: a wrong shape is a mistake, too. Returns the first 100 mistakes.
    """
    if is_too_large(template):
        return (Mistake(path="", message="has too many values for a pod template"),)
    mistakes: list[Mistake] = []
    root = JsonNode(template, "", mistakes)
    pod = read_pod(root)
    check_structure(root)
    _check_fields(pod)
    check_metadata(root.get("metadata"))
    for kind, source in volume_sources(pod):
        if kind == "ephemeral":
            check_metadata(source.get("volumeClaimTemplate").get("metadata"))
    for control in RESTRICTED if policy is not None and policy.level == "restricted" else BASELINE:
        if len(mistakes) < 10 * MOST_MISTAKES:  # more would be dropped; a template like this may be meant to waste time
            control(pod)
    if policy is not None:
        _check_service_account(pod, policy)
        _check_secrets(pod, policy)
        _check_volume_types(pod, policy)
        _check_runtime_class(pod, policy)
        check_allowances(root.get("metadata"), pod, policy)
    _check_environment(pod)
    read_requests(pod.spec)
    return tuple(dict.fromkeys(mistakes))[:MOST_MISTAKES]


def _check_fields(pod: Pod) -> None:
    for name, node in pod.spec.fields():
        if name in _SET_BY_AGENT:
            node.refuse("is set by the agent and must be left out")
    if not pod.spec.get("containers").items():
        pod.spec.get("containers").refuse("must have at least one container")


def check_metadata(metadata: JsonNode) -> None:
    """Refuse metadata that a tenant's object may not set: all but labels and annotations, and those that schedulers obey."""
    for name, node in metadata.fields():
        if name not in ("labels", "annotations"):
            node.refuse("is set by the agent and must be left out; a template may set labels and annotations")
            continue
        for key, value in node.entries():
            value.must_be_text()
            domain, slash, _ = key.partition("/")
            reserved = any(domain == owner or domain.endswith(f".{owner}") for owner in _RESERVED_DOMAINS)
            if name == "labels" and key in _LABELS_OF_AGENT:
                value.refuse("is set by the agent and must be left out")
            elif (slash and reserved) or key in _RESERVED_KEYS:
                value.refuse("is reserved: Trainmaster and the cluster's scheduler act on it, so the agent sets it")


def _check_service_account(pod: Pod, policy: AdmissionPolicy) -> None:
    names = []
    for key in ("serviceAccountName", "serviceAccount"):
        name = pod.spec.get(key).text()
        if name:
            names.append(name)
            if name != "default" and not is_allowed(name, policy.service_accounts):
                pod.spec.get(key).refuse(f"service account {shown(name)} is not allowed here")
    if all(is_allowed(name, policy.service_accounts) for name in names or ["default"]):
        return
    mount = pod.spec.get("automountServiceAccountToken")
    if mount.flag():
        mount.refuse("must be false or left out: the token of this service account may not be mounted")
    for source in _projected(pod):
        for kind in ("serviceAccountToken", "podCertificate"):
            if source.get(kind).is_set:
                source.get(kind).refuse("is not allowed: with it a member could act as this service account")


def _projected(pod: Pod) -> Iterator[JsonNode]:
    for kind, source in volume_sources(pod):
        if kind == "projected":
            yield from source.get("sources").items()


def _check_secrets(pod: Pod, policy: AdmissionPolicy) -> None:
    for name in _secret_names(pod):
        _check_secret(name, policy)


def _secret_names(pod: Pod) -> Iterator[JsonNode]:
    for secret in pod.spec.get("imagePullSecrets").items():
        yield secret.get("name")
    references = []
    for container in pod.containers:
        references += [source.get("secretRef") for source in container.get("envFrom").items()]
        references += [item.get("valueFrom").get("secretKeyRef") for item in container.get("env").items()]
    references += [source.get("secret") for source in _projected(pod)]
    for kind, source in volume_sources(pod):
        if kind == "secret" or source.get("secretName").is_set:
            yield source.get("secretName")
        references += [source.get("secretRef"), source.get("nodePublishSecretRef")]
    for reference in references:
        if reference.is_set:
            yield reference.get("name")


def _check_volume_types(pod: Pod, policy: AdmissionPolicy) -> None:
    if policy.volume_types is None:
        return
    for kind, source in volume_sources(pod):
        if kind not in policy.volume_types:
            source.refuse("this type of volume is not allowed here")


def _check_runtime_class(pod: Pod, policy: AdmissionPolicy) -> None:
    runtime_class = pod.spec.get("runtimeClassName")
    name = runtime_class.text()
    if name is not None and not is_allowed(name, policy.runtime_classes):
        runtime_class.refuse(f"runtime class {shown(name)} is not allowed here")


def _check_environment(pod: Pod) -> None:
    for container in pod.containers:
        for item in container.get("env").items():
            name = item.get("name")
            if (name.text() or "").startswith("TRAINMASTER_"):
                name.refuse("names that begin with TRAINMASTER_ are set by the agent")
