"""Environment variables that give a member its identity and the addresses of the others.

Pure. The names without prefix are those that PyTorch's distributed package reads (``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``,
``MASTER_PORT``) and that its launcher ``torchrun`` takes for its options (``PET_*``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from trainmaster.cluster_model.device_products import processes_of
from trainmaster.protocol.agent import StartRun
from trainmaster.protocol.ids import member_id
from trainmaster.protocol.jobs import JobSpec, Role
from trainmaster.protocol.quantities import Resources


@dataclass(frozen=True, slots=True)
class Seat:
    """One member's place in its run. ``rank`` counts over all roles in the order of the specification."""

    role: str
    index: int
    rank: int


class LocalSeat(NamedTuple):
    """A member's place among the members of its run on its node: its rank by that of the run, and their number."""

    rank: int
    size: int


ALONE = LocalSeat(0, 1)


def local_seats(node_of: Mapping[Seat, str]) -> dict[Seat, LocalSeat]:
    """Return the place of each member among those on its node."""
    on_node: dict[str, list[Seat]] = {}
    for seat in sorted(node_of, key=lambda one: one.rank):
        on_node.setdefault(node_of[seat], []).append(seat)
    return {seat: LocalSeat(rank, len(those)) for those in on_node.values() for rank, seat in enumerate(those)}


def seats(run: StartRun) -> tuple[Seat, ...]:
    """Return the seats of all members of a run, by rank."""
    places = ((role["name"], index) for role in run.spec["roles"] for index in range(run.sizes.get(role["name"], 0)))
    return tuple(Seat(role, index, rank) for rank, (role, index) in enumerate(places))


def processes_per_member(spec: JobSpec) -> dict[str, int]:
    """Return how many processes a launcher starts in a member, by role: one for each of its devices, at least one."""
    return {role.name: processes_of(_own_amounts(role)) for role in spec.roles}


def _own_amounts(role: Role) -> Resources:
    """Return what each member has for itself: of devices that members share, one process in each of these is the use."""
    return role.amounts if role.template is None else role.template.own_amounts


def member_environment(
    run: StartRun,
    seat: Seat,
    everyone: tuple[Seat, ...],
    addresses: dict[Seat, tuple[str, int]],
    restarts: int = 0,
    *,
    processes: Mapping[str, int],
    local: LocalSeat | None = None,
) -> dict[str, str]:
    """Return the variables of one member, given each member's host and port, and the processes of a member by role."""
    size = sum(1 for other in everyone if other.role == seat.role)
    many = processes.get(seat.role, 1)
    own = own_environment(run, seat, size, addresses[seat], restarts, processes=many, local=local)
    return shared_environment(run, everyone, addresses) | own


def shared_environment(
    run: StartRun, everyone: tuple[Seat, ...], addresses: dict[Seat, tuple[str, int]]
) -> dict[str, str]:
    """Return the variables that are the same for all members; there are at least as many of them as members."""
    master_host, master_port = addresses[everyone[0]]
    world = str(len(everyone))
    env = {
        "TRAINMASTER_JOB_ID": run.job,
        "TRAINMASTER_RUN_ID": run.run,
        "TRAINMASTER_RUN_TOKEN": str(run.token),
        "TRAINMASTER_ATTEMPT": str(run.attempt),
        "TRAINMASTER_QUEUE": run.queue,
        "TRAINMASTER_WORLD_SIZE": world,
        "TRAINMASTER_ADDRESSES": ",".join(f"{h}:{p}" for h, p in (addresses[other] for other in everyone)),
        "WORLD_SIZE": world,
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": master_host,
        "MASTER_PORT": str(master_port),
        "PET_NNODES": world,
        "PET_MASTER_ADDR": master_host,
        "PET_MASTER_PORT": str(master_port),
        "PET_RDZV_ID": run.run,
    }
    for other in everyone:
        host, port = addresses[other]
        env[f"TRAINMASTER_ADDRESS_{other.role.upper().replace('-', '_')}_{other.index}"] = f"{host}:{port}"
    if run.traceparent:
        env["TRACEPARENT"] = run.traceparent
    return env


def own_environment(
    run: StartRun,
    seat: Seat,
    role_size: int,
    address: tuple[str, int],
    restarts: int = 0,
    *,
    processes: int,
    local: LocalSeat | None,
) -> dict[str, str]:
    """Return the variables that differ between members.

    ``processes``: the number that a launcher such as ``torchrun`` starts in the member. ``local``: None where it is not known.
    """
    host, port = address
    on_node = (
        {} if local is None else {"TRAINMASTER_LOCAL_RANK": str(local.rank), "TRAINMASTER_LOCAL_SIZE": str(local.size)}
    )
    return {
        "TRAINMASTER_MEMBER": member_id(run.run, seat.role, seat.index),
        "TRAINMASTER_ROLE": seat.role,
        "TRAINMASTER_ROLE_INDEX": str(seat.index),
        "TRAINMASTER_ROLE_SIZE": str(role_size),
        "TRAINMASTER_RANK": str(seat.rank),
        "TRAINMASTER_ADDRESS": f"{host}:{port}",
        "TRAINMASTER_HOST": host,
        "TRAINMASTER_PORT": str(port),
        "TRAINMASTER_RESTARTS": str(restarts),
        "TRAINMASTER_PROCESSES": str(processes),
        **on_node,
        "RANK": str(seat.rank),
        "PET_NODE_RANK": str(seat.rank),
        "PET_NPROC_PER_NODE": str(processes),
    }
