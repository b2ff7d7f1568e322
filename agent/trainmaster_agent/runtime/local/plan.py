"""Supervisors' orders from a run and its places: commands, environments, addresses."""

import os
import socket
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import count, islice
from pathlib import Path

from trainmaster.cluster_model.packing import Assignment
from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.jobs import JobSpec, MemberFailure, MemberTemplate
from trainmaster.protocol.quantities import Resources
from trainmaster_agent.member_env import (
    Seat,
    local_seats,
    member_environment,
    own_environment,
    processes_per_member,
    seats,
    shared_environment,
)
from trainmaster_agent.runtime.local.layout import FailurePlan, MemberPlan, RunPlan
from trainmaster_agent.runtime.local.records import LocalRecord
from trainmaster_agent.runtime.local.strays import INSTALLATION

_HOST = "127.0.0.1"
_KEPT_VARIABLES = ("HOME", "LANG", "TMPDIR")
"""Variables that members get from the agent's environment, beside PATH: the rest may hold its secrets."""


class PortPool:
    """TCP ports for members. None is given to two live runs; other programs may still take one."""

    def __init__(self) -> None:
        self._taken: dict[str, set[int]] = {}
        self._all: set[int] = set()

    def take(self, run: str, many: int) -> list[int]:
        """Reserve and return ``many`` more ports that nobody listens on now. Raises OSError when the machine has no more."""
        ports: list[int] = []
        held: list[socket.socket] = []
        try:
            while len(ports) < many:
                # Kept open until all are found, so that the kernel returns a different one each time.
                one = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
                held.append(one)
                one.bind((_HOST, 0))
                port = int(one.getsockname()[1])
                if port not in self._all:
                    ports.append(port)
        finally:
            for one in held:
                one.close()
        self.hold(run, [*self._taken.get(run, ()), *ports])
        return ports

    def hold(self, run: str, ports: list[int]) -> None:
        """Note ports that a run got from an earlier agent."""
        self._taken[run] = set(ports)
        self._all |= self._taken[run]

    def give_back(self, run: str) -> None:
        self._all -= self._taken.pop(run, set())


def port_count(spec: JobSpec, sizes: dict[str, int]) -> int:
    """Return the number of ports that the members need: one each, or as many as they declare."""
    return sum(
        sizes.get(role.name, 0) * max(1, len(role.template.ports)) for role in spec.roles if role.template is not None
    )


def make_plan(
    record: LocalRecord,
    spec: JobSpec,
    seq: int,
    nodes: Assignment,
    group_of: Mapping[str, str],
    used: dict[str, Resources],
    ports: list[int],
) -> RunPlan:
    """Return the supervisor's orders for a run whose gang has these places and ports."""
    run = record.start
    templates = {role.name: role.template for role in spec.roles if role.template is not None}
    everyone = seats(run)
    left = iter(ports)
    ports_of = {seat: [next(left) for _ in range(max(1, len(templates[seat.role].ports)))] for seat in everyone}
    addresses = {seat: (_HOST, ports_of[seat][0]) for seat in everyone}
    node_of = _seat_nodes(everyone, nodes)
    role_sizes = Counter(seat.role for seat in everyone)
    processes, local = processes_per_member(spec), local_seats(node_of)
    # Variables that all members share are stored once: for each member they would grow with the square of the gang.
    shared = shared_environment(run, everyone, addresses)
    own = [
        _environment(
            templates[seat.role],
            own_environment(
                run,
                seat,
                role_sizes[seat.role],
                addresses[seat],
                processes=processes[seat.role],
                local=local[seat],
            ),
            ports_of[seat],
        )
        for seat in everyone
    ]
    common = dict(set(own[0].items()).intersection(*(env.items() for env in own[1:])))
    members: list[MemberPlan] = []
    for seat, env in zip(everyone, own, strict=True):
        template = templates[seat.role]
        members.append(
            {
                "role": seat.role,
                "index": seat.index,
                "node": node_of[seat],
                "group": group_of.get(node_of[seat], node_of[seat]),
                "argv": [*template.command, *template.args],
                "env": {name: value for name, value in env.items() if name not in common},
                "cwd": template.working_dir or None,
            }
        )
    return {
        "run": run.run,
        "generation": run.generation,
        "seq": seq,
        "resized": False,
        "env": shared | common | ({INSTALLATION: run.installation} if run.installation else {}),
        "members": members,
        "used": used,
        "ports": ports,
        "time_limit": None if spec.time_limit is None else parse_duration(spec.time_limit),
        "stop_grace": spec.grace_seconds,
        "failures": {role.name: _failure_plan(spec.failure_of(role)) for role in spec.roles},
        "success": None if spec.success is None else spec.success.role,
        "disconnect": run.disconnect_seconds,
        "contact": record.accepted_at,
        "boot": record.boot,
    }


def _failure_plan(failure: MemberFailure) -> FailurePlan:
    return {"action": failure.action, "limit": failure.limit, "back_off": parse_duration(failure.back_off)}


def resized_plan(
    plan: RunPlan,
    record: LocalRecord,
    spec: JobSpec,
    generation: int,
    stay: list[MemberPlan],
    nodes: Assignment,
    group_of: Mapping[str, str],
    ports: list[int],
) -> RunPlan:
    """Return the orders for a run of which ``stay`` remain and others start on ``nodes``. Those that stay notice nothing."""
    templates = {role.name: role.template for role in spec.roles if role.template is not None}
    known = {Seat(one["role"], one["index"], rank): one for rank, one in enumerate(stay)}
    coming = list(_seats_of(stay, nodes))
    left = iter(ports)
    ports_of = {seat: [next(left) for _ in range(max(1, len(templates[seat.role].ports)))] for seat, _ in coming}
    addresses = {seat: _address({**plan["env"], **one["env"]}) for seat, one in known.items()}
    addresses |= {seat: (_HOST, numbers[0]) for seat, numbers in ports_of.items()}
    everyone = (*known, *ports_of)
    members = list(stay)
    processes = processes_per_member(spec)
    local = local_seats({seat: one["node"] for seat, one in known.items()} | dict(coming))
    for seat, node in coming:
        template = templates[seat.role]
        ours = member_environment(record.start, seat, everyone, addresses, processes=processes, local=local[seat])
        members.append(
            {
                "role": seat.role,
                "index": seat.index,
                "node": node,
                "group": group_of.get(node, node),
                "argv": [*template.command, *template.args],
                "env": _environment(template, ours, ports_of[seat]),
                "cwd": template.working_dir or None,
            }
        )
    return {**plan, "generation": generation, "resized": True, "members": members, "ports": [*plan["ports"], *ports]}


def _seats_of(stay: list[MemberPlan], nodes: Assignment) -> Iterator[tuple[Seat, str]]:
    """Yield seats for new members and their nodes: the lowest free indexes of their roles, ranks after all others."""
    taken = {(one["role"], one["index"]) for one in stay}
    rank = count(len(stay))
    for node, roles in sorted(nodes.items()):
        for role, many in sorted(roles.items()):
            free = (index for index in count() if (role, index) not in taken)
            for index in list(islice(free, many)):
                taken.add((role, index))
                yield Seat(role, index, next(rank)), node


def _address(env: Mapping[str, str]) -> tuple[str, int]:
    host, _, port = env["TRAINMASTER_ADDRESS"].rpartition(":")
    return host, int(port)


def nodes_of(members: Iterable[MemberPlan]) -> Assignment:
    """Return the placement of members: their number by node and role."""
    nodes: Assignment = {}
    for one in members:
        roles = nodes.setdefault(one["node"], {})
        roles[one["role"]] = roles.get(one["role"], 0) + 1
    return nodes


def _seat_nodes(everyone: tuple[Seat, ...], nodes: Assignment) -> dict[Seat, str]:
    places: dict[str, list[str]] = {}
    for node, roles in sorted(nodes.items()):
        for role, many in roles.items():
            places.setdefault(role, []).extend([node] * many)
    return {seat: places[seat.role][seat.index] for seat in everyone}


def _environment(template: MemberTemplate, ours: dict[str, str], ports: list[int]) -> dict[str, str]:
    """Return a member's variables. The job's own override ours, except for our prefix, which the specification refuses."""
    bin_dir = str(Path(sys.executable).parent)
    env = {"PATH": os.pathsep.join((bin_dir, os.environ.get("PATH", os.defpath)))}
    env |= {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    env |= ours | template.env
    for port, number in zip(template.ports, ports, strict=False):
        env[f"TRAINMASTER_PORT_{port.name.upper().replace('-', '_')}"] = str(number)
    return env
