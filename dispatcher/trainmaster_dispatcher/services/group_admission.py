"""Groups that submissions name: which of these take the jobs, and what is stored of the jobs in them.

A submission holds the rows of its groups until its jobs are stored, so that whoever closes a group knows all its jobs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.states import JobActions
from trainmaster_dispatcher.services.submission_parsing import PreparedSpec, PreparedSubmission, mistaken
from trainmaster_dispatcher.store import groups as store
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.groups import HeldGroup, Place
from trainmaster_dispatcher.store.keys import Caller

MOST_HOOKS: Final = 100
"""The most webhooks of one group."""


@dataclass(frozen=True, slots=True)
class HeldGroups:
    """Groups that the submissions of one transaction name: those that exist, and whose those are that begin with it."""

    held: Mapping[Place, HeldGroup]
    founders: dict[Place, Caller] = field(default_factory=dict)


class GroupSubmission(NamedTuple):
    """A submission with its submitter. ``closes``: it closes the groups of its jobs."""

    caller: Caller
    prepared: PreparedSubmission
    closes: bool


def places_of(prepared: PreparedSubmission) -> set[Place]:
    """Return the groups to which the jobs of a submission belong."""
    return {(spec.queue, spec.group) for spec in prepared.specs if spec.group is not None}


def _awaited(spec: PreparedSpec) -> Iterator[Place]:
    """Yield the groups for which a job waits."""
    return ((one.queue or spec.queue, one.group) for one in spec.after if one.group is not None)


async def admit(
    tx: Transaction, given: Mapping[int, GroupSubmission], actions: Mapping[str, JobActions]
) -> tuple[HeldGroups, dict[int, ProblemError]]:
    """Hold the groups that submissions name; return these, and the submissions that groups do not take, each with its error.

    ``actions``: by queue, which jobs users may change there.
    """
    own = {number: places_of(one.prepared) for number, one in given.items()}
    awaited = {place for one in given.values() for spec in one.prepared.specs if spec.after for place in _awaited(spec)}
    wanted = awaited.union(*own.values())
    found = HeldGroups({})
    if wanted:
        closes = any(one.closes for one in given.values())
        found = HeldGroups(await store.hold(tx, wanted, closes=closes, awaits=bool(awaited)))
    refused: dict[int, ProblemError] = {}
    for number, one in given.items():
        try:
            _check(one, own[number], found, actions)
        except ProblemError as error:
            refused[number] = error
        else:
            for place in own[number] - found.held.keys():
                found.founders.setdefault(place, one.caller)
    return found, refused


def _check(one: GroupSubmission, places: set[Place], found: HeldGroups, actions: Mapping[str, JobActions]) -> None:
    """Raise ProblemError where a group of a submission does not take its jobs."""
    if one.closes and not places:
        raise ProblemError(Code.INVALID_PARAMETER, "closeGroup is for jobs with a group, and none of these has one")
    for place in sorted(places):
        path, name = place
        group = found.held.get(place)
        if group is not None and group.is_closed:
            raise closed(path, name)
        founder = found.founders.get(place)
        names = (group.submitted_by, group.submitted_through) if group is not None else _names_of(founder)
        if not may_change(one.caller, path, names, actions[path]):
            raise of_another(path, name, names[0])


def _names_of(founder: Caller | None) -> tuple[str | None, str | None]:
    return (None, None) if founder is None else (founder.name, None)


def may_change(caller: Caller, queue: str, names: Sequence[str | None], actions: JobActions) -> bool:
    """Return whether a caller who may use the queue of a group may add to it, close and cancel it. ``names``: of who began it;
    none: it does not exist.
    """
    return caller.manages(queue) or actions is not JobActions.OWN or not any(names) or caller.name in names


def closed(path: str, name: str) -> ProblemError:
    """Return the error for a group that takes no more jobs."""
    return ProblemError(
        Code.GROUP_CLOSED,
        f"group {name!r} of queue {path!r} is closed and takes no more jobs; give the jobs another group",
    )


def of_another(path: str, name: str, owner: str | None) -> ProblemError:
    """Return the error for a group that others may not change."""
    return ProblemError(
        Code.GROUP_OF_ANOTHER,
        f"{owner!r} began group {name!r} of queue {path!r}, and the queue lets users change only their own jobs"
        " (jobActions: own); take another name, or ask its owner or an admin",
    )


async def begin(
    tx: Transaction,
    held: HeldGroups,
    taken: Sequence[GroupSubmission],
    queues: Mapping[str, int],
    actions: Mapping[str, JobActions],
) -> dict[Place, int]:
    """Create the groups of these submissions that do not exist; return the ids of all of theirs. Raises ProblemError where another
    transaction has created and closed one at this moment.
    """
    ids = {place: one.id for place, one in held.held.items()}
    fresh: dict[Place, Caller] = {}
    for one in taken:
        for place in places_of(one.prepared) - ids.keys():
            fresh.setdefault(place, one.caller)
    if not fresh:
        return ids
    new = [store.NewGroup(queues[path], name, caller.key_id) for (path, name), caller in fresh.items()]
    made = await store.begin(tx, new)
    ids |= {place: made[key] for place in fresh if (key := (queues[place[0]], place[1])) in made}
    if late := fresh.keys() - ids.keys():
        closes = any(one.closes for one in taken)
        others = HeldGroups(await store.hold(tx, late, closes=closes))
        for one in taken:
            if places := places_of(one.prepared) & others.held.keys():
                _check(one, places, others, actions)
        ids |= {place: one.id for place, one in others.held.items()}
    return ids


async def note(tx: Transaction, taken: Sequence[GroupSubmission], ids: Mapping[Place, int]) -> None:
    """Store the numbers of new jobs of groups and their webhooks, and close the groups as wanted. Raises ProblemError."""
    totals: dict[int, int] = {}
    hooks: set[tuple[int, str]] = set()
    closing: set[int] = set()
    for one in taken:
        for spec in one.prepared.specs:
            if spec.group is not None:
                group_id = ids[spec.queue, spec.group]
                totals[group_id] = totals.get(group_id, 0) + one.prepared.repeats
                hooks |= {(group_id, url) for url in spec.group_hooks}
        if one.closes:
            closing |= {ids[place] for place in places_of(one.prepared)}
    await store.note(tx, [store.GroupChange(group_id, many) for group_id, many in sorted(totals.items())])
    if hooks:
        await store.add_hooks(tx, hooks)
        if await store.most_hooks(tx, {group_id for group_id, _ in hooks}) > MOST_HOOKS:
            message = f"a group has at most {MOST_HOOKS} webhooks, and with this job's it would have more"
            raise mistaken(Mistake(path="notify", message=message))
    if closing:
        await store.close(tx, closing)
