"""Devices: which resources are GPUs, and the node labels that name products. Quota may depend on the product, so both sides read
the same labels.
"""

import re
from collections.abc import Mapping

from trainmaster.protocol.device_claims import IMPLICIT_PREFIX

VENDOR_PRODUCT_LABELS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "gpu.intel.com/product",
    "cloud.google.com/gke-tpu-accelerator",
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "karpenter.k8s.aws/instance-accelerator-name",
)
"""Written by the vendors' own agents, or by the provider, on nodes; always reported. The vendors' come first: a provider's name of the
same GPU is less exact.
"""
PRODUCT_LABELS = (*VENDOR_PRODUCT_LABELS, "product")
"""The first one that a node has counts. The last one is for admins to set, and is reported where it is configured to be."""


def product_label(labels: Mapping[str, str]) -> str:
    """Return the label that names the product of a node's devices; empty where it has none."""
    for label in PRODUCT_LABELS:
        if label in labels:
            return label
    return ""


_OTHER_GPUS = frozenset({"gpu.intel.com/i915", "gpu.intel.com/xe", "habana.ai/gaudi"})
_MIG = "nvidia.com/mig-"


_ACCELERATORS = frozenset(
    (
        "ascend310",
        "ascend310p",
        "ascend910",
        "ascend910b",
        "dcu",
        "gaudi",
        "gcu",
        "gpu",
        "hpu",
        "mig",
        "mlu",
        "neuroncore",
        "npu",
        "vgpu",
    )
)
"""Words of resources and DeviceClasses whose unit a process uses as a device of its own."""
_PARTS = frozenset(("core", "cores", "mem", "memory", "percentage"))
"""Words of resources that are amounts of a device, as shared ones are requested by, and not devices."""
_NOT_FOR_PROCESSES = frozenset(
    ("channel", "daemon", "efa", "fuse", "hca", "ib", "kvm", "net", "network", "nic", "rdma", "roce", "sriov")
)


def processes_of(amounts: Mapping[str, int]) -> int:
    """Return how many processes a launcher starts in a member with these amounts: one for each device; 1 without devices.

    GPUs and other accelerators are known by their names, whoever made them. Where there are none, devices of Dynamic Resource
    Allocation count if they are all of one class, whose name an admin may choose freely. Network cards do not count.
    """
    known = sum(amount for name, amount in amounts.items() if is_accelerator(name))
    if known:
        return known
    claimed = [
        amount
        for name, amount in amounts.items()
        if amount and name.startswith(IMPLICIT_PREFIX) and not _words(name) & _NOT_FOR_PROCESSES
    ]
    return claimed[0] if len(claimed) == 1 else 1


def is_accelerator(name: str) -> bool:
    """Return whether a unit of a resource is a device on which programs compute, or a part of one used as a device of its own."""
    if is_gpu(name):
        return True
    words = _words(name) if "/" in name else frozenset[str]()
    return bool(words & _ACCELERATORS) and not words & (_PARTS | _NOT_FOR_PROCESSES)


def _words(name: str) -> frozenset[str]:
    """Return the words of a device's name: of a DeviceClass all, of an extended resource those after the domain."""
    own = name.removeprefix(IMPLICIT_PREFIX)
    return frozenset(re.split(r"[^a-z0-9]+", own.rpartition("/")[2].lower()))


def is_gpu(resource: str) -> bool:
    """Return whether a unit of a resource is a GPU, or a part of one that a process uses as a GPU of its own."""
    return resource.endswith("/gpu") or resource in _OTHER_GPUS or resource.startswith(_MIG)
