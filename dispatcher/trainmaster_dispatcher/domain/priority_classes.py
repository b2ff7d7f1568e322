"""Rules for the use of priority classes."""

from collections.abc import Iterable, Sequence

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.tenants import PriorityClassSpec, QueueSpec

SHIPPED = (
    PriorityClassSpec(name="high", value=100, longest_wait="10m"),
    PriorityClassSpec(name="normal", value=0, longest_wait="30m", default=True),
    PriorityClassSpec(name="low", value=-100, longest_wait="2h"),
)
"""The classes of a new installation, which the migrations make."""


def allowed_classes(ancestry: Sequence[QueueSpec], classes: Iterable[PriorityClassSpec]) -> frozenset[str]:
    """Return the classes that users may give to jobs of a queue; ``ancestry`` is the queue and those above it, in this order.

    The nearest queue with ``priorityClasses`` decides. If none has any, users may use the default class and every
    preemptible class that is not higher: a class that cannot be preempted makes borrowed capacity permanent, and a
    higher one overtakes all others.
    """
    named = next((queue.priority_classes for queue in ancestry if queue.priority_classes), ())
    found = set(named)
    if not named:
        known = list(classes)
        default = next((one for one in known if one.default), None)
        highest = 0 if default is None else default.value
        found = {one.name for one in known if one.default or (one.preemptible and one.value <= highest)}
    own = ancestry[0].default_priority_class if ancestry else None
    return frozenset(found if own is None else found | {own})


def not_allowed(name: str, queue: str, allowed: Iterable[str]) -> ProblemError:
    """Return the error of a user who gives a job a class that its queue does not allow."""
    names = ", ".join(sorted(allowed))
    return ProblemError(
        Code.PRIORITY_CLASS_NOT_ALLOWED,
        f"priority class {name!r} is not allowed in queue {queue!r}; allowed are: {names or 'none'};"
        " an admin can name it in 'priorityClasses' of the queue or of one above it",
    )
