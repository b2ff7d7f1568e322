"""Callers who show a token of an OpenID Connect issuer in place of an API key."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster_dispatcher.api.id_tokens import LEEWAY_SECONDS, may_be_hint, read_token
from trainmaster_dispatcher.api.issuer_keys import IssuerKeys
from trainmaster_dispatcher.api.keyring import Keyring
from trainmaster_dispatcher.domain.id_claims import Issuer, PersonAccount
from trainmaster_dispatcher.domain.role_bindings import rights_of
from trainmaster_dispatcher.services import people
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.tenants import hash_key
from trainmaster_dispatcher.store.keys import Caller, StoredPerson

_MOST_TOKENS = 20_000


@dataclass(slots=True)
class _Token:
    """A token that was verified, by keys of ``version``. ``caller``: whose it is by what the keyring has had in ``generation``."""

    account: PersonAccount
    version: int
    caller: Caller | None = None
    generation: int = -1
    unbound_in: int = -1
    """A generation of the keyring in which no role is bound to the person."""
    is_recorded: bool = False
    """Whether the row of the person has had the name, groups and e-mail address of this token; another token may have others since."""


class SignIns:
    """Verified tokens by their hash. The rights of a person, and whether the person was locked out, follow from the keyring, which
    reads them each second: a call with a token that was shown before costs no query.
    """

    def __init__(
        self, stores: Stores, keyring: Keyring, issuers: Sequence[Issuer], now: Callable[[], float] = time.time
    ) -> None:
        """Raise UnreadableCertificatesError."""
        self._stores = stores
        self._keyring = keyring
        self._now = now
        self._trusted = {issuer.url: IssuerKeys(issuer) for issuer in issuers}
        """The keys of each issuer by its address: each has its own reads, so that one that is silent delays no other's tokens."""
        self._tokens: dict[bytes, _Token] = {}
        """Oldest first."""

    def begin(self) -> None:
        """Begin to read the issuers' keys."""
        for keys in self._trusted.values():
            keys.begin()

    async def close(self) -> None:
        await asyncio.gather(*(keys.close() for keys in self._trusted.values()))

    async def caller(self, secret: str, *, may_read: bool = True) -> Caller:
        """Return the caller of a token. ``may_read`` False: without a read of keys of the issuer.

        Raises ProblemError UNAUTHENTICATED, FORBIDDEN where no role is bound to the person, and ISSUER_AWAY.
        """
        await self._keyring.refresh()
        digest = hash_key(secret)
        token = self._valid(digest)
        if token is None:
            account = await read_token(secret, self._trusted, may_read=may_read)
            token = _Token(account, self._trusted[account.issuer].version)
            self._remember(digest, token)
        caller = await self._caller_of(token)
        self._keyring.note_use(caller.key_id)
        return caller

    def keys_of(self, issuer: Issuer) -> IssuerKeys:
        """Return the keys of an issuer, and its addresses."""
        return self._trusted[issuer.url]

    async def read(self, token: str, issuer: Issuer, *, nonce: str | None = None) -> PersonAccount:
        """Return who a token is for that this issuer has made for browsers. Raises ProblemError UNAUTHENTICATED and ISSUER_AWAY."""
        trusted = {issuer.url: self.keys_of(issuer)}
        return await read_token(token, trusted, audience=issuer.browser_client, nonce=nonce)

    async def may_be_hint(self, token: str, issuer: Issuer) -> bool:
        """Return whether a token of a session with an account of this issuer may be in an address: as ``id_tokens.may_be_hint``."""
        return await may_be_hint(token, self.keys_of(issuer))

    async def caller_of(self, account: PersonAccount) -> Caller:
        """Return the caller with an account, and store the person. Raises ProblemError as ``caller`` does."""
        await self._keyring.refresh()
        return await self._caller_of(_Token(account, self._trusted[account.issuer].version))

    def known(self, secret: str) -> Caller | None:
        """Return the caller of a token that was shown before; None where that is not known without a read of the store."""
        token = self._valid(hash_key(secret))
        if token is None or token.generation != self._keyring.generation or not self._keyring.is_fresh:
            return None
        return token.caller

    def _valid(self, digest: bytes) -> _Token | None:
        token = self._tokens.get(digest)
        if token is None:
            return None
        has_ended = token.account.expires_at.timestamp() + LEEWAY_SECONDS <= self._now()
        if has_ended or token.version != self._trusted[token.account.issuer].version:
            del self._tokens[digest]
            return None
        return token

    def _remember(self, digest: bytes, token: _Token) -> None:
        while len(self._tokens) >= _MOST_TOKENS:
            del self._tokens[next(iter(self._tokens))]
        self._tokens[digest] = token

    async def _caller_of(self, token: _Token) -> Caller:
        """Return the caller of a verified token by the bindings and people of the keyring. Raises ProblemError."""
        if token.caller is not None and token.generation == self._keyring.generation:
            return token.caller
        # What changes from here on counts at the next call.
        account, generation = token.account, self._keyring.generation
        rights = rights_of(self._keyring.bindings, account.name, account.groups)
        if rights is None and token.unbound_in != generation:
            # A role may have been bound since the last check of the store.
            await self._keyring.look_again()
            generation = token.unbound_in = self._keyring.generation
            rights = rights_of(self._keyring.bindings, account.name, account.groups)
        if rights is None:
            raise people.unbound(account.name, account.groups)
        person = await self._person(token)
        token.caller = Caller(
            person.id,
            account.name,
            rights.role,
            rights.queues,
            clusters=rights.clusters,
            issuer=account.issuer,
            groups=account.groups,
            expires_at=account.expires_at,
            grants=rights.grants,
        )
        token.generation = generation
        return token.caller

    async def _person(self, token: _Token) -> StoredPerson:
        """Return the row of a token's account, made or changed where a new token says something else. Raises ProblemError."""
        account = token.account
        person = self._keyring.person(account.issuer, account.subject)
        shown = (account.name, account.groups, account.email)
        has_changed = person is not None and (person.name, tuple(person.groups), person.email) != shown
        if person is None or (has_changed and not person.revoked and not token.is_recorded):
            async with self._stores.database.transaction() as tx:
                await people.put_person(tx, account)
            await self._keyring.reread()
            person = self._keyring.person(account.issuer, account.subject)
        token.is_recorded = True
        if person is None or person.revoked:
            raise ProblemError(
                Code.UNAUTHENTICATED,
                f"an admin has locked out the account of {account.name!r}; its tokens do not count",
            )
        return person
