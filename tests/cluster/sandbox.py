"""Pods as a kubelet sees them: what runs, whatever the API server believes."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.cluster.behaviour import Behaviour, Exit, WordsOf, behaviour_of, is_scripted, parse


@dataclass
class Life:
    """One start of a pod's containers; ``started`` and ``ended`` are seconds of ``time.monotonic()``."""

    namespace: str
    name: str
    uid: str
    node: str
    labels: Mapping[str, str]
    started: float
    ended: float | None = None
    """None while a container of it is alive."""


Selector = Mapping[str, str] | Callable[[Life], bool] | None
"""Labels that all have to be there, or a condition."""


def chosen(lives: Iterable[Life], selector: Selector) -> list[Life]:
    if selector is None:
        return list(lives)
    if callable(selector):
        return [life for life in lives if selector(life)]
    return [life for life in lives if selector.items() <= life.labels.items()]


def overlaps(lives: Iterable[Life], key: Callable[[Life], object]) -> list[tuple[Life, Life]]:
    """Return pairs of lives with the same key of which the second started before the first had ended: two copies of one thing."""
    by_key: dict[object, list[Life]] = {}
    for life in lives:
        by_key.setdefault(key(life), []).append(life)
    found = []
    for of_key in by_key.values():
        last: Life | None = None
        for life in sorted(of_key, key=lambda one: one.started):
            if last is not None and (last.ended is None or life.started < last.ended):
                found.append((last, life))
            if last is None or (last.ended is not None and (life.ended is None or life.ended > last.ended)):
                last = life
    return found


@dataclass
class Container:
    """One container; ``exit`` is None until it has ended, ``started`` until it has begun."""

    name: str
    image: str
    behaviour: Behaviour
    number: int
    started: datetime | None = None
    ended: datetime | None = None
    exit: Exit | None = None
    lost: bool = False
    """Its machine went down while it ran: its kubelet finds no trace of it."""
    log: list[tuple[datetime, str]] = field(default_factory=list)

    def is_lost(self) -> bool:
        """Return whether the machine is lost, read again each time: machines go down while their output is read."""
        return self.lost

    def write(self, text: str) -> None:
        self.log.extend((datetime.now(UTC), line) for line in text.splitlines())


@dataclass(eq=False)
class Sandbox:
    """A pod on a node, and what was asked of it."""

    namespace: str
    name: str
    uid: str
    node: str
    labels: Mapping[str, str]
    number: int
    """Counts the pods of this kubelet; the pod's address is made from it."""
    containers: list[Container]
    init_containers: list[Container]
    started: datetime | None = None
    deadline_seconds: float | None = None
    grace_seconds: float = 30.0
    deleted: asyncio.Event = field(default_factory=asyncio.Event)
    """Deletion was asked for."""
    forced: bool = False
    """It was deleted without a grace period, as the API server does with what has ended: it takes such objects away by itself."""
    gone: bool = False
    """The pod does not exist in the API server any more."""
    overdue: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    terminate: asyncio.Event = field(default_factory=asyncio.Event)
    """SIGTERM was sent."""
    kill: asyncio.Event = field(default_factory=asyncio.Event)
    life: Life | None = None

    @classmethod
    def of(cls, pod: dict[str, Any], number: int, words_of: WordsOf | None = None) -> "Sandbox":
        meta, spec = pod["metadata"], pod["spec"]
        annotations = meta.get("annotations") or {}
        made = cls(
            namespace=meta["namespace"],
            name=meta["name"],
            uid=meta["uid"],
            node=spec["nodeName"],
            labels=meta.get("labels") or {},
            number=number,
            containers=[
                Container(
                    one["name"], one["image"], _behaviour(pod, one, annotations if not index else None, words_of), index
                )
                for index, one in enumerate(spec["containers"])
            ],
            init_containers=[
                Container(one["name"], one["image"], Behaviour(), 100 + index)
                for index, one in enumerate(spec.get("initContainers") or ())
            ],
        )
        made.update(pod)
        return made

    def update(self, pod: dict[str, Any], gone: bool = False) -> None:
        """Take over what may change: the deadline, deletion and its grace period.

        As with the real kubelet, no grace period is shorter than a second, and what is deleted by force outlives its object.
        """
        meta, spec = pod["metadata"], pod["spec"]
        if not gone:
            self.deadline_seconds = spec.get("activeDeadlineSeconds")
            grace = meta.get("deletionGracePeriodSeconds", spec.get("terminationGracePeriodSeconds", 30))
            self.grace_seconds = max(1.0, grace)
            self.forced = meta.get("deletionGracePeriodSeconds") == 0
        if gone or "deletionTimestamp" in meta:
            self.deleted.set()
        self.gone = self.gone or gone
        self.changed.set()

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"

    @property
    def waiting_reason(self) -> str | None:
        return next((reason for one in self.containers if (reason := one.behaviour.end.waiting_reason)), None)

    @property
    def ended(self) -> bool:
        """No container is alive any more."""
        return all(one.exit is not None for one in self.containers)

    def begin(self) -> Life:
        """Start all containers; return the life that begins."""
        self.started = datetime.now(UTC)
        for container in (*self.init_containers, *self.containers):
            container.started = self.started
        self.life = Life(self.namespace, self.name, self.uid, self.node, self.labels, time.monotonic())
        return self.life

    def end(self, container: Container, how: Exit) -> None:
        container.exit, container.ended = how, datetime.now(UTC)
        if self.ended and self.life is not None:
            self.life.ended = time.monotonic()
        self.changed.set()


def _behaviour(
    pod: dict[str, Any], container: dict[str, Any], annotations: dict[str, str] | None, words_of: WordsOf | None
) -> Behaviour:
    if words_of is not None and not is_scripted(container, annotations):
        return parse(list(words_of(pod, container)))
    return behaviour_of(container, annotations)
