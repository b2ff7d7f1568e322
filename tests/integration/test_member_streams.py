"""Streams to members: commands, ports and their ends, through real apis and a real agent of a local runtime."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
import orjson
import pytest
import uvicorn
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from tests.conftest import ADMIN_KEY, FakeAgent, Service
from tests.integration.rows import age_contact, value
from tests.integration.running_agents import running_agent
from tests.integration.test_cli_commands import Shell
from tests.integration.test_local_runtime import CLUSTER
from tests.waiting import eventually
from trainmaster.cluster_model.capabilities import Capability
from trainmaster.protocol.member_streams import COMMANDS, PORTS, Channel, exit_code_of, frame
from trainmaster.protocol.states import Exit, RunState
from trainmaster_agent.runtime.local.runtime import LocalRuntime
from trainmaster_dispatcher.api import app as api_app
from trainmaster_dispatcher.api.app import make_app
from trainmaster_dispatcher.api.limits import ByteRates
from trainmaster_dispatcher.http_connections import server_config
from trainmaster_dispatcher.services import member_streams

Query = Sequence[tuple[str, str]]


@dataclass
class Stage:
    """A running job on a local cluster, and the api that its users call."""

    service: Service
    url: str
    job: str

    @asynccontextmanager
    async def open(
        self,
        what: str = "exec",
        query: Query = (),
        *,
        key: str = ADMIN_KEY,
        protocols: Sequence[str] = COMMANDS,
        path: str | None = None,
        **options: Any,
    ) -> AsyncIterator[ClientConnection]:
        address = self.url.replace("http", "ws", 1) + (path or f"/v1/jobs/{self.job}/{what}")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with connect(
            f"{address}?{urlencode(query)}",
            additional_headers=headers,
            subprotocols=[Subprotocol(one) for one in protocols] or None,
            proxy=None,
            **options,
        ) as line:
            yield line

    async def run(self, *command: str, stdin: bytes | None = None, **options: Any) -> tuple[dict[int, bytes], int]:
        """Return what a command prints, by channel, and its exit code."""
        query = [("command", one) for one in command] + ([("stdin", "true")] if stdin is not None else [])
        async with self.open("exec", query, **options) as line:
            if stdin is not None:
                await line.send(frame(Channel.INPUT, stdin))
                await line.send(frame(Channel.CLOSE, bytes((Channel.INPUT,))))
            frames = await frames_of(line)
        return frames, exit_code_of(frames[Channel.STATUS])[0]

    async def refused(
        self, what: str = "exec", query: Query = (("command", "true"),), **options: Any
    ) -> dict[str, Any]:
        """Return the problem with which a stream is refused."""
        with pytest.raises(InvalidStatus) as caught:
            async with self.open(what, query, **options):
                pass
        answer = caught.value.response
        problem: dict[str, Any] = orjson.loads(answer.body or b"{}")
        return problem | {"status": answer.status_code}


async def frames_of(line: ClientConnection) -> dict[int, bytes]:
    """Return what a stream brings until its end, by channel."""
    found: dict[int, bytes] = {}
    with contextlib.suppress(ConnectionClosed):
        while True:
            one = await line.recv()
            assert isinstance(one, bytes)
            found[one[0]] = found.get(one[0], b"") + one[1:]
    return found


@asynccontextmanager
async def another_api(service: Service) -> AsyncIterator[str]:
    """Yield the address of one more api of the same installation."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        app = make_app(service.settings)
        server = uvicorn.Server(server_config(app, service.settings.connection_bounds, web_sockets=True, lifespan="on"))
        serving = asyncio.create_task(server.serve([listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            await eventually(lambda: _started(server))
            yield url
        finally:
            server.should_exit = True
            await serving


async def _started(server: uvicorn.Server) -> bool:
    return server.started


def local_agent(service: Service, folder: Path) -> AbstractAsyncContextManager[None]:
    """Run the agent of cluster private with a local runtime while the block runs."""
    return running_agent(service, LocalRuntime(folder, CLUSTER))


@pytest.fixture
async def stage(service: Service, tmp_path: Path) -> AsyncIterator[Stage]:
    async with local_agent(service, tmp_path / "agent"):
        template = {"command": ["sleep", "600"], "env": {"COLOUR": "blue"}, "resources": {"cpu": "1"}}
        job = await service.submit(roles=[{"name": "main", "template": template}])
        await service.until(job, "running")
        yield Stage(service, service.url, job)
        await service.http.post(f"/v1/jobs/{job}/cancel", json={"grace": "0s"})
        await service.until(job, "cancelled")


async def test_a_command_runs_in_the_members_folder_and_environment(stage: Stage) -> None:
    frames, code = await stage.run("sh", "-c", "pwd; echo $COLOUR; echo no >&2; exit 3")
    folder, colour = frames[Channel.OUTPUT].decode().split()
    assert (folder.endswith(f"{stage.job}-r1/main-0"), colour) == (True, "blue")
    assert frames[Channel.ERROR_OUTPUT] == b"no\n"
    assert code == 3


async def test_a_command_that_does_not_exist_ends_as_in_a_shell(stage: Stage) -> None:
    frames, code = await stage.run("no-such-command")
    assert code == 127
    assert b"'no-such-command' was not found" in frames[Channel.ERROR_OUTPUT]


async def test_large_input_comes_back_whole(stage: Stage) -> None:
    data = bytes(range(256)) * 4096
    async with stage.open("exec", [("command", "cat"), ("stdin", "true")]) as line:

        async def send() -> None:
            for begin in range(0, len(data), 10_000):
                await line.send(frame(Channel.INPUT, data[begin : begin + 10_000]))
            await line.send(frame(Channel.CLOSE, bytes((Channel.INPUT,))))

        sending = asyncio.create_task(send())
        frames = await frames_of(line)
        await sending
    assert frames[Channel.OUTPUT] == data


async def test_a_terminal_has_the_users_size_and_hears_the_keyboard(stage: Stage) -> None:
    query = [("command", "sh"), ("stdin", "true"), ("tty", "true")]
    async with stage.open("exec", query) as line:
        await line.send(frame(Channel.SIZE, b'{"Width": 77, "Height": 33}'))
        await line.send(frame(Channel.INPUT, b"stty size; exit 5\n"))
        frames = await frames_of(line)
    assert b"33 77" in frames[Channel.OUTPUT]
    assert exit_code_of(frames[Channel.STATUS])[0] == 5


async def test_a_command_ends_when_its_user_goes_away(stage: Stage, tmp_path: Path) -> None:
    mark = tmp_path / "ended"
    script = f"trap 'touch {mark}; exit' HUP; echo ready; while true; do sleep 0.05; done"
    async with stage.open("exec", [("command", "sh"), ("command", "-c"), ("command", script)]) as line:
        assert await line.recv() == b"\x01ready\n"

    async def look() -> bool:
        return mark.exists()

    await eventually(look)


async def test_a_port_of_a_member_is_connected_to(stage: Stage) -> None:
    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(shout, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with stage.open("portforward", [("ports", str(port))], protocols=PORTS[:1]) as line:
            await line.send(b"\0hello\n")
            frames = await frames_of(line)
    number = port.to_bytes(2, "little")
    assert frames == {0: number + b"HELLO\n", 1: number}
    problem = await stage.refused("portforward", [("ports", str(port))], protocols=PORTS[:1])
    assert (problem["status"], f"nothing answers at port {port}" in problem["detail"]) == (409, True)


async def test_the_agent_may_reach_another_api_than_the_user(stage: Stage) -> None:
    async with another_api(stage.service) as url:
        other = Stage(stage.service, url, stage.job)
        frames, code = await other.run("sh", "-c", "cat; exit 4", stdin=b"far away")
        assert (frames[Channel.OUTPUT], code) == (b"far away", 4)
        problem = await other.refused("portforward", [("ports", "1")], protocols=PORTS[:1])
        assert "nothing answers at port 1" in problem["detail"]


async def test_a_reader_that_does_not_read_holds_up_nobody_else(stage: Stage) -> None:
    endless = [("command", "cat"), ("command", "/dev/zero")]
    async with stage.open("exec", endless, max_queue=1) as line:
        assert len(await line.recv()) > 1
        for _ in range(3):
            frames, _ = await stage.run("echo", "quick")
            assert frames[Channel.OUTPUT] == b"quick\n"


NAME = "0123456789abcdef" * 2
_COUNT = "i=0; while [ $i -lt 40 ]; do echo $i; i=$((i+1)); sleep 0.05; done; exit 4"
COUNTING = [("command", "sh"), ("command", "-c"), ("command", _COUNT)]


async def test_a_lasting_command_is_connected_to_again(stage: Stage) -> None:
    """Its output goes on behind the frames that were received, while it ran without a connection, too."""
    query = [*COUNTING, ("lasting", NAME)]
    async with stage.open("exec", query) as line:
        assert line.response is not None
        assert line.response.headers["Trainmaster-Lasting"] == "300"
        frames = [await line.recv() for _ in range(3)]
        line.transport.abort()
    await asyncio.sleep(0.3)
    async with stage.open("exec", [*query, ("received", "3")]) as line:
        found = await frames_of(line)
    output = b"".join(one[1:] for one in frames if isinstance(one, bytes)) + found[Channel.OUTPUT]
    assert output == b"".join(b"%d\n" % number for number in range(40))
    assert exit_code_of(found[Channel.STATUS])[0] == 4
    assert (await stage.refused("exec", [*query, ("received", "3")]))["status"] == 404


async def test_a_lasting_command_ends_with_the_user_who_closes_it(stage: Stage, tmp_path: Path) -> None:
    mark = tmp_path / "ended"
    script = f"trap 'touch {mark}; exit' HUP; echo ready; while true; do sleep 0.05; done"
    query = [("command", "sh"), ("command", "-c"), ("command", script), ("lasting", NAME)]
    async with stage.open("exec", query) as line:
        assert await line.recv() == b"\x01ready\n"

    async def look() -> bool:
        return mark.exists()

    await eventually(look)


async def test_a_lasting_command_has_a_terminal_and_reads_input(stage: Stage) -> None:
    query = [("command", "sh"), ("stdin", "true"), ("tty", "true"), ("lasting", NAME)]
    async with stage.open("exec", query) as line:
        await line.send(frame(Channel.INPUT, b"word=sky; echo $word$word\n"))
        received = 0
        text = b""
        while b"skysky" not in text:
            one = await line.recv()
            assert isinstance(one, bytes)
            received, text = received + 1, text + one[1:]
        line.transport.abort()
    async with stage.open("exec", [*query, ("received", str(received))]) as line:
        await line.send(frame(Channel.SIZE, b'{"Width": 77, "Height": 33}'))
        await line.send(frame(Channel.INPUT, b"stty size; echo $word; exit 5\n"))
        frames = await frames_of(line)
    assert b"33 77" in frames[Channel.OUTPUT]
    assert b"\r\nsky\r\n" in frames[Channel.OUTPUT]
    assert b"skysky" not in frames[Channel.OUTPUT]
    assert exit_code_of(frames[Channel.STATUS])[0] == 5


async def test_an_attached_members_output_goes_on_where_a_connection_was_lost(stage: Stage) -> None:
    template = {"command": ["sh", "-c", _COUNT], "resources": {"cpu": "1"}}
    job = await stage.service.submit(roles=[{"name": "main", "template": template}])
    await stage.service.until(job, "running")
    other = Stage(stage.service, stage.url, job)
    async with other.open("attach", [("offset", "0")]) as line:
        assert line.response is not None
        assert line.response.headers["Trainmaster-Offset"] == "0"
        first = await line.recv()
        assert isinstance(first, bytes)
        line.transport.abort()
    async with other.open("attach", [("offset", str(len(first) - 1))]) as line:
        frames = await frames_of(line)
    assert first[1:] + frames[Channel.OUTPUT] == b"".join(b"%d\n" % number for number in range(40))
    assert exit_code_of(frames[Channel.STATUS])[0] == 0


async def let_all_users_change_jobs(service: Service) -> None:
    answer = await service.http.patch("/v1/queues/default", json={"jobActions": "any"})
    assert answer.is_success, answer.text


async def test_who_may_open_streams(stage: Stage) -> None:
    http = stage.service.http
    await http.put("/v1/queues/other", json={"path": "other"})
    secrets = {}
    for name, body in {
        "stranger": {"role": "user", "queues": ["other"]},
        "colleague": {"role": "user", "queues": ["default"]},
        "owner": {"role": "owner", "clusters": ["private"]},
    }.items():
        answer = await http.post("/v1/keys", json={"name": name, **body})
        assert answer.status_code == 201, answer.text
        secrets[name] = answer.json()["key"]
    assert (await stage.refused(key=""))["status"] == 401
    assert (await stage.refused(key="tmk_wrong"))["status"] == 401
    assert (await stage.refused(key="tmk_private"))["status"] == 403
    assert (await stage.refused(key=secrets["owner"]))["status"] == 403
    assert (await stage.refused(key=secrets["stranger"]))["status"] == 404
    assert (await stage.refused(key=secrets["colleague"]))["code"] == "job-of-another"
    await let_all_users_change_jobs(stage.service)
    assert (await stage.run("true", key=secrets["colleague"]))[1] == 0


async def test_the_audit_names_the_command_and_its_user(stage: Stage) -> None:
    await stage.run("echo", "hello")
    lines = (await stage.service.http.get("/v1/audit")).json()["audit"]
    line = next(one for one in lines if one["action"] == "exec")
    assert (line["actor"], line["target"]) == ("admin", stage.job)
    assert line["details"] == {
        "member": "main-0",
        "run": 1,
        "cluster": "private",
        "command": "echo hello",
        "tty": False,
    }


WRONG: list[tuple[str, Query, Sequence[str], str]] = [
    ("exec", [], COMMANDS, "command: is missing"),
    ("exec", [("command", "a"), ("comand", "b")], COMMANDS, "did you mean command?"),
    ("exec", [("command", "a"), ("tty", "perhaps")], COMMANDS, "tty: must be true or false, not 'perhaps'"),
    ("exec", [("command", "a"), ("index", "x")], COMMANDS, "index: must be a whole number from 0 on, not 'x'"),
    ("exec", [("command", "a"), ("attempt", "0")], COMMANDS, "attempt: must be a whole number from 1 on"),
    ("exec", [("command", "a\x00b")], COMMANDS, "NUL character"),
    ("exec", [("command", "a"), ("lasting", "x")], COMMANDS, "lasting: must be 32 random hexadecimal digits"),
    ("exec", [("command", "a"), ("received", "1")], COMMANDS, "received: is for a command with the parameter lasting"),
    ("exec", [("command", "a"), ("offset", "1")], COMMANDS, "this call has no query parameter of this name"),
    ("attach", [("offset", "-1")], COMMANDS, "offset: must be a whole number from 0 on, not '-1'"),
    ("exec", [("command", "a")], ["chat"], "v5.channel.k8s.io"),
    ("portforward", [], PORTS[:1], "ports: is missing"),
    ("portforward", [("ports", "70000")], PORTS[:1], "ports: must be numbers from 1 to 65535, not '70000'"),
    ("portforward", [("ports", "x")], PORTS[:1], "ports: must be numbers from 1 to 65535, not 'x'"),
]


async def test_wrong_parameters_are_named(service: Service) -> None:
    stage = Stage(service, service.url, "none-0000000")
    for what, query, protocols, words in WRONG:
        problem = await stage.refused(what, query, protocols=protocols)
        assert (problem["status"], problem["code"]) == (422, "invalid-parameter")
        assert words in problem["detail"]


async def test_what_cannot_be_reached_is_refused_with_the_reason(stage: Stage) -> None:
    problem = await stage.refused(query=[("command", "a"), ("role", "boss")])
    assert (problem["code"], "it has: main" in problem["detail"]) == ("not-found", True)
    problem = await stage.refused(query=[("command", "a"), ("index", "7")])
    assert (problem["code"], "main-7" in problem["detail"]) == ("wrong-state", True)
    problem = await stage.refused(query=[("command", "a"), ("attempt", "2")])
    assert (problem["code"], "no such run" in problem["detail"]) == ("wrong-state", True)
    problem = await stage.refused("attach", [("stdin", "true")])
    assert (problem["status"], "processes without input" in problem["detail"]) == (422, True)
    for received in ("0", "7"):
        problem = await stage.refused("exec", [*COUNTING, ("lasting", NAME), ("received", received)])
        assert (problem["status"], "this command has ended" in problem["detail"]) == (404, True)
    waiting = await stage.service.submit(cpu="1000")
    problem = await Stage(stage.service, stage.url, waiting).refused()
    assert (problem["code"], "it has no run yet" in problem["detail"]) == ("wrong-state", True)
    assert (await Stage(stage.service, stage.url, "none-0000000").refused())["status"] == 404
    assert (await stage.refused("nothing"))["status"] in (403, 404)


async def test_a_revoked_key_ends_its_streams(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_streams, "_CHECK_SECONDS", 0.05)
    monkeypatch.setattr(api_app, "_KEYS_SECONDS", 0.05)
    http = stage.service.http
    await let_all_users_change_jobs(stage.service)
    made = (await http.post("/v1/keys", json={"name": "guest", "role": "user", "queues": ["default"]})).json()
    async with stage.open("exec", [("command", "sleep"), ("command", "600")], key=made["key"]) as line:
        await http.delete(f"/v1/keys/{made['id']}")
        frames = await frames_of(line)
        assert exit_code_of(frames[Channel.STATUS]) == (1, "the API key was revoked or has expired")
        assert line.close_code == 1000


async def test_a_key_has_as_many_streams_as_it_may(stage: Stage) -> None:
    settings = stage.service.settings.model_copy(update={"member_streams_per_key": 1})
    narrow = Service(stage.service.url, settings, stage.service.stores, stage.service.http)
    async with another_api(narrow) as url:
        other = Stage(stage.service, url, stage.job)
        async with other.open("exec", [("command", "sleep"), ("command", "600")]):
            problem = await other.refused()
            assert (problem["status"], "1 open streams of members" in problem["detail"]) == (429, True)
        assert (await other.run("true"))[1] == 0


async def test_the_bytes_of_a_key_are_counted_both_ways(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[int] = []

    def pause(_: ByteRates, key: int, size: int) -> float:
        assert key > 0
        passed.append(size)
        return 0.001

    monkeypatch.setattr(ByteRates, "pause", pause)
    async with stage.open("exec", [("command", "cat"), ("stdin", "true")]) as line:
        await line.send(frame(Channel.INPUT, b"x" * 10_000))
        received = 0
        while received < 10_000:
            received += len(await line.recv(decode=False)) - 1
    assert sum(passed) >= 20_000


@dataclass
class Unanswered:
    """A job whose agent is told to open streams, by a test."""

    stage: Stage
    agent: FakeAgent


@pytest.fixture
async def unanswered(service: Service) -> Unanswered:
    agent = service.agent()
    await agent.connect(capabilities=(Capability.EXEC, Capability.PORT_FORWARD))
    job = await service.submit()
    start = await agent.next_start()
    await agent.report(start["run"], RunState.RUNNING, 1)
    return Unanswered(Stage(service, service.url, job), agent)


async def next_order(agent: FakeAgent) -> dict[str, Any]:
    """Return the next stream that the agent is told to open."""
    orders: list[dict[str, Any]] = []

    async def look() -> bool:
        await agent.sync()
        orders.extend((await agent.desired(0.5))["memberStreams"])
        return bool(orders)

    await eventually(look)
    return orders[0]


async def test_a_stream_that_no_agent_connects_is_given_up(
    unanswered: Unanswered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_streams, "_CONNECT_SECONDS", 0.2)
    problem = await unanswered.stage.refused()
    assert (problem["status"], "did not connect the stream in time" in problem["detail"]) == (503, True)
    assert await value(unanswered.stage.service.stores, "SELECT count(*) FROM member_streams") == 0


async def test_a_stream_is_connected_once_and_by_its_own_cluster(unanswered: Unanswered) -> None:
    stage, agent = unanswered.stage, unanswered.agent
    using = asyncio.create_task(stage.run("true"))
    order = await next_order(agent)
    assert (order["role"], order["index"], order["options"]["command"]) == ("main", 0, ["true"])
    path = f"/agent/v1/member-streams/{order['stream']}"
    session = [("session", agent.session)]
    assert (await stage.refused(query=session, path=path))["status"] == 403
    assert (await stage.refused(query=session, path=path, key="tmk_edge"))["code"] == "session-superseded"
    assert (await stage.refused(query=[("session", "older")], path=path, key=agent.key))["code"] == "session-superseded"
    async with stage.open("", session, path=path, key=agent.key, protocols=()) as line:
        assert (await stage.refused(query=session, path=path, key=agent.key))["code"] == "stream-closed"
        await line.send('{"protocol": "v5.channel.k8s.io", "status": 0}')
        await line.send(frame(Channel.STATUS, b'{"status": "Success"}'))
    assert (await using)[1] == 0


async def cut(unanswered: Unanswered, end: Callable[[ClientConnection], Awaitable[None]]) -> str:
    """Return the words with which a command ends whose agent does ``end`` in place of a report of its end."""
    stage, agent = unanswered.stage, unanswered.agent
    using = asyncio.create_task(stage.run("true"))
    path = f"/agent/v1/member-streams/{(await next_order(agent))['stream']}"
    async with stage.open("", [("session", agent.session)], path=path, key=agent.key, protocols=()) as line:
        await line.send('{"protocol": "v5.channel.k8s.io", "status": 0}')
        await line.send(bytes((Channel.OUTPUT,)) + b"half of it")
        await end(line)
        frames, code = await using
    assert code == 1
    return exit_code_of(frames[Channel.STATUS])[1]


async def test_an_agent_that_goes_away_ends_the_stream_with_words(unanswered: Unanswered) -> None:
    async def abort(line: ClientConnection) -> None:
        line.transport.abort()

    words = "cluster private: the connection to the agent was cut; the command may go on there"
    assert await cut(unanswered, abort) == words


async def test_a_command_without_an_end_is_no_success(unanswered: Unanswered) -> None:
    async def close(line: ClientConnection) -> None:
        await line.close()

    assert await cut(unanswered, close) == "cluster private: the stream was cut; the command may go on there"


async def test_a_sub_protocol_that_is_no_token_is_taken(unanswered: Unanswered) -> None:
    stage, agent = unanswered.stage, unanswered.agent
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
    async with aiohttp.ClientSession(headers=headers) as session:  # other clients refuse the name themselves
        opening = session.ws_connect(f"{stage.url}/v1/jobs/{stage.job}/portforward", protocols=PORTS[1:])
        entering = asyncio.ensure_future(opening)
        path = f"/agent/v1/member-streams/{(await next_order(agent))['stream']}"
        async with stage.open("", [("session", agent.session)], path=path, key=agent.key, protocols=()) as line:
            await line.send(f'{{"protocol": "{PORTS[1]}", "status": 0}}')
            async with await entering as user:
                assert user.protocol == PORTS[1]
                await user.send_bytes(b"to the member")
                assert await line.recv() == b"to the member"


async def test_no_stream_to_a_cluster_that_is_unreachable_or_offers_none(unanswered: Unanswered) -> None:
    stage, agent = unanswered.stage, unanswered.agent
    await agent.connect(capabilities=())
    problem = await stage.refused()
    assert (problem["code"], "memberStreams" in problem["detail"]) == ("method-not-allowed", True)
    await age_contact(stage.service.stores, "private", 3600)
    problem = await stage.refused()
    assert (problem["code"], "private is unreachable" in problem["detail"]) == ("wrong-state", True)


async def test_the_endpoint_for_apis_is_for_apis(stage: Stage) -> None:
    settings = stage.service.settings
    meetings = member_streams.MemberStreamMeetings()
    from trainmaster_dispatcher.api.member_streams import make_peer_app
    from trainmaster_dispatcher.http_connections import serving_beside

    app = make_peer_app(meetings)
    async with serving_beside(app, "127.0.0.1", 0, settings.connection_bounds, web_sockets=True) as (_, port):
        peer = Stage(stage.service, f"http://127.0.0.1:{port}", stage.job)
        with pytest.raises(InvalidStatus, match="401"):
            async with peer.open(path="/streams/none", key="wrong", protocols=()):
                pass
        async with peer.open(path="/streams/none", key=meetings.secret, protocols=()) as line:
            await frames_of(line)
            assert line.close_reason == "nobody waits for this stream any more"


PODS = "/api/v1/namespaces/default/pods"


async def test_members_are_pods_whose_streams_are_those_of_kubernetes(stage: Stage) -> None:
    path = f"{PODS}/{stage.job}.main.0"
    assert (await stage.run("sh", "-c", "exit 6", path=f"{path}/exec"))[1] == 6
    missing = await stage.refused(path=f"{PODS}/nobody/exec")
    assert (missing["kind"], missing["reason"], missing["status"]) == ("Status", "NotFound", 404)
    wrong = await stage.refused(path=f"{path}/exec", protocols=["chat"])
    assert (wrong["reason"], "v5.channel.k8s.io" in wrong["message"]) == ("Invalid", True)
    # What kubectl sends after a refusal: the same check, and nothing is run.
    answer = await stage.service.http.post(f"{path}/exec", params={"command": "true"})
    assert (answer.status_code, "is offered over WebSockets" in answer.json()["message"]) == (422, True)
    answer = await stage.service.http.post(f"{path}/attach")
    assert (answer.status_code, "is offered over WebSockets" in answer.json()["message"]) == (422, True)


async def test_a_command_that_its_cluster_refuses_ends_with_the_reason(unanswered: Unanswered) -> None:
    stage, agent = unanswered.stage, unanswered.agent
    using = asyncio.create_task(stage.run("true", path=f"{PODS}/{stage.job}.main.0/exec"))
    order = await next_order(agent)
    path = f"/agent/v1/member-streams/{order['stream']}"
    async with stage.open("", [("session", agent.session)], path=path, key=agent.key, protocols=()) as line:
        await line.send('{"status": 409, "message": "the container has ended"}')
        frames, code = await using
    assert (code, exit_code_of(frames[Channel.STATUS])[1]) == (1, "cluster private: the container has ended")


async def test_the_command_line_runs_commands_and_forwards_ports(stage: Stage, tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    assert (await shell.run("login", stage.url, "--name", "here", says=f"{ADMIN_KEY}\n")).code == 0
    ran = await shell.run("exec", "-i", f"{stage.job}/main-0", "--", "sh", "-c", "cat; echo no >&2; exit 3", says="in")
    assert (ran.code, ran.output, ran.errors) == (3, "in", "no\n")
    for words, code, expected in (
        (("exec", stage.job, "--", "nothing"), 127, "was not found"),
        (("exec", f"{stage.job}/boss-0", "--", "true"), Exit.NOT_FOUND, "it has: main"),
        (("exec", f"{stage.job}/main", "--", "true"), Exit.USAGE, "names no member"),
        (("attach", "-i", stage.job), Exit.BAD_REQUEST, "processes without input"),
        (("port-forward", stage.job, "x"), Exit.USAGE, "is no port"),
        (("port-forward", stage.job, "70000"), Exit.USAGE, "is no port"),
    ):
        ran = await shell.run(*words)
        assert (ran.code, expected in ran.errors) == (code, True), (words, ran)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        process = await shell.start("port-forward", stage.job, f":{server.sockets[0].getsockname()[1]}")
        assert process.stdout is not None
        said = (await process.stdout.readline()).decode()
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(said.split(":")[1].split()[0]))
            writer.write(b"hello\n")
            assert await reader.read() == b"HELLO\n"
            writer.close()
        process.send_signal(signal.SIGINT)
        await process.communicate()
        assert process.returncode == 0
