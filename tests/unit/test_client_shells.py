"""Client and AsyncClient: the same verbs, the same behaviour; closing; where address and key come from."""

import asyncio
import inspect
import json
import re
import runpy
import subprocess
import sys
import threading
import typing
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest

import trainmaster
from tests.unit.scripted import JOB, URL, Broken, Script, job, problem
from trainmaster.client.aio import AgentClient
from trainmaster.client.async_http import AsyncClient
from trainmaster.client.config import write_context
from trainmaster.client.errors import ClosedError, ConfigurationError
from trainmaster.client.function_jobs import AsyncFunctionJob, FunctionJob
from trainmaster.client.http import Client
from trainmaster.client.streams import Ended
from trainmaster.protocol.errors import Code, ProblemError
from trainmaster.protocol.tenants import EventView

# The same verbs


def verbs(client: type) -> dict[str, Any]:
    return {
        name: member
        for base in client.__mro__
        for name, member in vars(base).items()
        if not name.startswith("_") and name not in ("close", "aclose")
    }


def awaited(hint: Any) -> Any:
    """Return the result type of an asynchronous verb in the form of the blocking one."""
    if typing.get_origin(hint) is AsyncGenerator:
        return Iterator[typing.get_args(hint)[0]]  # type: ignore[misc]
    if typing.get_origin(hint) is AsyncFunctionJob:
        return FunctionJob[typing.get_args(hint)[0]]  # type: ignore[misc]
    return hint


def test_the_calls_of_both_clients_are_written_from_the_same_steps() -> None:
    script = runpy.run_path(str(Path(__file__).parents[2] / "scripts/clients"))
    for style in (script["BLOCKING"], script["AWAITED"]):
        written = (script["CLIENT"] / style.file).read_text()
        assert written == script["render"](script["SOURCE"].read_text(), style), "run scripts/clients"


def test_both_clients_have_the_same_verbs_in_the_same_order() -> None:
    assert list(verbs(Client)) == list(verbs(AsyncClient))
    assert {"close", "__enter__", "__exit__"} <= vars(Client).keys()
    assert {"aclose", "__aenter__", "__aexit__"} <= vars(AsyncClient).keys()


@pytest.mark.parametrize("name", [name for name in verbs(Client) if name != "url"])
def test_both_clients_take_and_give_the_same_with(name: str) -> None:
    blocking, waiting = verbs(Client)[name], verbs(AsyncClient)[name]
    first, second = inspect.signature(blocking, eval_str=True), inspect.signature(waiting, eval_str=True)
    assert list(first.parameters.values()) == list(second.parameters.values())
    assert first.return_annotation == awaited(second.return_annotation)
    iterates = typing.get_origin(second.return_annotation) is AsyncGenerator
    assert inspect.iscoroutinefunction(waiting) is not iterates
    assert blocking.__doc__


def test_both_clients_are_made_the_same_way() -> None:
    first, second = (inspect.signature(client).parameters for client in (Client, AsyncClient))
    assert list(first) == list(second)
    own = {"transport", "sleep"}
    assert [first[name] for name in first if name not in own] == [second[name] for name in second if name not in own]


# The same behaviour


def event(seq: int) -> bytes:
    value = {"seq": seq, "at": "2026-01-01T00:00:00Z", "kind": "submitted", "states": ["queued"]}
    return b"id: %d\ndata: %s\n\n" % (seq, json.dumps(value).encode())


END = b"event: end\ndata: succeeded\n\n"
Blocking = Callable[[Client], Any]
Waiting = Callable[[AsyncClient], Awaitable[Any]]


async def gathered(items: AsyncGenerator[Any, None]) -> list[Any]:
    return [item async for item in items]


@pytest.mark.parametrize(
    ("answers", "blocking", "waiting"),
    [
        pytest.param(
            [
                httpx.ConnectError("refused"),
                httpx.ReadTimeout("slow"),
                problem(Code.TOO_BUSY, retry_after="1"),
                httpx.Response(201, json={"jobs": [{"id": JOB}]}),
            ],
            lambda client: client.submit({"name": "bert"}),
            lambda client: client.submit({"name": "bert"}),
            id="submit over failures",
        ),
        pytest.param(
            [
                httpx.Response(200, json=job("running", 1)),
                httpx.Response(200, stream=Broken(event(2))),
                httpx.ConnectError("refused"),
                httpx.Response(200, content=event(2) + event(3) + END),
                httpx.Response(200, json=job("succeeded", 3)),
            ],
            lambda client: client.wait(JOB),
            lambda client: client.wait(JOB),
            id="wait over lost connections",
        ),
        pytest.param(
            [
                httpx.Response(200, stream=Broken(event(1), event(2)[:-5])),
                problem(Code.STORE_AWAY),
                httpx.Response(200, content=event(1) + event(2) + END),
            ],
            lambda client: [item for item in client.watch(JOB) if isinstance(item, EventView | Ended)],
            lambda client: only_events(client),
            id="watch over lost connections",
        ),
        pytest.param(
            [
                httpx.Response(200, json={"jobs": [job("queued")], "next": "c"}),
                httpx.Response(200, json={"jobs": [job("running")], "next": None}),
            ],
            lambda client: list(client.jobs()),
            lambda client: gathered(client.jobs()),
            id="pages",
        ),
        pytest.param(
            [httpx.Response(200, content=b'{"role": "main", "index": 0, "data": "x", "next": 1}\n')],
            lambda client: list(client.logs(JOB)),
            lambda client: gathered(client.logs(JOB)),
            id="logs",
        ),
    ],
)
async def test_both_clients_send_and_understand_the_same(
    answers: list[httpx.Response | Exception], blocking: Blocking, waiting: Waiting
) -> None:
    first, second = Script(*answers), Script(*map(again, answers))
    with first.client() as client:
        value = blocking(client)
    async with second.async_client() as async_client:
        assert await waiting(async_client) == value
    assert [sent(request) for request in first.requests] == [sent(request) for request in second.requests]
    assert not first.answers + second.answers
    for script in (first, second):
        assert len({request.headers.get("idempotency-key") for request in script.requests}) == 1


async def only_events(client: AsyncClient) -> list[Any]:
    return [item async for item in client.watch(JOB) if isinstance(item, EventView | Ended)]


def again(answer: httpx.Response | Exception) -> httpx.Response | Exception:
    """Return the same answer, not yet read."""
    if isinstance(answer, Exception):
        return answer
    stream = answer.stream
    return httpx.Response(answer.status_code, headers=answer.headers, stream=stream)


def sent(request: httpx.Request) -> tuple[Any, ...]:
    return request.method, str(request.url), request.content, request.headers.get("last-event-id")


async def test_a_task_that_is_cancelled_leaves_its_pause() -> None:
    pausing = asyncio.Event()

    async def sleep(_: float) -> None:
        pausing.set()
        await asyncio.Event().wait()

    script = Script(then=httpx.ConnectError("refused"))
    async with AsyncClient(URL, "tmk_x", transport=httpx.MockTransport(script), sleep=sleep) as client:
        waiting = asyncio.create_task(client.wait(JOB))
        await pausing.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert len(script.requests) == 1


class Noticed(Broken):
    """A body that says when its connection was given back."""

    def __init__(self, *chunks: bytes) -> None:
        super().__init__(*chunks)
        self.ends: list[str] = []

    def close(self) -> None:
        self.ends.append("closed")

    async def aclose(self) -> None:
        self.ends.append("closed")


async def test_who_stops_iterating_gives_the_connection_back() -> None:
    first, second = Noticed(event(1), event(2)), Noticed(event(1), event(2))
    with Script(httpx.Response(200, stream=first)).client() as client:
        watch = client.watch(JOB)
        assert isinstance(next(watch), EventView)
        assert first.ends == []
        del watch
        assert first.ends == ["closed"]
    async with Script(httpx.Response(200, stream=second)).async_client() as async_client:
        async with aclosing(async_client.watch(JOB)) as events:
            assert isinstance(await anext(events), EventView)
        assert second.ends == ["closed"]


# Closing and threads


async def test_a_closed_client_says_so() -> None:
    script = Script(then=httpx.ConnectError("refused"))
    client, async_client = script.client(), script.async_client()
    client.close()
    client.close()
    await async_client.aclose()
    for call in (lambda: client.job(JOB), lambda: list(client.watch(JOB)), lambda: list(client.jobs())):
        with pytest.raises(ClosedError, match="closed"):
            call()
    with pytest.raises(ClosedError):
        await async_client.submit({"name": "bert"})
    assert script.requests == []


def test_a_client_that_is_closed_while_it_pauses_says_so() -> None:
    script = Script(then=httpx.ConnectError("refused"))
    client = Client(URL, "tmk_x", transport=httpx.MockTransport(script), sleep=lambda _: client.close())
    with pytest.raises(ClosedError):
        client.job(JOB)
    assert len(script.requests) == 1


def test_threads_share_a_client() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=job("queued") | {"id": request.url.path.rpartition("/")[2]})

    names = [f"bert-{number:07}" for number in range(40)]
    found: dict[str, str] = {}
    with Client(URL, "tmk_x", transport=httpx.MockTransport(answer)) as client:

        def look(name: str) -> None:
            found[name] = client.job(name).id

        threads = [threading.Thread(target=look, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {name: name for name in names}


# Where address and key come from


@pytest.fixture
def no_context(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("TRAINMASTER_URL", "TRAINMASTER_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "config.yaml"
    monkeypatch.setenv("TRAINMASTER_CONFIG", str(path))
    return path


@pytest.mark.parametrize("make", [Client, AsyncClient, AgentClient])
@pytest.mark.parametrize("key", ["tmk_secret\nsecret", "tmk_secret\u00fc", "tmk_secret secret"])
def test_what_cannot_be_a_key_is_refused_when_a_client_is_made_and_never_shown(make: Any, key: str) -> None:
    with pytest.raises(ConfigurationError, match=r"key=: this is no API key: its character 1[01] of") as raised:
        make("http://a.test", key)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("make", [Client, AsyncClient])
def test_an_empty_key_of_a_client_is_not_the_same_as_none(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMASTER_API_KEY", "tmk_env")
    with pytest.raises(ConfigurationError, match="key= is empty"):
        make("http://a.test", "")


def test_white_space_around_the_key_of_a_client_does_not_count() -> None:
    seen = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["authorization"])
        return httpx.Response(200, json={"jobs": [], "next": None})

    with Client("http://a.test", "tmk_file\r\n", transport=httpx.MockTransport(answer)) as client:
        assert list(client.jobs()) == []
    assert seen == ["Bearer tmk_file"]


@pytest.mark.usefixtures("no_context")
def test_without_an_address_the_error_names_all_ways_to_give_one() -> None:
    with pytest.raises(ConfigurationError, match="url= or TRAINMASTER_URL"):
        Client()
    with pytest.raises(ConfigurationError, match=r"no API key for http://a\.test: give key= or TRAINMASTER_API_KEY"):
        AsyncClient("http://a.test")


@pytest.mark.usefixtures("no_context")
def test_the_environment_comes_before_the_file_and_arguments_before_both(monkeypatch: pytest.MonkeyPatch) -> None:
    write_context("http://file.test/", "tmk_file")
    seen: list[tuple[str, str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((request.url.host, request.headers["authorization"]))
        return httpx.Response(200, json=job("queued"))

    transport = httpx.MockTransport(answer)
    Client(transport=transport).job(JOB)
    monkeypatch.setenv("TRAINMASTER_URL", "http://env.test")
    with pytest.raises(ConfigurationError, match=r"the key in .* is for http://file\.test"):
        Client(transport=transport)
    monkeypatch.setenv("TRAINMASTER_API_KEY", "tmk_env")
    Client(transport=transport).job(JOB)
    Client("http://given.test", "tmk_given", transport=transport).job(JOB)
    assert seen == [
        ("file.test", "Bearer tmk_file"),
        ("env.test", "Bearer tmk_env"),
        ("given.test", "Bearer tmk_given"),
    ]


def test_an_address_of_another_kind_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="is not the address of a dispatcher"):
        Client("ftp://a.test", "tmk_x")


def test_a_problem_has_code_status_and_mistakes() -> None:
    with pytest.raises(ProblemError) as caught:
        Script(problem(Code.INVALID_SPEC)).client().submit({})
    assert (caught.value.code, caught.value.status, caught.value.mistakes) == (Code.INVALID_SPEC, 422, ())


# The package


def test_importing_the_package_is_light_and_its_names_are_the_clients() -> None:
    heavy = "import sys, trainmaster; print(*{'httpx', 'pydantic', 'yaml'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
    assert trainmaster.Client is Client
    assert trainmaster.AsyncClient is AsyncClient
    assert all(hasattr(trainmaster, name) for name in trainmaster.__all__)
    assert set(trainmaster.__all__) <= set(dir(trainmaster))
    with pytest.raises(AttributeError, match="no attribute 'Clients'"):
        _ = trainmaster.Clients


WRONG_USE: dict[str, tuple[Callable[[Client], object], str]] = {
    "a kind in small letters": (lambda one: one.get_object("queue", "a"), "not 'queue'; did you mean Queue?"),  # type: ignore[arg-type]
    "a kind that there is none of": (lambda one: one.put("Pod", "a", {}), "kind: must be one of PriorityClass, "),  # type: ignore[arg-type]
    "an action that there is none of": (
        lambda one: one.act(JOB, "destroy"),  # type: ignore[arg-type]
        "action: must be one of cancel, suspend, resume, retry, not 'destroy'",
    ),
    "nothing to submit": (lambda one: one.submit(None), "a specification is a mapping or a JobSpec"),  # type: ignore[arg-type]
    "a text to submit": (lambda one: one.submit("name: x"), "not 'name: x'; read a file with yaml.safe_load"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("sentence", WRONG_USE)
def test_wrong_use_is_told_in_words_before_anything_is_sent(sentence: str) -> None:
    call, message = WRONG_USE[sentence]
    sent = list[httpx.Request]()

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(200, json={})

    client = Client("http://a.test", "k", transport=httpx.MockTransport(answer))
    with client, pytest.raises(ProblemError, match=re.escape(message)):
        call(client)
    assert sent == []
