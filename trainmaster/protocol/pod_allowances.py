"""Allowances of a policy by name: objects of the namespace, images, annotations, nodes. ``pod_structure.py`` checks the structure."""

from collections.abc import Iterator, Sequence

from pydantic.alias_generators import to_camel

from trainmaster.protocol.admission_policy import (
    COMMON_TAINTS,
    HARMLESS_ANNOTATIONS,
    HARMLESS_LABELS,
    AdmissionPolicy,
    is_allowed,
)
from trainmaster.protocol.ids import parse_run_id
from trainmaster.protocol.json_limits import JsonNode, shown
from trainmaster.protocol.pod_security import Pod, volume_sources
from trainmaster.protocol.quantities import parse_quantity

CONTROL_PLANE = (
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
    "node-role.kubernetes.io/etcd",
    "node.kubernetes.io/role",
    "kubernetes.io/role",
)
"""Keys of labels of control-plane nodes."""
_POWERFUL_KEYS = ("aadpodidbinding",)
"""Keys of labels without a domain by which other software grants rights."""
_LEAVING = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Taints of nodes that do not answer: Kubernetes itself lets pods tolerate them for 300 seconds."""
_MOST_LEAVING = 300
_ACTORS = {
    "k8s.v1.cni.cncf.io": "Multus",
    "cni.projectcalico.org": "Calico",
    "nri.io": "NRI plug-ins",
    "vault.hashicorp.com": "the Vault agent",
    "iam.amazonaws.com": "kube2iam",
    "eks.amazonaws.com": "AWS IAM roles",
    "azure.workload.identity": "Azure workload identity",
    "aadpodidbinding": "Azure AD pod identity",
    "istio.io": "Istio",
    "linkerd.io": "Linkerd",
    "cilium.io": "Cilium",
    "projectcalico.org": "Calico",
    "cdi.kubevirt.io": "KubeVirt's importer of data",
    "k8s.io": "software of Kubernetes",
    "kubernetes.io": "software of Kubernetes",
    "dapr.io": "Dapr",
}
_CHOOSES = ("In", "Exists", "Gt", "Lt", "")
_MOST_LISTED = 20


def check_allowances(metadata: JsonNode, pod: Pod, policy: AdmissionPolicy) -> None:
    """Add a mistake to the document for each name that the policy does not allow."""
    _check_annotations(metadata.get("annotations"), policy)
    _check_labels(metadata.get("labels"), policy)
    if len(pod.containers) > policy.most_containers:
        pod.spec.get("containers").refuse(f"must be at most {policy.most_containers}, init containers counted")
    for container in pod.containers:
        check_image(container.get("image"), policy)
    for kind, source in volume_sources(pod):
        if kind == "image":
            check_image(source.get("reference"), policy)
    for kind, name in _named(pod):
        check_name(kind, name, policy)
    for claim in pod.spec.get("resourceClaims").items():
        if claim.get("resourceClaimTemplateName").is_set:
            check_name("ResourceClaimTemplate", claim.get("resourceClaimTemplateName"), policy)
        if claim.get("resourceClaimName").is_set:
            check_name("ResourceClaim", claim.get("resourceClaimName"), policy)
    _check_claim_templates(pod, policy)
    for toleration in pod.spec.get("tolerations").items():
        check_toleration(toleration, policy)
    for key, value in pod.spec.get("nodeSelector").entries():
        check_node_label(value, key, policy)
    _check_affinity(pod.spec.get("affinity"), metadata.get("labels"), policy)


def check_image(image: JsonNode, policy: AdmissionPolicy) -> None:
    if isinstance(image.value, str) and image.value and not is_allowed(image.value, policy.images):
        image.refuse(f"image {shown(image.value)} is not allowed here; allowed are {_listed(policy.images)}")


def check_toleration(toleration: JsonNode, policy: AdmissionPolicy) -> None:
    key = toleration.get("key").value
    allowed = COMMON_TAINTS if policy.tolerations is None else policy.tolerations
    if not isinstance(key, str) or not key:
        if "*" not in allowed:
            toleration.refuse("must name the tolerated taint: tolerating every taint is not allowed here")
    elif is_allowed(key, allowed):
        return
    elif key not in _LEAVING:
        toleration.get("key").refuse(
            f"taint {shown(key)} may not be tolerated here; allowed are {_listed(allowed)}{_advice('tolerations')}"
        )
    elif not _is_brief(toleration):
        toleration.refuse(
            f"must have effect NoExecute and tolerationSeconds of at most {_MOST_LEAVING}, for members of a lost node are "
            f"replaced only then{_advice('tolerations')}"
        )


def _is_brief(toleration: JsonNode) -> bool:
    seconds = toleration.get("tolerationSeconds").value
    return (
        toleration.get("effect").value == "NoExecute"
        and isinstance(seconds, int)
        and not isinstance(seconds, bool)
        and seconds <= _MOST_LEAVING
    )


def _listed(patterns: Sequence[str]) -> str:
    """Return patterns as a message lists them."""
    return ", ".join((*patterns[:_MOST_LISTED], *(("...",) if len(patterns) > _MOST_LISTED else ()))) or "none"


def _advice(field: str) -> str:
    """Return what to ask an admin for."""
    return f". An admin can allow more in {field} of the admission policy"


def check_node_label(node: JsonNode, key: str, policy: AdmissionPolicy) -> None:
    """Check the key of a node label that selects nodes."""
    if policy.node_labels is None:
        if key in CONTROL_PLANE:
            node.refuse("control-plane nodes may not be chosen here")
    elif not is_allowed(key, policy.node_labels):
        node.refuse(f"nodes may not be chosen by the label {shown(key)} here")


def _is_below(key: str, domains: tuple[str, ...]) -> bool:
    owner = key.partition("/")[0]
    return any(owner == one or owner.endswith(f".{one}") for one in domains)


def _check_annotations(annotations: JsonNode, policy: AdmissionPolicy) -> None:
    for key, value in annotations.fields():
        has_domain = "/" in key or "." in key
        if not has_domain or is_allowed(key, HARMLESS_ANNOTATIONS) or is_allowed(key, policy.annotations):
            continue
        value.refuse(f"this annotation is not allowed here{_acts(key)}{_advice('annotations')}")


def _check_labels(labels: JsonNode, policy: AdmissionPolicy) -> None:
    for key, value in labels.fields():
        is_free = "/" not in key and key not in _POWERFUL_KEYS
        if is_free or is_allowed(key, HARMLESS_LABELS) or is_allowed(key, policy.labels):
            continue
        free = f"; free are those without a domain and {_listed(HARMLESS_LABELS)}"
        value.refuse(f"this label is not allowed here{_acts(key)}{free}{_advice('labels')}")


def _acts(key: str) -> str:
    """Return why a label or annotation needs an allowance."""
    actor = next((name for domain, name in _ACTORS.items() if _is_below(key, (domain,))), "")
    return f": {actor} acts on it" if actor else ", because software of the cluster may act on it"


_LISTS = {
    "ConfigMap": "config_maps",
    "claim": "claims",
    "CSI driver": "csi_drivers",
    "ResourceClaim": "resource_claims",
    "ResourceClaimTemplate": "resource_claims",
}


def _is_of_a_run(name: str) -> bool:
    """Return whether an agent gives this name to objects of a run: a roster, a role's files, or a record of an older release."""
    run = name.removesuffix("-roster")
    if name.endswith("-files"):
        run = next((name[:end] for end, letter in enumerate(name) if letter == "-" and _is_run_id(name[:end])), run)
    return _is_run_id(run)


def _is_run_id(text: str) -> bool:
    try:
        parse_run_id(text)
    except ValueError:
        return False
    return True


def check_name(kind: str, name: JsonNode, policy: AdmissionPolicy) -> None:
    """Check the name of an object that a member uses. ``kind``: one of ``_LISTS``."""
    text = name.text()
    if not text:
        name.refuse(f"must name a {kind}")
    elif kind == "ConfigMap" and _is_of_a_run(text):
        name.refuse(f"{kind} {shown(text)} has the name of an object of a run, which pods may not read")
    elif not is_allowed(text, getattr(policy, _LISTS[kind])):
        name.refuse(f"{kind} {shown(text)} is not allowed here{_advice(to_camel(_LISTS[kind]))}")


def _named(pod: Pod) -> Iterator[tuple[str, JsonNode]]:
    """Yield the ConfigMaps, claims and CSI drivers that a pod uses."""
    for container in pod.containers:
        references = [one.get("configMapRef") for one in container.get("envFrom").items()]
        references += [one.get("valueFrom").get("configMapKeyRef") for one in container.get("env").items()]
        for reference in references:
            if reference.is_set:
                yield "ConfigMap", reference.get("name")
    for kind, source in volume_sources(pod):
        if kind == "configMap":
            yield "ConfigMap", source.get("name")
        elif kind == "persistentVolumeClaim":
            yield "claim", source.get("claimName")
        elif kind == "csi":
            yield "CSI driver", source.get("driver")
        else:
            yield from _named_inside(kind, source)


def _named_inside(kind: str, source: JsonNode) -> Iterator[tuple[str, JsonNode]]:
    if kind == "projected":
        for one in source.get("sources").items():
            if one.get("configMap").is_set:
                yield "ConfigMap", one.get("configMap").get("name")
    elif kind == "ephemeral":
        spec = source.get("volumeClaimTemplate").get("spec")
        for field in ("dataSource", "dataSourceRef"):
            if spec.get(field).is_set:
                yield "claim", spec.get(field).get("name")


def _check_claim_templates(pod: Pod, policy: AdmissionPolicy) -> None:
    size = 0
    for kind, source in volume_sources(pod):
        if kind != "ephemeral":
            continue
        template = source.get("volumeClaimTemplate")
        _check_annotations(template.get("metadata").get("annotations"), policy)
        _check_labels(template.get("metadata").get("labels"), policy)
        spec = template.get("spec")
        size = _check_size(spec.get("resources"), size, policy)
        _check_class(spec, policy)
        for field in ("volumeName", "selector"):
            if spec.get(field).is_set:
                spec.get(field).refuse("must be left out: an existing volume may belong to somebody else")
        for field in ("dataSource", "dataSourceRef"):
            data = spec.get(field)
            if data.is_set and data.get("kind").value != "PersistentVolumeClaim":
                data.get("kind").refuse("must be PersistentVolumeClaim")
            if data.get("namespace").is_set:
                data.get("namespace").refuse("must be left out: data of other namespaces may not be read")


def _check_class(spec: JsonNode, policy: AdmissionPolicy) -> None:
    for field in ("storageClassName", "volumeAttributesClassName"):
        name = spec.get(field).value
        # An empty name, for which an existing volume would be taken, is refused with the structure.
        if isinstance(name, str) and name and not is_allowed(name, policy.storage_classes):
            spec.get(field).refuse(
                f"class {shown(name)} is not allowed here; allowed are the cluster's default, for which the field is left out, "
                f"and of others {_listed(policy.storage_classes)}{_advice('storageClasses')}"
            )


def _check_size(resources: JsonNode, before: int, policy: AdmissionPolicy) -> int:
    """Check a volume that follows others of the size ``before``; return the size of all."""
    most = parse_quantity("storage", policy.most_volume_size)
    sizes = []
    for kind in ("requests", "limits"):
        amount = resources.get(kind).get("storage")
        if not amount.is_set:
            continue
        try:
            sizes.append(parse_quantity("storage", str(amount.value)))
        except ValueError:
            amount.refuse("must be a quantity such as 10Gi")
            continue
        if before <= most < before + sizes[-1]:
            amount.refuse(
                f"the ephemeral volumes of a pod may have at most {policy.most_volume_size} together here"
                f"{_advice('mostVolumeSize')}"
            )
    return before + max(sizes, default=0)


def _check_affinity(affinity: JsonNode, labels: JsonNode, policy: AdmissionPolicy) -> None:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    node = affinity.get("nodeAffinity")
    terms = [*node.get(required).get("nodeSelectorTerms").items()]
    terms += [one.get("preference") for one in node.get(preferred).items()]
    for term in terms:
        for expression in term.get("matchExpressions").items():
            key = expression.get("key")
            if isinstance(key.value, str) and expression.get("operator").value in _CHOOSES:
                check_node_label(key, key.value, policy)
    own = labels.value if isinstance(labels.value, dict) else {}
    for kind in ("podAffinity", "podAntiAffinity"):
        pods = affinity.get(kind)
        for term in pods.get(required).items():
            _check_pod_term(term)
            _check_own(term, own)
        for weighted in pods.get(preferred).items():
            _check_pod_term(weighted.get("podAffinityTerm"))


def _check_pod_term(term: JsonNode) -> None:
    for field in ("namespaces", "namespaceSelector"):
        if term.get(field).is_set:
            term.get(field).refuse("must be left out: terms may not refer to pods of other namespaces")
    for key in term.get("mismatchLabelKeys").items():
        if isinstance(key.value, str) and _is_below(key.value, ("trainmaster.dev",)):
            key.refuse("must be left out: terms refer to pods of the job's own run alone")


def _check_own(term: JsonNode, own: dict[str, object]) -> None:
    """Check that a required term selects pods by labels of this one. The agent narrows it to those of the same run, so that a
    term which selects others would wait for ever.
    """
    selector = term.get("labelSelector")
    wanted = dict(selector.get("matchLabels").entries())
    expressions = selector.get("matchExpressions").items()
    if not wanted and not expressions:
        selector.refuse("must select pods by labels that this template sets itself")
    for key, value in wanted.items():
        if own.get(key) != value.value:
            value.refuse("must be a label that this template sets itself, with the same value")
    for expression in expressions:
        name, values = expression.get("key").value, expression.get("values").value
        if expression.get("operator").value != "In" or not isinstance(name, str) or values != [own.get(name)]:
            expression.refuse("must be operator In with the value that this template itself gives the label")
