"""The kinds of objects that admins declare: names, address, model and table of each, in one place for all sides.

The api's routes, the client's calls, ``apply`` and the commands of the command line come from it. It imports no model before that is
needed: the command line starts without pydantic.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

if TYPE_CHECKING:
    from trainmaster.protocol.base import Strict
    from trainmaster.protocol.bursting import BurstPolicySpec
    from trainmaster.protocol.prices import PriceBookSpec
    from trainmaster.protocol.role_bindings import RoleBindingSpec
    from trainmaster.protocol.tenants import ClusterSpec, DatasetSpec, PriorityClassSpec, QueueSpec, ReservationSpec

Kind = Literal["PriorityClass", "Queue", "PriceBook", "Cluster", "Dataset", "BurstPolicy", "Reservation", "RoleBinding"]
"""The word for a kind in documents and calls."""
Model = TypeVar("Model", bound="Strict", covariant=True)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table that lists objects: its heading, the field that it shows, and what stands for an empty one."""

    heading: str
    field: str
    empty: str = "-"
    is_wide: bool = False


@dataclass(frozen=True, slots=True)
class ResourceKind(Generic[Model]):
    """One kind of declared objects.

    ``kind`` is its word in documents, ``name`` in sentences. The list of ``address`` is in the field ``member`` of its answer.
    ``load`` imports the model. ``key``: the field that names an object. ``lists``, ``shows``, ``puts``, ``deletes``: what each call
    does, for the reference and for help; empty where the api has a route of its own. ``columns``: of the table; without any, the
    command line has one of its own. ``nothing``: what it says where there are no objects, if not the usual sentence.
    """

    kind: Kind
    name: str
    address: str
    member: str
    load: Callable[[], type[Model]]
    shows: str
    puts: str
    deletes: str = ""
    lists: str = ""
    key: Literal["name", "path"] = "name"
    columns: tuple[Column, ...] = ()
    nothing: str = ""

    @property
    def spec(self) -> type[Model]:
        return self.load()

    @property
    def command(self) -> str:
        """The command that lists its objects, such as ``price-books``."""
        return self.address.rpartition("/")[2]

    @property
    def plural(self) -> str:
        return self.command.replace("-", " ")

    def name_of(self, spec: "Strict") -> str:
        """Return by what an object is called, of its specification."""
        return str(getattr(spec, self.key))

    def name_in(self, shown: Mapping[str, Any]) -> str:
        """Return by what an object is called, as the API shows it."""
        return str(shown[self.key])


def _priority_class() -> "type[PriorityClassSpec]":
    from trainmaster.protocol.tenants import PriorityClassSpec

    return PriorityClassSpec


def _queue() -> "type[QueueSpec]":
    from trainmaster.protocol.tenants import QueueSpec

    return QueueSpec


def _price_book() -> "type[PriceBookSpec]":
    from trainmaster.protocol.prices import PriceBookSpec

    return PriceBookSpec


def _cluster() -> "type[ClusterSpec]":
    from trainmaster.protocol.tenants import ClusterSpec

    return ClusterSpec


def _dataset() -> "type[DatasetSpec]":
    from trainmaster.protocol.tenants import DatasetSpec

    return DatasetSpec


def _burst_policy() -> "type[BurstPolicySpec]":
    from trainmaster.protocol.bursting import BurstPolicySpec

    return BurstPolicySpec


def _reservation() -> "type[ReservationSpec]":
    from trainmaster.protocol.tenants import ReservationSpec

    return ReservationSpec


def _role_binding() -> "type[RoleBindingSpec]":
    from trainmaster.protocol.role_bindings import RoleBindingSpec

    return RoleBindingSpec


PRIORITY_CLASS = ResourceKind(
    kind="PriorityClass",
    name="priority class",
    address="/v1/priority-classes",
    member="priorityClasses",
    load=_priority_class,
    lists="All priority classes, highest first.",
    shows="One priority class.",
    puts="Make or change a priority class.",
    deletes="Remove a priority class that no job has, and that no queue and no burst policy names.",
    columns=(
        Column("NAME", "name"),
        Column("VALUE", "value"),
        Column("DEFAULT", "default"),
        Column("PREEMPTIBLE", "preemptible"),
        Column("LONGEST WAIT", "longestWait"),
        Column("DESCRIPTION", "description", is_wide=True),
    ),
)
QUEUE = ResourceKind(
    kind="Queue",
    name="queue",
    address="/v1/queues",
    member="queues",
    key="path",
    load=_queue,
    shows="One queue with its unfinished jobs by state.",
    puts="Make or change a queue.",
    deletes="Remove a queue that has neither jobs nor queues below it.",
)
PRICE_BOOK = ResourceKind(
    kind="PriceBook",
    name="price book",
    address="/v1/price-books",
    member="priceBooks",
    load=_price_book,
    lists="Price books of the clusters that the caller's jobs may go to; for admins, all.",
    shows="One price book.",
    puts="Make or change a price book; clusters that name it charge the new prices from now on.",
    deletes="Remove a price book that no cluster names.",
)
CLUSTER = ResourceKind(
    kind="Cluster",
    name="cluster",
    address="/v1/clusters",
    member="clusters",
    load=_cluster,
    lists="Clusters that the caller's jobs may go to, with their contact and capacity.",
    shows="One cluster.",
    puts="Declare or change a cluster.",
)
DATASET = ResourceKind(
    kind="Dataset",
    name="dataset",
    address="/v1/datasets",
    member="datasets",
    load=_dataset,
    lists="All data that was declared.",
    shows="One dataset.",
    puts="Declare data, or change what was declared.",
    deletes="Remove the declaration of a dataset; jobs that name it then go to clusters whose agents report it.",
    columns=(
        Column("NAME", "name"),
        Column("SIZE", "size"),
        Column("CLUSTERS", "clusters"),
        Column("REGIONS", "regions", empty="all"),
        Column("MAY BE MOVED", "remote"),
    ),
    nothing="no data is declared; an admin does so with: trainmaster apply -f FILE",
)
BURST_POLICY = ResourceKind(
    kind="BurstPolicy",
    name="burst policy",
    address="/v1/burst-policies",
    member="burstPolicies",
    load=_burst_policy,
    shows="One burst policy.",
    puts="Make or change a burst policy. Live runs by it continue unchanged.",
    deletes="Remove a burst policy. Live runs by it continue; no more jobs go by it.",
    nothing="there is no burst policy, so no job goes to a public cluster by one; trainmaster apply -f FILE makes them",
)
RESERVATION = ResourceKind(
    kind="Reservation",
    name="reservation",
    address="/v1/reservations",
    member="reservations",
    load=_reservation,
    lists="Nodes that are reserved for the caller's queues, by the beginning of their windows, ended ones included.",
    shows="One reservation.",
    puts="Make or change a reservation.",
    deletes="Remove a reservation; the nodes that it kept are free for all queues.",
    nothing="nothing is reserved; an admin reserves nodes with: trainmaster apply -f FILE",
)
ROLE_BINDING = ResourceKind(
    kind="RoleBinding",
    name="role binding",
    address="/v1/role-bindings",
    member="roleBindings",
    load=_role_binding,
    lists="Roles of people who sign in through OpenID Connect; for callers who are no admin, those that name the caller.",
    shows="One role binding.",
    puts="Make or change a role binding. It counts for calls within a second.",
    deletes="Remove a role binding. People with no other one are refused within a second.",
    columns=(
        Column("NAME", "name"),
        Column("ROLE", "role"),
        Column("USERS", "users"),
        Column("GROUPS", "groups"),
        Column("QUEUES", "queues"),
        Column("CLUSTERS", "clusters"),
        Column("DESCRIPTION", "description", is_wide=True),
    ),
    nothing="no role is bound, so only API keys have rights; an admin binds roles with: trainmaster apply -f FILE",
)

KINDS: "Mapping[Kind, ResourceKind[Strict]]" = {
    one.kind: one
    for one in (PRIORITY_CLASS, QUEUE, PRICE_BOOK, CLUSTER, DATASET, BURST_POLICY, RESERVATION, ROLE_BINDING)
}
"""By kind, in an order in which objects can be made: each after those that it names."""
