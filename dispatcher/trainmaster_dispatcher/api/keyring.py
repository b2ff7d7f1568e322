"""API keys, people who have signed in, and role bindings, as one process has cached them.

Whatever callers send, one read of the store serves all of them.
"""

import asyncio
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from math import inf

from trainmaster.protocol.errors import ProblemError
from trainmaster.protocol.role_bindings import RoleBindingSpec
from trainmaster_dispatcher.domain.role_bindings import Rights, rights_of
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.tenants import hash_key
from trainmaster_dispatcher.store import keys
from trainmaster_dispatcher.store import tenants as tenant_store
from trainmaster_dispatcher.store.database import StoreAwayError
from trainmaster_dispatcher.store.keys import Caller, StoredPerson

_LOOK_SECONDS = 1.0
_LEAST_SECONDS = 0.05
"""The least time between two reads, however many unknown keys are shown."""
_LONGEST_LOOK = 5.0
_STALL_SECONDS = 0.5
"""How late a time-out comes at least where this process stood still."""
_LONGEST_NOTE = 1.0
_KEPT_SECONDS = 60.0
"""The longest time between full reads, even without a known change: for keys that somebody changes in the store by hand."""
_NOTE_SECONDS = 60.0
"""The least time between two records of a key's use."""
_MOST_UNKNOWN = 10_000


class Keyring:
    """All valid keys, people and role bindings, read again once any was made, revoked or removed.

    One check a second for changes serves all keys, so that hundreds of agents, each of which calls every few seconds, do not each
    cost a query, and a revoked key is refused almost at once. A key that is not cached may have been made since the last check, so
    its call waits for the next check; keys unknown after that are cached apart, and cannot displace a valid key.
    """

    def __init__(
        self, stores: Stores, clock: Callable[[], float] = time.monotonic, trusted: Collection[str] | None = None
    ) -> None:
        self._stores = stores
        self._trusted = trusted
        """Addresses of the issuers whose people count; None: all."""
        self._clock = clock
        self._callers: dict[bytes, tuple[float, Caller]] = {}
        """By the key's hash: until when the key is valid, by the clock, and its caller."""
        self._callers_by_id: dict[int, Caller] = {}
        self._until: dict[int, float] = {}
        """Until when a key is valid, by the key's number."""
        self.bindings: tuple[RoleBindingSpec, ...] = ()
        self._people: dict[tuple[str, str], StoredPerson] = {}
        """By issuer and subject; also those who were revoked."""
        self._people_by_id: dict[int, StoredPerson] = {}
        self._rights: dict[tuple[str, tuple[str, ...]], Rights | None] = {}
        """The rights of people with open streams, by name and groups."""
        self._bound: dict[int, bool] = {}
        """Whether a role is bound to a person, by the person's number, for those of whom that was needed."""
        self.generation = 0
        """Rises with each full read."""
        self._unknown: dict[bytes, None] = {}
        """Unknown keys, oldest first."""
        self._used: set[int] = set()
        """Keys with a use that is not recorded."""
        self._noted: dict[int, float] = {}
        """When the use of a key was last recorded, by the key's number and the clock."""
        self._revision = ""
        self._looked_at = self._loaded_at = self._failed_at = -inf
        self._looking = asyncio.Lock()

    async def caller(self, secret: str, *, may_be_new: bool = True) -> Caller | None:
        """Return the caller of a key. ``may_be_new`` False: without a read for a key that was made a moment ago."""
        now = self._clock()
        await self._look(now - _LOOK_SECONDS)
        key_hash = hash_key(secret)
        found = self._callers.get(key_hash)
        if found is None and may_be_new and key_hash not in self._unknown:
            await self._look(now)
            found = self._callers.get(key_hash)
            if found is None:
                self._remember_unknown(key_hash)
        if found is None or found[0] <= self._clock():
            return None
        self._used.add(found[1].key_id)
        return found[1]

    def known(self, secret: str) -> tuple[bool, Caller | None]:
        """Return whether the caller of a key is known without reading the store, and the caller.

        An unknown key gives True and None; ``caller`` reads the store for a key that was made a moment ago.
        """
        now = self._clock()
        if self._looked_at <= now - _LOOK_SECONDS:
            return False, None
        found = self._callers.get(hash_key(secret))
        return True, None if found is None or found[0] <= now else found[1]

    def counts(self, key_id: int) -> bool:
        """Return whether a key was neither revoked nor expired at the last check; or a person neither revoked nor without a role."""
        person = self._people_by_id.get(key_id)
        if person is None:
            return self._until.get(key_id, -inf) > self._clock()
        if key_id not in self._bound:
            self._bound[key_id] = rights_of(self.bindings, person.name, person.groups) is not None
        return self._bound[key_id] and not person.revoked

    def seconds_left(self, key_id: int) -> float:
        """Return the seconds until an API key expires, as of the last read; infinite where it does not."""
        return self._until.get(key_id, -inf) - self._clock()

    async def caller_by_id(self, key_id: int) -> Caller | None:
        """Return the caller of a key, or a person with the role that is bound now; None where neither counts any more."""
        await self.refresh()
        return self._caller_by_id(key_id)

    def known_by_id(self, key_id: int) -> Caller | None:
        """Return what ``caller_by_id`` does without a read of the store; None where that would need one."""
        return self._caller_by_id(key_id) if self.is_fresh else None

    def _caller_by_id(self, key_id: int) -> Caller | None:
        if not self.counts(key_id):
            return None
        person = self._people_by_id.get(key_id)
        if person is None:
            return self._callers_by_id.get(key_id)
        rights = rights_of(self.bindings, person.name, person.groups)
        if rights is None:
            return None
        groups = tuple(person.groups)
        return Caller(
            person.id,
            person.name,
            rights.role,
            rights.queues,
            clusters=rights.clusters,
            issuer=person.issuer,
            groups=groups,
            grants=rights.grants,
        )

    def has_same_rights(self, caller: Caller) -> bool:
        """Return whether a caller counts, and has the rights of before, as of the last check."""
        if not self.counts(caller.key_id):
            return False
        if caller.issuer is None:
            return True
        key = caller.name, caller.groups
        if key not in self._rights:
            self._rights[key] = rights_of(self.bindings, *key)
        rights = self._rights[key]
        return rights is not None and (rights.grants, rights.clusters) == (caller.grants, caller.clusters)

    def person(self, issuer: str, subject: str) -> StoredPerson | None:
        """Return the person of an account as of the last read."""
        return self._people.get((issuer, subject))

    def person_by_id(self, person_id: int) -> StoredPerson | None:
        """Return a person as of the last read, also one who was revoked."""
        return self._people_by_id.get(person_id)

    def note_use(self, key_id: int) -> None:
        """Note that a person has made a call, to be recorded with the uses of keys."""
        self._used.add(key_id)

    @property
    def is_fresh(self) -> bool:
        """Return whether the store was checked for changes within the last second."""
        return self._looked_at > self._clock() - _LOOK_SECONDS

    async def look_again(self) -> None:
        """Check the store for changes that were made until now."""
        await self._look(self._clock())

    async def reread(self) -> None:
        """Read everything, also what no revision tells of, such as the groups of a person."""
        self._revision = ""
        await self._look(self._clock())

    async def refresh(self) -> None:
        """Check the store for changes if nobody has for a second."""
        await self._look(self._clock() - _LOOK_SECONDS)

    def _remember_unknown(self, key_hash: bytes) -> None:
        while len(self._unknown) >= _MOST_UNKNOWN:
            del self._unknown[next(iter(self._unknown))]
        self._unknown[key_hash] = None

    async def _look(self, moment: float) -> None:
        """Wait until a check of the store has succeeded that began after ``moment`` of the clock."""
        if self._looked_at > moment:
            return
        async with self._looking:
            if self._looked_at > moment:
                return  # another request has looked meanwhile
            began = self._clock()
            if began - self._failed_at < _LOOK_SECONDS:
                raise StoreAwayError("Postgres does not answer; try again in a moment")
            pause = self._looked_at + _LEAST_SECONDS - began
            if pause > 0:
                await asyncio.sleep(pause)
                began = self._clock()
            try:
                await self._read_in_time(began)
            except TimeoutError as error:
                self._failed_at = self._clock()
                raise StoreAwayError("Postgres does not answer; try again in a moment") from error
            except ProblemError:
                self._failed_at = self._clock()
                raise
            self._looked_at = began
            await self._note_uses(began)

    async def _read_in_time(self, began: float) -> None:
        """Read with a time-out, as all callers wait for this read. Raises TimeoutError.

        A time-out that comes late tells that this process stood still, not that the store did: the read gets its time again.
        """
        for is_last in (False, True):
            starts = self._clock()
            try:
                async with asyncio.timeout(_LONGEST_LOOK):
                    await self._read(began)
                return
            except TimeoutError:
                if is_last or self._clock() - starts < _LONGEST_LOOK + _STALL_SECONDS:
                    raise

    async def _note_uses(self, now: float) -> None:
        """Record the uses of keys, each at most once a minute. A store that cannot be written to refuses no call."""
        due = [key for key in self._used if now - self._noted.get(key, -inf) >= _NOTE_SECONDS]
        self._used.difference_update(due)
        self._noted.update(dict.fromkeys(due, now))
        if due:
            with suppress(ProblemError, TimeoutError):
                async with asyncio.timeout(_LONGEST_NOTE), self._stores.database.transaction() as tx:
                    await keys.note_uses(tx, due)

    async def _read(self, began: float) -> None:
        async with self._stores.database.transaction() as tx:
            # Read first: keys that change between the two statements are read again at the next look.
            revision = await keys.revision(tx)
            if revision == self._revision and began - self._loaded_at <= _KEPT_SECONDS:
                return
            found = await keys.all_that_count(tx)
            people = await keys.people(tx)
            bindings = await tenant_store.ROLE_BINDINGS.every(tx)
        people = [one for one in people if self._trusted is None or one.issuer in self._trusted]
        self._people = {(one.issuer, one.subject): one for one in people}
        self._people_by_id = {one.id: one for one in people}
        self.bindings, self._bound = tuple(one.spec for one in bindings), {}
        self.generation += 1
        self._callers = {
            key: (began + (inf if one.expires_in is None else one.expires_in), one.caller) for key, one in found.items()
        }
        self._callers_by_id = {caller.key_id: caller for _, caller in self._callers.values()}
        self._until = {caller.key_id: until for until, caller in self._callers.values()}
        self._unknown.clear()
        self._revision, self._loaded_at = revision, began
