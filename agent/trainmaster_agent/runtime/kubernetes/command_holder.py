"""The program that holds a lasting command in a container, so that it outlives its connection, and the agent too.

Standard library only, and Python 3.8: it runs with the Python of the container. The agent runs it as a command of the pod, and sends
it as input: the program, its orders, and then frames. A command is started with ``hold`` and connected to again with ``join``:

    agent ◀── input and output of an exec ──▶ joiner ◀── socket ──▶ holder ◀── pipes or terminal ──▶ command

What passes, either way, is the length of a frame in four bytes and the frame, which is one of ``v5.channel.k8s.io``. A length of 0
ends: from the agent the command, from the holder the frames. The joiner only copies. It ends with its input, which is when the
connection is lost. The socket has no file, as a container may have no place to write; only the same user connects to it.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import itertools
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from typing import Any

INPUT, OUTPUT, ERROR_OUTPUT, STATUS, SIZE, CLOSE = 0, 1, 2, 3, 4, 255
READY = b"ready\n"
"""First line of the joiner's output; it is another one where the command was not started or is not known."""
_LENGTH, _RECEIVED, _PEER = struct.Struct(">I"), struct.Struct(">Q"), struct.Struct("3i")
_PIECE = 65_536
_MOST_UNREAD, _MOST_CACHED = 1 << 20, 1 << 22
"""Bytes of output after which the command waits for its connected reader, and of output that is kept to be sent again."""
_REST_SECONDS, _HANG_UP_SECONDS = 1.0, 5.0
"""Seconds for which output is read on after the end of a command, and between SIGHUP and SIGKILL."""
_END_OF_INPUT = b"\x04"


def _address(name: str) -> str:
    return f"\0trainmaster-{name}"


def _frame(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _status(code: int) -> bytes:
    """Return the Status object of a command that has ended."""
    if not code:
        return json.dumps({"metadata": {}, "status": "Success"}).encode()
    end = {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with exit code {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }
    return json.dumps(end).encode()


class Command:
    """The held command: its process, and the ends of its pipes or of its terminal."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self.terminal = -1
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        ends = [pipe if orders[name] else nothing for name in ("stdin", "stdout", "stderr")]
        theirs = -1
        if orders["tty"]:
            self.terminal, theirs = os.openpty()
            ends = [theirs, theirs, theirs]

        def begin() -> None:
            os.setsid()
            for one in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
                signal.signal(one, signal.SIG_DFL)  # a shell cannot trap what was ignored when it began
            if theirs >= 0:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            orders["command"], stdin=ends[0], stdout=ends[1], stderr=ends[2], preexec_fn=begin, close_fds=True
        )
        if theirs >= 0:
            os.close(theirs)
        self.input = self.terminal if self.process.stdin is None else self.process.stdin.fileno()
        self.sources = {} if self.terminal < 0 else {self.terminal: OUTPUT}
        for stream, channel in ((self.process.stdout, OUTPUT), (self.process.stderr, ERROR_OUTPUT)):
            if stream is not None:
                self.sources[stream.fileno()] = channel
        self.typed = b""
        """Input that the command has not read."""
        self.ends_input = False
        for one in {*self.sources, self.input} - {-1}:
            os.set_blocking(one, False)

    def take(self, frame: bytes) -> None:
        """Take a frame of the user."""
        channel, data = frame[0], frame[1:]
        if channel == INPUT:
            self.typed += data
        elif channel == CLOSE and data[:1] == bytes((INPUT,)):
            if self.terminal >= 0:
                self.typed += _END_OF_INPUT
            else:
                self.ends_input = True
        elif channel == SIZE and self.terminal >= 0:
            with contextlib.suppress(ValueError, KeyError, TypeError, OSError, struct.error):
                wanted = json.loads(data)
                size = struct.pack("HHHH", int(wanted["Height"]), int(wanted["Width"]), 0, 0)
                fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, size)

    def write(self) -> None:
        """Pass on input, as much as the command reads now."""
        try:
            while self.typed:
                self.typed = self.typed[os.write(self.input, self.typed) :]
        except BlockingIOError:
            return
        except OSError:
            self.typed = b""  # it has ended, or reads no more
        if self.ends_input and self.process.stdin is not None:
            self.ends_input = False
            self.input = -1
            self.process.stdin.close()

    def read(self, source: int) -> bytes:
        """Return a frame of output; empty where there is none now, and at the end of the source, which is left out from then on."""
        try:
            data = os.read(source, _PIECE)
        except BlockingIOError:
            return b""
        except OSError:  # of a terminal that no process has any more
            data = b""
        channel = self.sources[source]
        if not data:
            del self.sources[source]
            return b""
        return bytes((channel,)) + data

    def end(self, which: int) -> None:
        """Send a signal to the processes of the command."""
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, which)


class CommandUser:
    """A connection of a joiner."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line
        self.received = b""
        self.position = -1
        """Number of the next frame to send, from the command's start; -1 until the user has said what was received."""
        self.sending = b""
        self.is_over = False
        """Whether the last frame is among what is sent."""

    def frames(self) -> list[bytes]:
        """Return the frames that have come; an empty one ends the command. Raises OSError where the connection is lost."""
        found = []
        with contextlib.suppress(BlockingIOError):
            data = self.line.recv(_PIECE)
            if not data:
                raise ConnectionError
            self.received += data
        while len(self.received) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self.received)
            end = _LENGTH.size + length
            if len(self.received) < end:
                break
            found.append(self.received[_LENGTH.size : end])
            self.received = self.received[end:]
        return found

    def send(self) -> None:
        """Send as much as the connection takes now. Raises OSError where it is lost."""
        with contextlib.suppress(BlockingIOError):
            while self.sending:
                self.sending = self.sending[self.line.send(self.sending) :]


class CommandHolder:
    """The command, its newest output, and its user."""

    def __init__(self, command: Command, server: socket.socket, seconds: float) -> None:
        self._command = command
        self._server = server
        self._seconds = seconds
        self._frames: collections.deque[bytes] = collections.deque()
        self._first = 0
        """Number of the first kept frame."""
        self._size = 0
        self._user: CommandUser | None = None
        self._is_over = False
        self._left = time.monotonic()
        """When the last user was lost."""
        self._ended: float | None = None
        """When the process of the command had ended."""

    def run(self) -> None:
        """Serve users until one ends the command, or nobody has connected for long: the last frames may have been lost."""
        while True:
            self._wait()
            if self._user is None and time.monotonic() - self._left > self._seconds:
                break
            self._command.write()
            self._note_end()
            if self._user is not None and not self._serve(self._user):
                break
        self._lose()
        self._server.close()
        self._command.end(signal.SIGHUP)
        ends = time.monotonic() + _HANG_UP_SECONDS
        while self._command.process.poll() is None and time.monotonic() < ends:
            time.sleep(0.05)
        self._command.end(signal.SIGKILL)

    def _wait(self) -> None:
        """Wait until something can be read or written, at most for a moment, and read it."""
        command, user = self._command, self._user
        with selectors.DefaultSelector() as ready:
            ready.register(self._server, selectors.EVENT_READ)
            if user is not None:
                writes = selectors.EVENT_WRITE if user.sending or self._unsent(user) else 0
                wanted = (selectors.EVENT_READ if self._takes_input() else 0) | writes
                if wanted:
                    ready.register(user.line, wanted)
            reads = () if self._is_full() else tuple(command.sources)
            for one in {*reads, *((command.input,) if command.typed and command.input >= 0 else ())}:
                events = selectors.EVENT_READ if one in reads else 0
                events |= selectors.EVENT_WRITE if command.typed and one == command.input else 0
                ready.register(one, events)
            found = {key.fileobj for key, events in ready.select(0.25) if events}
        for source in reads:
            if source in found and (frame := command.read(source)):
                self._keep(frame)
        if self._server in found:
            self._accept()

    def _takes_input(self) -> bool:
        return len(self._command.typed) < _MOST_UNREAD

    def _is_full(self) -> bool:
        user = self._user
        return user is not None and len(user.sending) + sum(map(len, self._unsent(user))) > _MOST_UNREAD

    def _unsent(self, user: CommandUser) -> list[bytes]:
        """Return the frames that are to be sent next."""
        if user.position < 0:
            return []
        return list(itertools.islice(self._frames, user.position - self._first, None))

    def _keep(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._size += len(frame)
        while self._size > _MOST_CACHED and (self._user is None or self._first < self._user.position):
            self._size -= len(self._frames.popleft())
            self._first += 1

    def _note_end(self) -> None:
        """Report the end of the command, once its output is read, or some time later: others may hold it open."""
        code = self._command.process.poll()
        if code is None or self._is_over:
            return
        if self._ended is None:
            self._ended = time.monotonic()
        if not self._command.sources or time.monotonic() - self._ended > _REST_SECONDS:
            self._keep(bytes((STATUS,)) + _status(128 - code if code < 0 else code))
            self._is_over = True

    def _accept(self) -> None:
        line, _ = self._server.accept()
        peer = _PEER.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if peer[1] != os.getuid():
            line.close()
            return
        line.setblocking(False)
        self._lose()
        self._user = CommandUser(line)

    def _lose(self) -> None:
        if self._user is not None:
            self._user.line.close()
        self._user, self._left = None, time.monotonic()

    def _serve(self, user: CommandUser) -> bool:
        """Take what the user has sent, and send frames. Return False once the user has ended the command."""
        try:
            for frame in user.frames() if self._takes_input() else ():
                if user.position < 0:
                    wanted = _RECEIVED.unpack(frame)[0]
                    user.position = max(self._first, min(wanted, self._first + len(self._frames)))
                elif not frame:
                    return False
                else:
                    self._command.take(frame)
            while user.position >= 0 and len(user.sending) < _PIECE and user.position < self._first + len(self._frames):
                user.sending += _frame(self._frames[user.position - self._first])
                user.position += 1
            if self._is_over and not user.is_over and user.position == self._first + len(self._frames):
                user.sending += _frame(b"")
                user.is_over = True
            user.send()
        except (OSError, struct.error):
            self._lose()
            return True
        return True


def hold(orders: dict[str, Any]) -> str:
    """Start a command and its holder; return why not, if so."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(_address(orders["name"]))
    server.listen(4)
    server.setblocking(False)
    reads, writes = os.pipe()
    if os.fork() == 0:
        os.close(reads)
        os.setsid()
        try:
            command = Command(orders)
        except (OSError, ValueError) as error:
            os.write(writes, f"the command could not be started: {error}".encode())
            os._exit(1)
        _let_go_of_standard_files()
        os.close(writes)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        try:
            CommandHolder(command, server, orders["seconds"]).run()
        finally:
            os._exit(0)
    os.close(writes)
    server.close()
    with os.fdopen(reads, "rb") as answer:
        return answer.read().decode(errors="replace")


def _let_go_of_standard_files() -> None:
    """Close what ties the holder to the exec that has started it."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for one in range(3):
        os.dup2(nothing, one)
    os.close(nothing)


def join(orders: dict[str, Any]) -> str:
    """Copy between the exec and the holder until one of both ends; return why not, if there is no holder."""
    line = socket.socket(socket.AF_UNIX)
    try:
        line.connect(_address(orders["name"]))
    except OSError:
        return "this command has ended"
    line.sendall(_frame(_RECEIVED.pack(orders["received"])))
    os.write(1, READY)
    with selectors.DefaultSelector() as ready:
        ready.register(0, selectors.EVENT_READ)
        ready.register(line, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                data = os.read(0, _PIECE) if key.fileobj == 0 else line.recv(_PIECE)
                if not data:
                    return ""
                if key.fileobj == 0:
                    line.sendall(data)
                else:
                    _write_all(data)


def _write_all(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def main(mode: str) -> None:
    """Read the orders, a JSON object after its length in four bytes, and do what ``mode`` says."""
    (length,) = _LENGTH.unpack(read_exactly(_LENGTH.size))
    orders = json.loads(read_exactly(length))
    failure = hold(orders) if mode == "hold" else ""
    with contextlib.suppress(OSError):
        failure = failure or join(orders)
        if failure:
            _write_all(f"refused: {failure}\n".encode())
    sys.stdout.flush()


def read_exactly(size: int) -> bytes:
    """Return the next bytes of the input. Raises EOFError."""
    found = b""
    while len(found) < size:
        data = os.read(0, size - len(found))
        if not data:
            raise EOFError
        found += data
    return found


if __name__ == "__main__":
    main(sys.argv[1])
