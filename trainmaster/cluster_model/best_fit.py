"""Best fit: the key by which the dispatcher's node groups and single nodes are sorted, and how many orders of roles are tried.

What follows from it for free nodes is in the packers of both sides.
"""

from trainmaster.protocol.quantities import Resources

MOST_ORDERS = 24
"""Orders of roles in which a packing is tried: all there are of four."""

Leftover = tuple[int, int, int, int, int]
"""Of a node under a member: other devices, how common its product is with a minus, devices of the sort that it takes, CPU, memory."""


def leftover(free: Resources, needs: Resources, common: int = 0) -> Leftover:
    """Return the sort key of best fit: devices that ``needs`` leaves idle; ``common``, the more the better; what is left beside it."""
    devices = wanted = 0
    for name, amount in free.items():
        if "/" in name:
            if name in needs:
                wanted += amount - needs[name]
            else:
                devices += amount
    return (
        devices,
        -common,
        wanted,
        free.get("cpu", 0) - needs.get("cpu", 0),
        free.get("memory", 0) - needs.get("memory", 0),
    )


def dominant(needs: Resources, total: Resources) -> float:
    """Return the largest share that ``needs`` has of ``total``, over the resources that exist (Ghodsi et al., NSDI 2011)."""
    return max((amount / total[name] for name, amount in needs.items() if total.get(name, 0) > 0), default=0.0)
