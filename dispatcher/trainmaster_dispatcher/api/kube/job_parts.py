"""Objects that are parts of jobs, such as pods and runs: found, listed and watched with the jobs that they belong to."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fastapi import Request, Response

from trainmaster.workload_kinds.registry import KINDS
from trainmaster_dispatcher.api.context import State
from trainmaster_dispatcher.api.kube.calls import Listing, ListToken, listed, person, selector, wants_table
from trainmaster_dispatcher.api.kube.job_selection import filter_of
from trainmaster_dispatcher.api.kube.job_watches import WatchEvent
from trainmaster_dispatcher.api.kube.objects import JOB_LABEL, ListMetadata, Wire
from trainmaster_dispatcher.api.kube.pods import name_labels_of
from trainmaster_dispatcher.api.kube.resources import ApiResource
from trainmaster_dispatcher.api.kube.selectors import Operator, parse_fields, parse_labels
from trainmaster_dispatcher.api.kube.watching import Followed, Watch, each_page, frames
from trainmaster_dispatcher.services import job_objects, job_queries
from trainmaster_dispatcher.services.event_feed import Position
from trainmaster_dispatcher.services.job_objects import ReadJob
from trainmaster_dispatcher.store import versions
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.jobs import LabelCondition
from trainmaster_dispatcher.store.keys import Caller

_JOBS_PER_PAGE = 50
_NAME_LABELS = frozenset(key for kind in KINDS for key in kind.name_labels)
"""Labels by which controllers of other kinds mark pods with the name of their object. A job may have them as its own, too."""


class JobParts(NamedTuple):
    """A kind of objects that are parts of jobs."""

    resource: ApiResource
    fields: Mapping[str, tuple[str, ...]]
    """The fields by which they are selected."""
    jobs_in: Callable[[str], frozenset[str]]
    """Returns the names that the job of an object with this name may have; none for a name that no object can have."""
    of_jobs: Callable[[Transaction, Sequence[ReadJob], int | None], Awaitable[Mapping[int, Sequence[Wire]]]]
    """Returns the parts of jobs by the jobs' keys, in their order. As soon as there are as many parts as the number, if one is given,
    the jobs that follow are left out."""
    changed_of_jobs: Callable[[Transaction, Sequence[ReadJob], int | None], Awaitable[Mapping[int, Sequence[Wire]]]]
    """Returns those that may have changed with their jobs."""
    beside: Callable[[Transaction, Caller, str | None, frozenset[str]], Awaitable[Sequence[Wire]]] | None = None
    """Returns such objects that are parts of no job yet, in a namespace or in all; with names, all of these names that are found by no
    name of a job.
    """
    is_gone: Callable[[Wire], bool] = lambda _: False
    """Returns whether an object that has changed with its job does not exist any more, while the job does."""


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The parts that a call is about. ``jobs``: the names that the only job's object may have; empty for all jobs.

    ``name_label``: a label of ``_NAME_LABELS`` that they have to have, and its value.
    """

    parts: JobParts
    request: Request
    wanted: Listing
    caller: Caller
    namespace: str | None
    jobs: frozenset[str]
    name_label: tuple[str, str] | None

    @classmethod
    def of(cls, parts: JobParts, request: Request, wanted: Listing, caller: Caller, namespace: str | None) -> "_Chosen":
        """Return what a call chooses. Raises ProblemError INVALID_PARAMETER."""
        plural = parts.resource.plural
        fields = {
            one.path: one.value for one in parse_fields(wanted.fields, parts.fields, plural) if not one.is_negated
        }
        place = namespace or fields.get("metadata.namespace") or None
        equal = {
            label.key: next(iter(label.values))
            for label in parse_labels(wanted.labels)
            if label.operator is Operator.IN and len(label.values) == 1
        }
        labelled = frozenset((equal[JOB_LABEL],)) if JOB_LABEL in equal else frozenset[str]()
        jobs = parts.jobs_in(fields.get("metadata.name", "")) or labelled
        name_label = next(((key, equal[key]) for key in equal if key in _NAME_LABELS), None)
        return cls(parts, request, wanted, caller, place, jobs, name_label)

    def is_about(self, job: ReadJob) -> bool:
        """Return whether parts of a job can be among the chosen ones, and the caller may see it."""
        queue = job.line["queue"]
        return (
            self.caller.may_use(queue)
            and self.namespace in (None, job.namespace)
            and (not self.jobs or job.name in self.jobs)
        )

    def select(self, items: Iterable[Wire]) -> list[Wire]:
        """Return those of these objects that the selectors select."""
        selects = selector(self.wanted, self.parts.fields, self.parts.resource.plural)
        return [item for item in items if selects(item)]

    def frames(self, event: WatchEvent, items: Iterable[Wire]) -> bytes:
        """Return events of a watch."""
        included = self.wanted.included if wants_table(self.request) else None
        return frames(event, self.select(items), self.parts.resource, self.caller, included)


async def list_parts(
    parts: JobParts, request: Request, state: State, wanted: Listing, namespace: str | None
) -> Response:
    """Answer a call that lists or watches parts of jobs. Raises ProblemError."""
    chosen = _Chosen.of(parts, request, wanted, await person(request), namespace)
    if wanted.is_watch:
        return await _watch(state, chosen)
    token = ListToken.read(wanted.following)
    async with state.stores.database.reading() as tx:
        version = token.version or (await versions.horizon(tx)).version
        items, following = await _page(tx, chosen, token.cursor)
    metadata = ListMetadata(version, ListToken(version, following).written())
    return listed(request, wanted, chosen.select(items), parts.resource, metadata)


async def _page(tx: Transaction, chosen: _Chosen, cursor: str | None) -> tuple[list[Wire], str | None]:
    """Return the parts of a page of jobs, newest first, and the cursor of the next page."""
    if chosen.jobs:
        by_key: dict[int, ReadJob] = {}
        for name in chosen.jobs:
            by_key |= {job.key: job for job in await job_objects.show_all(tx, chosen.caller, chosen.namespace, name)}
        found = await chosen.parts.of_jobs(tx, list(by_key.values()), None)
        return [*await _beside(tx, chosen), *_items(found)], None
    filtered = await filter_of(tx, chosen.caller, chosen.namespace, {})
    if filtered is None:
        return [], None
    named = await _named(tx, chosen)
    labels = [] if chosen.name_label is None else [LabelCondition(chosen.name_label[0], (chosen.name_label[1],), False)]
    page = await job_objects.page(tx, chosen.caller, filtered, labels, cursor, _JOBS_PER_PAGE, is_whole=False)
    jobs: Sequence[ReadJob]
    jobs, following = [job for job in page.jobs if job.key not in named], page.following
    found = await chosen.parts.of_jobs(tx, jobs, chosen.wanted.limit)
    if len(found) < len(jobs):
        following = job_queries.make_cursor(list(found)[-1])
    if cursor is not None:
        return _items(found), following
    first = await chosen.parts.of_jobs(tx, list(named.values()), None)
    return [*await _beside(tx, chosen), *_items(first), *_items(found)], following


async def _beside(tx: Transaction, chosen: _Chosen) -> Sequence[Wire]:
    beside = chosen.parts.beside
    return [] if beside is None else await beside(tx, chosen.caller, chosen.namespace, chosen.jobs)


async def _named(tx: Transaction, chosen: _Chosen) -> dict[int, ReadJob]:
    """Return the jobs whose parts have the wanted label because their controller marks its pods so, by key."""
    if chosen.name_label is None:
        return {}
    label, name = chosen.name_label
    found = await job_objects.show_all(tx, chosen.caller, chosen.namespace, name)
    return {job.key: job for job in found if label in name_labels_of(job)}


def _items(found: Mapping[int, Sequence[Wire]]) -> list[Wire]:
    return [item for items in found.values() for item in items]


async def _watch(state: State, chosen: _Chosen) -> Response:
    """Answer a watch. Raises ProblemError EXPIRED for a version from which changes are no longer known."""
    chosen.select(())  # so that wrong selectors are refused at once
    if chosen.jobs and chosen.parts.beside is not None:
        async with state.stores.database.reading() as tx:
            if await _beside(tx, chosen):
                # Of a job whose name is not that of its part, or which does not exist yet.
                chosen = replace(chosen, jobs=frozenset())

    async def existing(cursor: str | None) -> tuple[bytes, str | None]:
        async with state.stores.database.reading() as tx:
            items, following = await _page(tx, chosen, cursor)
        return chosen.frames(WatchEvent.ADDED, items), following

    async def read(position: Position) -> Followed:
        batch = await state.watches.after(position)
        events = {one.job.key: one.event for one in batch.changed if chosen.is_about(one.job)}
        jobs = [one.job for one in batch.changed if one.job.key in events]
        found: Mapping[int, Sequence[Wire]] = {}
        if jobs:
            async with state.stores.database.reading() as tx:
                found = await chosen.parts.changed_of_jobs(tx, jobs, None)
        written = []
        for key, items in found.items():
            left = [] if events[key] is WatchEvent.DELETED else [one for one in items if not chosen.parts.is_gone(one)]
            written += [
                chosen.frames(WatchEvent.DELETED, [one for one in items if one not in left]),
                chosen.frames(WatchEvent.MODIFIED, left),
            ]
        return Followed(b"".join(written), batch.position, batch.has_more, batch.missed)

    watch = Watch(chosen.parts.resource, chosen.wanted, wants_table(chosen.request), each_page(existing), read)
    return await watch.answer(chosen.request, state)
