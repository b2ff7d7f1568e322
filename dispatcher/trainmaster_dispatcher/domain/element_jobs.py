"""Arrays whose elements are jobs of their own: which of these are submitted, stopped and counted, and how the array ends. Pure.

    waiting ──▶ submitted ──▶ succeeded | failed | cancelled    an element: bitmaps have the last three, rows the submitted ones
       │
       └── cancelled: by a person, or as the element before it cannot come to the state that it has to

The array itself is a job without a run. It is queued until the job of an element has started, and ends once no element is open.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from trainmaster.protocol.arrays import ArrayCounts, ArrayStop
from trainmaster.protocol.states import Condition, HoldCause, JobState, Wish
from trainmaster_dispatcher.domain.arrays import BLOCK, ArrayVerdict, Block, is_over, verdict
from trainmaster_dispatcher.domain.job_machine import Job

MOST_WAITING = 1000
"""The most jobs of an array that wait at a time: enough for the scheduler to choose from, whatever the number of elements."""
_FEW_WAITING = MOST_WAITING // 2
"""Further jobs are submitted when no more than this number wait, many at once."""


class OpenJobs(NamedTuple):
    """Numbers of jobs of elements that have not ended: of those that wait, that have a live run, and that are held as suspended."""

    waiting: int = 0
    live: int = 0
    suspended: int = 0

    @property
    def total(self) -> int:
        return sum(self)


@dataclass(frozen=True, slots=True)
class ArrayFacts:
    """An array, the ended elements and the open jobs of it. ``failed``: the first failed elements, for its message.

    ``follows``: whether its elements wait for those of other arrays; ``was_suspended``: whether the open jobs were suspended with it.
    """

    job: Job
    elements: int
    counts: ArrayCounts
    open: OpenJobs
    stop: ArrayStop | None = None
    max_running: int | None = None
    failed: tuple[int, ...] = ()
    follows: bool = False
    was_suspended: bool = False


class OnOpen(StrEnum):
    """Actions on the open jobs of an array."""

    CANCEL = "cancel"
    SUSPEND = "suspend"
    RESUME = "resume"


@dataclass(frozen=True, slots=True)
class ArrayMoves:
    """Changes to make next. ``submit``: the most further jobs; ``job``: the array after them, None where it stays as it is."""

    on_open: OnOpen | None = None
    submit: int = 0
    job: Job | None = None


def next_moves(facts: ArrayFacts) -> ArrayMoves:
    """Return what is to be done for an array whose elements are jobs."""
    job, still_open = facts.job, facts.open
    if job.state.is_terminal or job.wish is Wish.CANCEL:
        if still_open.total:
            return ArrayMoves(OnOpen.CANCEL)
        return ArrayMoves() if job.state.is_terminal else ArrayMoves(job=_cancelled(job))
    if job.wish is Wish.SUSPEND or job.state is JobState.HELD:
        on_open = OnOpen.SUSPEND if still_open.waiting or still_open.live else None
        is_quiet = job.wish is Wish.SUSPEND and not still_open.live
        return ArrayMoves(
            on_open, job=job._replace(wish=None).held(HoldCause.SUSPENDED) if is_quiet and on_open is None else None
        )
    if is_over(facts.elements, facts.stop, facts.counts):
        return ArrayMoves(OnOpen.CANCEL) if still_open.total else ArrayMoves(job=_ended(facts))
    has_started = still_open.live or facts.counts.succeeded or facts.counts.failed
    after = job.moved(JobState.RUNNING) if job.state is JobState.QUEUED and has_started else None
    on_open = OnOpen.RESUME if facts.was_suspended else None
    return ArrayMoves(on_open, _many_more(facts), after)


def _many_more(facts: ArrayFacts) -> int:
    waiting = facts.open.waiting + facts.open.suspended
    most = MOST_WAITING - waiting if waiting <= _FEW_WAITING else 0
    return most if facts.max_running is None else max(0, min(most, facts.max_running - facts.open.total))


def _cancelled(job: Job) -> Job:
    return job._replace(wish=None, message=job.message or "cancelled").moved(JobState.CANCELLED)


def _ended(facts: ArrayFacts) -> Job:
    end = _verdict(facts)
    job = facts.job if facts.job.state is JobState.RUNNING else facts.job.moved(JobState.RUNNING)
    return job.moved(JobState.SUCCEEDED if end.succeeded else JobState.FAILED)._replace(message=end.message)


def _verdict(facts: ArrayFacts) -> ArrayVerdict:
    """Return how an array that is over has ended: one that follows another has failed if elements of it could not be submitted."""
    counts = facts.counts
    end = verdict(facts.elements, facts.stop, counts, ((one, one) for one in facts.failed))
    if end is None:
        raise ValueError("the array is not over")
    enough = facts.stop is not None and facts.stop.successes is not None and counts.succeeded >= facts.stop.successes
    if end.succeeded and facts.follows and counts.cancelled and not enough:
        words = f"{counts.cancelled} of {facts.elements} elements were not run, as those before them have not come to their state"
        return ArrayVerdict(succeeded=False, message=words)
    return end


def elements_before(condition: Condition, block: Block, *, has_ended: bool) -> tuple[int, int]:
    """Return the elements of a block on which a condition is met, and those on which it can never be met, as bitmaps.

    ``has_ended``: whether their array has ended, and runs no further elements.
    """
    match condition:
        case Condition.SUCCEEDED:
            met, never = block.succeeded, block.failed | block.cancelled
        case Condition.FAILED:
            met, never = block.failed, block.succeeded | block.cancelled
        case _:
            met, never = block.ended, 0
    rest = ((1 << BLOCK) - 1) & ~(met | never) if has_ended else 0
    return (met | rest, never) if condition is Condition.ENDED else (met, never | rest)


class Before(NamedTuple):
    """Another array that elements wait for: its blocks, whether it has ended, and the condition on its elements."""

    condition: Condition
    blocks: Mapping[int, Block]
    has_ended: bool


@dataclass(frozen=True, slots=True)
class Eligible:
    """Elements of an array that are neither submitted nor ended, as bitmaps by block: those that may be submitted, and those that
    never may be.
    """

    ready: Mapping[int, int]
    never: Mapping[int, int]

    def first(self, many: int) -> list[int]:
        """Return the first ``many`` elements that may be submitted, in order."""
        found: list[int] = []
        for number, bits in sorted(self.ready.items()):
            found.extend(number * BLOCK + bit for bit, _ in zip(_bits(bits), range(many - len(found)), strict=False))
            if len(found) >= many:
                break
        return found


def eligible(
    elements: int, blocks: Mapping[int, Block], submitted: Iterable[int], before: Iterable[Before] = ()
) -> Eligible:
    """Return which elements may be submitted. ``submitted``: elements with an open job."""
    taken: dict[int, int] = {}
    for element in submitted:
        number, bit = divmod(element, BLOCK)
        taken[number] = taken.get(number, 0) | 1 << bit
    others = tuple(before)
    ready: dict[int, int] = {}
    never: dict[int, int] = {}
    for number in range((elements + BLOCK - 1) // BLOCK):
        size = min(BLOCK, elements - number * BLOCK)
        left = ((1 << size) - 1) & ~(blocks.get(number, Block()).ended | taken.get(number, 0))
        met, out = left, 0
        for one in others:
            is_met, is_never = elements_before(one.condition, one.blocks.get(number, Block()), has_ended=one.has_ended)
            met &= is_met
            out |= left & is_never
        if met & ~out:
            ready[number] = met & ~out
        if out:
            never[number] = out
    return Eligible(ready, never)


def _bits(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
