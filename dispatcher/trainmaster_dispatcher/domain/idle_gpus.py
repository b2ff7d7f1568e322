"""Jobs whose GPUs do nothing: since when, and what follows by the policy of their queue. Pure; times in seconds since the epoch.

    idle for ``after`` ──▶ warning ──▶ idle for ``after`` more ──▶ release, where the policy says so
          ▲                   │
          └───────────────────┘ busy again, or unknown

What is unknown is never idle: a time without samples, and a sample without the GPUs of one member.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from trainmaster.protocol.durations import format_duration, parse_duration
from trainmaster.protocol.member_use import FRESH_INTERVALS
from trainmaster.protocol.tenants import IdleGpusSpec, IdleGpusThen, QueueSpec
from trainmaster_dispatcher.domain.use_history import METRICS, UseChunk, members_of, samples_of

_GPU = METRICS.index("gpu")


class IdleTerms(NamedTuple):
    """The policy of a queue: seconds, percent of the time at work below which a GPU is idle, and whether idle ones are given back."""

    after: float
    below: int
    releases: bool

    @staticmethod
    def of(spec: IdleGpusSpec) -> "IdleTerms":
        return IdleTerms(parse_duration(spec.after), spec.below, spec.then is IdleGpusThen.RELEASE)


def terms_by_queue(specs: Mapping[int, QueueSpec]) -> dict[int, IdleTerms]:
    """Return the policies of queues that have one, or of the nearest queue above that has one."""
    own = {spec.path: spec.idle_gpus for spec in specs.values() if spec.idle_gpus is not None}
    found = {}
    for key, spec in specs.items():
        path = spec.path
        while path not in own and "/" in path:
            path = path.rpartition("/")[0]
        if path in own:
            found[key] = IdleTerms.of(own[path])
    return found


def idle_since(
    chunks: Iterable[UseChunk],
    gpu_members: Sequence[tuple[str, int]],
    below: int,
    interval: int,
    now: float,
    known: float | None = None,
) -> float | None:
    """Return since when all samples show the GPUs of all these members below ``below`` percent; None where the last one does not.

    ``interval``: the seconds between two samples; what was before a longer time without any does not count. ``known``: since when
    they were idle at the look before, whose samples may begin earlier.
    """
    longest = FRESH_INTERVALS * interval
    since: float | None = None
    last: int | None = None
    for chunk in chunks:
        place_of = {member: place for place, member in enumerate(members_of(chunk.places))}
        places = [place_of.get(member) for member in gpu_members]
        for sample in samples_of(chunk):
            if last is None and known is not None and known <= sample.at:
                since = known
            if last is not None and sample.at - last > longest:
                since = None
            last = sample.at
            column = sample.columns[_GPU]
            values = [column[place] if column and place is not None else None for place in places]
            if not values or any(value is None or value >= below for value in values):
                since = None
            elif since is None:
                since = float(sample.at)
    return since if last is not None and now - last <= longest else None


class IdleStep(NamedTuple):
    """The outcome of a look at a run: since when its GPUs are idle, when that was said, and what is to be done now."""

    since: float | None
    warned_at: float | None
    warns: bool = False
    releases: bool = False


def advance_idle(terms: IdleTerms, since: float | None, warned_at: float | None, now: float) -> IdleStep:
    """Return the outcome of a look at a run whose GPUs are idle since ``since``, and that was warned at ``warned_at``."""
    if since is None or now - since < terms.after:
        return IdleStep(since, None)
    if warned_at is None or warned_at < since:
        return IdleStep(since, now, warns=True)
    return IdleStep(since, warned_at, releases=terms.releases and now - warned_at >= terms.after)


def warning_words(terms: IdleTerms, since: float, now: float) -> str:
    """Return the warning, as a sentence without its period."""
    words = f"its GPUs were busy for less than {terms.below} % of the time in the last {format_duration(float(round(now - since)))}"
    return (
        f"{words}; it is suspended if that goes on for {format_duration(terms.after)} more" if terms.releases else words
    )


def release_words(terms: IdleTerms, since: float, now: float) -> str:
    """Return why a job was suspended."""
    return (
        f"its GPUs were given back, as they were busy for less than {terms.below} % of the time in the last"
        f" {format_duration(float(round(now - since)))} (idleGpus of its queue)"
    )
