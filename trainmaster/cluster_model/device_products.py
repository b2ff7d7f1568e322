"""Devices: which resources are GPUs, and the node labels that name products. Quota may depend on the product, so both sides read
the same labels.
"""

from collections.abc import Mapping

VENDOR_PRODUCT_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name")
"""Written by the vendors' own agents on nodes; always reported."""
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


def is_gpu(resource: str) -> bool:
    """Return whether a unit of a resource is a GPU, or a part of one that a process uses as a GPU of its own."""
    return resource.endswith("/gpu") or resource in _OTHER_GPUS or resource.startswith(_MIG)
