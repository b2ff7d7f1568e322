"""The Standard Workload Format: logs of parallel machines as jobs.

S. Chapin et al., "Benchmarks and Standards for the Evaluation of Parallel Job Schedulers", JSSPP 1999; its present form, 2.2, is
described by the Parallel Workloads Archive. One job a line, 18 numbers; lines with a semicolon are comments; -1 is unknown.
"""

import gzip
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from tests.textbook_easy import Job

_FIELDS = 18
_REQUESTED_TIME, _USER, _EXECUTABLE = 8, 11, 13
"""Positions of fields 9, 12 and 14, which the format counts from 1."""
_Job = TypeVar("_Job", bound=Job)


@dataclass(frozen=True, slots=True)
class LoggedJob(Job):
    """A job with what its user said about it. ``estimate`` is in seconds and never below ``run``; -1 is an unknown number."""

    estimate: float
    user: int
    executable: int


def read_swf(path: Path) -> list[Job]:
    """Return the jobs of a gzipped log by submission, in seconds since its beginning.

    Raises ValueError for a line that is none of the format.
    """
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as lines:
        return parse_swf(lines)


def parse_swf(lines: Iterable[str]) -> list[Job]:
    """Return the jobs; those without a known run time or number of processors, or with zero of either, never ran and are left out."""
    return _by_submission(_job(fields, line) for line, fields in _rows(lines))


def read_log(path: Path) -> list[LoggedJob]:
    """Return the jobs of a gzipped log with users and estimates, by submission, in seconds since its beginning.

    Raises ValueError for a line that is none of the format.
    """
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as lines:
        return parse_log(lines)


def parse_log(lines: Iterable[str]) -> list[LoggedJob]:
    """Return the jobs that ran with users and estimates; an estimate that is unknown, or that the job outran, is its run time."""
    return _by_submission(_logged_job(fields, line) for line, fields in _rows(lines))


def _by_submission(jobs: Iterable[_Job]) -> list[_Job]:
    ran = (job for job in jobs if job.run > 0 and job.processors > 0)
    return sorted(ran, key=lambda job: (job.submit, job.number))


def _rows(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of each line that is a job, and its fields."""
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if text and not text.startswith(";"):
            fields = text.split()
            if len(fields) != _FIELDS:
                message = f"line {number}: {len(fields)} fields; a job has {_FIELDS} in the Standard Workload Format"
                raise ValueError(message)
            yield number, fields


def _job(fields: Sequence[str], line: int) -> Job:
    try:
        job, submit, _wait, run, processors = (float(field) for field in fields[:5])
    except ValueError as error:
        raise ValueError(f"line {line}: {error}; the first five fields are numbers") from error
    return Job(int(job), submit, run, int(processors))


def _logged_job(fields: Sequence[str], line: int) -> LoggedJob:
    job = _job(fields, line)
    try:
        estimate, user, executable = (float(fields[index]) for index in (_REQUESTED_TIME, _USER, _EXECUTABLE))
    except ValueError as error:
        raise ValueError(f"line {line}: {error}; fields 9, 12 and 14 are numbers") from error
    return LoggedJob(
        job.number, job.submit, job.run, job.processors, max(estimate, job.run), int(user), int(executable)
    )


def divide_gaps(jobs: list[_Job], divisor: float) -> list[_Job]:
    """Return the same jobs with the times between submissions divided, so that the load is multiplied.

    Submissions stay at whole seconds, as the format has them: sums of such times are exact, and two schedulers that add them
    in different ways agree on what ends in time.
    """
    if divisor <= 0:
        raise ValueError(f"divisor {divisor} is not allowed; it is above 0")
    first = min((job.submit for job in jobs), default=0.0)
    return [replace(job, submit=first + round((job.submit - first) / divisor)) for job in jobs]


def delay_jobs(jobs: Iterable[_Job], seed: int, most: int) -> list[_Job]:
    """Return the same jobs, each submitted up to ``most`` whole seconds later, drawn from the seed; with 0 the same submissions.

    Two such draws differ by nothing that a user or an admin would notice: figures that change between them are chance.
    """
    draw = random.Random(seed)
    return _by_submission(replace(job, submit=job.submit + draw.randint(0, most)) for job in jobs)
