"""Access of browsers to ports of members: links that count once, cookies, and the rights behind both.

    link ──▶ ticket, used once ──▶ cookie ──▶ request ──▶ rights of its user, now ──▶ port of the member

Tickets and cookies are random, stored by their hashes, and bound to a job, a port and the key of a user. They are no keys: whoever
has one reaches that port alone, for as long as the user might.
"""

from secrets import token_urlsafe
from typing import NamedTuple

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.member_streams import MemberStreamKind
from trainmaster.protocol.sessions import NamedHost, SessionSpec
from trainmaster_dispatcher.services import job_actions
from trainmaster_dispatcher.services.member_streams import WantedMember, check_stream
from trainmaster_dispatcher.services.tenants import hash_key
from trainmaster_dispatcher.store import jobs
from trainmaster_dispatcher.store import sessions as store
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import Caller
from trainmaster_dispatcher.store.sessions import SessionLink

TICKET_SECONDS = 60.0
COOKIE_SECONDS = 12 * 3600.0
_MOST_PORT = 65_535


class OpenedPort(NamedTuple):
    """A port that a user may reach. ``number``: that of the port; ``path``: its first page."""

    job_key: int
    number: int
    path: str = "/"


async def resolve_port(tx: Transaction, caller: Caller, host: NamedHost) -> OpenedPort:
    """Return the port that a caller may reach now. Raises ProblemError as the forwarding of a port does, and NOT_FOUND for a name
    that the session does not have.
    """
    ref, _, _ = await check_stream(tx, caller, WantedMember(host.job), MemberStreamKind.PORT_FORWARD)
    if host.port.isdecimal():
        number = int(host.port[:6])
        if not 1 <= number <= _MOST_PORT:
            raise ProblemError(Code.NOT_FOUND, f"{host.port} is no port; it is a number from 1 to {_MOST_PORT}")
        return OpenedPort(ref.job_key, number)
    job = await job_actions.find_job(tx, caller, host.job)
    terms = (await jobs.specs(tx, [job.spec_id]))[job.spec_id].get("session") or {}
    names = {one.name: one for one in SessionSpec.model_validate(terms).ports}
    if host.port not in names:
        known = f"it has {', '.join(sorted(names))}" if names else "it has no named ones; give its number"
        raise ProblemError(Code.NOT_FOUND, f"{host.job} has no port {host.port!r}; {known}")
    return OpenedPort(ref.job_key, names[host.port].port, names[host.port].path or "/")


async def make_ticket(tx: Transaction, caller: Caller, host: NamedHost) -> str:
    """Return a ticket for a port that the caller may reach. Raises ProblemError as ``resolve_port`` does."""
    port = await resolve_port(tx, caller, host)
    return await _stored(tx, SessionLink(port.job_key, host.port, caller.key_id), TICKET_SECONDS, is_cookie=False)


async def take_ticket(tx: Transaction, ticket: str) -> SessionLink | None:
    """Return what a ticket opens, which counts no longer then; None where it does not count."""
    return await store.take_ticket(tx, hash_key(ticket))


async def make_cookie(tx: Transaction, link: SessionLink) -> str:
    """Return the secret of a new cookie for what a ticket has opened."""
    return await _stored(tx, link, COOKIE_SECONDS, is_cookie=True)


async def read_cookie(tx: Transaction, secret: str) -> SessionLink | None:
    """Return what a cookie opens; None where it does not count."""
    return await store.cookie(tx, hash_key(secret))


async def counts(tx: Transaction, cookie_hash: bytes) -> bool:
    """Return whether a cookie has not expired."""
    return await store.cookie(tx, cookie_hash) is not None


def opens(link: SessionLink, host: NamedHost) -> bool:
    """Return whether a ticket or cookie is for this host."""
    try:
        return (link.job_id, link.port) == (job_actions.read_job_id(host.job)[1], host.port)
    except ProblemError:
        return False


async def _stored(tx: Transaction, link: SessionLink, seconds: float, *, is_cookie: bool) -> str:
    secret = token_urlsafe(32)
    await store.add_link(tx, hash_key(secret), link, is_cookie=is_cookie, seconds=seconds)
    return secret
