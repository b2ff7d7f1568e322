"""What members have written, over their lives, as a real API server gives it: late, cut off, with excuses for output."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from tests.unit.test_kubernetes_reconcile import RUN, pod
from tests.waiting import eventually
from trainmaster_agent import containment
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import NotFoundError, RefusedError, UnavailableError
from trainmaster_agent.kube.pods import LABEL_INDEX, LABEL_ROLE, LABEL_RUN, PodSight
from trainmaster_agent.runtime.kubernetes import output
from trainmaster_agent.runtime.kubernetes.output import Outputs

EXCUSE = b"unable to retrieve container logs for containerd://" + b"0af1" * 16
NO_FILE = b'failed to try resolving symlinks in path "/var/log/pods/jobs_p_u/main/0.log": lstat /var: no such file or directory'


class Body:
    def __init__(self, pieces: list[bytes | Exception]) -> None:
        self._pieces = pieces

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            await asyncio.sleep(0)
            if isinstance(piece, Exception):
                raise piece
            for begin in range(0, len(piece), size):
                yield piece[begin : begin + size]


class Logs:
    """Answers to requests for the log of pods, by name, one after the other; the last one stays. ``phases``: of pods that exist."""

    def __init__(self, **answers: list[list[bytes | Exception]]) -> None:
        self.answers = answers
        self.queries: list[Mapping[str, str]] = []
        self.phases: dict[str, list[str]] = {}

    async def get(self, _resource: object, namespace: str, name: str) -> dict[str, Any]:
        if name not in self.phases:
            raise NotFoundError(404, f"pods {name!r} not found")
        phases = self.phases[name]
        labels = {LABEL_RUN: RUN, LABEL_ROLE: "worker", LABEL_INDEX: "0"}
        return {
            "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", "labels": labels},
            "spec": {"nodeName": "node-0"},
            "status": {"phase": phases.pop(0) if len(phases) > 1 else phases[0]},
        }

    @asynccontextmanager
    async def stream(self, path: str, query: Mapping[str, str], *, silence: float) -> AsyncIterator[Body]:
        self.queries.append(query)
        answers = self.answers[path.split("/")[-2]]
        yield Body(answers.pop(0) if len(answers) > 1 else answers[0])


def outputs(**answers: list[list[bytes | Exception]]) -> Outputs:
    return Outputs(cast("ApiServer", Logs(**answers)))


def life(name: str, stage: Any = "failed", index: int = 0) -> PodSight:
    return pod(index, stage, name=name, uid=f"uid-{name}")


async def whole(of: Outputs, sight: PodSight, limit: int = 1 << 20) -> str:
    return (await of.read(sight, -limit, limit)).data.decode()


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_PAUSE", 0.0)


async def test_a_follower_gets_all_of_each_life_of_a_member() -> None:
    of = outputs(one=[[b"first life\n"]], two=[[b"second life\n"]])
    first = await of.read(life("one"), 0, 1000)
    assert first.data == b"first life\n"
    then = await of.read(life("two"), first.offset + len(first.data), 1000)
    assert (then.offset, then.data) == (len(first.data), b"second life\n")


async def test_the_tail_holds_what_earlier_lives_said() -> None:
    of = outputs(one=[[b"first\n"]], two=[[b"second\n"]])
    assert await of.finish(life("one")) == 6
    assert await whole(of, life("two")) == "first\nsecond\n"


async def test_an_agent_that_starts_anew_goes_on_counting_where_the_record_says() -> None:
    of = outputs(two=[[b"second\n"]])
    piece = await of.read(life("two"), 6, 1000, said=6)
    assert (piece.offset, piece.data) == (6, b"second\n")


async def test_what_comes_last_of_a_life_comes_before_the_next_one() -> None:
    of = outputs(one=[[b"a", b"b", b"c"]], two=[[b"d"]])
    of.follow(life("one", "running"), ended=False)
    assert await whole(of, life("two")) == "abcd"


async def test_of_a_broken_connection_nothing_comes_twice_and_nothing_is_dropped() -> None:
    of = outputs(one=[[b"abc", UnavailableError("reset")], [b"abcdef"]])
    running = life("one", "running")
    assert (await of.read(running, 0, 10)).data == b"abc"
    await asyncio.gather(*(spool.task for spool in of._spools.values() if spool.task))
    assert await whole(of, life("one")) == "abcdef"


@pytest.mark.parametrize("excuse", [EXCUSE, EXCUSE + b"\n", NO_FILE], ids=["container", "line", "file"])
async def test_a_kubelets_excuse_is_no_output(excuse: bytes) -> None:
    of = outputs(one=[[excuse[:20], excuse[20:]]])
    piece = await of.read(life("one"), -100, 1000)
    assert (piece.data, piece.end) == (b"", True)


async def test_what_was_followed_before_the_node_went_is_kept() -> None:
    of = outputs(one=[[b"said before\n", UnavailableError("the node is gone")], [EXCUSE]])
    assert (await of.read(life("one", "running"), 0, 100)).data == b"said before\n"
    await asyncio.gather(*(spool.task for spool in of._spools.values() if spool.task))
    assert await whole(of, life("one")) == "said before\n"


async def test_a_kubelet_that_has_just_started_is_asked_again() -> None:
    of = outputs(one=[[EXCUSE], [b"it is there\n"]])
    assert await whole(of, life("one")) == "it is there\n"


@pytest.mark.parametrize(
    "text",
    [
        EXCUSE + b"\nand more\n",
        b"unable to retrieve container logs for whatever reason\n",
        b"unable to retrieve",
        b"unable to retrieve container logs for x" * 100,
        b"fail",
        b"",
    ],
    ids=["and more", "other words", "its beginning", "long", "shorter", "nothing"],
)
async def test_a_program_may_say_similar_things(text: bytes) -> None:
    assert await whole(outputs(one=[[text]]), life("one")) == text.decode()


async def test_a_follower_slower_than_the_log_misses_nothing_and_the_agent_keeps_little() -> None:
    text = bytes(range(256)) * 16_000  # 4 MB
    of = outputs(one=[[text]])
    got, most = b"", 0
    while len(got) < len(text):
        piece = await of.read(life("one"), len(got), 100_000)
        assert piece.offset == len(got), "a gap"
        got += piece.data
        most = max(most, *(len(spool.data) for spool in of._spools.values()))
    assert got == text
    assert most <= output._KEPT


async def test_a_follower_who_begins_with_the_end_misses_nothing_after_it() -> None:
    text = bytes(range(256)) * 8_000
    of = outputs(one=[[text]])
    running = life("one", "running")
    first = await of.read(running, -1000, 1000)
    at = first.offset + len(first.data)
    for _ in range(100):
        await asyncio.sleep(0)
    then = await of.read(running, at, 1 << 20)
    assert then.offset == at, "a gap"
    assert text[at : at + len(then.data)] == then.data


async def test_a_follower_who_stays_away_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_PATIENCE_WITH_READERS", 0.05)
    text = b"x" * 1_000_000 + b"end"
    of = outputs(one=[[text]])
    assert (await of.read(life("one", "running"), 0, 10)).offset == 0
    tail = await of.read(life("one"), -3, 10)
    assert (tail.offset, tail.data, tail.end) == (1_000_000, b"end", True)


async def test_the_tail_that_is_kept_for_good_waits_for_no_follower_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_FIRST_WAIT", 0.05)
    text = b"x" * 1_000_000 + b"end"
    of = outputs(one=[[text]])
    await of.read(life("one"), 0, 10)
    monkeypatch.setattr(output, "_FIRST_WAIT", 5.0)
    of._spools[RUN, "worker", 0].hurried = True
    of._spools[RUN, "worker", 0].taken.set()
    tail = await of.read(life("one"), -3, 10)
    assert (tail.data, tail.end) == (b"end", True)
    late = await of.read(life("one"), 10, 10)
    assert (late.offset, late.data) == (10, b"x" * 10), "of an ended member it is read again"


async def test_what_earlier_lives_said_outlasts_those_who_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_IDLE_SECONDS", -1.0)
    of = outputs(one=[[b"first\n"]], two=[[b"second\n"]], other=[[b""]])
    await of.finish(life("one"))
    assert await whole(of, life("two")) == "first\nsecond\n"
    await whole(of, life("other", index=1))  # makes room
    assert (RUN, "worker", 0) in of._parked
    assert await whole(of, life("two")) == "first\nsecond\n"
    of.forget(RUN)
    assert of.end_of((RUN, "worker", 0)) is None


async def test_an_odd_error_while_output_is_read_is_contained_and_the_next_reader_tries_again() -> None:
    counted: list[str] = []
    containment.observe(counted.append)
    of = outputs(main=[[LookupError("odd")], [b"said"]])
    sight = life("main", "running")
    await of.read(sight, 0, 100)
    assert counted.count("output") == 1

    async def is_read() -> bool:
        return (await of.read(sight, 0, 100)).data == b"said"

    await eventually(is_read)
    await of.close()


class SlowBody(Body):
    """Sends each piece a while after the one before."""

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        async for piece in super().iter_chunked(size):
            await asyncio.sleep(0.1)
            yield piece
        await asyncio.Event().wait()  # it is followed


class SlowLogs(Logs):
    @asynccontextmanager
    async def stream(self, path: str, query: Mapping[str, str], *, silence: float) -> AsyncIterator[Body]:
        yield SlowBody(self.answers[path.split("/")[-2]][0])


@pytest.mark.parametrize("size", [10, 100_000], ids=["short", "longer than a reader may be behind"])
async def test_the_end_of_a_live_members_output_is_that_of_all_which_exists(size: int) -> None:
    """Its log was read as far as the first piece, and the last lines were counted there: all of them, or none."""
    pieces: list[bytes | Exception] = [b"x" * size + b"\n" for _ in range(5)]
    of = Outputs(cast("ApiServer", SlowLogs(one=[[*pieces, b"last\n"]])))
    piece = await of.read(life("one", "running"), -5, 100)
    assert (piece.offset, piece.data) == (5 * (size + 1), b"last\n")
    await of.close()


async def test_a_silent_member_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_FIRST_WAIT", 0.2)
    of = Outputs(cast("ApiServer", SlowLogs(one=[[]])))
    assert (await of.read(life("one", "running"), -5, 100)).data == b""
    async with asyncio.timeout(0.1):
        assert (await of.read(life("one", "running"), -5, 100)).data == b""
    await of.close()


async def test_a_live_member_whose_kubelet_was_away_is_read_on_afterwards() -> None:
    """An API server answers that there is no such resource while it does not reach the kubelet."""
    of = outputs(
        one=[
            [b"before\n", RefusedError(404, "the server could not find the requested resource")],
            [b"before\nafter\n"],
        ]
    )
    running = life("one", "running")
    assert (await of.read(running, 0, 100)).data == b"before\n"
    await asyncio.gather(*(spool.task for spool in of._spools.values() if spool.task))
    piece = await of.read(running, 7, 100)
    assert not piece.end
    await asyncio.gather(*(spool.task for spool in of._spools.values() if spool.task))
    assert (await of.read(life("one"), 7, 100)).data == b"after\n"


async def test_a_log_that_ends_before_its_member_is_read_on_when_the_kubelet_is_back() -> None:
    """An API server ends a followed log without an error when the kubelet stops."""
    logs = Logs(one=[[b"before\n"], [b"before\nafter\n"]])
    logs.phases = {"one": ["Running", "Running", "Running", "Running", "Succeeded"]}
    of = Outputs(cast("ApiServer", logs))
    running = life("one", "running")
    assert (await of.read(running, 0, 100)).data == b"before\n"
    await asyncio.gather(*(spool.task for spool in of._spools.values() if spool.task))
    assert not (await of.read(running, 7, 100)).end
    assert of.whole_length((RUN, "worker", 0)) is None
    await asyncio.gather(*(spool.task for spool in of._spools.values() if spool.task))
    assert (await of.read(running, 7, 100)).data == b"after\n"
    assert of.whole_length((RUN, "worker", 0)) == 13
    assert len(logs.queries) == 2, "the end of a pod that ended meanwhile needs no other reading"
