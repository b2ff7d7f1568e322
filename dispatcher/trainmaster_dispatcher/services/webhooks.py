"""Messages to webhooks, by e-mail and to chats: what a submission may name, delivery, and dead letters.

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
from datetime import UTC, datetime
from email.message import EmailMessage
from typing import Any, NamedTuple, Protocol

import orjson
from pydantic import field_validator

from trainmaster.protocol.base import Strict, example, format_time
from trainmaster.protocol.durations import Duration, parse_duration
from trainmaster.protocol.errors import Code, Mistake, ProblemError, TrainmasterError
from trainmaster.protocol.ids import workflow_id
from trainmaster_dispatcher.containment import Part, note
from trainmaster_dispatcher.domain.job_events import JobEventKind
from trainmaster_dispatcher.domain.notices import (
    Destination,
    NoticeChannel,
    chat_body,
    destination_of,
    is_allowed_domain,
    mail_of,
    notice_of,
)
from trainmaster_dispatcher.domain.redaction import of_queue, rendered_json
from trainmaster_dispatcher.domain.webhooks import (
    AddressPolicy,
    Persistence,
    RefusedAddressError,
    Target,
    secret_of,
    sign,
)
from trainmaster_dispatcher.services.notices import mail_off
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
_OFF_SECONDS = 60.0
"""Between looks at a message of a kind that is not sent at present."""
_MAIL_SERVER = "e-mail"
_MAILS_AT_ONCE = 4
_GATHER_SECONDS = 0.01
"""Posts that end within this time of each other are recorded in one transaction."""


# Submitting


def check_hooks(settings: Settings, specs: Iterable[tuple[str, bytes]]) -> None:
    """Check that messages can be sent and that their addresses are allowed; each specification comes with its path.

    Raises ProblemError WEBHOOKS_OFF or MAIL_OFF, or INVALID_SPEC with a mistake for each address.
    """
    check_addresses(
        settings,
        ((f"{prefix}.notify" if prefix else "notify", orjson.loads(spec)["notify"]) for prefix, spec in specs),
    )


def check_addresses(settings: Settings, hooks: Iterable[tuple[str, Sequence[Mapping[str, Any]]]]) -> None:
    """Check that messages can be sent, and their addresses; each list of entries, in wire form, comes with its path. Raises as
    ``check_hooks``.
    """
    mistakes = []
    for path, entries in hooks:
        for index, entry in enumerate(entries):
            mistakes += _mistakes_in(settings, f"{path}[{index}]", entry)
    if mistakes:
        first = f"{mistakes[0].path}: {mistakes[0].message}"
        raise ProblemError(Code.INVALID_SPEC, first, mistakes=tuple(mistakes[:50]))


def _mistakes_in(settings: Settings, path: str, entry: Mapping[str, Any]) -> list[Mistake]:
    """Return the mistakes in an entry of ``notify``. Raises ProblemError WEBHOOKS_OFF or MAIL_OFF."""
    if "email" in entry:
        if not settings.sends_mail:
            raise mail_off()
        domains = settings.allowed_mail_domains
        allowed = f"allowed are {', '.join(domains)}" if domains else "an admin allows none: TRAINMASTER_MAIL_DOMAINS"
        return [
            Mistake(path=f"{path}.email[{number}]", message=f"e-mail may not go to the domain of {address}; {allowed}")
            for number, address in enumerate(entry["email"])
            if not is_allowed_domain(address, domains)
        ]
    if not settings.webhook_secrets:
        raise _webhooks_off()
    is_chat = "chat" in entry
    try:
        settings.webhook_policy.read(entry["chat"]["url"] if is_chat else entry["url"])
    except RefusedAddressError as error:
        return [Mistake(path=f"{path}.chat.url" if is_chat else f"{path}.url", message=str(error))]
    return []


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
    """A receiver did not accept a message; the error says why. ``is_final``: it will not accept it later either."""

    def __init__(self, text: str, *, is_final: bool = False) -> None:
        super().__init__(text)
        self.is_final = is_final


class Post(Protocol):
    """The way to receivers. Raises DeliveryError unless the message was accepted."""

    async def __call__(self, target: Target, headers: Mapping[str, str], body: bytes) -> None: ...


class MailPost(Protocol):
    """The way to the mail server. Raises DeliveryError unless it has accepted the message for the recipient."""

    async def __call__(self, mail: EmailMessage, recipient: str) -> None: ...


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
    mail_sender: str = ""
    mail_domains: tuple[str, ...] = ()
    """Domains to which specifications may send e-mail."""
    public_url: str = ""
    """Address of the api for links in messages to people; empty: they have none."""

    @classmethod
    def of(cls, settings: Settings) -> "DeliveryTerms":
        return cls(
            settings.webhook_policy,
            settings.webhook_secrets,
            settings.webhook_persistence,
            settings.webhook_concurrency,
            4 * settings.webhook_post_seconds,
            settings.mail_from,
            settings.allowed_mail_domains,
            settings.public_url,
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


class _Outgoing(NamedTuple):
    """A claimed message and where it goes. ``target``: None of e-mail, which goes to the address ``recipient``."""

    message: Message
    channel: NoticeChannel
    target: Target | None = None
    recipient: str = ""


@dataclass(slots=True)
class _Receiver:
    """One host, and the posts to it that are under way. ``most``: at the same time."""

    most: int
    flying: int = 0
    waiting: "deque[_Outgoing]" = field(default_factory=deque)
    seconds: float = _USUAL_SECONDS
    """Duration of a post to it, as a moving mean."""
    turn: float = 0.0
    """When the last postponed message is expected to have its turn."""

    def next_turn(self, now: float) -> float:
        """Return the seconds after which a postponed message may be tried again: when those before it are through."""
        each = self.seconds / self.most
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
        send_mail: MailPost | None = None,
    ) -> None:
        """``send_mail``: None where no e-mail is sent; such messages wait then."""
        self._database = database
        self._terms = terms
        self._post = post
        self._goes_on = goes_on
        self._clock = clock
        self._send_mail = send_mail
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
            while receiver.waiting and receiver.flying < receiver.most:
                self._launch(receiver, receiver.waiting.popleft())
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
                log.warning("a message was given up: %s", failure.error, extra=extra)
        return claimed

    def _admit(self, message: Message) -> None:
        if message.url is None:
            self._failures.append(DeliveryFailure(message, "the specification is gone", 0.0, is_final=True))
            return
        destination = destination_of(message.url)
        if destination.channel is NoticeChannel.EMAIL:
            outgoing = self._as_mail(message, destination.address)
        else:
            outgoing = self._as_post(message, destination)
        if outgoing is None:
            return
        host = _MAIL_SERVER if outgoing.target is None else outgoing.target.host_header
        most = min(_MAILS_AT_ONCE, self._terms.at_once_each) if host == _MAIL_SERVER else self._terms.at_once_each
        receiver = self._receivers.setdefault(host, _Receiver(most))
        if len(receiver.waiting) < receiver.most:
            receiver.waiting.append(outgoing)
        else:
            self._put_off[message.id] = receiver.next_turn(asyncio.get_running_loop().time())

    def _as_mail(self, message: Message, address: str) -> _Outgoing | None:
        if self._send_mail is None:
            self._put_off[message.id] = _OFF_SECONDS
            return None
        if message.api_key_id is None and not is_allowed_domain(address, self._terms.mail_domains):
            error = f"an admin does not allow e-mail to the domain of {address}"
            self._failures.append(DeliveryFailure(message, error, 0.0, is_final=True))
            return None
        return _Outgoing(message, NoticeChannel.EMAIL, recipient=address)

    def _as_post(self, message: Message, destination: Destination) -> _Outgoing | None:
        if not self._terms.secrets:
            self._put_off[message.id] = _OFF_SECONDS
            return None
        try:
            return _Outgoing(message, destination.channel, self._terms.policy.read(destination.address))
        except RefusedAddressError as error:
            self._fail(message, str(error))
            return None

    def _give_back(self) -> None:
        """Release claimed messages whose post has not begun, so that any relay can claim them."""
        for receiver in self._receivers.values():
            self._put_off |= {one.message.id: 0.0 for one in receiver.waiting}
            receiver.waiting.clear()

    def _launch(self, receiver: _Receiver, outgoing: _Outgoing) -> None:
        receiver.flying += 1
        self._flying.add(asyncio.create_task(self._deliver(receiver, outgoing)))

    async def _deliver(self, receiver: _Receiver, outgoing: _Outgoing) -> None:
        message, loop = outgoing.message, asyncio.get_running_loop()
        began = loop.time()
        try:
            await self._send(outgoing)
            self._delivered.append(message.id)
        except DeliveryError as error:
            if error.__cause__ is not None:
                # The address that a name resolves to is for admins alone.
                log.info("a message was not delivered: %s", error.__cause__, extra={"delivery": message.id})
            self._fail(message, str(error), is_final=error.is_final)
        except Exception as error:  # noqa: BLE001 - noted
            # Counted as an attempt like any other failure: otherwise the message would be retried without end.
            note(Part.WEBHOOK, str(message.id), error)
            self._fail(message, f"{type(error).__name__}: {error}")
        finally:
            receiver.flying -= 1
            receiver.seconds += 0.2 * (loop.time() - began - receiver.seconds)

    async def _send(self, outgoing: _Outgoing) -> None:
        """Send a message. Raises DeliveryError."""
        message, target = outgoing.message, outgoing.target
        if outgoing.channel is NoticeChannel.WEBHOOK and target is not None:
            headers, body = self._signed(message)
            await self._post(target, headers, body)
            return
        notice = notice_of(self._rendered(message), self._terms.public_url)
        if target is not None:
            headers = {"Content-Type": "application/json"}
            await self._post(target, headers, orjson.dumps(chat_body(outgoing.channel, notice)))
        elif self._send_mail is not None:
            event = message.event if message.api_key_id is None else f"{message.event} of preferences"
            at = datetime.fromtimestamp(self._clock(), UTC)
            mail = mail_of(notice, self._terms.mail_sender, outgoing.recipient, event, at)
            await self._send_mail(mail, outgoing.recipient)

    def _rendered(self, message: Message) -> dict[str, Any]:
        """Return the body of a message as the owner of the queue sees it; of a digest, each job's as the owner of its queue."""
        body: dict[str, Any] = dict(message.body)
        if "digest" in body:
            return body | {"jobs": [_rendered_body(one) for one in body["jobs"]]}
        return _rendered_body(body)

    def _signed(self, message: Message) -> tuple[dict[str, str], bytes]:
        """Return the headers and the body of a message. The receiver sees what the owner of the job's queue sees."""
        queue = str(dict(message.body)["queue"])
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

    def _fail(self, message: Message, error: str, *, is_final: bool = False) -> None:
        pause = self._terms.persistence.pause(message.attempts + 1, random.random())
        self._failures.append(DeliveryFailure(message, error, pause, is_final=is_final))


def _rendered_body(body: Mapping[str, Any]) -> dict[str, Any]:
    rendered: dict[str, Any] = orjson.loads(rendered_json(orjson.dumps(body), of_queue(str(body["queue"]))))
    return rendered


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
    queue_ids = None if caller.has_every_queue else await tenants.queue_ids_below(tx, caller.queues)
    return [_letter(row) for row in await outbox.dead(tx, queue_ids, caller.key_id, before, limit)]


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
    is_own = row is not None and row.api_key_id in (None, caller.key_id)
    if row is None or not (
        caller.has_every_queue or (is_own and (row.api_key_id is not None or caller.may_use(row.queue)))
    ):
        raise ProblemError(Code.NOT_FOUND, f"there is no dead letter {letter}")
    return row


def _letter(row: outbox.StoredDeadLetter) -> dict[str, Any]:
    name, states = row.body.get("name", ""), row.body.get("states", ())
    about: dict[str, Any]
    if "digest" in row.body:
        about = {"digest": row.body["digest"]}
    elif "group" in row.body:
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
        # Of e-mail, each recipient has a number of its own.
        "hook": row.hook % outbox.MOST_HOOKS if row.job_id is not None else row.hook,
        "url": row.url,
        "attempts": row.attempts,
        "error": row.error,
        "createdAt": format_time(row.created_at),
        "deadAt": format_time(row.dead_at),
    }
