"""Preferences of users about notices, and the gathering of their events into messages of the outbox."""

from collections.abc import Callable
from typing import Any, Final

from trainmaster.protocol.durations import parse_duration
from trainmaster.protocol.errors import Code, Mistake, ProblemError
from trainmaster.protocol.notices import NoticesSpec
from trainmaster_dispatcher.domain.digests import DigestWindow, Gathering, digest_body, next_step
from trainmaster_dispatcher.domain.notices import chat_destination, email_destination
from trainmaster_dispatcher.domain.webhooks import RefusedAddressError
from trainmaster_dispatcher.services.settings import Settings
from trainmaster_dispatcher.store import notices as store
from trainmaster_dispatcher.store.database import Database, Transaction
from trainmaster_dispatcher.store.keys import Caller

_MOST_GATHERED: Final = 20_000
"""The most events of one digest; further ones are in the next."""


async def show(tx: Transaction, settings: Settings, caller: Caller) -> dict[str, Any]:
    """Return what the caller is notified of, and the caller's address."""
    found = await store.find(tx, caller.key_id)
    return {"address": found.email, "sendsEmail": settings.sends_mail, "notices": found.spec}


async def put(tx: Transaction, settings: Settings, caller: Caller, spec: NoticesSpec) -> dict[str, Any]:
    """Store what the caller is notified of.

    Raises ProblemError MAIL_OFF, WEBHOOKS_OFF, or INVALID_SPEC for an address that is not allowed, or for e-mail where the caller has
    no address.
    """
    found = await store.find(tx, caller.key_id)
    if spec.email:
        if not settings.sends_mail:
            raise mail_off()
        if found.email is None:
            message = (
                "there is no address of yours: an admin sets it for an API key (trainmaster keys email); that of a person who signs in"
                " is the claim email of the token, verified by the issuer"
            )
            raise ProblemError(
                Code.INVALID_SPEC, f"email: {message}", mistakes=(Mistake(path="email", message=message),)
            )
    if spec.chat is not None:
        if not settings.webhook_secrets:
            raise chats_off()
        try:
            settings.webhook_policy.read(spec.chat.url)
        except RefusedAddressError as error:
            mistake = Mistake(path="chat.url", message=str(error))
            raise ProblemError(Code.INVALID_SPEC, f"chat.url: {error}", mistakes=(mistake,)) from error
    await store.put(tx, caller.key_id, spec.to_wire(), parse_duration(spec.min_duration))
    return {"address": found.email, "sendsEmail": settings.sends_mail, "notices": spec.to_wire()}


async def remove(tx: Transaction, caller: Caller) -> None:
    """Notify the caller of nothing any more."""
    await store.remove(tx, caller.key_id)


async def set_email(tx: Transaction, key_id: int, email: str | None) -> None:
    """Set the address of an API key's user. Raises ProblemError NOT_FOUND, also for a person, whose address is the issuer's."""
    if key_id >= 1 << 31 or not await store.set_email(tx, key_id, email):
        raise ProblemError(
            Code.NOT_FOUND, f"there is no API key {key_id}; the address of a person is the one in the issuer's tokens"
        )


def mail_off() -> ProblemError:
    """Return the error for e-mail where none is sent."""
    return ProblemError(
        Code.MAIL_OFF,
        "this installation sends no e-mail: an admin has to set TRAINMASTER_SMTP_URL and TRAINMASTER_MAIL_FROM",
    )


def chats_off() -> ProblemError:
    """Return the error for messages to chats where none are sent."""
    return ProblemError(
        Code.WEBHOOKS_OFF,
        "this installation sends nothing to webhooks and chats: an admin has to set TRAINMASTER_WEBHOOK_SECRET",
    )


async def gather(database: Database, goes_on: Callable[[], bool] = lambda: True) -> int:
    """Write messages about events of users to the outbox, one by one or as digests; return how many messages."""
    async with database.transaction() as tx:
        users = await store.waiting_users(tx)
    written = 0
    for user in users:
        if not goes_on():
            break
        async with database.transaction() as tx:
            written += await _gather_of(tx, user)
    if users:
        async with database.transaction() as tx:
            await store.drop_unwanted(tx)
    return written


async def _gather_of(tx: Transaction, user: int) -> int:
    found = await store.lock(tx, user)
    if found is None:
        return 0
    spec = NoticesSpec.model_validate(found.spec)
    window = None if found.window_ends_at is None else DigestWindow(found.window_ends_at, found.reported)
    step = next_step(window, found.waiting, found.held, found.now, most=spec.most, seconds=parse_duration(spec.window))
    if step.window != window:
        ends_at, reported = (None, 0) if step.window is None else step.window
        await store.set_window(tx, user, ends_at, reported)
    if step.gathering is Gathering.HOLD:
        return 0
    events = await store.take(tx, user, _MOST_GATHERED)
    if not found.counts or not events:
        return 0
    urls = [email_destination(found.email)] if spec.email and found.email is not None else []
    urls += [] if spec.chat is None else [chat_destination(spec.chat)]
    bodies = [one.body for one in events]
    if step.gathering is Gathering.DIGEST and len(bodies) > 1:
        bodies = [digest_body(f"{user}-{events[-1].id}", bodies)]
    await store.add_messages(tx, user, urls, bodies)
    return len(urls) * len(bodies)
