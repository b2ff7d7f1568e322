"""Environment variables that give a member its identity and the addresses of the others.

Pure. The names without prefix are those that PyTorch's distributed package reads (``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``,
``MASTER_PORT``) and that its launcher ``torchrun`` takes for its options (``PET_*``).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from trainmaster.cluster_model.device_products import is_gpu
from trainmaster.protocol.agent import StartRun
from trainmaster.protocol.ids import member_id
from trainmaster.protocol.jobs import JobSpec


@dataclass(frozen=True, slots=True)
class Seat:
    """One member's place in its run. ``rank`` counts over all roles in the order of the specification."""

    role: str
    index: int
    rank: int


def seats(run: StartRun) -> tuple[Seat, ...]:
    """Return the seats of all members of a run, by rank."""
    places = ((role["name"], index) for role in run.spec["roles"] for index in range(run.sizes.get(role["name"], 0)))
    return tuple(Seat(role, index, rank) for rank, (role, index) in enumerate(places))


def gpus_per_member(spec: JobSpec) -> dict[str, int]:
    """Return how many GPUs each member has, by role, as its template requests them."""
    found = {}
    for role in spec.roles:
        found[role.name] = sum(amount for name, amount in role.amounts.items() if is_gpu(name))
    return found


def member_environment(
    run: StartRun,
    seat: Seat,
    everyone: tuple[Seat, ...],
    addresses: dict[Seat, tuple[str, int]],
    restarts: int = 0,
    *,
    gpus: Mapping[str, int],
) -> dict[str, str]:
    """Return the variables of one member, given each member's host and port, and the GPUs of a member by role."""
    size = sum(1 for other in everyone if other.role == seat.role)
    own = own_environment(run, seat, size, addresses[seat], restarts, gpus=gpus.get(seat.role, 0))
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
    return env


def own_environment(
    run: StartRun, seat: Seat, role_size: int, address: tuple[str, int], restarts: int = 0, *, gpus: int
) -> dict[str, str]:
    """Return the variables that differ between members. ``torchrun`` starts a process for each of the member's ``gpus``."""
    host, port = address
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
        "RANK": str(seat.rank),
        "PET_NODE_RANK": str(seat.rank),
        "PET_NPROC_PER_NODE": str(max(1, gpus)),
    }
