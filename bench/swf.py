"""The Standard Workload Format: logs of parallel machines as jobs.

S. Chapin et al., "Benchmarks and Standards for the Evaluation of Parallel Job Schedulers", JSSPP 1999; its present form, 2.2, is
described by the Parallel Workloads Archive. One job a line, 18 numbers; lines with a semicolon are comments; -1 is unknown.
"""

import gzip
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tests.textbook_easy import Job

_FIELDS = 18


def read_swf(path: Path) -> list[Job]:
    """Return the jobs of a gzipped log by submission, in seconds since its beginning.

    Raises ValueError for a line that is none of the format.
    """
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as lines:
        return parse_swf(lines)


def parse_swf(lines: Iterable[str]) -> list[Job]:
    """Return the jobs; those without a known run time or number of processors, or with zero of either, never ran and are left out."""
    jobs = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if text and not text.startswith(";"):
            job = _job(text, number)
            if job.run > 0 and job.processors > 0:
                jobs.append(job)
    return sorted(jobs, key=lambda job: (job.submit, job.number))


def _job(text: str, line: int) -> Job:
    fields = text.split()
    if len(fields) != _FIELDS:
        raise ValueError(f"line {line}: {len(fields)} fields; a job has {_FIELDS} in the Standard Workload Format")
    try:
        job, submit, _wait, run, processors = (float(field) for field in fields[:5])
    except ValueError as error:
        raise ValueError(f"line {line}: {error}; the first five fields are numbers") from error
    return Job(int(job), submit, run, int(processors))


def divide_gaps(jobs: list[Job], divisor: float) -> list[Job]:
    """Return the same jobs with the times between submissions divided, so that the load is multiplied.

    Submissions stay at whole seconds, as the format has them: sums of such times are exact, and two schedulers that add them
    in different ways agree on what ends in time.
    """
    if divisor <= 0:
        raise ValueError(f"divisor {divisor} is not allowed; it is above 0")
    first = min((job.submit for job in jobs), default=0.0)
    return [replace(job, submit=first + round((job.submit - first) / divisor)) for job in jobs]
