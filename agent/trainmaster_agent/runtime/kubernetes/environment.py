"""Environment variables and files that give a run's members their identity, for a gang of any size. Pure.

The variables of ``member_env.py``, and those that common frameworks rendezvous by:
JAX (``jax.distributed.initialize``), TensorFlow (``TF_CONFIG``), MPI (a host file), Ray (the head's address).

Lists of all members grow with the gang and are in every member: above 64 members they are only files of the run's roster,
because one variable holds at most 128 KiB and ten thousand copies would be gigabytes.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import orjson

from trainmaster.protocol.agent import StartRun
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.mounts import ROSTER
from trainmaster_agent.member_env import ALONE, Seat, member_environment, processes_per_member, seats

ROSTER_PATH = ROSTER
MOST_LISTED = 64
"""The largest gang whose members have all addresses as variables."""
_RAY_PORT = 6379
_TF_ROLES = {"chief": "chief", "worker": "worker", "ps": "ps", "evaluator": "evaluator", "master": "chief"}
"""TensorFlow's task types; a run with any other role presents all its members as workers."""


class Roster:
    """The members of a run at one size, and the variables that are the same for all."""

    def __init__(self, run: StartRun, spec: JobSpec, sizes: Mapping[str, int], default_port: int) -> None:
        self.run = run.model_copy(update={"sizes": dict(sizes)})
        self.everyone: tuple[Seat, ...] = seats(self.run)
        self._ports = {role.name: _port(role, default_port) for role in spec.roles}
        self._seats = {(seat.role, seat.index): seat for seat in self.everyone}
        self._size_of = {name: sizes.get(name, 0) for name in self._ports}
        self._processes = processes_per_member(spec)
        is_alone = len(self.everyone) == 1 or spec.topology.exclusive is not None
        self._local = ALONE if is_alone else None
        """Other members' nodes are not known before their pods are bound."""
        self._ray_head = self._find_ray_head()

    def host(self, role: str, index: int) -> str:
        """Return the member's stable host name, resolvable in its namespace; a single member has no service."""
        if len(self.everyone) == 1:
            return "localhost"
        return f"{role}-{index}.{self.run.run}"

    def address(self, seat: Seat) -> tuple[str, int]:
        return self.host(seat.role, seat.index), self._ports[seat.role]

    def environment(self, role: str, index: int, restarts: int) -> dict[str, str]:
        """Return all variables of one member."""
        seat = self._seats[role, index]
        small = len(self.everyone) <= MOST_LISTED
        known = self.everyone if small else tuple(dict.fromkeys((self.everyone[0], seat)))
        addresses = {one: self.address(one) for one in known}
        env = member_environment(
            self.run, seat, known, addresses, restarts, processes=self._processes, local=self._local
        )
        if not small:
            world = str(len(self.everyone))
            env |= {"TRAINMASTER_WORLD_SIZE": world, "WORLD_SIZE": world, "PET_NNODES": world}
            env["TRAINMASTER_ROLE_SIZE"] = str(self._size_of[role])
            del env["TRAINMASTER_ADDRESSES"]
        return env | self._frameworks(seat)

    def _frameworks(self, seat: Seat) -> dict[str, str]:
        master, port = self.address(self.everyone[0])
        env = {
            "JAX_COORDINATOR_ADDRESS": f"{master}:{port}",
            "JAX_COORDINATOR_PORT": str(port),
            "JAX_NUM_PROCESSES": str(len(self.everyone)),
            "JAX_PROCESS_ID": str(seat.rank),
            "TRAINMASTER_RAY_HEAD": f"{self._ray_head}:{_RAY_PORT}",
        }
        if len(self.everyone) > 1:
            env["TRAINMASTER_HOSTFILE"] = f"{ROSTER_PATH}/hostfile"
            env["TRAINMASTER_ADDRESSES_FILE"] = f"{ROSTER_PATH}/addresses"
            env["OMPI_MCA_orte_default_hostfile"] = f"{ROSTER_PATH}/hostfile"
            env["I_MPI_HYDRA_HOST_FILE"] = f"{ROSTER_PATH}/hostfile"
            if len(self.everyone) <= MOST_LISTED:
                cluster, task = self._tensorflow(seat)
                env["TF_CONFIG"] = orjson.dumps({"cluster": cluster, "task": task}).decode()
        return env

    def _find_ray_head(self) -> str:
        head = next((seat for seat in self.everyone if seat.role == "head"), self.everyone[0])
        return self.host(head.role, head.index)

    def _tensorflow(self, seat: Seat) -> tuple[dict[str, list[str]], dict[str, Any]]:
        known = all(name in _TF_ROLES for name in self._ports)
        cluster: dict[str, list[str]] = {}
        mine: dict[str, Any] = {}
        for other in self.everyone:
            kind = _TF_ROLES[other.role] if known else "worker"
            if other == seat:
                mine = {"type": kind, "index": len(cluster.get(kind, ()))}
            host, port = self.address(other)
            cluster.setdefault(kind, []).append(f"{host}:{port}")
        return cluster, mine

    def files(self) -> dict[str, str]:
        """Return the files mounted at ``/etc/trainmaster`` in every member: hosts with slots for MPI, and all addresses by rank."""
        hosts = [self.address(seat) for seat in self.everyone]
        return {
            "hostfile": "".join(f"{host} slots=1\n" for host, _ in hosts),
            "addresses": "".join(f"{host}:{port}\n" for host, port in hosts),
        }


def _port(role: Any, default: int) -> int:
    if role.template is not None:
        return int(role.template.ports[0].port) if role.template.ports else default
    return _first_port(orjson.dumps(role.pod_template, option=orjson.OPT_SORT_KEYS), default)


@lru_cache(maxsize=256)
def _first_port(template: bytes, default: int) -> int:
    for container in orjson.loads(template).get("spec", {}).get("containers", []):
        for port in container.get("ports") or []:
            return int(port.get("containerPort", default))
    return default
