"""The client: every call of the API, typed, over one connection pool. Blocking; for agents see ``aio.py``."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

import httpx
from pydantic import BaseModel

from trainmaster.client import calls, core
from trainmaster.client.calls import Action, Kind
from trainmaster.client.core import Request, Retries
from trainmaster.client.streams import Ended, LogPiece, LogTail, Notice, Watch
from trainmaster.client.transport import Transport
from trainmaster.client.values import Acted, BulkActed, ClusterView, JobFilter, KeyView, NewKey, Page, QueueView, Why
from trainmaster.protocol.errors import Code, ProblemError, TrainmasterError
from trainmaster.protocol.tenants import EventView, JobView, KeySpec

Model = TypeVar("Model", bound=BaseModel)

PAGE = 500
_ALL = JobFilter()
_RETRIES = Retries()


class Client:
    """Calls of the API. All raise ProblemError, and UnreachableError when the dispatcher stays away.

    ``on_retry`` is told of each failure that is tried again, and after how many seconds.
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        timeout: float = 30.0,
        retries: Retries = _RETRIES,
        on_retry: Callable[[TrainmasterError, float], None] | None = None,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = Transport(
            url,
            key,
            timeout=timeout,
            retries=retries,
            on_retry=on_retry,
            transport=transport,
            sleep=sleep,
            clock=clock,
        )

    @property
    def url(self) -> str:
        return self._transport.url

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Jobs

    def submit(self, specs: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> list[str]:
        """Submit one specification or many, all or nothing; their ids in the order given."""
        given = [specs] if isinstance(specs, Mapping) else list(specs)
        return [item["id"] for item in self._value(calls.submit(given))["jobs"]]

    def pages(self, wanted: JobFilter = _ALL, page_size: int = PAGE) -> Iterator[Page]:
        """Jobs that match, newest first, a page at a time."""
        cursor: str | None = None
        while True:
            page = self._model(calls.list_jobs(wanted, cursor, page_size), Page)
            yield page
            cursor = page.next
            if cursor is None:
                return

    def jobs(self, wanted: JobFilter = _ALL, page_size: int = PAGE) -> Iterator[JobView]:
        """Jobs that match, newest first; pages are fetched as they are needed."""
        for page in self.pages(wanted, page_size):
            yield from page.jobs

    def job(self, job: str) -> JobView:
        """A job with its specification and runs."""
        return self._model(calls.show_job(job), JobView)

    def why(self, job: str) -> Why:
        return self._model(calls.why(job), Why)

    def events(self, job: str, after: int = 0, limit: int = 1000) -> list[EventView]:
        """Transitions of a job after one of them, oldest first."""
        value = self._value(calls.events(job, after, limit))
        return [EventView.model_validate(item) for item in value["events"]]

    def watch(self, job: str, after: int = 0, *, timeout: float | None = None) -> Iterator[EventView | Notice | Ended]:
        """Transitions of a job as they happen, over lost connections; ends after Ended, or when the time is up."""
        return self._transport.follow(Watch(job, after), timeout)

    def logs(
        self,
        job: str,
        *,
        follow: bool = False,
        role: str | None = None,
        index: int | None = None,
        attempt: int | None = None,
        tail_bytes: int = 65_536,
    ) -> Iterator[LogPiece | Notice | Ended]:
        """Output of a job's members; with ``follow`` as it comes, over lost connections and later runs."""
        return self._transport.follow(LogTail(job, follow, role, index, attempt, tail_bytes), None)

    def wait(self, job: str, timeout: float | None = None) -> JobView:
        """The job when it has ended, or as it is when the time is up."""
        ends = None if timeout is None else self._transport.clock() + timeout
        now = self.job(job)
        while not now.state.is_terminal:
            left = None if ends is None else ends - self._transport.clock()
            if left is not None and left <= 0:
                break
            for _ in self.watch(job, now.version, timeout=left):
                pass
            now = self.job(job)
        return now

    def cancel(self, job: str) -> Acted:
        return self.act(job, "cancel")

    def suspend(self, job: str) -> Acted:
        return self.act(job, "suspend")

    def resume(self, job: str) -> Acted:
        return self.act(job, "resume")

    def retry(self, job: str) -> Acted:
        return self.act(job, "retry")

    def act(self, job: str, action: Action) -> Acted:
        return self._model(calls.act(job, action), Acted)

    def bulk(self, action: Action, wanted: JobFilter, *, dry_run: bool = False) -> BulkActed:
        """Do it to every job that matches; a dry run only counts them."""
        return self._model(calls.bulk(action, wanted, dry_run=dry_run), BulkActed)

    def change(self, job: str, *, priority: int | None = None, priority_class: str | None = None) -> JobView:
        """Change a job that waits."""
        return self._model(calls.change(job, _patch(priority, priority_class)), JobView)

    def bulk_change(
        self,
        wanted: JobFilter,
        *,
        priority: int | None = None,
        priority_class: str | None = None,
        dry_run: bool = False,
    ) -> BulkActed:
        """Change every waiting job that matches."""
        return self._model(calls.bulk_change(wanted, _patch(priority, priority_class), dry_run=dry_run), BulkActed)

    # Tenants, clusters and keys

    def queues(self) -> list[QueueView]:
        return [QueueView.model_validate(item) for item in self.objects("Queue")]

    def clusters(self) -> list[ClusterView]:
        return [ClusterView.model_validate(item) for item in self.objects("Cluster")]

    def objects(self, kind: Kind) -> list[dict[str, Any]]:
        """All queues, priority classes or clusters, as the API shows them."""
        found: list[dict[str, Any]] = self._value(calls.list_objects(kind))[calls.COLLECTIONS[kind][1]]
        return found

    def get_object(self, kind: Kind, name: str) -> dict[str, Any]:
        """One of them, by its path or name. Raises ProblemError NOT_FOUND."""
        for item in self.objects(kind):
            if item.get("path", item.get("name")) == name:
                return item
        raise ProblemError(Code.NOT_FOUND, f"there is no {kind} {name!r}")

    def put(self, kind: Kind, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make or change one of them; what ``body`` leaves out gets its default."""
        done: dict[str, Any] = self._value(calls.put_object(kind, name, body))
        return done

    def delete(self, kind: Kind, name: str) -> None:
        self._value(calls.delete_object(kind, name))

    def cordon(self, cluster: str, *, on: bool = True) -> None:
        """Let nothing new start on a cluster, or, with ``on`` false, let it again."""
        self._value(calls.cordon(cluster, on=on))

    def keys(self) -> list[KeyView]:
        return [KeyView.model_validate(item) for item in self._value(calls.list_keys())["keys"]]

    def make_key(self, spec: KeySpec) -> NewKey:
        """Make an API key. Sent once only: when the answer is lost, look at ``keys`` and revoke what was made."""
        return self._model(calls.make_key(spec), NewKey)

    def revoke_key(self, key_id: int) -> None:
        self._value(calls.revoke_key(key_id))

    # Sending

    def _value(self, request: Request) -> Any:
        return core.read_value(self._transport.send(request))

    def _model(self, request: Request, model: type[Model]) -> Model:
        return core.read_model(self._transport.send(request), model)


def _patch(priority: int | None, priority_class: str | None) -> dict[str, Any]:
    fields = {"priority": priority, "priorityClass": priority_class}
    return {name: value for name, value in fields.items() if value is not None}
