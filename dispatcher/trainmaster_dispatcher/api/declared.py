"""Routes of declared objects: list, show, put and delete, the same for each kind, with ETag and If-Match as in RFC 9110.

An object's ETag is of what was declared, not of counts or states that are shown beside it: it changes when somebody changes the
object. Changes of one object come one after the other, so that If-Match is never true of two of them.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Any, Generic, TypeVar

import orjson
from fastapi import APIRouter, Depends, Header, Request, Response
from pydantic import BaseModel

from trainmaster.protocol.base import Strict
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster_dispatcher.api.context import Admin, App, Person, State, answer, note, read_model
from trainmaster_dispatcher.api.openapi import contract
from trainmaster_dispatcher.services import auditing
from trainmaster_dispatcher.store import tenants
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.keys import Caller

Spec = TypeVar("Spec", bound=Strict)
_LONGEST_CONDITION = 1_000
_ANY = "*"


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a caller expects of an object before it changes it: ``if_match`` one of these ETags, ``if_none_match`` none of them."""

    if_match: frozenset[str] | None = None
    if_none_match: frozenset[str] | None = None

    def check(self, etag: str | None, target: str) -> None:
        """Raise ProblemError PRECONDITION_FAILED unless they hold for an object with this ETag, None where there is no object."""
        if self.if_match is not None and (etag is None or not self.if_match & {etag, _ANY}):
            now = "it does not exist" if etag is None else f"its ETag is {etag}"
            raise ProblemError(Code.PRECONDITION_FAILED, f"If-Match does not hold for {target}: {now}")
        if self.if_none_match is not None and etag is not None and self.if_none_match & {etag, _ANY}:
            raise ProblemError(
                Code.PRECONDITION_FAILED, f"If-None-Match does not hold for {target}: its ETag is {etag}"
            )


async def conditions(
    if_match: Annotated[
        str | None, Header(description="Change it only if its ETag is one of these; * if it exists.")
    ] = None,
    if_none_match: Annotated[
        str | None, Header(description="Change it only if its ETag is none of these; * if it does not exist yet.")
    ] = None,
) -> Conditions:
    """Return the conditions of a change. Raises ProblemError INVALID_PARAMETER."""
    return Conditions(_tags("If-Match", if_match), _tags("If-None-Match", if_none_match))


def _tags(header: str, text: str | None) -> frozenset[str] | None:
    if text is None:
        return None
    tags = frozenset(tag.strip() for tag in text[: _LONGEST_CONDITION + 1].split(","))
    is_tag = all(tag == _ANY or (len(tag) > 1 and tag[0] == tag[-1] == '"') or tag.startswith('W/"') for tag in tags)
    if len(text) > _LONGEST_CONDITION or not is_tag:
        raise ProblemError(Code.INVALID_PARAMETER, f'{header}: must be * or ETags such as "1f0c", with commas between')
    return tags


If = Annotated[Conditions, Depends(conditions)]


def etag_of(declared: auditing.Object | None) -> str | None:
    """Return the ETag of an object as it was declared; None for none."""
    if declared is None:
        return None
    digest = sha256(orjson.dumps(declared, option=orjson.OPT_SORT_KEYS)).hexdigest()
    return f'"{digest[:16]}"'


async def change(
    state: State,
    caller: Caller,
    action: str,
    target: str,
    work: Callable[[Transaction], Awaitable[None]],
    expected: Conditions | None = None,
) -> str | None:
    """Do a change of one object, with its line of the audit: the object before and after. Return the ETag after it.

    Raises ProblemError, PRECONDITION_FAILED where ``expected`` does not hold.
    """
    async with state.stores.database.transaction() as tx:
        await tenants.lock_declared(tx, f"{action.partition(' ')[2]} {target}")
        before = await auditing.object_of(tx, action, target)
        if expected is not None:
            expected.check(etag_of(before), f"{action.partition(' ')[2]} {target!r}")
        await work(tx)
        after = await auditing.object_of(tx, action, target)
        await note(tx, caller, action, target, auditing.change_of(before, after))
    state.stores.tenants_changed()
    return etag_of(after)


def same_name(given: str, address: str, what: str) -> None:
    """Raise ProblemError unless a body names the object of its address."""
    if given != address:
        raise ProblemError(Code.INVALID_SPEC, f"the body names {what} {given!r}, the address {address!r}")


def with_etag(response: Response, etag: str | None) -> Response:
    if etag is not None:
        response.headers["ETag"] = etag
    return response


@dataclass(frozen=True)
class DeclaredKind(Generic[Spec]):
    """One kind of declared objects, and everything in which its routes differ from those of others.

    ``every`` returns the objects that a caller may see, as they are shown. ``listed`` is the member of a list's answer that they are
    in; None for a kind whose list has a route of its own.
    """

    name: str
    address: str
    spec: type[Spec]
    view: type[BaseModel]
    every: Callable[[State, Caller], Awaitable[Sequence[dict[str, Any]]]]
    put: Callable[[Transaction, Spec], Awaitable[None]]
    delete: Callable[[Transaction, str], Awaitable[None]] | None
    shows: str
    puts: str
    deletes: str = ""
    listed: str | None = None
    lists: str = ""
    list_view: type[BaseModel] | None = None
    key: str = "name"

    @property
    def _function(self) -> str:
        return self.name.replace(" ", "_")

    def add_routes(self, router: APIRouter) -> None:
        """Add the routes of this kind."""
        place = "{path:path}" if self.key == "path" else "{name}"
        if self.listed is not None:
            self._add(router, "GET", "", f"list_{self._function}s", self.lists, self._list(), gives=self.list_view)
        where = f"/{place}"
        self._add(router, "GET", where, f"show_{self._function}", self.shows, self._show(), gives=self.view)
        self._add(
            router, "PUT", where, f"put_{self._function}", self.puts, self._put(), takes=self.spec, gives=self.spec
        )
        if self.delete is not None:
            self._add(router, "DELETE", where, f"delete_{self._function}", self.deletes, self._delete(), status=204)

    def _add(
        self,
        router: APIRouter,
        method: str,
        place: str,
        name: str,
        words: str,
        handler: Callable[..., Any],
        **declared: Any,
    ) -> None:
        arguments = contract(**declared)
        if method != "DELETE" and place:
            for status, told in arguments["responses"].items():
                if status == 200:
                    told["headers"] = {"ETag": {"description": "Of what was declared.", "schema": {"type": "string"}}}
        handler.__doc__ = words
        router.add_api_route(self.address + place, handler, methods=[method], name=name, description=words, **arguments)

    def _list(self) -> Callable[..., Awaitable[Response]]:
        async def handler(state: App, caller: Person) -> Response:
            return answer({self.listed: await self.every(state, caller)})

        return handler

    def _show(self) -> Callable[..., Awaitable[Response]]:
        async def show(target: str, state: State, caller: Caller) -> Response:
            found = next((one for one in await self.every(state, caller) if one[self.key] == target), None)
            if found is None:
                raise ProblemError(Code.NOT_FOUND, f"{self.name} {target!r} does not exist")
            async with state.stores.database.reading() as tx:
                etag = etag_of(await auditing.object_of(tx, f"show {self.name}", target))
            return with_etag(answer(found), etag)

        async def by_name(name: str, state: App, caller: Person) -> Response:
            return await show(name, state, caller)

        async def by_path(path: str, state: App, caller: Person) -> Response:
            return await show(path, state, caller)

        return by_path if self.key == "path" else by_name

    def _put(self) -> Callable[..., Awaitable[Response]]:
        async def put(target: str, request: Request, state: State, caller: Caller, expected: Conditions) -> Response:
            spec = read_model(self.spec, await request.body())
            same_name(getattr(spec, self.key), target, self.name)
            etag = await change(state, caller, f"put {self.name}", target, lambda tx: self.put(tx, spec), expected)
            return with_etag(answer(spec.model_dump(mode="json", by_alias=True, exclude_none=True)), etag)

        async def by_name(name: str, request: Request, state: App, caller: Admin, expected: If) -> Response:
            return await put(name, request, state, caller, expected)

        async def by_path(path: str, request: Request, state: App, caller: Admin, expected: If) -> Response:
            return await put(path, request, state, caller, expected)

        return by_path if self.key == "path" else by_name

    def _delete(self) -> Callable[..., Awaitable[Response]]:
        async def delete(target: str, state: State, caller: Caller, expected: Conditions) -> Response:
            if self.delete is None:
                raise AssertionError("a kind without it has no such route")
            remove = self.delete
            await change(state, caller, f"delete {self.name}", target, lambda tx: remove(tx, target), expected)
            return Response(status_code=204)

        async def by_name(name: str, state: App, caller: Admin, expected: If) -> Response:
            return await delete(name, state, caller, expected)

        async def by_path(path: str, state: App, caller: Admin, expected: If) -> Response:
            return await delete(path, state, caller, expected)

        return by_path if self.key == "path" else by_name
