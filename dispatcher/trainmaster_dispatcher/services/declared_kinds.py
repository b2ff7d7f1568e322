"""The kinds of declared objects: for each its table, its routes' models, its visibility, and its hooks.

The routes, the audit and ``admin bootstrap`` are built from them. ``protocol.resource_kinds`` has what all sides know of a kind.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from trainmaster.protocol import answers
from trainmaster.protocol.errors import Code
from trainmaster.protocol.prices import PriceBookSpec
from trainmaster.protocol.role_bindings import RoleBindingSpec
from trainmaster.protocol.tenants import DatasetSpec, PriorityClassSpec, ReservationSpec
from trainmaster_dispatcher.services import bursting, job_queries, leader_queries, people, pricing, tenants
from trainmaster_dispatcher.services.auditing import Object
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.declared import DeclaredKind, Shown
from trainmaster_dispatcher.services.leader_queries import Leader
from trainmaster_dispatcher.store import bursts, prices
from trainmaster_dispatcher.store import tenants as store
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import Caller


def _read_by(listing: Callable[[Transaction, Caller], Awaitable[list[dict[str, Any]]]]) -> Shown:
    """Return ``listing``, run in a transaction of its own."""

    async def shown(stores: Stores, _leader: Leader, caller: Caller) -> list[dict[str, Any]]:
        async with stores.database.transaction() as tx:
            return await listing(tx, caller)

    return shown


async def _policies(stores: Stores, leader: Leader, caller: Caller) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await leader_queries.policies(stores, leader, caller))["burstPolicies"]
    return found


QUEUE = DeclaredKind(
    table=store.QUEUES,
    tag="tenants",
    view=answers.QueueView,
    shown=_read_by(job_queries.list_queues),
    before_put=tenants.check_queues,
    before_delete=tenants.check_queue_is_unused,
    after_delete=tenants.forget_webhook_secret,
    put_refuses=(Code.UNKNOWN_QUEUE, Code.UNKNOWN_PRIORITY_CLASS, Code.IN_USE),
    delete_refuses=(Code.IN_USE, Code.CONFLICT),
)
PRIORITY_CLASS = DeclaredKind(
    table=store.CLASSES,
    tag="tenants",
    view=PriorityClassSpec,
    list_view=answers.PriorityClassList,
    before_put=tenants.replace_default_class,
    before_delete=tenants.check_class_is_unused,
    changes_others=True,
    delete_refuses=(Code.IN_USE, Code.CONFLICT),
)
RESERVATION = DeclaredKind(
    table=store.RESERVATIONS,
    tag="tenants",
    view=ReservationSpec,
    list_view=answers.ReservationList,
    shown=_read_by(job_queries.list_reservations),
    before_put=tenants.check_reservations,
    put_refuses=(Code.UNKNOWN_QUEUE, Code.UNKNOWN_CLUSTER),
)
CLUSTER = DeclaredKind(
    table=store.CLUSTERS,
    tag="clusters",
    view=answers.ClusterView,
    list_view=answers.ClusterList,
    shown=_read_by(job_queries.list_clusters),
    before_put=tenants.check_clusters,
    after_put=tenants.prepare_clusters,
    before_prune=tenants.check_cluster_is_out_of_contact,
    remove=tenants.remove_cluster,
    beside=lambda row: {"cordoned": row.cordoned},
    put_refuses=(Code.UNKNOWN_PRICE_BOOK, Code.UNKNOWN_QUEUE),
)
PRICE_BOOK = DeclaredKind(
    table=prices.BOOKS,
    tag="prices",
    view=PriceBookSpec,
    list_view=answers.PriceBookList,
    shown=_read_by(pricing.list_books),
    after_put=pricing.note_new_prices,
    before_delete=pricing.check_book_is_unused,
    delete_refuses=(Code.IN_USE,),
)
BURST_POLICY = DeclaredKind(
    table=bursts.POLICIES,
    tag="burst",
    view=answers.BurstPolicyView,
    shown=_policies,
    before_put=bursting.check_policies,
    put_refuses=(Code.UNKNOWN_QUEUE, Code.UNKNOWN_CLUSTER, Code.UNKNOWN_PRIORITY_CLASS),
)
DATASET = DeclaredKind(
    table=store.DATASETS,
    tag="datasets",
    view=DatasetSpec,
    list_view=answers.DatasetList,
    before_put=tenants.check_datasets,
    put_refuses=(Code.UNKNOWN_CLUSTER,),
)
ROLE_BINDING = DeclaredKind(
    table=store.ROLE_BINDINGS,
    tag="tenants",
    view=RoleBindingSpec,
    list_view=answers.RoleBindingList,
    shown=_read_by(people.list_bindings),
    before_put=people.check_bindings,
    put_refuses=(Code.UNKNOWN_QUEUE, Code.UNKNOWN_CLUSTER),
)

KINDS: tuple[DeclaredKind[Any, Any], ...] = (
    QUEUE,
    PRIORITY_CLASS,
    RESERVATION,
    CLUSTER,
    PRICE_BOOK,
    BURST_POLICY,
    DATASET,
    ROLE_BINDING,
)
"""All kinds. Each has its own types of specification and row, which code that iterates over all kinds does not depend on."""

_BY_NAME = {one.kind.name: one for one in KINDS}


async def object_of(tx: Transaction, action: str, target: str) -> Object | None:
    """Return the object that an action such as ``put queue`` is about; None where it does not exist or is of no such kind."""
    name = action.partition(" ")[2]
    if name == "key":
        return await tenants.find_key(tx, target)
    return await _BY_NAME[name].find(tx, target) if name in _BY_NAME else None
