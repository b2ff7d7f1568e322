"""Sessions: their documents, when they are warned and ended by a virtual clock, the hosts of their ports, and headers on the way."""

from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from pydantic import ValidationError

from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.sessions import NamedHost, SessionSpec, parse_host
from trainmaster.protocol.states import FailureCategory
from trainmaster_dispatcher.domain.member_use import RunSums
from trainmaster_dispatcher.domain.proxied_headers import (
    answer_headers,
    cookies_of,
    is_foreign,
    request_headers,
    set_cookie,
)
from trainmaster_dispatcher.domain.run_orders import NO_ORDERS
from trainmaster_dispatcher.domain.sessions import (
    SessionClock,
    SessionTimes,
    advance_session,
    is_busy,
    with_session,
)
from trainmaster_dispatcher.domain.shapes import shape_from, shape_of
from trainmaster_dispatcher.domain.spec_rendering import render
from trainmaster_dispatcher.services.submission_parsing import Most, prepare

ROLES = [{"name": "main", "template": {"command": ["sleep", "600"], "resources": {"cpu": "1"}}}]


BAD_PATHS = (
    "",
    "lab",
    "//evil.org",
    "/\\evil.org",
    "http://evil.org/",
    "/a\r\nSet-Cookie: x=1",
    "/a b",
    "/ä",
    "/" * 600,
)
"""Paths that lead to another host, that no header may have, or that are too long."""


def document(**fields: Any) -> dict[str, Any]:
    return {"kind": "Session", "name": "shell", "queue": "q", "roles": ROLES, **fields}


def stored(**fields: Any) -> dict[str, Any]:
    """Return the specification that a submission stores."""
    (one,) = prepare(orjson.dumps(document(**fields)), Most()).specs
    spec: dict[str, Any] = orjson.loads(one.spec)
    return spec


# -- documents


def test_a_session_is_a_job_with_defaults() -> None:
    spec = stored()
    assert (spec["kind"], spec["session"]) == ("Job", {})
    assert spec["timeLimit"] == f"{12 * 3600 + 300 + 60}s", "an agent ends what the dispatcher does not"
    assert spec["retries"] == {"limit": 10, "categories": ["evicted", "nodeLost"]}


def test_a_job_with_the_block_is_the_same_and_a_job_without_it_is_none() -> None:
    assert stored(kind="Job", session={}) == stored()
    plain = prepare(orjson.dumps(document(kind="Job")), Most()).specs[0]
    assert plain.session is None
    assert b"session" not in plain.spec


def test_what_a_session_says_counts() -> None:
    spec = stored(timeLimit="3h", retries={"limit": 1}, session={"idleTimeout": "30m", "longestLife": "2h"})
    assert (spec["timeLimit"], spec["retries"]) == ("3h", {"limit": 1})
    (one,) = prepare(orjson.dumps(document(session={"idleTimeout": "30m", "longestLife": "2h"})), Most()).specs
    assert one.session == SessionTimes(1800.0, 7200.0)


def test_an_end_of_its_processes_is_not_retried() -> None:
    made = with_session(JobSpec.model_validate(document()))
    assert set(made.retries.categories) == {FailureCategory.EVICTED, FailureCategory.NODE_LOST}


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"idleTimeout": "5s"}, "idleTimeout is at least 10s"),
        ({"longestLife": "1s"}, "longestLife is at least 10s"),
        ({"minimumTime": "5h"}, "minimumTime is at most 4h"),
        ({"ports": [{"name": "8888", "port": 1}]}, "has a letter in it"),
        ({"ports": [{"name": "a--b", "port": 1}]}, "no '--'"),
        ({"ports": [{"name": "a", "port": 1}, {"name": "a", "port": 2}]}, "two ports of a session"),
        *(({"ports": [{"name": "a", "port": 1, "path": path}]}, "path") for path in BAD_PATHS),
    ],
)
def test_terms_that_cannot_be_kept_are_refused(terms: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        SessionSpec.model_validate(terms)


@pytest.mark.parametrize("path", ["/", "/lab?token=a%20b", "/a//b", "/?folder=/tmp&x=[1]#end", "/%5Cx"])
def test_a_port_has_a_first_page(path: str) -> None:
    (port,) = SessionSpec.model_validate({"ports": [{"name": "a", "port": 1, "path": path}]}).ports
    assert port.path == path


def test_agents_get_no_terms() -> None:
    text = orjson.dumps(stored(session={"idleTimeout": "30m"})).decode()
    rendered = orjson.loads(render(text, NO_ORDERS))
    assert "session" not in rendered
    assert rendered["timeLimit"]


def test_the_minimum_time_is_part_of_the_shape() -> None:
    shape = shape_from(shape_of(JobSpec.model_validate(document(session={"minimumTime": "20m"}))))
    assert shape.min_run_seconds == 1200.0
    plain = shape_of(JobSpec.model_validate(document(kind="Job")))
    assert "minRunSeconds" not in plain
    assert shape_from(plain).min_run_seconds == 0.0


# -- the end of a session

HOUR = 3600.0


class Lived:
    """A session that is looked at whenever its last look said, by a virtual clock."""

    def __init__(self, idle: float = HOUR, life: float = 12 * HOUR) -> None:
        self.clock = SessionClock(SessionTimes(idle, life), began_at=0.0, active_at=0.0)
        self.said: list[tuple[float, str]] = []
        self.ended_at: float | None = None
        self._next = 0.0

    def use(self, now: float) -> None:
        self.clock = self.clock._replace(active_at=now)

    def until(self, end: float, *, uses: Sequence[float] = ()) -> "Lived":
        coming = iter(uses)
        use = next(coming, None)
        for _ in range(10_000):
            while use is not None and use <= self._next:
                self.use(use)
                use = next(coming, None)
            now = self._next
            if now > end or self.ended_at is not None:
                return self
            step = advance_session(self.clock, now)
            if step.end:
                self.ended_at = now
                self.said.append((now, step.end))
            elif step.warning:
                self.said.append((now, step.warning))
                clock = self.clock
                of_life = step.warns_of_life
                self.clock = clock._replace(life_warned_at=now) if of_life else clock._replace(warned_at=now)
            assert step.next_look > now or step.warning, "looks do not go round"
            self._next = step.next_look
        raise AssertionError("the session is looked at for ever")


def test_an_idle_session_is_warned_once_and_then_ended() -> None:
    lived = Lived().until(2 * HOUR)
    assert lived.said == [
        (55 * 60, "the session is idle for 55m, and ends in 5m unless it is used"),
        (60 * 60, "the session was idle for 1h"),
    ]


def test_a_session_in_use_is_never_warned() -> None:
    uses = [float(minute * 60) for minute in range(0, 11 * 60, 50)]
    assert Lived().until(10.9 * HOUR, uses=uses).said == []


def test_a_use_after_a_warning_begins_another_idle_period() -> None:
    lived = Lived().until(2.5 * HOUR, uses=[58 * 60.0])
    warnings = [at for at, words in lived.said if "unless" in words]
    assert warnings == [55 * 60, (58 + 55) * 60]
    assert lived.ended_at == (58 + 60) * 60


def test_a_short_time_out_is_warned_of_in_its_last_tenth() -> None:
    lived = Lived(idle=60).until(HOUR)
    assert [at for at, _ in lived.said] == [54.0, 60.0]


def test_the_longest_life_ends_a_session_in_use() -> None:
    uses = [float(minute * 60) for minute in range(0, 3 * 60, 10)]
    lived = Lived(life=2 * HOUR).until(3 * HOUR, uses=uses)
    assert lived.said == [
        (115 * 60, "the session ends in 5m: its longest life is 2h"),
        (120 * 60, "the session's longest life of 2h is over"),
    ]


def test_after_an_outage_a_session_is_warned_before_it_is_ended() -> None:
    clock = SessionClock(SessionTimes(HOUR, 12 * HOUR), began_at=0.0, active_at=0.0)
    first = advance_session(clock, 5 * HOUR)
    assert first.warning == "the session is idle for 5h, and ends in 5m unless it is used"
    assert first.ends_at == 5 * HOUR + 300
    warned = clock._replace(warned_at=5 * HOUR)
    assert advance_session(warned, 5 * HOUR + 299).end == ""
    assert advance_session(warned, 5 * HOUR + 300).end == "the session was idle for 1h"


@pytest.mark.parametrize(
    ("gpu", "requested", "is_in_use"),
    [
        (None, None, False),
        (0, 1, False),
        (50, 1, False),
        (51, 1, True),
        (51, 8, False),
        (None, 1, False),
    ],
)
def test_gpus_at_work_are_use(gpu: int | None, requested: int | None, is_in_use: bool) -> None:
    assert is_busy(RunSums(members=1, gpu=gpu, requested_gpu=requested)) is is_in_use


# -- hosts

HOSTS: dict[str, NamedHost | None] = {
    "8888--shell-7k2p9xq.sessions.example.com": NamedHost(port="8888", job="shell-7k2p9xq"),
    "web--a--b-7k2p9xq.sessions.example.com:8470": NamedHost(port="web", job="a--b-7k2p9xq"),
    "WEB--shell-7k2p9xq.Sessions.Example.com.": NamedHost(port="web", job="shell-7k2p9xq"),
    "my-web--shell-7k2p9xq.sessions.example.com": NamedHost(port="my-web", job="shell-7k2p9xq"),
    "sessions.example.com": None,
    "shell-7k2p9xq.sessions.example.com": None,
    "x.8888--shell-7k2p9xq.sessions.example.com": None,
    "8888--shell-7k2p9xq.sessions.example.com.evil.org": None,
    "8888--shell-7k2p9xqsessions.example.com": None,
    "8888--.sessions.example.com": None,
    "--shell-7k2p9xq.sessions.example.com": None,
    "127.0.0.1:8470": None,
    "[::1]:8470": None,
    "": None,
}


@pytest.mark.parametrize("host", HOSTS)
def test_a_host_names_a_port_of_a_job(host: str) -> None:
    assert parse_host(host, "sessions.example.com") == HOSTS[host]


def test_a_host_is_the_same_again() -> None:
    named = NamedHost(port="8888", job="shell-7k2p9xq")
    assert parse_host(f"{named.label}.s.localhost", "s.localhost") == named


# -- headers


def test_a_member_gets_neither_the_cookie_nor_headers_of_the_hop() -> None:
    given = [
        (b"host", b"h"),
        (b"connection", b"keep-alive, X-Own"),
        (b"x-own", b"1"),
        (b"transfer-encoding", b"chunked"),
        (b"X-Forwarded-For", b"10.0.0.1"),
        (b"forwarded", b"for=10.0.0.1"),
        (b"cookie", b"a=1; trainmaster-session=secret; b=2"),
        (b"cookie", b"__Host-trainmaster-session=secret"),
        (b"authorization", b"token t"),
    ]
    passed = request_headers(given, scheme="https", client="192.0.2.1")
    assert passed == [
        (b"host", b"h"),
        (b"authorization", b"token t"),
        (b"cookie", b"a=1; b=2"),
        (b"x-forwarded-proto", b"https"),
        (b"x-forwarded-host", b"h"),
        (b"x-forwarded-for", b"192.0.2.1"),
    ]


def test_without_other_cookies_there_is_no_header_of_them() -> None:
    passed = request_headers([(b"cookie", b"trainmaster-session=s")], scheme="http", client="")
    assert b"cookie" not in dict(passed)


def test_a_handshake_is_made_anew() -> None:
    given = [(b"host", b"h"), (b"upgrade", b"websocket"), (b"sec-websocket-key", b"k"), (b"origin", b"http://h")]
    passed = request_headers(given, scheme="http", client="", for_web_socket=True)
    assert [name for name, _ in passed] == [b"origin", b"x-forwarded-proto", b"x-forwarded-host"]


def test_an_answer_cannot_set_the_cookie() -> None:
    given = [
        (b"Set-Cookie", b"trainmaster-session=mine"),
        (b"set-cookie", b" __Host-trainmaster-session=mine"),
        (b"set-cookie", b"a=1"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Content-Type", b"text/plain"),
    ]
    assert answer_headers(given) == [(b"set-cookie", b"a=1"), (b"Content-Type", b"text/plain")]


@pytest.mark.parametrize("is_secure", [False, True])
def test_the_cookie_is_of_one_host_and_comes_back(is_secure: bool) -> None:
    line = set_cookie("s-_1", 60, is_secure=is_secure).decode()
    assert {"HttpOnly", "SameSite=Lax", "Path=/", "Max-Age=60"} <= set(line.split("; "))
    assert "Domain" not in line
    assert ("Secure" in line, line.startswith("__Host-")) == (is_secure, is_secure)
    sent = [(b"cookie", f"x=1; {line.partition(';')[0]}".encode())]
    assert cookies_of(sent, is_secure=is_secure) == ["s-_1"]
    assert cookies_of(sent, is_secure=not is_secure) == []


HOST = (b"host", b"8888--a-7k2p9xq.s.org")
OWN, OTHER = (b"origin", b"https://8888--a-7k2p9xq.s.org"), (b"origin", b"https://8888--b-7k2p9xq.s.org")
FOREIGN: dict[str, tuple[str, list[tuple[bytes, bytes]], bool, bool]] = {
    "its own page": ("POST", [HOST, OWN], False, False),
    "a page of another session that posts": ("POST", [HOST, OTHER], False, True),
    "a sandboxed page that posts": ("POST", [HOST, (b"origin", b"null")], False, True),
    "a program without a browser": ("POST", [HOST], False, False),
    "a socket of its own page": ("GET", [HOST, OWN], True, False),
    "a socket of another session's page": ("GET", [HOST, OTHER], True, True),
    "a link on another page": (
        "GET",
        [HOST, (b"sec-fetch-site", b"same-site"), (b"sec-fetch-mode", b"navigate")],
        False,
        False,
    ),
    "a form on another page": (
        "POST",
        [HOST, (b"sec-fetch-site", b"cross-site"), (b"sec-fetch-mode", b"navigate")],
        False,
        True,
    ),
    "a script of another session's page": (
        "GET",
        [HOST, (b"sec-fetch-site", b"same-site"), (b"sec-fetch-mode", b"no-cors")],
        False,
        True,
    ),
    "an address that was typed": ("GET", [HOST, (b"sec-fetch-site", b"none")], False, False),
}


@pytest.mark.parametrize("who", FOREIGN)
def test_requests_of_other_pages_are_told_apart(who: str) -> None:
    method, headers, is_web_socket, expected = FOREIGN[who]
    assert is_foreign(method, headers, is_web_socket=is_web_socket) is expected
