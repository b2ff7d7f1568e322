"""A workload: jobs with their submission times and true run times, from logs and tables."""

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Literal

from pydantic import ValidationError

from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.validation_errors import mistakes_of
from trainmaster.protocol.workload import MOST_JOBS, Workload, WorkloadJob

Limits = Literal["asked", "exact", "none"]
"""The time limit of a job: the requested one in the log, its true run time, or none."""
_MOMENT = 2.0**-10
"""Seconds by which a limit is later than an end: a job that runs up to its limit has succeeded. Sums with it are exact."""
_SWF_FIELDS = 18
_GPU = "nvidia.com/gpu"
_MOST_MISTAKES = 50


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job; ``submit`` and ``run`` in seconds, ``submit`` from the beginning of the trace. ``spec``: one object for
    all equivalent jobs."""

    number: int
    submit: float
    run: float
    spec: JobSpec
    waited: float | None = None
    """The time that it really waited for its first start, if known."""
    user: str = ""
    """Who submitted it, if known."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs sorted by submission."""

    name: str
    jobs: tuple[TraceJob, ...]
    left_out: int = 0
    """The number of entries of the log that never ran."""

    def faster(self, factor: float) -> "Trace":
        """Return the same jobs with the times between submissions divided by ``factor``, in whole seconds, so that the load grows."""
        if factor == 1:
            return self
        return replace(self, jobs=tuple(replace(job, submit=round(job.submit / factor)) for job in self.jobs))


class _Specs:
    """A cache with one specification for all equivalent jobs."""

    def __init__(self) -> None:
        self._known: dict[Any, JobSpec] = {}

    def of(self, **fields: Any) -> JobSpec:
        """Return the specification. Raises ValidationError."""
        key = repr(sorted(fields.items()))
        spec = self._known.get(key)
        if spec is None:
            members, resources = (
                fields["members"],
                {name: value for name, value in fields["resources"].items() if value not in ("", "0", 0)},
            )
            spec = self._known[key] = JobSpec.model_validate(
                {
                    "name": fields["name"],
                    "queue": fields["queue"],
                    **({"priorityClass": fields["class"]} if fields["class"] else {}),
                    "priority": fields["priority"],
                    **({"timeLimit": fields["limit"]} if fields["limit"] else {}),
                    "labels": {f"sim.trainmaster.dev/{name}": value for name, value in _FOREVER.items()},
                    "roles": [
                        {
                            "name": "main",
                            "replicas": members,
                            "template": {"image": "simulated", "command": ["true"], "resources": resources},
                        }
                    ],
                }
            )
        return spec


_FOREVER = {"run-time": "forever"}
"""The simulation decides when a run ends."""


def read_swf(name: str, lines: Iterable[str], queue: str, limits: Limits = "asked") -> Trace:
    """Parse a log in the Standard Workload Format (S. Chapin et al., JSSPP 1999; version 2.2 of the Parallel Workloads Archive).

    One job a line, 18 numbers, -1 where unknown: a processor is a member with one CPU. Raises ProblemError with each
    bad line.
    """
    specs, left_out, mistakes = _Specs(), 0, _Mistakes(name)
    jobs: list[TraceJob] = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith(";"):
            continue
        fields = text.split()
        try:
            if len(fields) != _SWF_FIELDS:
                raise ValueError(f"{len(fields)} fields; a job has {_SWF_FIELDS} in the Standard Workload Format")
            job, submit, _, run, used, _, _, wanted, requested, _, _, user = (_number(field) for field in fields[:12])
            processors = int(used if used > 0 else wanted)
            if run <= 0 or processors <= 0:
                left_out += 1
                continue
            limit = {"asked": max(requested, run + _MOMENT) if requested > 0 else 0, "exact": run + _MOMENT, "none": 0}[
                limits
            ]
            spec = specs.of(
                **{"name": "job", "queue": queue, "class": "", "priority": 0, "members": processors},
                limit=_text(limit),
                resources={"cpu": "1"},
            )
        except ValidationError as error:
            mistakes.add(f"line {number}", mistakes_of(error)[0].message)
            continue
        except ValueError as error:
            mistakes.add(f"line {number}", str(error))
            continue
        jobs.append(TraceJob(int(job), submit, run, spec, user=f"user {int(user)}" if user > 0 else ""))
        mistakes.count(f"line {number}", len(jobs))
    mistakes.check()
    return _in_order(name, jobs, left_out)


def read_history(name: str, pages: Iterable[Workload], limits: Limits = "asked") -> Trace:
    """Return what an installation has really done. Run times are those of the last runs. Raises ProblemError."""
    specs: dict[Any, JobSpec] = {}
    jobs: list[TraceJob] = []
    for page in pages:
        for one in page.jobs:
            limit = one.run + _MOMENT if limits == "exact" else None
            key = one.spec, one.queue, one.priority_class, one.priority, limit, limits
            spec = specs.get(key)
            if spec is None:
                spec = specs[key] = _as_simulated(page.specs[one.spec], one, limits, limit)
            jobs.append(TraceJob(one.job, one.submitted, max(one.run, 0.0), spec, one.waited, one.user))
    return _in_order(name, jobs, 0)


def _as_simulated(written: dict[str, Any], one: WorkloadJob, limits: Limits, limit: float | None) -> JobSpec:
    """Return a specification of the history, changed so that the simulation decides when its runs end."""
    kept = {key: value for key, value in written.items() if key not in ("kind", "notify", "suspend")}
    if limits != "asked":
        kept.pop("timeLimit", None)
    if limit is not None:
        kept["timeLimit"] = _text(limit)
    labels = {key: text for key, text in kept.get("labels", {}).items() if not key.startswith("sim.trainmaster.dev/")}
    labels |= {f"sim.trainmaster.dev/{key}": text for key, text in _FOREVER.items()}
    more = {"queue": one.queue, "priorityClass": one.priority_class, "priority": one.priority, "labels": labels}
    return JobSpec.model_validate({**kept, **more})


_COLUMNS = (
    *("submit", "run", "name", "queue", "class", "priority", "members", "cpu", "memory", "gpu", "limit", "count"),
    "user",
)


def read_table(name: str, lines: Iterable[str], queue: str, limits: Limits = "asked") -> Trace:
    """Parse a table with a heading: ``submit`` and ``run`` (seconds, or durations such as 5m), and any of the other columns.

    ``members`` each need ``cpu``, ``memory`` and ``gpu``; ``count`` equivalent jobs come at once. Raises ProblemError
    with each mistake and its line.
    """
    reader = csv.DictReader(lines)
    mistakes = _Mistakes(name)
    columns = [column.strip() for column in reader.fieldnames or ()]
    for column in columns:
        if column not in _COLUMNS:
            mistakes.add("line 1", f"there is no column {column!r}; there are {', '.join(_COLUMNS)}")
    for index, column in enumerate(columns):
        if column in columns[:index]:
            mistakes.add("line 1", f"the column {column!r} is given twice")
    for column in _COLUMNS[:2]:
        if column not in columns:
            mistakes.add("line 1", f"the column {column!r} is missing")
    mistakes.check()
    specs, left_out = _Specs(), 0
    jobs: list[TraceJob] = []
    for row in _rows(reader, mistakes):
        where = f"line {reader.line_num}"
        try:
            found = _row({str(key).strip(): (value or "").strip() for key, value in row.items() if key}, queue, limits)
            spec = specs.of(**found.fields)
        except ValidationError as error:
            for one in mistakes_of(error):
                mistakes.add(f"{where}: {one.path}" if one.path else where, one.message)
            continue
        except ValueError as error:
            mistakes.add(where, str(error))
            continue
        if found.run <= 0:
            left_out += found.count
            continue
        mistakes.count(where, len(jobs) + found.count)
        first = len(jobs) + 1
        jobs += [TraceJob(first + more, found.submit, found.run, spec, user=found.user) for more in range(found.count)]
    mistakes.check()
    return _in_order(name, jobs, left_out)


def _rows(reader: "csv.DictReader[str]", mistakes: "_Mistakes") -> Iterator[dict[str | Any, str | Any]]:
    try:
        yield from reader
    except csv.Error as error:
        mistakes.add(f"line {reader.line_num}", str(error))


@dataclass(frozen=True, slots=True)
class _Row:
    submit: float
    run: float
    count: int
    fields: dict[str, Any]
    user: str


def _row(row: Mapping[str, str], queue: str, limits: Limits) -> _Row:
    submit, run = _seconds(row, "submit"), _seconds(row, "run")
    requested = _seconds(row, "limit") if row.get("limit") else 0.0
    limit = {"asked": requested, "exact": run + _MOMENT, "none": 0.0}[limits]
    return _Row(
        submit,
        run,
        _whole(row, "count", 1),
        {
            "name": row.get("name") or "job",
            "queue": row.get("queue") or queue,
            "class": row.get("class", ""),
            "priority": _whole(row, "priority", 0),
            "members": _whole(row, "members", 1),
            "limit": _text(limit),
            "resources": {
                "cpu": row.get("cpu") or "1",
                "memory": row.get("memory", ""),
                _GPU: row.get("gpu", ""),
            },
        },
        row.get("user", ""),
    )


def _text(limit: float) -> str:
    """Return a time limit as a duration; empty for none."""
    return f"{limit:.10f}".rstrip("0").rstrip(".") + "s" if limit else ""


def _seconds(row: Mapping[str, str], column: str) -> float:
    text = row.get(column, "")
    try:
        return _number(text) if text and text[-1].isdigit() else parse_duration(text)
    except ValueError as error:
        raise ValueError(f"{column}: {text!r} is neither a number of seconds nor a duration such as 5m") from error


def _number(text: str) -> float:
    """Parse a number. Raises ValueError, also for infinity and not-a-number."""
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"{text!r} is no number")
    return value


def _whole(row: Mapping[str, str], column: str, default: int) -> int:
    text = row.get(column) or str(default)
    try:
        return int(text)
    except ValueError as error:
        raise ValueError(f"{column}: {text!r} is no whole number") from error


class _Mistakes:
    def __init__(self, name: str) -> None:
        self._name = name
        self._found: list[Mistake] = []

    def add(self, where: str, message: str) -> None:
        if len(self._found) < _MOST_MISTAKES:
            self._found.append(Mistake(path=f"{self._name}: {where}", message=message))

    def count(self, where: str, jobs: int) -> None:
        """Count jobs. Raises ProblemError if there are too many."""
        if jobs > MOST_JOBS:
            self.add(where, f"a workload has {MOST_JOBS:,} jobs at most")
            self.check()

    def check(self) -> None:
        if self._found:
            raise ProblemError(Code.INVALID_SPEC, self._found[0].message, mistakes=tuple(self._found))


def _in_order(name: str, jobs: Iterable[TraceJob], left_out: int) -> Trace:
    """Return the trace sorted by submission, from zero on, and numbered in that order."""
    ordered = sorted(jobs, key=lambda job: (job.submit, job.number))
    first = ordered[0].submit if ordered else 0.0
    return Trace(
        name,
        tuple(_numbered(ordered, first)),
        left_out,
    )


def _numbered(jobs: Iterable[TraceJob], first: float) -> Iterator[TraceJob]:
    for number, job in enumerate(jobs, start=1):
        yield replace(job, number=number, submit=job.submit - first)
