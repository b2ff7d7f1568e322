"""Routes of declared objects: list, show, put and delete, the same for each kind, with ETag and If-Match as in RFC 9110.

An object's ETag covers the declaration, not the counts or states that are shown beside it: the ETag changes when somebody changes
the object. Changes of one object are serialised, so that If-Match never holds for two of them. An answer's ETag is read before its
body: after a change in between, it is older than the body, so that If-Match refuses a change and never overwrites an unseen one.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Any, Generic
from urllib.parse import quote

import orjson
from fastapi import APIRouter, Depends, Header, Request, Response

from trainmaster.protocol.declarations import MergePatch
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.permissions import KIND_READ, KIND_WRITE
from trainmaster.protocol.resource_kinds import CLUSTER, ResourceKind
from trainmaster.protocol.suggestions import suggestion
from trainmaster_dispatcher.api.context import App, State, answer, needs, note, read_large_model
from trainmaster_dispatcher.api.openapi import contract
from trainmaster_dispatcher.api.parameters import ETags
from trainmaster_dispatcher.api.problem_answers import header
from trainmaster_dispatcher.services import auditing
from trainmaster_dispatcher.services.declared import DeclaredKind
from trainmaster_dispatcher.services.declared_kinds import KINDS, object_of
from trainmaster_dispatcher.services.declared_patch import patch_object
from trainmaster_dispatcher.services.revisions import Author
from trainmaster_dispatcher.store import declared as store
from trainmaster_dispatcher.store.database import Transaction
from trainmaster_dispatcher.store.declared import Spec, Stored
from trainmaster_dispatcher.store.keys import Caller

_LONGEST_CONDITION = 1_000
_ANY = "*"
_WEAK = "W/"
_PATCHES = "Change some fields of a {kind} by a JSON merge patch (RFC 7396); the caller owns them then."
_ETAG = header("ETag of what is declared, not of counts and states beside it.")


@dataclass(frozen=True, slots=True)
class Conditions:
    """The preconditions of a request: the object's ETag is one of ``if_match``, and none of ``if_none_match``.

    RFC 9110 compares the first strongly: a weak ETag matches nothing, as no object has one. It compares the second weakly.
    """

    if_match: frozenset[str] | None = None
    if_none_match: frozenset[str] | None = None

    def names(self, etag: str) -> bool:
        """Return whether ``if_none_match`` has the ETag of an object that exists."""
        named = self.if_none_match or frozenset()
        return _ANY in named or etag in {one.removeprefix(_WEAK) for one in named}

    def check(self, etag: str | None, target: str) -> None:
        """Raise ProblemError PRECONDITION_FAILED unless the conditions hold for an object with this ETag; None where the object
        does not exist.
        """
        if self.if_match is not None and (etag is None or not self.if_match & {etag, _ANY}):
            now = "it does not exist" if etag is None else f"its ETag is {etag}"
            raise ProblemError(Code.PRECONDITION_FAILED, f"If-Match does not hold for {target}: {now}")
        if etag is not None and self.names(etag):
            raise ProblemError(
                Code.PRECONDITION_FAILED, f"If-None-Match does not hold for {target}: its ETag is {etag}"
            )


async def conditions(
    if_match: Annotated[
        ETags | None, Header(description="Change it only if its ETag is one of these; * if it exists.")
    ] = None,
    if_none_match: Annotated[
        ETags | None, Header(description="Change it only if its ETag is none of these; * if it does not exist yet.")
    ] = None,
) -> Conditions:
    """Return the conditions of a change. Raises ProblemError INVALID_PARAMETER."""
    return Conditions(_tags("If-Match", if_match), _tags("If-None-Match", if_none_match))


async def reading_conditions(
    if_match: Annotated[
        ETags | None, Header(description="Show it only if its ETag is one of these; else the answer is 412.")
    ] = None,
    if_none_match: Annotated[
        ETags | None,
        Header(description="Show it only if its ETag is none of these; else the answer is 304, without a body."),
    ] = None,
) -> Conditions:
    """Return the conditions of a call that shows an object. Raises ProblemError INVALID_PARAMETER."""
    return await conditions(if_match, if_none_match)


def _tags(header: str, text: str | None) -> frozenset[str] | None:
    if text is None:
        return None
    tags = frozenset(tag.strip() for tag in text[: _LONGEST_CONDITION + 1].split(","))
    is_tag = all(tag == _ANY or (len(tag) > 1 and tag[0] == tag[-1] == '"') or tag.startswith('W/"') for tag in tags)
    if len(text) > _LONGEST_CONDITION or not is_tag:
        raise ProblemError(Code.INVALID_PARAMETER, f'{header}: must be * or ETags such as "1f0c", with commas between')
    return tags


If = Annotated[Conditions, Depends(conditions)]
ReadIf = Annotated[Conditions, Depends(reading_conditions)]


def etag_of(declared: auditing.Object | None) -> str | None:
    """Return the ETag of an object as it was declared; None for none."""
    if declared is None:
        return None
    digest = sha256(orjson.dumps(declared, option=orjson.OPT_SORT_KEYS)).hexdigest()
    return f'"{digest[:16]}"'


@dataclass(frozen=True, slots=True)
class Changed:
    """A change that was done: the object's ETag after it, and whether the object did not exist before."""

    etag: str | None
    is_new: bool


async def change(
    state: State,
    caller: Caller,
    action: str,
    target: str,
    work: Callable[[Transaction], Awaitable[None]],
    expected: Conditions | None = None,
) -> Changed:
    """Do a change of one object, with its line of the audit: the object before and after.

    Raises ProblemError, PRECONDITION_FAILED where ``expected`` does not hold.
    """
    async with state.stores.database.transaction() as tx:
        await store.lock(tx, f"{action.partition(' ')[2]} {target}")
        before = await object_of(tx, action, target)
        if expected is not None:
            expected.check(etag_of(before), f"{action.partition(' ')[2]} {target!r}")
        await work(tx)
        after = await object_of(tx, action, target)
        await note(tx, caller, action, target, auditing.change_of(before, after))
    state.stores.tenants_changed()
    return Changed(etag_of(after), before is None)


def same_name(given: str, address: str, what: str) -> None:
    """Raise ProblemError unless a body names the object of its address."""
    if given != address:
        raise ProblemError(Code.INVALID_SPEC, f"the body names {what} {given!r}, the address {address!r}")


def with_etag(response: Response, etag: str | None) -> Response:
    if etag is not None:
        response.headers["ETag"] = etag
    return response


def add_routes(router: APIRouter, tag: str) -> None:
    """Add the routes of all kinds with this tag."""
    for kind in KINDS:
        if kind.tag == tag:
            KindRoutes(kind).add_to(router)


@dataclass(frozen=True, slots=True)
class KindRoutes(Generic[Spec, Stored]):
    """The routes of one kind."""

    of: DeclaredKind[Spec, Stored]

    @property
    def kind(self) -> ResourceKind[Spec]:
        return self.of.kind

    def add_to(self, router: APIRouter) -> None:
        """Add the routes that the kind has: some kinds have a list or a removal with more parameters elsewhere."""
        kind, spec = self.kind, self.kind.spec
        function = kind.name.replace(" ", "_")
        one = f"/{{{kind.key}:path}}" if kind.key == "path" else f"/{{{kind.key}}}"
        plural = f"{function}es" if function.endswith("s") else f"{function}s"
        if kind.lists:
            self._add(router, "GET", "", f"list_{plural}", kind.lists, self._list(), gives=self.of.list_view)
        self._add(router, "GET", one, f"show_{function}", kind.shows, self._show(), gives=self.of.view)
        codes = self.of.put_refuses
        more = {"takes": spec, "gives": spec, "or_gives": {201: spec}, "refuses": codes}
        self._add(router, "PUT", one, f"put_{function}", kind.puts, self._put(), **more)
        more = {"takes": MergePatch, "gives": spec, "refuses": (*self.of.put_refuses, Code.CONFLICT)}
        self._add(router, "PATCH", one, f"patch_{function}", _PATCHES.format(kind=kind.name), self._patch(), **more)
        if kind.deletes:
            codes = self.of.delete_refuses
            self._add(
                router, "DELETE", one, f"delete_{function}", kind.deletes, self._delete(), status=204, refuses=codes
            )

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
        if method != "DELETE" and place:  # GET, PUT and PATCH of one object
            for answered in arguments["responses"].values():
                answered["headers"] = answered.get("headers", {}) | {"ETag": _ETAG}
        if method == "GET" and place:
            arguments["responses"][304] = {
                "description": "Not Modified: If-None-Match names the ETag of what is declared",
                "headers": {"ETag": _ETAG},
            }
        handler.__doc__ = words
        address = self.kind.address.removeprefix(router.prefix) + place
        router.add_api_route(address, handler, methods=[method], name=name, description=words, **arguments)

    def _list(self) -> Callable[..., Awaitable[Response]]:
        readers = needs(KIND_READ[self.kind.kind])

        async def handler(state: App, caller: Annotated[Caller, Depends(readers)]) -> Response:
            return answer({self.kind.member: await self.of.every(state.stores, state.leader, caller)})

        return handler

    def _show(self) -> Callable[..., Awaitable[Response]]:
        readers = needs(KIND_READ[self.kind.kind], of_cluster=self.kind is CLUSTER)

        async def show(target: str, state: State, caller: Caller, expected: Conditions) -> Response:
            async with state.stores.database.reading() as tx:
                etag = etag_of(await self.of.find(tx, target))
            every = await self.of.every(state.stores, state.leader, caller)
            found = next((one for one in every if self.kind.name_in(one) == target), None)
            if found is None:
                near = suggestion(target, map(self.kind.name_in, every))
                raise ProblemError(Code.NOT_FOUND, f"there is no {self.kind.name} {target!r}{near}")
            Conditions(expected.if_match).check(etag, f"{self.kind.name} {target!r}")
            if etag is not None and expected.names(etag):
                return with_etag(Response(status_code=304), etag)
            return with_etag(answer(found), etag)

        async def by_name(
            name: str, state: App, caller: Annotated[Caller, Depends(readers)], expected: ReadIf
        ) -> Response:
            return await show(name, state, caller, expected)

        async def by_path(
            path: str, state: App, caller: Annotated[Caller, Depends(readers)], expected: ReadIf
        ) -> Response:
            return await show(path, state, caller, expected)

        return by_path if self.kind.key == "path" else by_name

    def _put(self) -> Callable[..., Awaitable[Response]]:
        writers = needs(KIND_WRITE[self.kind.kind])

        async def put(target: str, request: Request, state: State, caller: Caller, expected: Conditions) -> Response:
            spec = await read_large_model(self.kind.spec, await request.body())
            same_name(self.kind.name_of(spec), target, self.kind.name)
            action = f"put {self.kind.name}"
            author = Author(caller.name, caller.name, "put", caller)
            done = await change(state, caller, action, target, lambda tx: self.of.put(tx, spec, author), expected)
            put = answer(spec.model_dump(mode="json", by_alias=True, exclude_none=True), 201 if done.is_new else 200)
            if done.is_new:
                put.headers["Location"] = f"{self.kind.address}/{quote(target)}"
            return with_etag(put, done.etag)

        async def by_name(
            name: str, request: Request, state: App, caller: Annotated[Caller, Depends(writers)], expected: If
        ) -> Response:
            return await put(name, request, state, caller, expected)

        async def by_path(
            path: str, request: Request, state: App, caller: Annotated[Caller, Depends(writers)], expected: If
        ) -> Response:
            return await put(path, request, state, caller, expected)

        return by_path if self.kind.key == "path" else by_name

    def _patch(self) -> Callable[..., Awaitable[Response]]:
        writers = needs(KIND_WRITE[self.kind.kind])

        async def patch(target: str, request: Request, state: State, caller: Caller, expected: Conditions) -> Response:
            given = (await read_large_model(MergePatch, await request.body())).root
            specs: list[Spec] = []

            async def work(tx: Transaction) -> None:
                specs.append(
                    await patch_object(tx, self.of, target, given, Author(caller.name, caller.name, "patch", caller))
                )

            done = await change(state, caller, f"patch {self.kind.name}", target, work, expected)
            shown = specs[-1].model_dump(mode="json", by_alias=True, exclude_none=True)
            return with_etag(answer(shown), done.etag)

        async def by_name(
            name: str, request: Request, state: App, caller: Annotated[Caller, Depends(writers)], expected: If
        ) -> Response:
            return await patch(name, request, state, caller, expected)

        async def by_path(
            path: str, request: Request, state: App, caller: Annotated[Caller, Depends(writers)], expected: If
        ) -> Response:
            return await patch(path, request, state, caller, expected)

        return by_path if self.kind.key == "path" else by_name

    def _delete(self) -> Callable[..., Awaitable[Response]]:
        writers = needs(KIND_WRITE[self.kind.kind])

        async def delete(target: str, state: State, caller: Caller, expected: Conditions) -> Response:
            action = f"delete {self.kind.name}"
            author = Author(caller.name, caller.name, "delete", caller)
            await change(state, caller, action, target, lambda tx: self.of.delete(tx, target, author), expected)
            return Response(status_code=204)

        async def by_name(name: str, state: App, caller: Annotated[Caller, Depends(writers)], expected: If) -> Response:
            return await delete(name, state, caller, expected)

        async def by_path(path: str, state: App, caller: Annotated[Caller, Depends(writers)], expected: If) -> Response:
            return await delete(path, state, caller, expected)

        return by_path if self.kind.key == "path" else by_name
