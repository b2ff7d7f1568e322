"""Devices of Dynamic Resource Allocation as resources: the names under which they are counted."""

IMPLICIT_PREFIX = "deviceclass.resource.kubernetes.io/"
"""Before the name of a DeviceClass: the extended resource name that its devices have in any cluster (KEP-5004)."""


def device_resource(device_class: str) -> str:
    """Return the resource as which the devices of a class are counted."""
    return f"{IMPLICIT_PREFIX}{device_class}"
