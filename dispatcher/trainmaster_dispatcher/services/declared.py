"""Operations on declared objects of any kind: read for the audit, put, delete. What is special to a kind is in its hooks."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from pydantic import BaseModel

from trainmaster.protocol.base import Strict
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.meaningless import meaningless
from trainmaster.protocol.resource_kinds import ResourceKind
from trainmaster.protocol.suggestions import suggestion
from trainmaster.protocol.validation_errors import worded
from trainmaster_dispatcher.domain.declared_fields import FieldPath, Wire, leaves
from trainmaster_dispatcher.services import revisions
from trainmaster_dispatcher.services.auditing import Object
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.services.leader_queries import Leader
from trainmaster_dispatcher.services.references import Checks
from trainmaster_dispatcher.services.revisions import SYSTEM, Author
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.declared import DeclaredTable, Spec, Stored
from trainmaster_dispatcher.store.keys import Caller

Shown = Callable[[Stores, Leader, Caller], Awaitable[Sequence[dict[str, Any]]]]


async def _no_columns(_tx: Transaction, specs: Sequence[Strict]) -> Checks:
    return [{} for _ in specs]


async def _nothing_after_put(_tx: Transaction, _keys: Sequence[int]) -> None:
    """Do nothing."""


async def _nothing_at_delete(_tx: Transaction, _name: str) -> None:
    """Do nothing."""


async def _removal_by_row(_tx: Transaction, _name: str) -> bool | None:
    """Leave the removal to the kind's table."""
    return None


def _refused_as_meaningless(spec: Strict) -> ProblemError | None:
    mistakes = meaningless(spec)
    return ProblemError(Code.INVALID_SPEC, worded(mistakes[0]), mistakes=mistakes) if mistakes else None


def _nothing_beside(_row: object) -> Object:
    return {}


@dataclass(frozen=True, slots=True)
class DeclaredKind(Generic[Spec, Stored]):
    """One kind of declared objects, as the dispatcher handles it.

    ``tag``: of its routes. ``view``: the model of one object as it is shown; ``list_view``: of the answer with all objects, None
    where the list has a route of its own. ``shown`` returns the objects that a caller may see, as they are shown; without it
    everybody sees each object as it was declared.

    The hooks are called in the transaction of the change. ``before_put`` checks what specifications name, in a number of statements
    that does not depend on how many they are, and returns for each the columns stored beside it, or why it is refused; ``after_put``
    gets the keys of the objects. ``before_delete`` refuses to remove an object in use, ``before_prune`` what
    is removed only by name. ``remove`` removes an object that has more than a row, and returns whether it existed. ``beside``: what
    the audit and the ETag have of an object beside its specification. ``changes_others``: a change of one object may change others
    of the kind. ``put_refuses``, ``delete_refuses``: the codes that the hooks of a change raise, beside those of any change.
    """

    table: DeclaredTable[Spec, Stored]
    tag: str
    view: type[BaseModel]
    list_view: type[BaseModel] | None = None
    shown: Shown | None = None
    before_put: Callable[[Transaction, Sequence[Spec]], Awaitable[Checks]] = _no_columns
    after_put: Callable[[Transaction, Sequence[int]], Awaitable[None]] = _nothing_after_put
    before_delete: Callable[[Transaction, str], Awaitable[None]] = _nothing_at_delete
    before_prune: Callable[[Transaction, str], Awaitable[None]] = _nothing_at_delete
    remove: Callable[[Transaction, str], Awaitable[bool | None]] = _removal_by_row
    after_delete: Callable[[Transaction, str], Awaitable[None]] = _nothing_at_delete
    beside: Callable[[Stored], Object] = _nothing_beside
    changes_others: bool = False
    put_refuses: tuple[Code, ...] = ()
    delete_refuses: tuple[Code, ...] = ()

    @property
    def kind(self) -> ResourceKind[Spec]:
        return self.table.kind

    async def every(self, stores: Stores, leader: Leader, caller: Caller) -> Sequence[dict[str, Any]]:
        """Return the objects that the caller may see, as they are shown."""
        if self.shown is not None:
            return await self.shown(stores, leader, caller)
        async with stores.database.transaction() as tx:
            return await self.declared(tx)

    async def declared(self, tx: Transaction) -> list[dict[str, Any]]:
        """Return all objects as they were declared."""
        return [one.as_declared() for one in await self.table.every(tx)]

    async def find(self, tx: Transaction, name: str) -> Object | None:
        """Return an object as the audit and the ETag have it; None where it does not exist or cannot be read."""
        found = (await self.table.by_name(tx, [name])).get(name)
        return None if found is None else {**found.as_declared(), **self.beside(found.row)}

    async def put(self, tx: Transaction, spec: Spec, author: Author = SYSTEM) -> None:
        """Create or change an object; its author owns all fields that the specification states. Raises ProblemError where a hook
        refuses it.
        """
        stated = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
        await self._change(tx, spec, author, self.fields_of(stated))

    async def patch(self, tx: Transaction, spec: Spec, author: Author, patch: Wire) -> None:
        """Change an object to ``spec``; its author owns, beside its own fields, those that ``patch`` sets. Raises ProblemError."""
        stated = [path for path, value in self.fields_of(patch).items() if value is not None]
        await self._change(tx, spec, author, stated, keeps=True)

    async def _change(
        self, tx: Transaction, spec: Spec, author: Author, stated: Iterable[FieldPath], *, keeps: bool = False
    ) -> None:
        name = self.kind.name_of(spec)
        author.check_spec(self.kind.kind, name, spec)
        before = (await self.table.wire(tx, [name])).get(name)
        for refusal in await self.write(tx, [spec]):
            if refusal is not None:
                raise refusal
        target = self.kind.kind, name
        await revisions.record_one(tx, author, target, before, spec.to_wire(), list(stated), keeps=keeps)

    async def write(self, tx: Transaction, specs: Sequence[Spec]) -> list[ProblemError | None]:
        """Create or change objects of different names that do not refer to each other, without their record.

        Return for each why it can never mean anything, or why a hook refuses it; None for those that are written.
        """
        refusals = [_refused_as_meaningless(spec) for spec in specs]
        hooked = iter(
            await self.before_put(tx, [spec for spec, one in zip(specs, refusals, strict=True) if one is None])
        )
        checks = [next(hooked) if one is None else one for one in refusals]
        pairs = list(zip(specs, checks, strict=True))
        keys = await self.table.put(tx, [(spec, one) for spec, one in pairs if not isinstance(one, ProblemError)])
        if keys:
            await self.after_put(tx, keys)
        return [one if isinstance(one, ProblemError) else None for one in checks]

    async def delete(self, tx: Transaction, name: str, author: Author = SYSTEM) -> None:
        """Remove an object. Raises ProblemError NOT_FOUND, and IN_USE where a hook refuses it."""
        author.check_target(self.kind.kind, name)
        before = (await self.table.wire(tx, [name])).get(name)
        await self.erase(tx, name)
        await revisions.record_one(tx, author, (self.kind.kind, name), before, None)

    async def erase(self, tx: Transaction, name: str) -> None:
        """Remove an object without the record of it. Raises as ``delete`` does."""
        await self.before_delete(tx, name)
        was_there = await self.remove(tx, name)
        if was_there is None:
            was_there = await self.table.delete(tx, name)
        if not was_there:
            raise await self.missing(tx, name)
        await self.after_delete(tx, name)

    async def missing(self, tx: Transaction, name: str) -> ProblemError:
        """Return the error for an object that does not exist, with the most similar name: for callers who may know all names."""
        near = suggestion(name, await self.table.wire(tx))
        return ProblemError(Code.NOT_FOUND, f"there is no {self.kind.name} {name!r}{near}")

    def fields_of(self, value: Wire) -> dict[FieldPath, Any]:
        """Return the leaves of an object by path, without its kind and its name."""
        return leaves(value, without=("kind", self.kind.key))
