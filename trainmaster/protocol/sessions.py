"""Interactive sessions: jobs that people work in, by a terminal or by ports, and that end once nobody uses them.

The terms of a session are a part of its job's specification; the answers say when each session ends by itself.
"""

import re
from typing import Annotated, NamedTuple, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from trainmaster.protocol.base import Lenient, Name12, Strict, Timestamp, bounded, example, worded_pattern
from trainmaster.protocol.durations import Duration, format_duration, parse_duration

LEAST_SESSION_SECONDS = 10.0
"""The shortest idle time-out and the shortest life, in seconds."""
LONGEST_PROTECTION = 4 * 3600.0
"""The longest minimum time, in seconds: other jobs wait for the capacity, whatever is guaranteed to them."""
MOST_SESSION_PORTS = 20
LONGEST_PATH = 500
_PATH = worded_pattern(
    r"^/(?:[!-.0-\[\]-~][!-~]*)?$",
    "the path of a page, such as /lab?token=...: one slash, and characters of ASCII without spaces",
)
"""A path of the same host: what begins with two slashes, or with one and a backslash, names another one."""
_HOST_LABEL = re.compile(r"(?P<port>[a-z0-9](?:-?[a-z0-9])*)--(?P<job>[a-z0-9][-a-z0-9]{0,61}[a-z0-9])")


class SessionPort(Strict):
    """A port of a session's members that people open by its name."""

    name: Name12
    """Name of the port, with a letter in it."""
    port: Annotated[int, Field(ge=1, le=65535)]
    """Number of the port."""
    path: Annotated[str, StringConstraints(max_length=LONGEST_PATH, pattern=_PATH)] | None = None
    """First page that a link shows: a path of the server at the port, and a query; "/" by default. Not in lists of sessions, as it
    may have a token in it."""

    @field_validator("name")
    @classmethod
    def _stands_in_a_host(cls, value: str) -> str:
        if value.isdecimal() or "--" in value:
            raise ValueError(f"the name of a port has a letter in it and no '--'; got {value!r}")
        return value


class SessionSpec(Strict):
    """Terms of an interactive session: its ports, and when it ends by itself."""

    model_config = example(ports=[{"name": "web", "port": 8888}], idleTimeout="1h", longestLife="12h")

    ports: Annotated[tuple[SessionPort, ...], bounded(MOST_SESSION_PORTS)] = ()
    """Ports that are opened by name. Those without a name are reached by their number."""
    idle_timeout: Duration = "1h"
    """Time without use after which the session is ended."""
    minimum_time: Duration = "15m"
    """Time from its start in which the session is not preempted, at most 4h."""
    longest_life: Duration = "12h"
    """Time from its first start after which the session is ended, used or not."""

    @model_validator(mode="after")
    def _times_are_sensible(self) -> Self:
        for name, text in (("idleTimeout", self.idle_timeout), ("longestLife", self.longest_life)):
            if parse_duration(text) < LEAST_SESSION_SECONDS:
                raise ValueError(f"{name} is at least {format_duration(LEAST_SESSION_SECONDS)}")
        if parse_duration(self.minimum_time) > LONGEST_PROTECTION:
            raise ValueError(f"minimumTime is at most {format_duration(LONGEST_PROTECTION)}: other jobs wait meanwhile")
        return self

    @field_validator("ports")
    @classmethod
    def _ports_differ(cls, value: tuple[SessionPort, ...]) -> tuple[SessionPort, ...]:
        if len({one.name for one in value}) < len(value):
            raise ValueError("two ports of a session have the same name")
        return value


class SessionView(Lenient):
    """A session that has not ended."""

    model_config = example(job="shell-7k2p9xq", queue="research/vision", state="running", user="ann", cluster="west")

    job: str
    """Id of its job."""
    queue: str
    """Queue of the job."""
    state: str
    """State of the job."""
    user: str = ""
    """Name of the key that submitted it."""
    cluster: str | None = None
    """Cluster of its newest run."""
    began_at: Timestamp | None = None
    """Time of its first start; missing where it has not started."""
    active_at: Timestamp | None = None
    """Time of its last use, or of the start of its run where that is later; missing where it does not run."""
    idle_ends_at: Timestamp | None = None
    """Time at which it is ended unless it is used until then; missing where it does not run."""
    life_ends_at: Timestamp | None = None
    """Time at which it is ended in any case; missing where it has not started."""
    ports: tuple[SessionPort, ...] = ()
    """Its named ports."""


class SessionList(Lenient):
    """Sessions that have not ended, newest first."""

    sessions: tuple[SessionView, ...]
    """The sessions."""


class SessionLinkSpec(Strict):
    """A port that a browser is to open."""

    model_config = example(port="8888")

    port: Annotated[str, StringConstraints(min_length=1, max_length=12)]
    """Number of the port, or its name in the session's terms."""


class SessionLinkView(Lenient):
    """A link for one browser."""

    model_config = example(
        url="https://8888--shell-7k2p9xq.sessions.example.com/.trainmaster/enter?ticket=b1c5e0f2",
        expiresAt="2026-11-24T08:01:00.000Z",
    )

    url: str
    """Address to open, which counts once."""
    expires_at: Timestamp
    """Time until which it has to be opened."""


class NamedHost(NamedTuple):
    """A port of a job, by number or name, as the first label of a host has it: ``8888--shell-7k2p9xq``, ``web--shell-7k2p9xq``."""

    port: str
    job: str

    @property
    def label(self) -> str:
        return f"{self.port}--{self.job}"


def parse_host(host: str, domain: str) -> NamedHost | None:
    """Return the port that a ``Host`` header names; None for one that is not directly below the sessions' domain.

    Host names know no upper and lower case; a port number at the end is ignored.
    """
    name = host.strip().lower().partition(":")[0].rstrip(".")
    label, dot, rest = name.partition(".")
    if not dot or rest != domain.lower():
        return None
    found = _HOST_LABEL.fullmatch(label)
    return None if found is None else NamedHost(port=found["port"], job=found["job"])
