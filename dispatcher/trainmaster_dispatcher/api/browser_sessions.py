"""Sessions of browsers of people who have signed in, with an account of an issuer or with an API key.

    cookie ──▶ row of the session, at most a second old ──▶ person, or key ──▶ rights of now

A cookie opens calls of people alone, and those that change something only with the session's token in a header: no page of another
host can send it. The issuer is asked again every few minutes where it has given a refresh token, so that rights end with the account.
"""

import asyncio
import logging
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from starlette.requests import HTTPConnection

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster_dispatcher.api.keyring import Keyring
from trainmaster_dispatcher.domain.browser_sign_in import (
    CSRF_HEADER,
    LONGEST_HINT,
    SESSION_COOKIE,
    cookie_of,
    end_session_address,
    has_csrf_token,
    is_of_this_machine,
    origin_of,
    set_cookie,
)
from trainmaster_dispatcher.domain.id_claims import Issuer, is_protected
from trainmaster_dispatcher.services import people
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.tenants import hash_key
from trainmaster_dispatcher.store import browser_sessions as store
from trainmaster_dispatcher.store.browser_sessions import BrowserSession
from trainmaster_dispatcher.store.keys import Caller

if TYPE_CHECKING:
    from cryptography.fernet import Fernet  # loaded for refresh tokens alone

    from trainmaster_dispatcher.api.sign_ins import SignIns

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
LIFE_SECONDS = 12 * 3600.0
IDLE_SECONDS = 3600.0
_CACHED_SECONDS = 1.0
_NOTE_SECONDS = 60.0
"""The least time between two records of a session's use."""
_RENEW_SECONDS = 600.0
"""The time after which the issuer is asked again."""
_GRACE_SECONDS = 900.0
"""The time beyond it for which a session goes on while the issuer does not answer."""
_CLAIM_SECONDS = 30.0
"""The time for which one api asks the issuer, and no other one does."""
_MOST_CACHED = 10_000
_OWN_SITE = ("", "same-origin")
"""``Sec-Fetch-Site`` of a call of an own page; programs, and old browsers, send none."""
_SAFE = ("GET", "HEAD", "OPTIONS")
_REFRESH_TOKEN, _ID_TOKEN = b"trainmaster refresh token", b"trainmaster id token"
"""Kinds of tokens, each sealed with a key of its own."""
_BAD_REQUEST = 400
_OK = 200
_SHOWN = 200


@dataclass(slots=True)
class _ReadSession:
    """A session as it was read. ``at``: when, by the clock."""

    session: BrowserSession
    at: float


@dataclass(frozen=True, slots=True)
class EndedSession:
    """A session that has ended: whose it was, if it counted, and the issuer with the last ID token, if an account has begun it."""

    caller: Caller | None = None
    issuer: Issuer | None = None
    id_token: str = field(default="", repr=False)


class BrowserSessions:
    """The sessions that one process has seen. ``now``: the time, in seconds since the epoch."""

    def __init__(
        self,
        stores: Stores,
        keyring: Keyring,
        sign_ins: "SignIns | None",
        issuers: Sequence[Issuer],
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stores = stores
        self._keyring = keyring
        self._sign_ins = sign_ins
        self.issuers = tuple(one for one in issuers if not one.service_accounts)
        self.origin = stores.settings.public_url
        """Of the dispatcher's pages; empty where it is that of each call."""
        self.now = now
        self._clock = clock
        self._seen: dict[bytes, _ReadSession] = {}
        """By the hash of the cookie's secret, oldest first."""

    # -- cookies

    @property
    def offers_issuers(self) -> bool:
        """Return whether people sign in with accounts of issuers: those send browsers back to an address that they know."""
        return bool(self.issuers and self.origin)

    def is_secure(self, scope: Scope) -> bool:
        """Return whether browsers reach the dispatcher over TLS."""
        return (self.origin or origin_of(scope["scheme"], "")).startswith("https:")

    def secret_of(self, scope: Scope) -> str:
        """Return the secret of the session's cookie; empty where there is none."""
        return cookie_of(scope["headers"], SESSION_COOKIE, is_secure=self.is_secure(scope))

    def cookie(self, scope: Scope, secret: str) -> str:
        """Return the value of ``Set-Cookie`` for a session; an empty ``secret`` removes the cookie."""
        return set_cookie(SESSION_COOKIE, secret, LIFE_SECONDS if secret else 0.0, is_secure=self.is_secure(scope))

    def check_origin(self, request: HTTPConnection, secret: str) -> None:
        """Refuse a call that a page of another host may have made with the cookie. Raises ProblemError CSRF.

        Browsers send the cookie with calls of other pages, too: those at ports of jobs are often hosts of the same site. A page of
        another host can neither read the token nor send the header. A WebSocket has no headers of pages: its Origin counts.
        """
        is_web_socket = request.scope["type"] == "websocket"
        if not is_web_socket and request.scope["method"] in _SAFE:
            return
        self._check_page(request, needs_origin=is_web_socket)
        if not is_web_socket and not has_csrf_token(secret, request.headers.get(CSRF_HEADER, "")):
            raise ProblemError(
                Code.CSRF,
                "calls of a browser that change something need the header X-Trainmaster-CSRF with csrfToken of GET /v1/whoami",
            )

    def check_sign_in(self, request: HTTPConnection) -> None:
        """Refuse a sign-in with a key that a page of another host has begun, which would let people act in the account of another.

        Raises ProblemError CSRF.
        """
        self._check_page(request, needs_origin=False)
        if request.headers.get("sec-fetch-site", "") not in _OWN_SITE:
            raise ProblemError(
                Code.CSRF, "a page of another site has made this call, and only a page of the dispatcher may"
            )

    def _check_page(self, request: HTTPConnection, *, needs_origin: bool) -> None:
        """Refuse a call of a page of another origin. Raises ProblemError CSRF.

        Where no address of browsers is set, it is that of the call, which a page chooses whose name its owner lets point to this
        machine: an api that only this machine reaches takes names of this machine alone.
        """
        origin, host = request.headers.get("origin", "").lower(), request.headers.get("host", "")
        own = self.origin or origin_of(request.scope["scheme"], host)
        if (origin or needs_origin) and origin != own:
            raise ProblemError(
                Code.CSRF, f"a page of {origin or 'another program'} has made this call, and only one of {own} may"
            )
        if not self.origin and _is_local(request.scope) and not is_of_this_machine(host):
            raise ProblemError(
                Code.CSRF,
                f"the api listens at an address of this machine alone, and {host[:_SHOWN]!r} is no name of it; where a proxy"
                " passes this on, set TRAINMASTER_PUBLIC_URL to the address that browsers use",
            )

    # -- sessions

    async def begin_by_key(self, caller: Caller, old_secret: str) -> str:
        """Return the secret of a new session for an API key, which never outlives the key, as ``begin`` does for a person."""
        left = self._keyring.seconds_left(caller.key_id)
        return await self.begin(caller, secrets.token_urlsafe(32), "", old_secret, life=min(LIFE_SECONDS, left))

    async def begin(
        self,
        person: Caller,
        state: str,
        refresh_token: str,
        old_secret: str,
        *,
        id_token: str = "",
        life: float = LIFE_SECONDS,
    ) -> str:
        """Return the secret of a new session, and end the one before of the same browser. Raises ProblemError SIGN_IN_FAILED where
        the sign-in has begun a session before.
        """
        secret, now = secrets.token_urlsafe(32), self.now()
        sealed = _seal(secret, _REFRESH_TOKEN, refresh_token) if refresh_token else None
        hint = _seal(secret, _ID_TOKEN, id_token) if id_token else None
        session = BrowserSession(person.key_id, now, now + life, now + _RENEW_SECONDS, None, sealed, hint)
        async with self._stores.database.transaction() as tx:
            if old_secret:
                await store.end(tx, hash_key(old_secret))
            if not await store.begin(tx, hash_key(secret), hash_key(state), session, idle=IDLE_SECONDS):
                raise ProblemError(Code.SIGN_IN_FAILED, "this answer of the issuer was used before")
        self._seen.pop(hash_key(old_secret), None)
        return secret

    async def end(self, secret: str) -> EndedSession:
        """End a session, and return what is known of it."""
        key, caller = hash_key(secret), None
        with suppress(ProblemError):
            caller = await self.caller(secret)
        async with self._stores.database.transaction() as tx:
            removed = await store.end(tx, key)
        self._seen.pop(key, None)
        if removed is None:
            return EndedSession(caller)
        token = "" if removed.id_token is None else _opened(secret, _ID_TOKEN, bytes(removed.id_token)) or ""
        return EndedSession(caller, self._issuer_of(removed.person_id), token)

    async def end_session_address(self, ended: EndedSession) -> str | None:
        """Return the address at which a browser ends the session at the issuer, too; None where the issuer has none, or is away."""
        issuer = ended.issuer
        if issuer is None or self._sign_ins is None or not self.offers_issuers:
            return None
        try:
            endpoint = (await self._sign_ins.keys_of(issuer).discovery()).get("end_session_endpoint")
        except ProblemError as error:
            log.warning("a session of a browser ends here alone: %s", error)
            return None
        if not isinstance(endpoint, str) or not is_protected(endpoint):
            return None
        token = ended.id_token
        is_hint = 0 < len(token) <= LONGEST_HINT and await self._sign_ins.may_be_hint(token, issuer)
        return end_session_address(endpoint, issuer.browser_client, self.origin, token if is_hint else "")

    def _issuer_of(self, person_id: int) -> Issuer | None:
        """Return the issuer with an account of which a session has begun; None for an API key, and for one that is unknown by now."""
        person = self._keyring.person_by_id(person_id)
        return next((one for one in self.issuers if person is not None and one.url == person.issuer), None)

    async def caller(self, secret: str) -> Caller:
        """Return the caller of a session, with the rights that role bindings give now.

        Raises ProblemError UNAUTHENTICATED, FORBIDDEN where no role is bound to the person, and ISSUER_AWAY where it has not answered
        for too long.
        """
        key = hash_key(secret)
        session = await self._read(key)
        if session.refresh_token is not None and self.now() >= session.renew_at:
            await self._renew(key, secret, session)
        try:
            caller = await self._caller_of(session)
        except ProblemError as error:
            if error.code is Code.UNAUTHENTICATED and self._keyring.person_by_id(session.person_id) is None:
                async with self._stores.database.transaction() as tx:
                    await store.end(tx, key)  # no key counts again
            raise
        self._keyring.note_use(caller.key_id)
        return caller

    def known(self, secret: str) -> Caller | None:
        """Return the caller of a session that was read within the last second; None where that needs a read of the store."""
        seen = self._seen.get(hash_key(secret))
        if seen is None or self._clock() - seen.at >= _CACHED_SECONDS:
            return None
        return self._keyring.known_by_id(seen.session.person_id)

    async def _read(self, key: bytes) -> BrowserSession:
        """Return a session that counts, and note its use. Raises ProblemError UNAUTHENTICATED."""
        seen = self._seen.get(key)
        now = self.now()
        if seen is None or self._clock() - seen.at >= _CACHED_SECONDS:
            began = self._clock()
            async with self._stores.database.transaction() as tx:
                found = await store.find(tx, key)
                if found is None or now >= found.ends_at or now - found.used_at >= IDLE_SECONDS:
                    await store.end(tx, key)
                    found = None
                elif now - found.used_at >= _NOTE_SECONDS:
                    await store.note_use(tx, key, now)
            self._seen.pop(key, None)
            if found is None:
                raise _ended("the session of this browser has ended")
            while len(self._seen) >= _MOST_CACHED:
                del self._seen[next(iter(self._seen))]
            seen = self._seen[key] = _ReadSession(found, began)
        return seen.session

    async def _caller_of(self, session: BrowserSession) -> Caller:
        caller = await self._keyring.caller_by_id(session.person_id)
        if caller is None:
            # Another api may have stored the person, or somebody bound a role, since the last check of the store.
            await self._keyring.look_again()
            caller = await self._keyring.caller_by_id(session.person_id)
        person = self._keyring.person_by_id(session.person_id)
        if person is None and caller is None:
            raise _ended("the API key with which this browser has signed in was revoked or has expired")
        if person is not None and person.revoked:
            raise _ended("the account with which this browser has signed in was locked out")
        if person is not None and caller is None:
            raise people.unbound(person.name, person.groups)
        assert caller is not None  # noqa: S101 - as nothing was raised
        return replace(caller, expires_at=datetime.fromtimestamp(session.ends_at, UTC))

    # -- what the issuer says later

    async def _renew(self, key: bytes, secret: str, session: BrowserSession) -> None:
        """Ask the issuer for a new token of the account, unless another call does. Raises ProblemError as ``caller`` does."""
        now = self.now()
        async with self._stores.database.transaction() as tx:
            is_ours = await store.claim_renewal(tx, key, now, now + _CLAIM_SECONDS)
        self._seen.pop(key, None)
        if is_ours:
            try:
                await asyncio.shield(self._ask_again(key, secret, session))
                return
            except ProblemError as error:
                if error.code is not Code.ISSUER_AWAY:
                    async with self._stores.database.transaction() as tx:
                        await store.end(tx, key)
                    raise _ended(f"the issuer has ended the sign-in: {error.detail}") from error
                log.warning("a session of a browser could not be renewed: %s", error)
        if now >= session.renew_at + _GRACE_SECONDS:
            raise ProblemError(
                Code.ISSUER_AWAY,
                "the issuer of your account has not answered for too long to go on without it; try again in a moment",
                retry_after=_CLAIM_SECONDS,
            )

    async def _ask_again(self, key: bytes, secret: str, session: BrowserSession) -> None:
        """Raise ProblemError ISSUER_AWAY, and any other one where the account does not count any more."""
        person = self._keyring.person_by_id(session.person_id)
        issuer = self._issuer_of(session.person_id)
        token = None if session.refresh_token is None else _opened(secret, _REFRESH_TOKEN, session.refresh_token)
        if person is None or issuer is None or token is None or self._sign_ins is None:
            raise _ended("its issuer is not known any more")
        form = {"grant_type": "refresh_token", "refresh_token": token}
        status, answer = await self._sign_ins.keys_of(issuer).ask_for_tokens(form)
        if status != _OK:
            if status == _BAD_REQUEST and answer.get("error") == "invalid_grant":
                raise _ended(str(answer.get("error_description") or "invalid_grant")[:200])
            raise ProblemError(Code.ISSUER_AWAY, f"{issuer.url} answers {status} {answer.get('error', '')!s:.100}")
        id_token = None
        if answer.get("id_token"):
            account = await self._sign_ins.read(str(answer["id_token"]), issuer)
            if account.subject != person.subject:
                raise _ended("it has given a token of another account")
            with suppress(ProblemError):
                await self._sign_ins.caller_of(
                    account
                )  # stores the groups of now; whether a role is bound is looked at next
            id_token = _seal(secret, _ID_TOKEN, str(answer["id_token"]))
        sealed = _seal(secret, _REFRESH_TOKEN, str(answer.get("refresh_token") or token))
        async with self._stores.database.transaction() as tx:
            await store.renew(tx, key, self.now() + _RENEW_SECONDS, sealed, id_token)


def _is_local(scope: Scope) -> bool:
    """Return whether a call has come to an address that this machine alone reaches."""
    server = scope.get("server")
    return server is not None and is_of_this_machine(str(server[0]))


def _ended(why: str) -> ProblemError:
    return ProblemError(Code.UNAUTHENTICATED, f"{why}; sign in again")


def _fernet(secret: str, kind: bytes) -> "Fernet":
    """Return the cipher for a session's tokens of a kind: who has the store alone cannot read them."""
    from cryptography.fernet import Fernet
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    derived = HKDF(SHA256(), 32, None, kind).derive(secret.encode())
    return Fernet(urlsafe_b64encode(derived))


def _seal(secret: str, kind: bytes, token: str) -> bytes:
    return _fernet(secret, kind).encrypt(token.encode())


def _opened(secret: str, kind: bytes, sealed: bytes) -> str | None:
    from cryptography.fernet import InvalidToken

    try:
        return _fernet(secret, kind).decrypt(sealed).decode()
    except InvalidToken:
        return None
