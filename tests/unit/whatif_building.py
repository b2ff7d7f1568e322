"""Workloads, fleets and declarations for simulations, said in few words."""

from typing import Any

from trainmaster.fake_cluster.fleet import Fleet
from trainmaster.protocol.states import ClusterKind
from trainmaster.protocol.tenants import QueueSpec
from trainmaster_dispatcher.whatif.engine import Declared, Simulation, StudyOutcome
from trainmaster_dispatcher.whatif.trace import Trace, read_table

GPU = "nvidia.com/gpu"


def fleet(*clusters: dict[str, Any], **fields: Any) -> Fleet:
    return Fleet.model_validate({"clusters": clusters, **fields})


def machine(nodes: int = 4, name: str = "machine", cpu: str = "1", **fields: Any) -> dict[str, Any]:
    group = {"name": "nodes", "count": nodes, "resources": {"cpu": cpu, **fields.pop("more", {})}}
    return {"name": name, "groups": [{**group, **fields.pop("group", {})}], **fields}


def table(*lines: str, heading: str = "submit,run,members", **options: Any) -> Trace:
    return read_table("jobs.csv", [heading, *lines], "main", **options)


def declared(*queues: QueueSpec, **fields: Any) -> Declared:
    return Declared(queues or (QueueSpec(path="main", allowed_kinds=tuple(ClusterKind)),), **fields)


def ran(trace: Trace, *clusters: dict[str, Any], of: Declared | None = None, **fields: Any) -> StudyOutcome:
    return Simulation(fleet(*(clusters or (machine(),)), **fields), of or declared()).run(trace)
