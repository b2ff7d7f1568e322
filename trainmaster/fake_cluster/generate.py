"""Generation of fleets: a mixed one from a seed, or one from a published list of nodes."""

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainmaster.fake_cluster.fleet import Fleet, FleetCluster, FleetGroup, Foreign, Provisioning
from trainmaster.fake_cluster.seeded_random import draw
from trainmaster.protocol.states import ClusterKind
from trainmaster.protocol.tenants import ClusterSpec, QueueSpec

GPU = "nvidia.com/gpu"
PRODUCT = "nvidia.com/gpu.product"
KEY_FILE = "keys/agent-{name}/key"
"""Location of the keys that ``trainmaster admin bootstrap --out keys`` writes."""

_PLACES: dict[ClusterKind, tuple[tuple[str, str], ...]] = {
    ClusterKind.PRIVATE: (("eu-central", "own"), ("eu-north", "own"), ("us-east", "own")),
    ClusterKind.PUBLIC: (("eu-west-1", "aws"), ("us-east-1", "aws"), ("europe-west4", "gcp"), ("westeurope", "azure")),
    ClusterKind.EDGE: (("factory", "own"), ("clinic", "own"), ("store", "own")),
}
# Name, share of a cluster's nodes, resources of a node, GPU product.
_Product = tuple[str, int, dict[str, str], str]
_CPU: _Product = ("cpu", 5, {"cpu": "64", "memory": "256Gi"}, "")
_T4: _Product = ("t4", 2, {"cpu": "32", "memory": "128Gi", GPU: "4"}, "Tesla-T4")
_A100: _Product = ("a100", 2, {"cpu": "96", "memory": "1Ti", GPU: "8"}, "NVIDIA-A100-SXM4-80GB")
_H100: _Product = ("h100", 1, {"cpu": "192", "memory": "2Ti", GPU: "8"}, "NVIDIA-H100-80GB-HBM3")
_L4: _Product = ("l4", 1, {"cpu": "16", "memory": "64Gi", GPU: "1"}, "NVIDIA-L4")
_SMALL: _Product = ("small", 3, {"cpu": "8", "memory": "32Gi"}, "")
_PRODUCTS = {
    ClusterKind.PRIVATE: (_CPU, _T4, _A100, _H100),
    ClusterKind.PUBLIC: (_CPU, _A100, _H100),
    ClusterKind.EDGE: (_SMALL, _L4),
}
DEFAULT_MIX: Mapping[ClusterKind, int] = {ClusterKind.PRIVATE: 6, ClusterKind.PUBLIC: 3, ClusterKind.EDGE: 1}


def make_fleet(clusters: int, nodes: int, seed: int = 0, mix: Mapping[ClusterKind, int] = DEFAULT_MIX) -> Fleet:
    """Return a fleet of ``clusters`` clusters with ``nodes`` nodes each; edge clusters have a tenth.

    ``mix``: the shares of the kinds. The same arguments give the same fleet.
    """
    if not any(mix.values()):
        raise ValueError("the mix has no kind of cluster")
    made: dict[ClusterKind, int] = dict.fromkeys(mix, 0)
    out = []
    for _ in range(clusters):
        # The kind that lags most behind its share comes next (Sainte-Lague), so any number of clusters is a fair mix.
        kind = max(mix, key=lambda kind: mix[kind] / (2 * made[kind] + 1))
        made[kind] += 1
        out.append(_cluster(made[kind], kind, nodes, seed))
    return Fleet(seed=seed, key_file=KEY_FILE, clusters=tuple(out))


def _cluster(number: int, kind: ClusterKind, nodes: int, seed: int) -> FleetCluster:
    name = f"{kind.value}-{number:03}"
    region, provider = _PLACES[kind][int(draw(seed, name, "place") * len(_PLACES[kind]))]
    total = max(1, nodes // 10) if kind is ClusterKind.EDGE else nodes
    products = _PRODUCTS[kind]
    parts = sum(product[1] for product in products)
    counts = [total * product[1] // parts for product in products]
    counts[0] += total - sum(counts)
    groups = tuple(
        _group(product, count, kind, seed, name) for product, count in zip(products, counts, strict=True) if count
    )
    return FleetCluster(name=name, kind=kind, region=region, provider=provider, groups=groups)


def _group(product: _Product, count: int, kind: ClusterKind, seed: int, cluster: str) -> FleetGroup:
    name, _, resources, gpu = product
    zones = 1 if kind is ClusterKind.EDGE or count < 4 else 2
    racks = max(1, min(8, count // (zones * 16)))
    is_cloud = kind is ClusterKind.PUBLIC
    part = 0.0 if is_cloud else round(0.1 + 0.3 * draw(seed, cluster, name, "foreign"), 2)
    return FleetGroup(
        name=name,
        count=count,
        resources=resources,
        labels={PRODUCT: gpu} if gpu else {},
        topology={"zone": zones, "rack": racks},
        provisioning=Provisioning(most=count * 2) if is_cloud else None,
        foreign=(Foreign(resources={"cpu": "4", "memory": "16Gi"}, nodes=part, every="15m", lasts="3m-10m"),)
        if part
        else (),
    )


def fleet_of_openb(lines: Iterable[str], name: str = "openb") -> Fleet:
    """Return a fleet of one cluster from a node list with the columns ``sn,cpu_milli,memory_mib,gpu,model``.

    The format is that of the traces of Weng et al., *Beware of Fragmentation* (USENIX ATC 2023). Raises ValueError with the line.
    """
    counted: Counter[tuple[int, int, int, str]] = Counter()
    reader = csv.DictReader(lines)
    for row in reader:
        try:
            model = row["model"] or ""
            counted[int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), model] += 1
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"line {reader.line_num} does not describe a node: {error}") from error
    if not counted:
        raise ValueError("the list has no nodes")
    return Fleet(
        key_file=KEY_FILE, clusters=(FleetCluster(name=name, groups=tuple(map(_openb_group, sorted(counted.items())))),)
    )


def _openb_group(item: tuple[tuple[int, int, int, str], int]) -> FleetGroup:
    (cpu, memory, gpus, model), count = item
    resources = {"cpu": f"{cpu}m", "memory": f"{memory}Mi"}
    if gpus:
        resources[GPU] = str(gpus)
    devices = f"{model.lower()}x{gpus}-" if gpus else ""
    return FleetGroup(
        name=f"{devices}{cpu // 1000}c-{memory // 1024}g",
        count=count,
        resources=resources,
        labels={PRODUCT: model} if model else {},
    )


def tenants_of(fleet: Fleet) -> Sequence[dict[str, Any]]:
    """Return documents for ``trainmaster apply``: the fleet's clusters, and a queue that may use all of them."""
    queue = QueueSpec(path="simulated", allowed_kinds=tuple(ClusterKind), description="Jobs of the simulated fleet")
    clusters = [
        ClusterSpec(
            name=cluster.name,
            cluster_kind=cluster.kind,
            region=cluster.region,
            provider=cluster.provider,
            labels=cluster.labels,
        )
        for cluster in fleet.clusters
    ]
    return [{"kind": queue.kind, **queue.to_wire()}, *({"kind": one.kind, **one.to_wire()} for one in clusters)]
