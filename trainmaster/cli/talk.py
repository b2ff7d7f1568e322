"""Input and output of commands and attached processes, over as many connections as it takes."""

import contextlib
import json
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import typer

from trainmaster.cli.output import note

if TYPE_CHECKING:
    from trainmaster.client.web_sockets import BlockingLine
    from trainmaster.protocol.errors import TrainmasterError

Query = Sequence[tuple[str, str]]
Open = Callable[[Query], "BlockingLine"]
"""Connects, with parameters that say where to go on. Raises ProblemError, and UnreachableError."""

_PIECE = 32_768
_DETACHED = 130
_PATIENCE_SECONDS = 300.0
"""Seconds for which a lost connection to an attached process is opened again."""
_FIRST_PAUSE, _MOST_PAUSE = 0.2, 2.0
_LOOK_SECONDS = 0.05
"""Seconds until input is sent again that a connection did not take which is not known to be lost yet."""


class StreamPosition(Protocol):
    """Position in a stream: it says where another connection goes on."""

    patience: float
    """Seconds for which a lost connection is opened again; 0: it cannot be."""
    lost: str
    """What is true where it was not opened again, as a sentence."""

    def opened(self, line: "BlockingLine") -> None:
        """Note what a new connection says of itself."""
        ...

    def received(self, channel: int, data: bytes) -> None:
        """Note a frame."""
        ...

    def query(self) -> Query:
        """Return the parameters of the next connection."""
        ...

    def is_final(self, error: "TrainmasterError") -> bool:
        """Return whether another try would meet the same error."""
        ...


class OneConnection:
    """Position of a command whose life is bound to its connection."""

    patience = 0.0
    lost = "the command was bound to it and has been ended, where its cluster can end commands; how it would have ended is not known"

    def opened(self, line: "BlockingLine") -> None:
        """Note nothing: there is one connection."""

    def received(self, channel: int, data: bytes) -> None:
        """Note nothing: there is one connection."""

    def query(self) -> Query:
        return ()

    def is_final(self, error: "TrainmasterError") -> bool:
        return True


class _MemberPosition:
    """Base of the positions in streams that can be connected to again."""

    def __init__(self, job: str, has_ended: Callable[[], bool]) -> None:
        self.job = job
        self._has_ended = has_ended

    def is_final(self, error: "TrainmasterError") -> bool:
        from trainmaster.client.core import is_passing
        from trainmaster.protocol.errors import Code, ProblemError, TrainmasterError

        if isinstance(error, ProblemError) and error.code is Code.WRONG_STATE:
            # Its cluster is away, or the job has ended.
            with contextlib.suppress(TrainmasterError):
                return self._has_ended()
            return False
        return not is_passing(error)


class LastingPosition(_MemberPosition):
    """Position of a command that goes on for some time without a connection: the number of its frames."""

    def __init__(self, job: str, has_ended: Callable[[], bool]) -> None:
        super().__init__(job, has_ended)
        self.patience = 0.0
        self.lost = f"the command has ended; its exit code is not known. The job {job} is not touched by that"
        self._name = secrets.token_hex(16)
        self._frames: int | None = None

    def opened(self, line: "BlockingLine") -> None:
        from trainmaster.protocol.member_streams import LASTING_HEADER

        seconds = line.header(LASTING_HEADER)
        self.patience = float(seconds) if seconds.isdecimal() else 0.0
        self._frames = self._frames or 0

    def received(self, channel: int, data: bytes) -> None:
        self._frames = (self._frames or 0) + 1

    def query(self) -> Query:
        number = () if self._frames is None else (("received", str(self._frames)),)
        return (("lasting", self._name), *number)


class AttachedPosition(_MemberPosition):
    """Position of an attached process: the offset in its output, where its cluster knows it."""

    def __init__(self, job: str, has_ended: Callable[[], bool]) -> None:
        super().__init__(job, has_ended)
        self.patience = _PATIENCE_SECONDS
        self.lost = f"what it has printed meanwhile: trainmaster logs {job}"
        self._offset: int | None = None

    def opened(self, line: "BlockingLine") -> None:
        from trainmaster.protocol.member_streams import OFFSET_HEADER

        offset = line.header(OFFSET_HEADER)
        self._offset = int(offset) if offset.isdecimal() else None

    def received(self, channel: int, data: bytes) -> None:
        if self._offset is not None:
            self._offset += len(data)

    def query(self) -> Query:
        return () if self._offset is None else (("offset", str(self._offset)),)

    @property
    def has_gap(self) -> bool:
        """Return whether output between two connections is not shown."""
        return self._offset is None


class Talk:
    """Copies input and output until a command has ended. ``run`` exits with its code."""

    def __init__(self, connect: Open, position: StreamPosition, *, stdin: bool, tty: bool) -> None:
        self._connect = connect
        self._position = position
        self._stdin = stdin
        self._terminal = Terminal() if tty and sys.stdin.isatty() else None
        self._cause = ""
        self._line = self._opened()
        self._is_connected = threading.Event()
        self._is_connected.set()
        self._is_over = False

    def run(self) -> None:
        """Copy both. Raises typer.Exit with the exit code of the command, and StreamLostError where that is not known."""
        if self._stdin:
            threading.Thread(target=self._send_input, daemon=True).start()
        with contextlib.ExitStack() as stack:
            if self._terminal is not None:
                stack.enter_context(self._terminal.raw(self._resize))
            try:
                while (end := self._receive()) is None:
                    self._connect_again()
            except KeyboardInterrupt as interrupt:
                self._line.close()
                raise typer.Exit(_DETACHED) from interrupt
            finally:
                self._is_over = True
        self._line.close()
        code, message = end
        if code and message and "exit code" not in message:
            note(message)
        raise typer.Exit(code)

    def _opened(self) -> "BlockingLine":
        line = self._connect(self._position.query())
        self._position.opened(line)
        return line

    def _receive(self) -> tuple[int, str] | None:
        """Pass on output until the end; return exit code and message, None where the connection is lost."""
        from trainmaster.protocol.member_streams import Channel, exit_code_of, is_cut

        outputs: dict[int, Any] = {Channel.OUTPUT: sys.stdout.buffer, Channel.ERROR_OUTPUT: sys.stderr.buffer}
        end: tuple[int, str] | None = None
        while (frame := self._line.receive()) is not None:
            channel, data = frame[0], frame[1:]
            if channel == Channel.STATUS:
                code, message = exit_code_of(data)
                end, self._cause = (None, message) if is_cut(data) else ((code, message), "")
                continue
            self._position.received(channel, data)
            if channel in outputs:
                outputs[channel].write(data)
                outputs[channel].flush()
        return end

    def _connect_again(self) -> None:
        """Open another connection. Raises StreamLostError where none is opened in time."""
        from trainmaster.client.errors import StreamLostError
        from trainmaster.protocol.errors import TrainmasterError

        self._is_connected.clear()
        cause = self._cause or self._line.end or "it was cut"
        self._cause = ""
        patience = self._position.patience
        if not patience:
            raise StreamLostError(f"the connection was lost ({cause}): {self._position.lost}")
        until, pause = time.monotonic() + patience, _FIRST_PAUSE
        with self._terminal.at_rest() if self._terminal is not None else contextlib.nullcontext():
            note(f"the connection was lost ({cause}); connecting again, until Ctrl-C")
            while True:
                try:
                    self._line = self._opened()
                    break
                except TrainmasterError as error:
                    if self._position.is_final(error) or time.monotonic() > until:
                        raise StreamLostError(f"the connection was lost ({error}): {self._position.lost}") from error
                except KeyboardInterrupt as interrupt:
                    raise StreamLostError(f"the connection was lost ({cause})") from interrupt
                time.sleep(pause)
                pause = min(2 * pause, _MOST_PAUSE)
            note(f"the connection is there again{self._gap()}")
        self._is_connected.set()
        if self._terminal is not None:
            self._resize()

    def _gap(self) -> str:
        position = self._position
        has_gap = isinstance(position, AttachedPosition) and position.has_gap
        return f"; {self._position.lost}" if has_gap else ""

    def _send_input(self) -> None:
        from trainmaster.protocol.member_streams import Channel, frame

        source = sys.stdin.fileno()
        with contextlib.suppress(OSError):
            while data := os.read(source, _PIECE):
                self._send(frame(Channel.INPUT, data))
        if self._line.protocol.startswith("v5"):
            self._send(frame(Channel.CLOSE, bytes((Channel.INPUT,))))

    def _send(self, data: bytes) -> None:
        """Send a frame, over the next connection where this one is lost."""
        while not self._is_over:
            self._is_connected.wait()
            if self._line.send(data):
                return
            time.sleep(_LOOK_SECONDS)

    def _resize(self) -> None:
        from trainmaster.protocol.member_streams import Channel, frame

        columns, rows = os.get_terminal_size(sys.stdin.fileno())
        self._line.send(frame(Channel.SIZE, json.dumps({"Width": columns, "Height": rows}).encode()))


class Terminal:
    """The terminal of this process, which passes each key on as it is, Ctrl-C too, while it is raw."""

    def __init__(self) -> None:
        import termios

        self._descriptor = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._descriptor)

    @contextmanager
    def raw(self, resize: Callable[[], None]) -> Iterator[None]:
        """Make the terminal raw while the block runs, and call ``resize`` now and with each change of its size."""
        import tty

        handler = signal.signal(signal.SIGWINCH, lambda *_: resize())
        try:
            tty.setraw(self._descriptor)
            resize()
            yield
        finally:
            signal.signal(signal.SIGWINCH, handler)
            self._restore()

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Give the terminal its own mode while the block runs."""
        import tty

        self._restore()
        print(file=sys.stderr)
        yield
        tty.setraw(self._descriptor)

    def _restore(self) -> None:
        import termios

        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)
