"""Webhooks: what a submission may name, delivery of messages, and dead letters.

The relay claims messages in one short transaction, posts them outside of any, and records the results in the next. A relay that is
killed at any point loses nothing: a claim ends by itself, and the message is sent again.
"""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson
from pydantic import field_validator

from trainmaster.protocol.base import Strict, example, format_time
from trainmaster.protocol.durations import Duration, parse_duration
from trainmaster.protocol.errors import Code, Mistake, ProblemError, TrainmasterError
from trainmaster.protocol.ids import workflow_id
from trainmaster_dispatcher.containment import Part, note
from trainmaster_dispatcher.domain.job_events import JobEventKind
from trainmaster_dispatcher.domain.redaction import of_queue, rendered_json
from trainmaster_dispatcher.domain.webhooks import (
    AddressPolicy,
    Persistence,
    RefusedAddressError,
    Target,
    secret_of,
    sign,
)
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.store import outbox, tenants
from trainmaster_dispatcher.store.database import Database, Transaction
from trainmaster_dispatcher.store.keys import Caller
from trainmaster_dispatcher.store.outbox import DeliveryFailure, Message, PublishedTransition

log = logging.getLogger(__name__)

_LONGEST_TURN_SECONDS = 30.0
_LONGEST_OVERLAP = 30 * 86_400.0
_USUAL_SECONDS = 0.05
_LOOK_SECONDS = 0.5
_GATHER_SECONDS = 0.01
"""Posts that end within this time of each other are recorded in one transaction."""


# Submitting


def check_hooks(settings: Settings, specs: Iterable[tuple[str, bytes]]) -> None:
    """Check that webhooks can be sent and that their addresses have an allowed form; each specification comes with its path.

    Raises ProblemError WEBHOOKS_OFF, or INVALID_SPEC with a mistake for each address.
    """
    check_addresses(
        settings,
        (
            (f"{prefix}.notify" if prefix else "notify", [hook["url"] for hook in orjson.loads(spec)["notify"]])
            for prefix, spec in specs
        ),
    )


def check_addresses(settings: Settings, hooks: Iterable[tuple[str, Sequence[str]]]) -> None:
    """Check that webhooks can be sent, and the form of their addresses; each list of addresses comes with its path. Raises as
    ``check_hooks``.
    """
    if not settings.webhook_secrets:
        raise _webhooks_off()
    policy = settings.webhook_policy
    mistakes = []
    for path, urls in hooks:
        for index, url in enumerate(urls):
            try:
                policy.read(url)
            except RefusedAddressError as error:
                mistakes.append(Mistake(path=f"{path}[{index}].url", message=str(error)))
    if mistakes:
        first = f"{mistakes[0].path}: {mistakes[0].message}"
        raise ProblemError(Code.INVALID_SPEC, first, mistakes=tuple(mistakes[:50]))


def _webhooks_off() -> ProblemError:
    return ProblemError(
        Code.WEBHOOKS_OFF,
        "this installation sends no webhooks: an admin has to set TRAINMASTER_WEBHOOK_SECRET; or leave out 'notify'",
    )


async def tell_submitted(tx: Transaction, jobs: Iterable[tuple[int, str, str]]) -> None:
    """Write the messages of new jobs: key, name and first state of each."""
    await outbox.insert(
        tx, [PublishedTransition(key, name, 1, JobEventKind.SUBMITTED, (state,)) for key, name, state in jobs]
    )


# Delivering messages


class DeliveryError(TrainmasterError):
    """A receiver did not accept a message; the error says why."""


class Post(Protocol):
    """The way to receivers. Raises DeliveryError unless the message was accepted."""

    async def __call__(self, target: Target, headers: Mapping[str, str], body: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class DeliveryTerms:
    """The terms of delivery."""

    policy: AddressPolicy
    secrets: tuple[str, ...]
    """Secrets of the installation: those of queues are derived from each of them."""
    persistence: Persistence
    at_once: int
    """Most posts under way at the same time."""
    claim_seconds: float
    """Duration of a claim: longer than any post may take, so that no message is sent twice at the same time."""

    @classmethod
    def of(cls, settings: Settings) -> "DeliveryTerms":
        return cls(
            settings.webhook_policy,
            settings.webhook_secrets,
            settings.webhook_persistence,
            settings.webhook_concurrency,
            4 * settings.webhook_post_seconds,
        )

    @property
    def at_once_each(self) -> int:
        """Most posts to one receiver at the same time: a slow receiver must not occupy all of ``at_once``."""
        return max(1, self.at_once // 4)


@dataclass(slots=True)
class Tally:
    """Numbers of messages by result."""

    delivered: int = 0
    failed: int = 0
    dead: int = 0


@dataclass(slots=True)
class _Receiver:
    """One host, and the posts to it that are under way."""

    flying: int = 0
    waiting: "deque[tuple[Message, Target]]" = field(default_factory=deque)
    seconds: float = _USUAL_SECONDS
    """Duration of a post to it, as a moving mean."""
    turn: float = 0.0
    """When the last postponed message is expected to have its turn."""

    def next_turn(self, now: float, at_once: int) -> float:
        """Return the seconds after which a postponed message may be tried again: when those before it are through."""
        each = self.seconds / at_once
        self.turn = max(self.turn, now + each * len(self.waiting)) + each
        return min(self.turn - now, _LONGEST_TURN_SECONDS) * random.uniform(1.0, 1.2)


class Relay:
    """One turn of delivering messages, until nothing is due or ``goes_on`` says no."""

    def __init__(
        self,
        database: Database,
        terms: DeliveryTerms,
        post: Post,
        goes_on: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._terms = terms
        self._post = post
        self._goes_on = goes_on
        self._clock = clock
        self._receivers: dict[str, _Receiver] = {}
        self._flying: set[asyncio.Task[None]] = set()
        self._delivered: list[int] = []
        self._failures: list[DeliveryFailure] = []
        self._put_off: dict[int, float] = {}
        self.tally = Tally()

    async def run(self) -> Tally:
        """Deliver due messages. Raises ProblemError when the store is unreachable; posts under way then are sent again later."""
        try:
            while await self._turn():
                pass
        finally:
            for task in self._flying:
                task.cancel()
            await asyncio.gather(*self._flying, return_exceptions=True)
        return self.tally

    async def _turn(self) -> bool:
        """Record finished posts, claim more, wait for one; return whether anything is under way."""
        waiting = sum(len(receiver.waiting) for receiver in self._receivers.values())
        free_slots = self._terms.at_once - len(self._flying) - waiting if self._goes_on() else 0
        claimed = await self._note_and_claim(free_slots)
        for message in claimed:
            try:
                self._admit(message)
            except Exception as error:  # noqa: BLE001 - noted, and counted as an attempt
                note(Part.WEBHOOK, str(message.id), error)
                self._fail(message, f"{type(error).__name__} while it was prepared")
        if free_slots == 0 and not self._goes_on():
            self._give_back()
        for receiver in self._receivers.values():
            while receiver.waiting and receiver.flying < self._terms.at_once_each:
                self._launch(receiver, *receiver.waiting.popleft())
        if self._flying:
            # Where messages were due there may be more for which there is capacity, whichever receivers are slow now.
            within = 0.0 if claimed else _LOOK_SECONDS
            if (await asyncio.wait(self._flying, timeout=within, return_when=asyncio.FIRST_COMPLETED))[0]:
                await asyncio.sleep(_GATHER_SECONDS)
            done = {task for task in self._flying if task.done()}
            self._flying -= done
            for task in done:
                task.result()
        return bool(self._flying or claimed or self._delivered or self._failures or self._put_off)

    async def _note_and_claim(self, free_slots: int) -> list[Message]:
        delivered, self._delivered = self._delivered, []
        failures, self._failures = self._failures, []
        put_off, self._put_off = self._put_off, {}
        persistence = self._terms.persistence
        async with self._database.transaction() as tx:
            await outbox.delete(tx, delivered)
            dead = await outbox.note_failures(tx, failures, persistence.attempts, persistence.give_up_seconds)
            await outbox.put_off(tx, put_off)
            claimed = await outbox.claim(tx, free_slots, self._terms.claim_seconds) if free_slots > 0 else []
        self.tally.delivered += len(delivered)
        self.tally.failed += len(failures)
        self.tally.dead += len(dead)
        for failure in failures:
            if failure.message.id in dead:
                extra = {"job": failure.message.about, "seq": failure.message.seq, "hook": failure.message.hook}
                log.warning("a webhook message was given up: %s", failure.error, extra=extra)
        return claimed

    def _admit(self, message: Message) -> None:
        if message.url is None:
            self._failures.append(DeliveryFailure(message, "the specification is gone", 0.0, is_final=True))
            return
        try:
            target = self._terms.policy.read(message.url)
        except RefusedAddressError as error:
            self._fail(message, str(error))
            return
        receiver = self._receivers.setdefault(target.host_header, _Receiver())
        if len(receiver.waiting) < self._terms.at_once_each:
            receiver.waiting.append((message, target))
        else:
            now = asyncio.get_running_loop().time()
            self._put_off[message.id] = receiver.next_turn(now, self._terms.at_once_each)

    def _give_back(self) -> None:
        """Release claimed messages whose post has not begun, so that any relay can claim them."""
        for receiver in self._receivers.values():
            self._put_off |= {message.id: 0.0 for message, _ in receiver.waiting}
            receiver.waiting.clear()

    def _launch(self, receiver: _Receiver, message: Message, target: Target) -> None:
        receiver.flying += 1
        self._flying.add(asyncio.create_task(self._deliver(receiver, message, target)))

    async def _deliver(self, receiver: _Receiver, message: Message, target: Target) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            headers, body = self._signed(message)
            await self._post(target, headers, body)
            self._delivered.append(message.id)
        except DeliveryError as error:
            if error.__cause__ is not None:
                # The address that a name resolves to is for admins alone.
                log.info("a webhook message was not delivered: %s", error.__cause__, extra={"delivery": message.id})
            self._fail(message, str(error))
        except Exception as error:  # noqa: BLE001 - noted
            # Counted as an attempt like any other failure: otherwise the message would be retried without end.
            note(Part.WEBHOOK, str(message.id), error)
            self._fail(message, f"{type(error).__name__}: {error}")
        finally:
            receiver.flying -= 1
            receiver.seconds += 0.2 * (loop.time() - began - receiver.seconds)

    def _signed(self, message: Message) -> tuple[dict[str, str], bytes]:
        """Return the headers and the body of a message. The receiver sees what the owner of the job's queue sees."""
        queue = message.body["queue"]
        body = rendered_json(orjson.dumps(message.body), of_queue(queue))
        secrets = [secret_of(root, queue, one) for root in self._terms.secrets for one in message.secret_versions]
        headers = {
            "Content-Type": "application/json",
            "Trainmaster-Signature": sign(secrets, int(self._clock()), body),
            "Trainmaster-Delivery": str(message.id),
            "Trainmaster-Event": message.event,
            "Trainmaster-Attempt": str(message.attempts + 1),
        }
        return headers, body

    def _fail(self, message: Message, error: str) -> None:
        pause = self._terms.persistence.pause(message.attempts + 1, random.random())
        self._failures.append(DeliveryFailure(message, error, pause))


# Secrets


class RotateSecretSpec(Strict):
    """Another secret for a queue."""

    model_config = example(overlap="1d")

    overlap: Duration = "1d"
    """Time for which messages are signed with the previous secret as well; at most 30 days."""

    @field_validator("overlap")
    @classmethod
    def _ends(cls, value: str) -> str:
        if parse_duration(value) > _LONGEST_OVERLAP:
            raise ValueError("at most 30d")
        return value


async def show_secrets(tx: Transaction, settings: Settings, caller: Caller, path: str) -> dict[str, Any]:
    """Return the secrets that sign messages of a queue's jobs. Raises ProblemError NOT_FOUND, WEBHOOKS_OFF."""
    await _check_queue(tx, settings, caller, path)
    return _secrets_answer(settings, path, await outbox.secret_version(tx, path))


async def rotate_secret(
    tx: Transaction, settings: Settings, caller: Caller, path: str, spec: RotateSecretSpec
) -> dict[str, Any]:
    """Give a queue another secret. Raises ProblemError NOT_FOUND, WEBHOOKS_OFF."""
    await _check_queue(tx, settings, caller, path)
    return _secrets_answer(settings, path, await outbox.rotate_secret(tx, path, parse_duration(spec.overlap)))


async def _check_queue(tx: Transaction, settings: Settings, caller: Caller, path: str) -> None:
    if not caller.may_use(path) or path not in await tenants.QUEUES.by_name(tx, [path]):
        raise ProblemError(Code.NOT_FOUND, f"there is no queue {path!r}")
    if not settings.webhook_secrets:
        raise _webhooks_off()


def _secrets_answer(settings: Settings, path: str, row: outbox.SecretRow) -> dict[str, Any]:
    current = [secret_of(root, path, row.version) for root in settings.webhook_secrets]
    answer: dict[str, Any] = {"queue": path, "version": row.version, "secrets": current}
    if row.previous_until is not None:
        answer["previous"] = [secret_of(root, path, row.version - 1) for root in settings.webhook_secrets]
        answer["previousUntil"] = format_time(row.previous_until)
    return answer


# Dead letters


async def dead_letters(tx: Transaction, caller: Caller, before: int | None, limit: int) -> list[dict[str, Any]]:
    """Return messages that were given up, newest first; a user sees those of the user's own queues."""
    queue_ids = None if caller.is_admin else await tenants.queue_ids_below(tx, caller.queues)
    return [_letter(row) for row in await outbox.dead(tx, queue_ids, before, limit)]


async def retry_dead_letter(tx: Transaction, caller: Caller, letter: int) -> dict[str, Any]:
    """Let a dead letter be tried again. Raises ProblemError NOT_FOUND."""
    row = await _find(tx, caller, letter)
    await outbox.revive(tx, letter)
    return _letter(row)


async def drop_dead_letter(tx: Transaction, caller: Caller, letter: int) -> None:
    """Remove a dead letter. Raises ProblemError NOT_FOUND."""
    await _find(tx, caller, letter)
    await outbox.delete(tx, [letter])


async def _find(tx: Transaction, caller: Caller, letter: int) -> outbox.StoredDeadLetter:
    row = await outbox.dead_letter(tx, letter) if letter < 1 << 63 else None
    if row is None or not caller.may_use(row.queue):
        raise ProblemError(Code.NOT_FOUND, f"there is no dead letter {letter}")
    return row


def _letter(row: outbox.StoredDeadLetter) -> dict[str, Any]:
    name, states = row.body.get("name", ""), row.body.get("states", ())
    about: dict[str, Any]
    if "group" in row.body:
        about, states = {"group": row.body["group"]}, [row.body["state"]]
    elif row.job_id is not None and row.job_id < 0:
        about = {"workflow": workflow_id(str(name), -row.job_id)}
    else:
        about = {"job": row.body["job"]}
    return about | {
        "id": row.id,
        "states": states,
        "queue": row.queue,
        "seq": row.seq,
        "hook": row.hook,
        "url": row.url,
        "attempts": row.attempts,
        "error": row.error,
        "createdAt": format_time(row.created_at),
        "deadAt": format_time(row.dead_at),
    }
