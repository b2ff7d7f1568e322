"""Workloads, fleets and declarations for simulations, said in few words."""

from typing import Any

from trainmaster.fake_cluster.fleet import Fleet
from trainmaster.protocol.states import ClusterKind
from trainmaster.protocol.tenants import QueueSpec
from trainmaster_dispatcher.whatif.engine import Declared, Simulation, StudyOutcome
from trainmaster_dispatcher.whatif.trace import Trace, read_table

GPU = "nvidia.com/gpu"

SHORTER_THAN_ITS_LIMIT = """submit,run,limit,cpu,members,user
0,10,3600,2,1,ann
20,10,3600,2,1,ann
100,200,300,2,1,bob
110,10,100,2,2,cleo
120,10,3600,2,1,ann
"""
"""A workload for two nodes with two cores: by what its user's jobs took before, the last job may start before the one of two nodes; by
its time limit it may not."""


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
