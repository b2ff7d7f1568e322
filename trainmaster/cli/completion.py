"""Completion of names in shells: one short call of the dispatcher, and silence where it fails."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from trainmaster.client.http import Client

_SECONDS = 1.5
"""Time-out of the call: people wait for it with a key pressed."""
_MOST = 200
"""The most jobs that are looked at, the newest first."""

Words = Callable[[typer.Context, str], list[str]]


def _of_dispatcher(words: "Callable[[Client], Iterable[str]]") -> Words:
    """Return a completion by words that the dispatcher knows."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        try:
            from trainmaster.cli.config import load_context
            from trainmaster.client.core import Retries
            from trainmaster.client.http import Client

            given = ctx.find_root().params
            context = load_context(given.get("url"), given.get("key"), given.get("context"))
            with Client(context.url, context.key, timeout=_SECONDS, retries=Retries(deadline_seconds=0.0)) as client:
                return [word for word in words(client) if word.startswith(incomplete)]
        except Exception:  # noqa: BLE001 - a message would be printed into the line that somebody writes
            return []

    return complete


jobs = _of_dispatcher(lambda client: [job.id for job in islice(client.jobs(page_size=_MOST), _MOST)])
queues = _of_dispatcher(lambda client: [queue.path for queue in client.queues()])
leaves = _of_dispatcher(lambda client: [queue.path for queue in client.queues() if queue.is_leaf])
clusters = _of_dispatcher(lambda client: [cluster.name for cluster in client.clusters()])
classes = _of_dispatcher(lambda client: [str(one["name"]) for one in client.objects("PriorityClass")])
schedules = _of_dispatcher(lambda client: [one.name for one in islice(client.schedules(page_size=_MOST), _MOST)])
workflows = _of_dispatcher(lambda client: [one.id for one in islice(client.workflows(page_size=_MOST), _MOST)])
groups = _of_dispatcher(lambda client: [one.name for one in islice(client.groups(page_size=_MOST), _MOST)])
policies = _of_dispatcher(lambda client: [str(one["name"]) for one in client.objects("BurstPolicy")])
keys = _of_dispatcher(lambda client: [str(key.id) for key in client.keys() if key.revoked_at is None])  # noqa: SIM118 - not a mapping


def contexts(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the contexts of the configuration file that begin so."""
    try:
        from trainmaster.client.config import read_contexts

        return [name for name in read_contexts().by_name if name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - as above
        return []


def states(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the states of jobs that begin so."""
    from trainmaster.protocol.states import JobState, Wish

    return [state.value for state in (*JobState, *Wish) if state.value.startswith(incomplete)]
