"""Rights of those who may change declared objects of some kinds or queues, and are no admins.

A queue administrator changes what is below the own queues: queues, whose guarantees come out of the guarantees of the own ones, burst
policies and role bindings that are for these queues alone. What would give jobs more than the administrator's queue has, or take
something from the queues of others, is for admins: priority classes, kinds of clusters, protection from preemption, prices, admission
of pod templates, and namespaces.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from trainmaster.protocol.base import Strict
from trainmaster.protocol.bursting import BurstPolicySpec
from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.permissions import KIND_WRITE, NEED_QUEUES
from trainmaster.protocol.quantities import parse_quantity
from trainmaster.protocol.quota import parse_flavor
from trainmaster.protocol.resource_kinds import KINDS, Kind
from trainmaster.protocol.role_bindings import RoleBindingSpec
from trainmaster.protocol.tenants import QueueSpec
from trainmaster_dispatcher.domain.declared_fields import Wire
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import Caller
from trainmaster_dispatcher.store.tenants import QUEUES

OF_ADMINS: Final = (
    "allowedKinds",
    "priorityClasses",
    "defaultPriorityClass",
    "preemption",
    "minRunTime",
    "priceFactor",
    "admission",
    "namespace",
)
"""Fields of a queue that only admins set."""


def check_target(caller: Caller, kind: Kind, name: str) -> None:
    """Raise ProblemError FORBIDDEN where the caller may not change this object, whatever it is and becomes.

    For what can be said before anything is read, so that no other error tells of objects of others.
    """
    if caller.is_admin:
        return
    scoped = caller.with_permission(KIND_WRITE[kind])
    if scoped.has_every_queue:
        return
    if kind == "Queue" and not scoped.is_above(name):
        raise _refused(scoped, kind, name, f"may change the queues below {_listed(scoped)}, and not this one")
    if kind not in ("Queue", "BurstPolicy", "RoleBinding"):
        raise _refused(scoped, kind, name, "has a role for some queues, and this is for the whole installation")


def check_spec(caller: Caller, kind: Kind, name: str, spec: Strict) -> None:
    """Raise ProblemError FORBIDDEN where a specification is about more than the caller's queues."""
    check_target(caller, kind, name)
    if caller.is_admin:
        return
    scoped = caller.with_permission(KIND_WRITE[kind])
    if scoped.has_every_queue:
        return
    if isinstance(spec, BurstPolicySpec | RoleBindingSpec):
        others = [path for path in spec.queues if not scoped.may_use(path)]
        if others or not spec.queues:
            message = f"has to be for queues of {_listed(scoped)} alone"
            raise _refused(scoped, kind, name, message, path="queues")
    if isinstance(spec, RoleBindingSpec) and spec.role not in NEED_QUEUES:
        raise _refused(scoped, kind, name, f"the role {spec.role} is given by admins alone", path="role")


async def check_changes(
    tx: Transaction, caller: Caller, changes: Iterable[tuple[Kind, str, Wire | None, Wire | None]]
) -> None:
    """Check changes of declared objects that were written in this transaction: kind, name, and the object before and after.

    Raises ProblemError FORBIDDEN.
    """
    if caller.is_admin:
        return
    parents: dict[str, None] = {}
    for kind, name, before, after in changes:
        model = KINDS[kind].spec
        specs = [None if one is None else model.model_validate(one) for one in (before, after)]
        check_target(caller, kind, name)
        for spec in specs:
            if spec is not None:
                check_spec(caller, kind, name, spec)
        scoped = caller.with_permission(KIND_WRITE[kind])
        if kind == "Queue" and not scoped.has_every_queue:
            _check_fields(scoped, name, before, after)
            parents[name.rpartition("/")[0]] = None
    if parents:
        await _check_guarantees(tx, caller, list(parents))


def _check_fields(caller: Caller, name: str, before: Wire | None, after: Wire | None) -> None:
    if after is None:
        return
    usual = QueueSpec(path=name).to_wire() if before is None else before
    changed = [field for field in OF_ADMINS if usual.get(field) != after.get(field)]
    if changed:
        message = f"{', '.join(changed)}: only an admin sets this, as it concerns other queues, too"
        raise _refused(caller, "Queue", name, message, path=changed[0])


async def _check_guarantees(tx: Transaction, caller: Caller, parents: Sequence[str]) -> None:
    """Raise ProblemError FORBIDDEN where queues below one of these together are guaranteed more than it is."""
    every = {row.spec.path: row.spec for row in await QUEUES.every(tx)}
    for parent in parents:
        if parent not in every:
            continue
        has = _guarantees(every[parent])
        below: dict[str, int] = {}
        for path, spec in every.items():
            if path.rpartition("/")[0] == parent:
                for flavor, amount in _guarantees(spec).items():
                    below[flavor] = below.get(flavor, 0) + amount
        for flavor, amount in sorted(below.items()):
            if amount > has.get(flavor, 0):
                raise _refused(
                    caller,
                    "Queue",
                    parent,
                    f"the queues below it would be guaranteed more {flavor} than it has itself; an admin raises its guarantee",
                    path=f"resources.{flavor}.guaranteed",
                )


def _guarantees(spec: QueueSpec) -> Mapping[str, int]:
    return {
        flavor: parse_quantity(parse_flavor(flavor)[0], quota.guaranteed)
        for flavor, quota in spec.resources.items()
        if quota.guaranteed is not None
    }


def _listed(caller: Caller) -> str:
    return ", ".join(map(repr, caller.queues))


def _refused(caller: Caller, kind: Kind, name: str, message: str, path: str = "") -> ProblemError:
    mistakes: tuple[Any, ...] = (Mistake(path=path, message=message),) if path else ()
    detail = f"{caller.title} may not change the {KINDS[kind].name} {name!r} like this: {message}"
    return ProblemError(Code.FORBIDDEN, detail, mistakes=mistakes)
