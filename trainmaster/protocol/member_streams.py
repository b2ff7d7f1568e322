"""Streams to members: commands run in them, their first process attached to, their ports. Frames are those of Kubernetes.

A frame of a command or of an attached process is one byte, the number of its channel, and data: the sub-protocol
``v5.channel.k8s.io`` of a WebSocket, which ``kubectl`` and its clients speak (KEP-4006). That of ports is chosen by the client;
``v4.channel.k8s.io`` has a channel for the data and one for the error of each port, which both begin with the port's number.
"""

from enum import IntEnum, StrEnum
from typing import Annotated, Any

import orjson
from pydantic import Field

from trainmaster.protocol.base import Lenient, bounded

COMMANDS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
"""Sub-protocols of commands and attached processes, the preferred first; the older one cannot close its input."""
PORTS = ("v4.channel.k8s.io", "SPDY/3.1+portforward.k8s.io")
"""Sub-protocols of ports: one connection on plain channels, and connections as streams of SPDY in a WebSocket (KEP-4006)."""
LARGEST_FRAME = 1 << 24
"""The most bytes of one frame."""
MOST_ARGUMENTS, LONGEST_COMMAND = 1000, 32_768
MOST_PORTS = 32
LASTING_NAME = r"[0-9a-f]{32}"
"""Pattern of the names of lasting commands: random, so that nobody else reaches them."""
LASTING_HEADER, OFFSET_HEADER = "Trainmaster-Lasting", "Trainmaster-Offset"
"""Headers of the answers that open a stream: ``lasting`` and ``offset`` of its ``MemberStreamOpening``."""


_CUT = "StreamCut"


class Channel(IntEnum):
    """Channels of a command."""

    INPUT = 0
    OUTPUT = 1
    ERROR_OUTPUT = 2
    STATUS = 3
    """The command's end, as a Status object."""
    SIZE = 4
    """The size of the terminal, as ``{"Width": ..., "Height": ...}``."""
    CLOSE = 255
    """The end of another channel, whose number is the data."""


class MemberStreamKind(StrEnum):
    """Kinds of streams to members."""

    EXEC = "exec"
    ATTACH = "attach"
    PORT_FORWARD = "portForward"

    @property
    def protocols(self) -> tuple[str, ...]:
        """The sub-protocols that a client may offer."""
        return PORTS if self is MemberStreamKind.PORT_FORWARD else COMMANDS


class MemberStreamOptions(Lenient):
    """The wanted stream."""

    kind: MemberStreamKind
    """A command to run, the first process to attach to, or ports."""
    user: str = ""
    """Name of the user's key, for the log of the agent."""
    protocols: Annotated[tuple[str, ...], bounded(16)] = ()
    """Sub-protocols that the user's client offers."""
    container: str = ""
    """Container of the member's pod; empty: the first one."""
    command: Annotated[tuple[str, ...], bounded(MOST_ARGUMENTS)] = ()
    """The command and its arguments."""
    stdin: bool = False
    """True if the client sends input."""
    stdout: bool = True
    """True if output is wanted."""
    stderr: bool = True
    """True if error output is wanted; with a terminal it is part of the output."""
    tty: bool = False
    """True if the command gets a terminal."""
    ports: Annotated[tuple[Annotated[int, Field(ge=1, le=65_535)], ...], bounded(MOST_PORTS)] = ()
    """Ports of the member."""
    lasting: Annotated[str, Field(pattern=rf"^({LASTING_NAME})?$")] = ""
    """Name of a command that goes on for some time when its connection is lost; empty: it ends with its connection."""
    received: Annotated[int, Field(ge=0)] | None = None
    """Number of frames that the user has received of the lasting command, which runs already; None: it is started."""
    offset: Annotated[int, Field(ge=0)] | None = None
    """Offset in bytes from which on the output of an attached process is sent; None: from now on."""


class OpenMemberStream(Lenient):
    """A stream to a member that a user has opened. The agent connects to it by its id, and says first whether it was opened."""

    stream: str
    """Id of the stream."""
    run: str
    """Id of the run."""
    role: str
    """Role of the member."""
    index: int
    """Index of the member in its role."""
    options: MemberStreamOptions
    """The wanted stream."""


class MemberStreamOpening(Lenient):
    """Answer of an agent to an opened stream, in its first message, a text."""

    protocol: str = ""
    """Sub-protocol of the frames that follow; empty: the stream was not opened."""
    status: int = 500
    """HTTP status of the refusal."""
    message: str = ""
    """Why the stream was not opened."""
    lasting: float = 0.0
    """Seconds for which the command goes on when its connection is lost; 0: it ends, or nobody can connect to it again."""
    offset: int | None = None
    """Offset in bytes of the first output of an attached process; None where the cluster does not know it."""


def frame(channel: int, data: bytes = b"") -> bytes:
    """Return a frame."""
    return bytes((channel,)) + data


def end_of_command(code: int, message: str = "") -> dict[str, Any]:
    """Return the Status object of a command that has ended with ``code``; ``message``: why it could not be run, if so."""
    if not code:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "message": message or f"command terminated with exit code {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def failure(status: int, message: str, *, is_cut: bool = False) -> dict[str, Any]:
    """Return the Status object of a stream that has failed; ``is_cut``: because a connection on the way was lost."""
    details = {"details": {"causes": [{"reason": _CUT, "message": message}]}} if is_cut else {}
    return {
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": "InternalError",
        "code": status,
    } | details


def is_cut(data: bytes) -> bool:
    """Return whether a Status object says that a connection on the way was lost."""
    try:
        causes = (orjson.loads(data).get("details") or {}).get("causes") or ()
        return any(one.get("reason") == _CUT for one in causes)
    except (orjson.JSONDecodeError, AttributeError, TypeError):
        return False


def exit_code_of(data: bytes) -> tuple[int, str]:
    """Return the exit code in a Status object, and its message; 1 for an end without one."""
    try:
        status = orjson.loads(data)
        if status.get("status") == "Success":
            return 0, ""
        causes = (status.get("details") or {}).get("causes") or ()
        codes = [int(one["message"]) for one in causes if one.get("reason") == "ExitCode"]
        return (codes[0] if codes else 1), str(status.get("message") or "")
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError):
        return 1, data[:1000].decode(errors="replace")
