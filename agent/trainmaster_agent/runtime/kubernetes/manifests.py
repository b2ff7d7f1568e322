"""Manifests of a run's members and their objects, from the run's record. Pure."""

import math
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any

import orjson

from trainmaster.protocol.admission import AdmissionPolicy, check_image_named, check_role
from trainmaster.protocol.agent import HOST_LEVEL
from trainmaster.protocol.device_claims import uncounted_claims
from trainmaster.protocol.errors import Mistake
from trainmaster.protocol.ids import member_id
from trainmaster.protocol.jobs import AffinityTerm, MemberTemplate, Role
from trainmaster.protocol.mounts import file_key, mounts_of, secret_variables
from trainmaster.protocol.placement import COMING
from trainmaster.protocol.results import RESULTS_VARIABLE
from trainmaster.workload_kinds.specification import assembled
from trainmaster_agent.capacity.node_index import AllowedNodes
from trainmaster_agent.capacity.shared_gpus import GpuParts
from trainmaster_agent.kube.paths import CONFIG_MAPS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, SERVICES
from trainmaster_agent.kube.pods import (
    LABEL_EXCLUSIVE,
    LABEL_HOLDER,
    LABEL_INDEX,
    LABEL_ROLE,
    LABEL_ROUND,
    LABEL_RUN,
    RESULTS_PATH,
)
from trainmaster_agent.placement.port import Gang, GangRole, KubeObject, PlacementPort
from trainmaster_agent.runtime.kubernetes import entry_point_container, file_containers, name_wait
from trainmaster_agent.runtime.kubernetes.config import AwaitNames, FilesConfig, ImageEntryPoints
from trainmaster_agent.runtime.kubernetes.environment import ROSTER_PATH, Roster
from trainmaster_agent.runtime.kubernetes.gpu_parts import hand_over
from trainmaster_agent.runtime.kubernetes.record import KubeRunRecord, run_labels
from trainmaster_agent.runtime.kubernetes.run_spec import Facts
from trainmaster_agent.runtime.kubernetes.template_bounds import limit_to_requests, select_own_run
from trainmaster_agent.runtime.kubernetes.workload_objects import object_name, resource_of

_DEADLINE_SLACK = 60
"""Seconds beyond the time limit after which the cluster itself ends a member: the agent does so first, for all at once."""
_ROSTER_VOLUME = "trainmaster-roster"
_CLAIM = "devices"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_MOST_PREFERRED = 100
"""Nodes that each pod of a role prefers: they are in the template of all its pods."""
_MOST_VALUES = 1000
"""Values by which the nodes are named that a member may be placed on: they are in each of its pods."""
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_NO_SPREADING = [{"maxSkew": 1, "topologyKey": HOST_LEVEL, "whenUnsatisfiable": "ScheduleAnyway"}]
"""A constraint that selects no pods. Without any, kube-scheduler spreads pods of a service, such as a gang's, over nodes and zones:
https://kubernetes.io/docs/concepts/scheduling-eviction/topology-spread-constraints/#internal-default-constraints"""
_UNKNOWN_USER = {"HOME": "/tmp", "USER": "nonroot"}  # noqa: S108 - of the member's own file system
"""A user whom the image does not know has no home, and no name: Python's ``getpass``, and so PyTorch and Ray, fail without one."""
_LABEL_HAND = "trainmaster.dev/hand"


class Manifests:
    """All manifests of one run in one round, at one size."""

    def __init__(
        self,
        record: KubeRunRecord,
        facts: Facts,
        placement: PlacementPort,
        *,
        agent: str,
        levels: Mapping[str, str],
        policy: AdmissionPolicy,
        priority_class: str,
        port: int,
        products: Callable[[Iterable[str]], Mapping[str, Sequence[str]]],
        run_as_user: int | None = None,
        await_names: AwaitNames | None = None,
        files: FilesConfig | None = None,
        entry_points: ImageEntryPoints | None = None,
        holder: str = "",
        prefers_nodes: bool = False,
        gpu_parts: GpuParts | None = None,
    ) -> None:
        """``gpu_parts``: the way in which pods get parts of GPUs here.

        ``holder``: the records in which the run is.

        ``prefers_nodes``: whether pods are to prefer planned nodes.

        ``products``: by label the products of devices in node groups, where nodes have others, too.

        ``await_names``: what delays the start of a gang's members until they can find each other; None: nothing does.

        ``files``: how members get files; None: their containers do not get any.

        ``entry_points``: how the entry points of images are read; None: they are not.

        ``run_as_user``: of members whose template names no user; None: the image's own.
        """
        self._prefers_nodes = prefers_nodes
        self._gpu_parts = gpu_parts or GpuParts()
        self._run_as_user = run_as_user
        self._await_names = await_names
        self._files = files if record.start.member_files is not None else None
        self._entry_points = entry_points if record.start.reads_entry_point else None
        self._record = record
        self._facts = facts
        self._placement = placement
        self._policy = policy
        self._priority_class = priority_class
        self._labels = run_labels(agent, record.start) | ({LABEL_HOLDER: holder} if holder else {})
        self._sizes = record.progress.sizes or record.start.sizes
        self._roster = Roster(record.start, facts.spec, self._sizes, port)
        self._products = products
        self._own_preferences: set[str] = set()
        """Roles whose templates prefer nodes themselves."""
        self._bases = {role.name: self._base(role) for role in facts.spec.roles}
        self._raw = {name: orjson.dumps(base) for name, base in self._bases.items()}
        """Base pods as JSON, copied in a tenth of the time that ``deepcopy`` takes: gangs have thousands of members."""
        self.gang = self._gang(levels)
        self._gang_roles = {role.name: role for role in self.gang.roles}

    @property
    def size(self) -> int:
        return len(self._roster.everyone)

    def mistakes(self) -> tuple[Mistake, ...]:
        """Return what this cluster's admission policy refuses in the job's templates, and the missing images."""
        found: list[Mistake] = []
        for role in self._facts.spec.roles:
            found += (
                Mistake(path=f"roles.{role.name}.{one.path}", message=one.message)
                for one in (*check_role(role, self._policy), *check_image_named(role))
            )
            found += (
                Mistake(path=f"roles.{role.name}.podTemplate.{one.path}", message=one.message)
                for one in uncounted_claims(role.pod_template or {}, role.claim_templates)
            )
            if self._record.start.reads_entry_point and self._entry_points is None:  # the agent has other settings now
                path = f"roles.{role.name}.template.command"
                found.append(Mistake(path=path, message="is needed here: the agent reads no entry points of images"))
        return tuple(found)

    def objects(self) -> tuple[KubeObject, ...]:
        """Return the objects to create before the pods: the scheduler's own first, then a gang's roster and service."""
        found = list(self._placement.objects(self.gang))
        found += (
            KubeObject(RESOURCE_CLAIM_TEMPLATES, self._claim_template(role.name, role.template))
            for role in self._facts.spec.roles
            if role.template is not None and role.template.devices and role.members_per_claim == 1
        )
        for role in self._facts.spec.roles:
            if role.template is not None and role.members_per_claim > 1:
                names = shared_claim_names(self._record.start.run, role, self._sizes.get(role.name, 0))
                found += (KubeObject(RESOURCE_CLAIMS, self._claim(name, role.template)) for name in names)
        found += (
            KubeObject(CONFIG_MAPS, self._files_map(role.name, role.template))
            for role in self._facts.spec.roles
            if role.template is not None and role.template.files
        )
        return (*found, *self.shared())

    def shared(self) -> tuple[KubeObject, ...]:
        """Return the list of members and the service by which they find each other; none for a single member."""
        if self.size == 1 or self.is_workload:
            return ()
        return KubeObject(CONFIG_MAPS, self._roster_map()), KubeObject(SERVICES, self._service())

    @property
    def is_workload(self) -> bool:
        """Return whether the controller of an object makes the pods."""
        return self._facts.workload is not None

    def workload(
        self, nodes: Mapping[str, Collection[str]] | None = None, *, among: Sequence[AllowedNodes] = ()
    ) -> KubeObject:
        """Return the object whose controller makes the pods, with what the placement adds to their templates.

        ``nodes``: by role those that its pods prefer; ``among``: the only ones that they may have.
        """
        kind, workload = self._facts.workload, self._facts.spec.workload
        if kind is None or workload is None:
            raise ValueError("the run has no object of its own")
        wishes = nodes or {}
        templates = {
            role.name: self._workload_template(role.name, wishes.get(role.name, ()), among)
            for role in self._facts.spec.roles
        }
        body = assembled(workload, templates)
        metadata = body.setdefault("metadata", {})
        number = self._record.progress.round
        rounds = {LABEL_ROUND: str(number)} if number else {}
        metadata["labels"] = {**(metadata.get("labels") or {}), **self._labels, **rounds}
        metadata |= {"name": object_name(self._record.start.run), "namespace": self._record.namespace}
        metadata["ownerReferences"] = [self._record.owner()]
        self._placement.dress_object(self.gang, kind, body)
        return KubeObject(resource_of(kind), kind.named(body, {LABEL_RUN: self._record.start.run}))

    def _workload_template(self, role: str, nodes: Collection[str], among: Sequence[AllowedNodes]) -> dict[str, Any]:
        template: dict[str, Any] = orjson.loads(self._raw[role])
        self._prefer_nodes(role, template["spec"], nodes)
        _keep_among(template["spec"], among)
        if role not in self._facts.late or self._placement.rejoins:
            self._placement.dress(self.gang, self._gang_roles[role], template)
        else:
            self._placement.dress_alone(template)
        return {"metadata": template["metadata"], "spec": template["spec"]}

    def pod(
        self,
        role: str,
        index: int,
        *,
        beside: Mapping[str, str] | None = None,
        node: str = "",
        among: Sequence[AllowedNodes] = (),
    ) -> dict[str, Any]:
        """Return one member's manifest; with ``beside``, of one that joins a running gang on a node with these labels.

        ``node``: the one that it prefers, if any; ``among``: the only nodes that it may have.
        """
        run = self._record.start.run
        member = member_id(run, role, index)
        pod: dict[str, Any] = orjson.loads(self._raw[role])
        pod["metadata"]["name"] = member
        pod["metadata"]["labels"][LABEL_INDEX] = str(index)
        spec = pod["spec"]
        if (many := self._facts.roles[role].members_per_claim) > 1:
            spec["resourceClaims"] = [{"name": _CLAIM, "resourceClaimName": _claim_name(run, role, index // many)}]
        if self.size > 1:
            spec["hostname"], spec["subdomain"] = f"{role}-{index}", run
        progress = self._record.progress
        restarts = progress.restarts.get(f"{role}-{index}", 0) + progress.gang_restarts
        env = self._roster.environment(role, index, restarts)
        for container in spec["containers"]:
            own = container.get("env") or []
            names = {one["name"] for one in own}
            container["env"] = [
                *({"name": name, "value": value} for name, value in env.items() if name not in names),
                *own,
            ]
        first = self._roster.everyone[0]
        if (role, index) == (first.role, first.index) and self._facts.spec.workload is None:
            _take_results(spec["containers"][0])
            reached = self._record.start.member_files
            if self._files is not None and reached is not None and self._facts.spec.outputs:
                file_containers.add_outputs(spec, self._files, reached)
        self._prefer_nodes(role, spec, (node,) if node else ())
        _keep_among(spec, among)
        self._keep_apart(role, index, pod)
        if beside is None or self._placement.rejoins:
            self._placement.dress(self.gang, self._gang_roles[role], pod)
        else:
            self._placement.dress_alone(pod)
            if beside:
                spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **beside}
        return pod

    def _gang(self, levels: Mapping[str, str]) -> Gang:
        spec, facts = self._facts.spec, self._facts
        return Gang(
            run=self._record.start.run,
            namespace=self._record.namespace,
            queue=self._record.start.queue,
            labels=self._labels,
            owner=self._record.owner(),
            roles=tuple(
                GangRole(
                    role.name,
                    self._sizes.get(role.name, 0),
                    min(role.least, self._sizes.get(role.name, 0)),
                    role.pod_requests,
                    self._bases[role.name]["spec"],
                )
                for role in facts.roles.values()
            ),
            least=min(facts.least, self.size),
            required=_label(spec.topology.required, levels),
            preferred=_label(spec.topology.preferred, levels),
            numa=spec.topology.numa,
            timeout=self._record.start.placement_timeout_seconds,
            # In which domain the nodes will be is not known.
            awaits_nodes=spec.topology.required is None
            and any(group.startswith(COMING) for group in self._record.start.pins),
            round=self._record.progress.round,
            is_exclusive=facts.is_exclusive,
        )

    # -- pods

    def _base(self, role: Role) -> dict[str, Any]:
        """Return the part of the pod that all members of a role share."""
        if role.template is not None:
            template: dict[str, Any] = {"spec": self._plain(role.name, role.template)}
        else:
            template = _without_nulls(role.pod_template or {})
            select_own_run(template["spec"], self._record.start.run)
            limit_to_requests(template["spec"])
            if self.is_workload:
                self._set_user_of(template["spec"])
        metadata = template.get("metadata") or {}
        labels = {**(metadata.get("labels") or {}), **self._labels, LABEL_ROLE: role.name}
        progress = self._record.progress
        if progress.round:
            labels[LABEL_ROUND] = str(progress.round)
        spec = template["spec"]
        if self._facts.is_exclusive:
            labels[LABEL_EXCLUSIVE] = "node"
            _keep_off(spec, {"matchExpressions": [{"key": LABEL_RUN, "operator": "Exists"}]}, everywhere=True)
        spec["priorityClassName"] = self._priority_class
        if not self.is_workload:
            spec["restartPolicy"] = "Never"
        spec.setdefault("automountServiceAccountToken", False)
        spec.setdefault("enableServiceLinks", False)
        spec["terminationGracePeriodSeconds"] = max(1, math.ceil(self._facts.stop_grace))
        self._prefer(role, spec)
        self._add_containers(spec)
        if self._prefers_nodes and self.size > 1 and not self.is_workload:  # not every kind's templates have that field
            spec.setdefault("topologySpreadConstraints", _NO_SPREADING)
        limit = self._facts.time_limit
        if limit is not None and not self.is_workload:
            spec["activeDeadlineSeconds"] = math.ceil(limit) + _DEADLINE_SLACK
        if len(self._roster.everyone) > 1 and not self.is_workload:
            volume = {"name": _ROSTER_VOLUME, "configMap": {"name": roster_name(self._record.start.run)}}
            spec["volumes"] = [*(spec.get("volumes") or []), volume]
            mount = {"name": _ROSTER_VOLUME, "mountPath": ROSTER_PATH, "readOnly": True}
            for container in spec["containers"]:
                container["volumeMounts"] = [*(container.get("volumeMounts") or []), mount]
            if self._await_names is not None:
                wait = name_wait.init_container(self._await_names, self.size, mount, spec["containers"][0])
                spec["initContainers"] = [wait, *(spec.get("initContainers") or [])]
        made: dict[str, Any] = {
            "labels": labels,
            "annotations": {
                # Autoscalers may evict pods that a controller owns; a member cannot be replaced like a replica.
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
                **(metadata.get("annotations") or {}),
                "trainmaster.dev/queue": self._record.start.queue,
            },
        }
        if not self.is_workload:
            made |= {"namespace": self._record.namespace, "ownerReferences": [self._record.owner()]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": made, "spec": spec}
        hand_over(self._gpu_parts, pod, self._facts.roles[role.name].requests)
        return pod

    def _add_containers(self, spec: dict[str, Any]) -> None:
        """Give a member its folder, and the containers that fetch its inputs and read the entry point of its image."""
        if self._entry_points is not None:
            entry_point_container.add_entry_point(spec, self._entry_points)
        reached = self._record.start.member_files
        if self._files is None or reached is None:
            return
        file_containers.add_folder(spec)
        if self._facts.spec.inputs:
            file_containers.add_inputs(spec, self._files, reached)

    def _prefer(self, role: Role, spec: dict[str, Any]) -> None:
        """Prefer nodes with the planned product for members that may have any product of a device.

        This spares scarce products for jobs that need them. A node preference of the job itself overrides this one.
        """
        affinity = spec.get("affinity") or {}
        node = affinity.get("nodeAffinity") or {} if isinstance(affinity, dict) else None
        if not isinstance(node, dict) or node.get(_PREFERRED):
            self._own_preferences.add(role.name)  # a malformed affinity is left for the API server to refuse
            return
        if not any("/" in name for name in self._facts.roles[role.name].requests):
            return
        groups = [group for group, roles in self._record.start.pins.items() if role.name in roles]
        terms = [
            {
                "weight": 100,
                "preference": {"matchExpressions": [{"key": label, "operator": "In", "values": list(values)}]},
            }
            for label, values in self._products(groups).items()
        ]
        if terms:
            spec["affinity"] = {**affinity, "nodeAffinity": {**node, _PREFERRED: terms}}

    def preference(self, role: str, node: str) -> dict[str, Any]:
        """Return the ``affinity`` with which a patch lets a pod of this role prefer a node; nothing where the job has its own."""
        spec: dict[str, Any] = {"affinity": orjson.loads(self._raw[role])["spec"].get("affinity")}
        if not self._prefer_nodes(role, spec, (node,)):
            return {}
        return {"nodeAffinity": {_PREFERRED: spec["affinity"]["nodeAffinity"][_PREFERRED]}}

    def _prefer_nodes(self, role: str, spec: dict[str, Any], nodes: Collection[str]) -> bool:
        """Add the wish for these nodes; return whether it was added: a node preference of the job itself overrides it."""
        if not nodes or role in self._own_preferences:
            return False
        affinity = spec.get("affinity") or {}
        node = affinity.get("nodeAffinity") or {}
        terms = [
            {
                "weight": 100,
                # The API server takes no more than one value.
                "preference": {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]},
            }
            for name in sorted(nodes)[:_MOST_PREFERRED]
        ]
        spec["affinity"] = {**affinity, "nodeAffinity": {**node, _PREFERRED: [*(node.get(_PREFERRED) or ()), *terms]}}
        return True

    def _claim_template(self, role: str, template: MemberTemplate) -> dict[str, Any]:
        """Return the object from which a claim is made for each member of a role, with its devices."""
        return {
            "apiVersion": RESOURCE_CLAIM_TEMPLATES.version,
            "kind": RESOURCE_CLAIM_TEMPLATES.kind,
            "metadata": self._metadata(claim_template_name(self._record.start.run, role)),
            "spec": {"metadata": {"labels": dict(self._labels)}, "spec": _claim_spec(template)},
        }

    def _claim(self, name: str, template: MemberTemplate) -> dict[str, Any]:
        """Return a claim that several members share."""
        return {
            "apiVersion": RESOURCE_CLAIMS.version,
            "kind": RESOURCE_CLAIMS.kind,
            "metadata": self._metadata(name),
            "spec": _claim_spec(template),
        }

    def _plain(self, role: str, template: MemberTemplate) -> dict[str, Any]:
        """Return the pod of a member whose template states only its command and needs."""
        container: dict[str, Any] = {
            "name": "main",
            "image": template.image,
            # Requests equal to limits: members get what they were promised, and nodes' NUMA policies apply to such pods only.
            "resources": {"requests": dict(template.resources), "limits": dict(template.resources)},
            "env": [{"name": name, "value": value} for name, value in template.env.items()],
        }
        if template.command:
            container["command"] = list(template.command)
        if template.args:
            container["args"] = list(template.args)
        if template.working_dir:
            container["workingDir"] = template.working_dir
        if template.ports:
            container["ports"] = [{"name": port.name, "containerPort": port.port} for port in template.ports]
        spec: dict[str, Any] = {"containers": [container]}
        self._mount(role, template, spec, container)
        if template.devices:
            if template.members_per_claim == 1:  # else each pod names the claim of its group
                name = claim_template_name(self._record.start.run, role)
                spec["resourceClaims"] = [{"name": _CLAIM, "resourceClaimTemplateName": name}]
            container["resources"]["claims"] = [{"name": _CLAIM}]
        container["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        spec["securityContext"] = {"seccompProfile": {"type": "RuntimeDefault"}}
        if self._policy.level == "restricted":
            spec["securityContext"]["runAsNonRoot"] = True
        self._set_user(template, spec["securityContext"], container)
        if template.node_selector:
            spec["nodeSelector"] = dict(template.node_selector)
        if template.node_affinity:
            terms = [_expression(term) for term in template.node_affinity]
            spec["affinity"] = {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": terms}]
                    }
                }
            }
        if template.tolerations:
            spec["tolerations"] = [
                {name: value for name, value in toleration.model_dump(mode="json").items() if value}
                for toleration in template.tolerations
            ]
        return spec

    def _mount(self, role: str, template: MemberTemplate, spec: dict[str, Any], container: dict[str, Any]) -> None:
        """Give a member its volumes, secrets and files."""
        if not template.has_mounts:
            return
        found = mounts_of(
            template.volumes, template.shared_memory, template.files, files_name(self._record.start.run, role)
        )
        if found.volumes:
            spec["volumes"], container["volumeMounts"] = found.volumes, found.mounts
        container["env"] += secret_variables(template.secret_env)

    def _files_map(self, role: str, template: MemberTemplate) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": self._metadata(files_name(self._record.start.run, role)),
            "data": {file_key(index): text for index, text in enumerate(template.files.values())},
        }

    def _set_user_of(self, spec: dict[str, Any]) -> None:
        """Set the user of a pod that may not be root and names none: an image's own user, by its name, cannot be verified."""
        contexts = [spec.get("securityContext"), *(one.get("securityContext") for one in spec["containers"])]
        pod = contexts[0]
        if self._run_as_user is None or not isinstance(pod, dict) or not pod.get("runAsNonRoot"):
            return
        if any(isinstance(one, dict) and one.get("runAsUser") is not None for one in contexts):
            return
        known = self._facts.workload.image_user if self._facts.workload else None
        user, group = known or (self._run_as_user, self._run_as_user)
        spec["securityContext"] = {"runAsGroup": group, "fsGroup": group, **pod, "runAsUser": user}
        if known:
            return
        for container in spec["containers"]:
            env = container.get("env") or []
            container["env"] = [*env, *_variables_of_unknown_user({one.get("name") for one in env})]

    def _set_user(self, template: MemberTemplate, context: dict[str, Any], container: dict[str, Any]) -> None:
        """Set the member's user. A user unknown to the image has no home: it gets a folder that anybody may write to."""
        user = self._run_as_user if template.run_as_user is None else template.run_as_user
        group = user if template.run_as_group is None else template.run_as_group
        if user is not None:
            context["runAsUser"] = user
            if template.run_as_user is None:
                container["env"] += _variables_of_unknown_user(template.env)
        if group is not None:
            context |= {"runAsGroup": group, "fsGroup": group, "fsGroupChangePolicy": "OnRootMismatch"}

    def _keep_apart(self, role: str, index: int, pod: dict[str, Any]) -> None:
        """Place at most ``max_per_node`` members of a role on a node.

        Kubernetes' anti-affinity allows at most one per node. So members are split into as many groups as may share a node, and
        members of one group repel each other: a node has at most one of each group.
        """
        most = self._facts.roles[role].max_per_node
        if most is None or most >= self._sizes.get(role, 0) or self._facts.is_exclusive:
            return
        hand = f"{role}-{index % most}"
        pod["metadata"]["labels"][_LABEL_HAND] = hand
        _keep_off(pod["spec"], {"matchLabels": {LABEL_RUN: self._record.start.run, _LABEL_HAND: hand}})

    # -- objects of a gang beside its pods

    def _service(self) -> dict[str, Any]:
        run = self._record.start.run
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": self._metadata(run),
            "spec": {
                "clusterIP": "None",
                # Members resolve each other's names before any of them is ready.
                "publishNotReadyAddresses": True,
                "selector": {LABEL_RUN: run},
            },
        }

    def _roster_map(self) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": self._metadata(roster_name(self._record.start.run)),
            "data": self._roster.files(),
        }

    def _metadata(self, name: str) -> dict[str, Any]:
        return {
            "name": name,
            "namespace": self._record.namespace,
            "labels": dict(self._labels),
            "ownerReferences": [self._record.owner()],
        }


def _claim_spec(template: MemberTemplate) -> dict[str, Any]:
    """Return the specification of the claim of a member, or of those that share it."""
    requests = []
    for one in template.devices:
        exactly: dict[str, Any] = {
            "deviceClassName": one.device_class,
            "allocationMode": "ExactCount",
            "count": one.count,
        }
        if one.selectors:
            exactly["selectors"] = [{"cel": {"expression": text}} for text in one.selectors]
        requests.append({"name": one.name, "exactly": exactly})
    return {"devices": {"requests": requests}}


def _take_results(container: dict[str, Any]) -> None:
    """Let the container leave results as its termination message, unless its template has a use of its own for that."""
    policy = container.get("terminationMessagePolicy")
    if container.get("terminationMessagePath") or policy == "FallbackToLogsOnError":
        return
    container["terminationMessagePath"] = RESULTS_PATH
    container["env"] = [{"name": RESULTS_VARIABLE, "value": RESULTS_PATH}, *container["env"]]


def _without_nulls(value: Any) -> Any:
    """Return a copy without fields that are null: as in Kubernetes they are the same as fields that are not set."""
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def _keep_off(spec: dict[str, Any], selector: Mapping[str, Any], *, everywhere: bool = False) -> None:
    """Keep a pod off nodes with pods that a selector matches, and those off its own; ``everywhere``: in all namespaces."""
    term: dict[str, Any] = {"labelSelector": selector, "topologyKey": HOST_LEVEL}
    if everywhere:
        term["namespaceSelector"] = {}
    affinity = spec.get("affinity") or {}
    if not isinstance(affinity, dict) or not isinstance(affinity.get("podAntiAffinity") or {}, dict):
        return  # a malformed affinity is left for the API server to refuse
    apart = affinity.get("podAntiAffinity") or {}
    spec["affinity"] = {**affinity, "podAntiAffinity": {**apart, _REQUIRED: [*(apart.get(_REQUIRED) or ()), term]}}


def _keep_among(spec: dict[str, Any], among: Sequence[AllowedNodes]) -> None:
    """Let a pod have only nodes that all of these allow, and those that it requires itself."""
    affinity = spec.get("affinity") or {}
    if not among or not isinstance(affinity, dict) or not isinstance(affinity.get("nodeAffinity") or {}, dict):
        return  # a malformed affinity is left for the API server to refuse
    node = affinity.get("nodeAffinity") or {}
    allowed = [{"key": one.label, "operator": "In", "values": list(one.values[:_MOST_VALUES])} for one in among]
    own = (node.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{"matchExpressions": []}]
    # Of several terms any one is enough, so that each gets the values, but for an empty one, which matches no node.
    terms = [
        {**term, "matchExpressions": [*(term.get("matchExpressions") or ()), *allowed]} if term else term
        for term in own
    ]
    spec["affinity"] = {**affinity, "nodeAffinity": {**node, _REQUIRED: {"nodeSelectorTerms": terms}}}


def claim_template_name(run: str, role: str) -> str:
    """Return the name of the ResourceClaimTemplate of a role whose members have devices."""
    return f"{run}-{role}"


def shared_claim_names(run: str, role: Role, size: int) -> list[str]:
    """Return the names of the ResourceClaims that members of a role share; ``size``: the members of the role."""
    return [_claim_name(run, role.name, number) for number in range(-(-size // role.members_per_claim))]


def _claim_name(run: str, role: str, number: int) -> str:
    return f"{run}-{role}-{number}"


def files_name(run: str, role: str) -> str:
    """Return the name of the ConfigMap with the files of a role's members."""
    return f"{run}-{role}-files"


def roster_name(run: str) -> str:
    """Return the name of the ConfigMap with the list of members."""
    return f"{run}-roster"


def _label(level: str | None, levels: Mapping[str, str]) -> str | None:
    """Return the node label of a topology level in this cluster."""
    if level is None or level == HOST_LEVEL:
        return level
    return levels.get(level, level)


def _variables_of_unknown_user(named: Container[object]) -> list[dict[str, str]]:
    """Return what programs ask of a user whom the image does not know, apart from what is named already."""
    return [{"name": name, "value": value} for name, value in _UNKNOWN_USER.items() if name not in named]


def _expression(term: AffinityTerm) -> dict[str, Any]:
    expression: dict[str, Any] = {"key": term.key, "operator": term.operator}
    if term.values:
        expression["values"] = list(term.values)
    return expression
