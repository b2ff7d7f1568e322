"""Workflows as people read them: the steps as a tree with their jobs, what these wait for, and the last output of a failed one."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trainmaster.cli.output import now, print_sentence, print_table, took
from trainmaster.protocol.states import JobState, StepState

if TYPE_CHECKING:
    from trainmaster.client.http import Client
    from trainmaster.protocol.tenants import JobView
    from trainmaster.protocol.workflows import StepView, WorkflowView

MOST_READ: Final = 24
"""The most jobs that are read for one tree."""
_MOST_OF_STEP: Final = 4
_MOST_OUTPUTS: Final = 2
_LINES: Final = 8
_DEEPEST: Final = 12
"""The depth from which on a tree would be wider than it helps: then all steps are at the margin."""
_COLUMNS: Final = ("STEP", "STATE", "JOBS", "TOOK", "DETAILS")


class PlacedStep(NamedTuple):
    """A step in the tree. ``branch``: what is drawn before its name; ``trunk``: before what belongs to it; ``after``: names of the
    steps that it starts after, without the one under which it is drawn.
    """

    view: "StepView"
    branch: str
    trunk: str
    after: tuple[str, ...]


def predecessors_of(spec: Mapping[str, Any], names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return, by step, the names of the steps in its ``after``."""
    found: dict[str, tuple[str, ...]] = dict.fromkeys(names, ())
    for step in spec.get("steps", ()):
        given = [one if isinstance(one, str) else one["step"] for one in step.get("after") or ()]
        found[step["name"]] = tuple(dict.fromkeys(one for one in given if one in found))
    return found


def placed(steps: Sequence["StepView"], before: Mapping[str, tuple[str, ...]]) -> list[PlacedStep]:
    """Return steps as a tree: each below the last of those after which it starts, which is the one furthest from the begin."""
    views = {one.name: one for one in steps}
    depths: dict[str, int] = {}
    while len(depths) < len(views):  # without cycles, as the dispatcher has refused those
        for name in views.keys() - depths.keys():
            if all(one in depths for one in before[name]):
                depths[name] = 1 + max((depths[one] for one in before[name]), default=-1)
    parents = {name: max(before[name], key=depths.__getitem__) if before[name] else None for name in views}
    children: dict[str | None, list[str]] = {}
    for name in views:
        children.setdefault(parents[name], []).append(name)
    is_flat = max(depths.values(), default=0) > _DEEPEST
    return list(_branches(views, before, children, None, "", is_flat=is_flat))


def _branches(
    views: Mapping[str, "StepView"],
    before: Mapping[str, tuple[str, ...]],
    children: Mapping[str | None, list[str]],
    parent: str | None,
    trunk: str,
    *,
    is_flat: bool,
) -> Iterator[PlacedStep]:
    own = children.get(parent, [])
    for name in own:
        is_last = name == own[-1]
        is_root = parent is None or is_flat
        branch = "" if is_root else f"{trunk}{'└─' if is_last else '├─'}"
        below = "" if is_root else f"{trunk}{'  ' if is_last else '│ '}"
        after = before[name] if is_flat else tuple(one for one in before[name] if one != parent)
        yield PlacedStep(views[name], branch, below, after)
        yield from _branches(views, before, children, name, below, is_flat=is_flat)


class _JobReader:
    """Jobs of steps, of which few are read."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._left = MOST_READ

    def job(self, job: str) -> "JobView | None":
        """Return a job; None for one that cannot be read, or after many."""
        from trainmaster.protocol.errors import ProblemError

        if self._left <= 0:
            return None
        self._left -= 1
        with suppress(ProblemError):  # one of another queue, or removed
            return self._client.job(job)
        return None

    def details(self, job: "JobView") -> str:
        """Return where a job is or was, or why it waits."""
        from trainmaster.protocol.errors import ProblemError

        if job.state is JobState.QUEUED:
            with suppress(ProblemError):
                return self._client.why(job.id).sentence
        return ": ".join(part for part in (f"on {job.cluster}" if job.cluster else "", job.message) if part)

    def last_lines(self, job: str) -> list[str]:
        """Return the last lines that a job has written; none where its output cannot be read."""
        from trainmaster.client.streams import LogPiece
        from trainmaster.protocol.errors import ProblemError

        found: list[str] = []
        with suppress(ProblemError):
            for piece in self._client.logs(job, tail_lines=_LINES):
                if isinstance(piece, LogPiece):
                    found += piece.data.splitlines()
        return found[-_LINES:]


def print_tree(client: "Client", one: "WorkflowView") -> None:
    """Print the steps of a workflow, jobs of those that have not ended well, and the last output of failed jobs."""
    reader = _JobReader(client)
    rows: list[list[object]] = []
    failed: list[JobView] = []
    moment = now()
    before = predecessors_of(one.spec or {}, [step.name for step in one.steps])
    for step, branch, trunk, after in placed(one.steps, before):
        jobs = [job for job in map(reader.job, _read_of(step)) if job is not None]
        failed += [job for job in jobs if job.state is JobState.FAILED][:1]
        words = _words(step, after, jobs, reader)
        rows.append(
            [
                f"{branch}{step.name}",
                step.state.value,
                jobs_of(step),
                took(step.started_at, step.ended_at or moment),
                words,
            ]
        )
        if step.total != 1:
            rows += [
                [
                    f"{trunk}  · {job.id}",
                    job.shown_state,
                    "-",
                    took(job.started_at, job.ended_at or moment),
                    reader.details(job),
                ]
                for job in jobs
            ]
            left = _open_jobs(step) - len(jobs)
            if jobs and left > 0:
                rows.append([f"{trunk}  · and {left} more", "", "", "", ""])
    print_table(_COLUMNS, rows)
    for job in failed[:_MOST_OUTPUTS]:
        _print_output(reader, job)


def _open_jobs(step: "StepView") -> int:
    """Return how many jobs of a step have not succeeded."""
    return sum(many for state, many in step.jobs.items() if state != "succeeded")


def _read_of(step: "StepView") -> Sequence[str]:
    """Return the jobs of a step to read: its only one, or of those that have not succeeded the first."""
    if step.total == 1:
        return step.ids
    return step.ids[: min(_MOST_OF_STEP, _open_jobs(step))]


def _words(step: "StepView", after: Sequence[str], jobs: Sequence["JobView"], reader: _JobReader) -> str:
    """Return what is known about a step: what it waits for, why it has failed, where its only job is."""
    parts = [f"also after {', '.join(after)}"] if after and step.state is StepState.WAITING else []
    if step.total == 1 and jobs:
        (job,) = jobs
        shown = job.id if job.shown_state == step.state.value else f"{job.id} {job.shown_state}"
        details = step.message if step.state.is_terminal else reader.details(job)
        place = f" on {job.cluster}" if job.cluster and not details.startswith("on ") else ""
        return f"{shown}{place}" + (f" {details}" if details.startswith("on ") else f": {details}" if details else "")
    return "; ".join([*parts, step.message] if step.message else parts)


def jobs_of(step: "StepView") -> str:
    """Return how many jobs of a step have succeeded, and how many it has."""
    return "-" if step.total is None else f"{step.jobs.get('succeeded', 0)}/{step.total}"


def _print_output(reader: _JobReader, job: "JobView") -> None:
    lines = reader.last_lines(job.id)
    print()
    if not lines:
        print_sentence(f"{job.id} failed, and has written nothing")
        return
    place = f" on {job.cluster}" if job.cluster else ""
    print_sentence(f"{job.id} failed{place}; its last lines:")
    for line in lines:
        print_sentence(line, indent=2)
