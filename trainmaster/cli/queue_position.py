"""Texts on a job's place in its queue, the factors of that place, and the result of a dry run."""

from typing import TYPE_CHECKING

from trainmaster.cli.output import age, clean, note, print_table, styled
from trainmaster.protocol.states import HoldCause

if TYPE_CHECKING:
    from datetime import datetime

    from trainmaster.protocol.answers import JobReason, TriedJob
    from trainmaster.protocol.queue_position import Factors, Place, StartForecast, Trial


def place_of(reason: "JobReason") -> str:
    """Return a text such as ``3rd of 120 in research/vision: 2 jobs are ahead``; empty where there is no place."""
    if reason.jobs_in_queue is None or reason.queue is None:
        return ""
    if reason.position is None:
        return f"it has no turn in {reason.queue}, as it cannot run as it is written; other jobs do not wait for it"
    rank = _rank(reason.position, reason.jobs_in_queue, reason.queue)
    return f"{rank}: {_ahead(reason.jobs_ahead or 0)}{_without_turn(reason.jobs_that_cannot_run or 0)}"


def forecast_of(found: "StartForecast | None") -> str:
    """Return by when a job is likely to start; empty where that is not known."""
    if found is None:
        return ""
    return (
        f"Of jobs like it, half start by {_clock(found.half_by)}, and nine of ten by {_clock(found.most_by)}"
        f" (computed from the waits of {found.jobs} jobs)."
    )


def _without_turn(many: int) -> str:
    """Return how many jobs of the queue are not waited for; empty for none."""
    if not many:
        return ""
    return "; 1 job cannot run as it is written" if many == 1 else f"; {many:,} jobs cannot run as they are written"


def _rank(position: int, many: int, queue: str) -> str:
    return f"{_ordinal(position)} of {many:,} in {queue}"


def _ordinal(number: int) -> str:
    """Return an ordinal number such as ``1st``, ``12th`` and ``1,023rd``."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"


def _ahead(many: int) -> str:
    if not many:
        return "it is next"
    return "1 job is ahead" if many == 1 else f"{many:,} jobs are ahead"


def print_factors(factors: "Factors") -> None:
    """Print the factors of the place: the job's sort key inside its queue, and the turns of its queues."""
    print()
    print_table(
        ["FACTOR", "VALUE"],
        [
            ["urgent", _urgency(factors)],
            ["class", f"{factors.priority_class} ({factors.class_value})"],
            ["submitted", age(factors.submitted_at)],
            ["priority", _priority(factors)],
            *([] if factors.slowdown is None else [["slowdown", f"{factors.slowdown:g}"]]),
            *([["deadline", _clock(factors.deadline) if factors.deadline else "none"]] if factors.by_deadline else []),
        ],
    )
    if factors.user is not None:
        turn = factors.user
        print()
        print_table(
            ["USER", "TURN", "WEIGHT", "SHARE", "JOBS AHEAD"],
            [
                [
                    turn.user,
                    f"{turn.rank} of {turn.users}",
                    f"{turn.weight:g}",
                    f"{turn.share:.4f}",
                    f"{turn.jobs_ahead:,}",
                ]
            ],
        )
    print()
    has_past = any(turn.past_share for turn in factors.queues)
    has_resource = any(turn.resource for turn in factors.queues)
    heads = ["QUEUE", "TURN", "WEIGHT", "BEYOND GUARANTEE", "SHARE"]
    print_table(
        [*heads, *(["PAST"] if has_past else []), *(["OF"] if has_resource else [])],
        [
            [
                turn.queue,
                f"{turn.rank} of {turn.siblings}",
                f"{turn.weight:g}",
                f"{turn.share_beyond_guarantee:.4f}",
                f"{turn.share:.4f}",
                *([f"{turn.past_share:.4f}"] if has_past else []),
                *([turn.resource or "-"] if has_resource else []),
            ]
            for turn in factors.queues
        ],
    )


def _urgency(factors: "Factors") -> str:
    if factors.by_deadline:
        return "never: its queue goes by deadlines"
    if factors.urgent_at is None:
        return "never: its class has no longest wait"
    return (
        f"{'yes, since' if factors.urgent else 'no, from'} {_clock(factors.urgent_at)}{'' if factors.urgent else ' on'}"
    )


def _priority(factors: "Factors") -> str:
    if not factors.priority:
        return "0"
    shifted = _took(abs(factors.seconds_earlier))
    done = "submitted" if factors.deadline is None else "due"
    return f"{factors.priority}, as if {done} {shifted} {'earlier' if factors.priority > 0 else 'later'}"


def _clock(moment: "datetime") -> str:
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def note_age(reason: "JobReason") -> None:
    """Print how old the verdict is, and whether it still holds."""
    if reason.live is False:
        stored = "" if reason.age_seconds is None else f"; this was stored {_took(reason.age_seconds)} ago"
        note(f"its place is unknown, as no leading scheduler answered{stored}")
    elif reason.at is not None:
        cycle = f"cycle {reason.cycle}, " if reason.cycle is not None else ""
        note(f"{'since' if reason.live else 'as of'} {cycle}{age(reason.at)}")


def _took(seconds: float) -> str:
    from trainmaster.protocol.durations import format_duration

    return format_duration(round(seconds) if seconds >= 1 else seconds)


def print_tried(tried: "TriedJob", *, wide: bool) -> None:
    """Print what would happen to one job."""
    many = f" (one of {tried.count})" if tried.count > 1 else ""
    print(f"{styled(clean(tried.name), 'bold')}{many} {_held(tried)}{clean(_outcome(tried.trial))}")
    if wide and tried.trial is not None:
        print(f"  fits now on {_listed(tried.trial.fits_now)}; without any run on {_listed(tried.trial.fits_empty)}")
        if tried.trial.reason is not None and tried.trial.reason.verdicts:
            verdicts = tried.trial.reason.verdicts
            print_table(
                ["  CLUSTER", "CHECK", "FINDING"],
                [[f"  {verdict.cluster}", verdict.check, verdict.sentence or "-"] for verdict in verdicts],
            )


def _held(tried: "TriedJob") -> str:
    match tried.hold_cause:
        case HoldCause.DEPENDENCY:
            return "would wait for other jobs; after them it "
        case HoldCause.START_TIME:
            return "would wait for its start time; then it "
        case _:
            return "would be held; after a resume it " if tried.held else ""


def _outcome(trial: "Trial | None") -> str:
    if trial is None:
        return "is valid; whether it could start is unknown, as no leading scheduler answered"
    if not trial.could_run:
        return f"could never run: {_joined(trial.why, trial)}"
    if trial.starts_now:
        return f"would start now: {trial.why}."
    return f"would wait as {_placed(trial.place)}: {_joined(trial.why, trial)}{_expected(trial)}"


def _joined(why: str, trial: "Trial") -> str:
    """Return the reason, with the changes that would resolve it."""
    return f"{why} {trial.reason.advice}" if trial.reason is not None and trial.reason.advice else why


def _placed(place: "Place") -> str:
    return _rank(place.position, place.jobs_in_queue, place.queue)


_BY_LIMITS = "runs keep to their time limits"
"""The assumption of releases that do not say it."""


def _expected(trial: "Trial") -> str:
    if trial.expected_start is None:
        forecast = forecast_of(trial.place.forecast)
        return f" {forecast}" if forecast else ""
    return f" It would start by {_clock(trial.expected_start)} on {trial.cluster} if {trial.assuming or _BY_LIMITS}."


def _listed(clusters: tuple[str, ...]) -> str:
    return ", ".join(clusters) or "no cluster"
