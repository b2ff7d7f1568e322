"""Parts of ``job`` and ``why``: what the members of a job run, and the last lines of one that failed."""

import json
import shlex
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from trainmaster.cli.output import Format, clean, data_of, lasted, note, print_data, print_pairs, print_table, styled
from trainmaster.protocol.states import DeadlineState

if TYPE_CHECKING:
    from trainmaster.client.http import Client
    from trainmaster.protocol.arrays import ElementCounts, ElementsOfJob, JobOfElement, ResultOfElement
    from trainmaster.protocol.tenants import JobView, RunView
    from trainmaster.protocol.usage import CostOfJob

_MOST_LINES = 10
_TAIL_BYTES = 8192
_LONGEST_COMMAND = 200
"""Characters of a command in the table; the wide form has all."""
_LONGEST_RANGES = 300
"""Characters of ranges of elements."""
_LONGEST_RESULT = 200
"""Characters of a result in the table; the wide form has all."""


def members_of(item: "JobView") -> str:
    """Return the roles and their sizes as text."""
    return ", ".join(f"{role['name']} x {role.get('replicas', 1)}" for role in _roles(item))


def _roles(item: "JobView") -> list[Mapping[str, Any]]:
    return list((item.spec or {}).get("roles", []))


def deadline_of(item: "JobView", moment: datetime) -> str:
    """Return a job's deadline, with how long is left at ``moment``, or by how much it was missed; empty where there is none."""
    if item.deadline is None:
        return ""
    at = f"{item.deadline.astimezone():%Y-%m-%d %H:%M:%S}"
    left = (item.deadline - (item.ended_at or moment)).total_seconds()
    if left < 0:
        return f"{at}, missed {'by' if item.ended_at else 'since'} {lasted(-left)}"
    if item.ended_at is not None:
        return f"{at}, met {lasted(left)} before" if item.deadline_state is DeadlineState.MET else at
    return f"{at}, in {lasted(left)}{', at risk' if item.deadline_state is DeadlineState.AT_RISK else ''}"


def cost_words(cost: "CostOfJob") -> str:
    """Return what a job has cost until now, with the charge where it differs: ``12.50 EUR, charged 18.75 EUR``."""
    from trainmaster.cli.usage import money

    words, charged = money(cost.cost, cost.currency), money(cost.charge, cost.currency)
    return words if charged == words else f"{words}, charged {charged}"


def print_roles(item: "JobView", *, wide: bool) -> None:
    """Print what the members of each role run and need."""
    rows = [[role["name"], *parts] for role in _roles(item) for parts in _containers(role, wide=wide)]
    if any(part != "-" for row in rows for part in row[1:]):
        print()
        print_table(["ROLE", "RESOURCES", "IMAGE", "COMMAND"], rows)


def _containers(role: Mapping[str, Any], *, wide: bool) -> Iterator[list[str]]:
    """Yield resources, image and command of each container of a member."""
    pod = (role.get("podTemplate") or {}).get("spec")
    for one in [role.get("template") or {}] if pod is None else pod.get("containers") or []:
        resources = one.get("resources") or {}
        if pod is not None:
            resources = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        devices = (_device_words(device) for device in one.get("devices") or () if pod is None)
        amounts = ", ".join((*(f"{name} {amount}" for name, amount in resources.items()), *devices))
        command = shlex.join(map(str, (*(one.get("command") or ()), *(one.get("args") or ()))))
        if not wide and len(command) > _LONGEST_COMMAND:
            command = f"{command[:_LONGEST_COMMAND]} ..."
        yield [amounts or "-", one.get("image") or "-", command or "-"]


def _device_words(device: Mapping[str, Any]) -> str:
    """Return what a member has of a device class, and how many members have it together."""
    many = device.get("sharedBy")
    shared = f" shared by {many}" if many else ""
    return f"{device.get('class')} {device.get('count', 1)}{shared}"


def element_words(counts: "ElementCounts") -> str:
    """Return the elements of an array by state as text, such as ``41200 of 100000 succeeded, 3 failed, 8 running``."""
    others = (("failed", counts.failed), ("cancelled", counts.cancelled), ("running", counts.running))
    more = "".join(f", {number} {state}" for state, number in others if number)
    return f"{counts.succeeded} of {counts.count} succeeded{more}"


def print_elements(found: "ElementsOfJob") -> None:
    """Print the elements of an array by state, and its failed ones."""
    shown = (("succeeded", found.succeeded), ("failed", found.failed), ("cancelled", found.cancelled))
    print(f"{styled(found.job, 'bold')}  {found.count} elements")
    print_pairs([(state, _shortened(ranges)) for state, ranges in shown if ranges])
    if not found.failures:
        return
    print()
    rows = []
    for one in found.failures:
        code = one.exit_code if one.exit_code is not None else f"signal {one.signal}" if one.signal else "-"
        last = one.message.strip().splitlines()[-1:] or ["-"]
        rows.append([str(one.element), str(code), clean(last[0])])
    print_table(["ELEMENT", "EXIT", "MESSAGE"], rows)


def print_element_results(found: "Iterable[ResultOfElement]", output: Format) -> None:
    """Print what elements returned, by index."""
    ordered = sorted(found, key=lambda one: one.element)
    if output.is_data:
        print_data([data_of(one) for one in ordered], output)
        return
    print_table(["ELEMENT", "RESULT"], [[str(one.element), _written(one.value)] for one in ordered])


def print_element_jobs(found: "Iterable[JobOfElement]", output: Format) -> None:
    """Print the jobs of elements."""
    listed = list(found)
    if output.is_data:
        print_data([data_of(one) for one in listed], output)
        return
    print_table(["ELEMENT", "JOB", "STATE"], [[str(one.element), one.id, styled(one.state)] for one in listed])


def _written(value: Any) -> str:
    return clean(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _shortened(ranges: str) -> str:
    if len(ranges) <= _LONGEST_RANGES:
        return ranges
    cut = ranges.rfind(",", 0, _LONGEST_RANGES)
    return f"{ranges[:cut]}, ... (all with --output json)"


def print_results(item: "JobView", *, wide: bool) -> None:
    """Print the results of a job; nothing where it has none."""
    if not item.results:
        return
    # The store keeps no order of names.
    written = (
        (name, json.dumps(value, ensure_ascii=False, sort_keys=True)) for name, value in sorted(item.results.items())
    )
    most = None if wide else _LONGEST_RESULT
    print()
    print_table(
        ["RESULT", "VALUE"],
        [[name, value if most is None or len(value) <= most else f"{value[:most]} ..."] for name, value in written],
    )


def print_last_output(client: "Client", item: "JobView") -> None:
    """Print the last lines of the member because of which a job failed; nothing where there are none."""
    from trainmaster.client.streams import LogPiece
    from trainmaster.protocol.errors import TrainmasterError

    run = item.runs[-1] if item.runs else None
    member = None if run is None else _failed_member(run)
    if run is None or member is None:
        return
    role, index = member
    lines: deque[str] = deque(maxlen=_MOST_LINES)
    try:
        pieces = client.logs(item.id, role=role, index=index, attempt=run.attempt, tail_bytes=_TAIL_BYTES)
        text = "".join(piece.data for piece in pieces if isinstance(piece, LogPiece))
    except TrainmasterError as error:
        note(f"the output of {role}-{index} cannot be shown: {error}")
        return
    lines.extend(text.splitlines())
    if lines:
        print(f"\nlast output of {role}-{index}")
        for line in lines:
            print(f"  {clean(line)}".rstrip())


def _failed_member(run: "RunView") -> tuple[str, int] | None:
    """Return role and index of the member that ended a run, as far as its agent reported it."""
    failed = [one for one in run.members if one.get("state") == "failed" or one.get("exitCode") or one.get("signal")]
    exact = [one for one in failed if (one.get("exitCode"), one.get("signal")) == (run.exit_code, run.signal)]
    for one in (*exact, *failed):
        return str(one.get("role")), int(one.get("index") or 0)
    return None
