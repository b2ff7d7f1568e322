"""Choice of the in-cluster scheduler for gangs: the configured one, else the one that is found. Pure but for detection.

Volcano, KAI and the native API are found automatically, in this order. The CRD of coscheduling does not say which profile has the
plugin on, YuniKorn has no API in the cluster, and Kueue needs its LocalQueues named: these three have to be configured.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from trainmaster.protocol.base import QueuePath, Strict, worded_pattern
from trainmaster.protocol.labels import LabelKey
from trainmaster_agent.placement.coscheduling import Coscheduling
from trainmaster_agent.placement.detect import ServedApis, detect, probe_native
from trainmaster_agent.placement.gates import Gates
from trainmaster_agent.placement.kai import Kai
from trainmaster_agent.placement.kueue import Kueue
from trainmaster_agent.placement.native import Native
from trainmaster_agent.placement.port import PlacementPort
from trainmaster_agent.placement.provisioned import Provisioned
from trainmaster_agent.placement.queues import QueueRules
from trainmaster_agent.placement.volcano import Volcano
from trainmaster_agent.placement.yunikorn import YuniKorn

__all__ = ["ServedApis", "PlacementConfig", "PlacementUnavailableError", "choose", "detect", "probe_native"]

KubeName = Annotated[
    str,
    StringConstraints(
        max_length=63,
        pattern=worded_pattern(
            r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$",
            "a name of a-z, 0-9, '-' and '.' that begins and ends with a letter or a digit",
        ),
    ),
]
QueueName = Annotated[
    str,
    StringConstraints(
        max_length=63,
        pattern=worded_pattern(
            r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
            "letters, digits, '-', '_' and '.' that begin and end with a letter or a digit",
        ),
    ),
]
Scheduler = Literal["auto", "native", "volcano", "kai", "yunikorn", "coscheduling", "kueue", "gates"]


class PlacementUnavailableError(ValueError):
    """The configuration asks for a scheduler, or a feature of it, that the cluster does not have."""


class PlacementConfig(Strict):
    """Settings of gang placement in this cluster. A setting left out is detected, or has the scheduler's own default."""

    scheduler: Scheduler = "auto"
    scheduler_name: KubeName = ""
    """``schedulerName`` of the pods, where it is not the scheduler's default name."""
    queues: dict[QueuePath, QueueName] = Field(default_factory=dict)
    """The scheduler's queue by Trainmaster's queue path, for that queue and all below it; the longest matching path counts."""
    default_queue: QueueName | None = None
    """Queue for other paths. None: Volcano's ``default``, KAI's ``default-queue``, YuniKorn's own rules; Kueue has none."""
    priority_class: KubeName = "trainmaster"
    """PriorityClass of all pods of all runs, so that none of them preempts another one. It has to exist."""
    preemptible: bool = False
    """Volcano, KAI, YuniKorn: whether other workloads may preempt our members."""
    topology: KubeName = ""
    """KAI, Kueue: the Topology to use. Empty: every existing one."""
    tiers: dict[LabelKey, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    """Volcano: the tier of HyperNodes by the node label of a level, in addition to those that HyperNodes name."""
    prefer_planned_nodes: bool = True
    """Whether pods prefer the nodes on which best fit has them, within the node groups of the dispatcher's plan."""
    numa: bool = False
    """Volcano, KAI, coscheduling: whether the scheduler's NUMA plugin is on. Gates: whether nodes report their NUMA zones."""

    def rules(self, default: str) -> QueueRules:
        return QueueRules(self.queues, self.default_queue or default)


HAMI_SCHEDULER = "hami-scheduler"
"""Name of the kube-scheduler that HAMi's chart installs, which asks HAMi for GPUs."""


def choose(
    config: PlacementConfig, found: ServedApis, provisioning_class: str | None = None, *, is_hami: bool = False
) -> PlacementPort:
    """Choose the placement. Raises PlacementUnavailableError when the cluster lacks what the configuration asks for.

    ``is_hami``: HAMi gives members their GPUs, which needs its own scheduler.

    ``provisioning_class``: the class of requests for nodes to come, where the cluster takes such requests; None: none are made.
    """
    if is_hami:
        config = _with_hami(config, found)
    placement = _choose(config, found)
    if provisioning_class is None:
        return placement
    if placement.name == "kueue":
        raise PlacementUnavailableError(
            "capacity.autoscaler.provisioningRequest is set, and placement.scheduler is kueue, which makes such requests by itself"
        )
    if not found.provisioning:
        raise _lacks(
            "capacity.autoscaler.provisioningRequest is set", "provisioningrequests of autoscaling.x-k8s.io/v1"
        )
    return Provisioned(placement, provisioning_class)


def _with_hami(config: PlacementConfig, found: ServedApis) -> PlacementConfig:
    name = _automatic(found) if config.scheduler == "auto" else config.scheduler
    if name not in ("native", "gates", "kueue"):
        raise PlacementUnavailableError(
            "capacity.gpuSharing is hami, which extends kube-scheduler: placement.scheduler must be native, gates or kueue,"
            f" not {name}"
        )
    return config.model_copy(update={"scheduler_name": config.scheduler_name or HAMI_SCHEDULER})


def _choose(config: PlacementConfig, found: ServedApis) -> PlacementPort:
    name = _automatic(found) if config.scheduler == "auto" else config.scheduler
    if config.numa and name not in ("volcano", "kai", "coscheduling", "gates"):
        raise PlacementUnavailableError(f"placement.numa is true, and {name} does not know NUMA zones")
    match name:
        case "volcano":
            return _volcano(config, found)
        case "kai":
            return _kai(config, found)
        case "native":
            return _native(config, found)
        case "coscheduling":
            return _coscheduling(config, found)
        case "kueue":
            return _kueue(config, found)
        case "yunikorn":
            return YuniKorn(config.rules(""), config.scheduler_name or "yunikorn", config.preemptible)
        case _:
            return Gates(config.scheduler_name, config.numa)


def _automatic(found: ServedApis) -> Scheduler:
    if found.volcano:
        return "volcano"
    if found.kai:
        return "kai"
    return "gates" if found.native is None else "native"


def _not_served(name: str, api: str) -> PlacementUnavailableError:
    return _lacks(f"placement.scheduler is {name}", api)


def _lacks(setting: str, api: str) -> PlacementUnavailableError:
    return PlacementUnavailableError(f"{setting}, and this cluster does not serve {api}")


def _volcano(config: PlacementConfig, found: ServedApis) -> PlacementPort:
    if not found.volcano:
        raise _not_served("volcano", "podgroups of scheduling.volcano.sh/v1beta1")
    return Volcano(
        queues=config.rules("default"),
        scheduler_name=config.scheduler_name or "volcano",
        priority_class=config.priority_class,
        tiers={**found.tiers, **config.tiers},
        numa=config.numa,
        preemptible=config.preemptible,
    )


def _kai(config: PlacementConfig, found: ServedApis) -> PlacementPort:
    if not found.kai:
        raise _not_served("kai", "podgroups of scheduling.run.ai/v2alpha2")
    topologies = _topologies(config, found.kai_topologies, "KAI")
    return Kai(
        queues=config.rules("default-queue"),
        scheduler_name=config.scheduler_name or "kai-scheduler",
        priority_class=config.priority_class,
        # Of topologies with the same level, the first by name is used.
        topologies={level: name for name in sorted(topologies, reverse=True) for level in topologies[name]},
        numa=config.numa,
        preemptible=config.preemptible,
    )


def _native(config: PlacementConfig, found: ServedApis) -> PlacementPort:
    if found.native is None:
        raise _not_served("native", "podgroups of scheduling.k8s.io in v1alpha2 or v1beta1")
    return Native(found.native, found.native_topology, config.scheduler_name, config.priority_class)


def _coscheduling(config: PlacementConfig, found: ServedApis) -> PlacementPort:
    if not found.coscheduling:
        raise _not_served("coscheduling", "podgroups of scheduling.x-k8s.io/v1alpha1")
    return Coscheduling(config.scheduler_name or "scheduler-plugins-scheduler", config.numa)


def _kueue(config: PlacementConfig, found: ServedApis) -> PlacementPort:
    if found.kueue is None:
        raise _not_served("kueue", "workloads of kueue.x-k8s.io in v1beta2 or v1beta1")
    if not config.queues and config.default_queue is None:
        raise PlacementUnavailableError(
            "placement.scheduler is kueue, and neither queues nor defaultQueue names a LocalQueue"
        )
    levels = _topologies(config, found.kueue_topologies, "Kueue").values()
    return Kueue(found.kueue, config.rules(""), config.scheduler_name, _distinct(levels))


def _topologies(
    config: PlacementConfig, found: Mapping[str, tuple[str, ...]], owner: str
) -> Mapping[str, tuple[str, ...]]:
    """Return the levels of the topologies that may be used, by name."""
    if not config.topology:
        return found
    if config.topology not in found:
        there = ", ".join(sorted(found)) or "none"
        raise PlacementUnavailableError(
            f"placement.topology is {config.topology}; of {owner}'s topologies there are: {there}"
        )
    return {config.topology: found[config.topology]}


def _distinct(levels: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(level for several in levels for level in several))
