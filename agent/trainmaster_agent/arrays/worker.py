"""The program of a member that runs elements of an array: it gets elements from the agent and reports how they have ended.

Standard library only, and Python 3.8: on Kubernetes it runs with the Python of the member's image. It is one file, since that is all
that is put into the member.

One thread calls the agent; each slot has a thread that runs one element after the other. Every call repeats all that the agent may
not know: which elements are held, and results that are not stored yet. So calls can be repeated, and the agent can start again.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import http.client
import importlib
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import urllib.parse
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterable

URL, TOKEN, TASK = "TM_ARRAY_URL", "TM_ARRAY_TOKEN", "TM_ARRAY_TASK"
"""Variables with the address of the agent, the secret of the array, and how elements are run, as JSON. Their command is in the
arguments, which follow the entry point of the image where there is a file with that."""
RESULTS = "TRAINMASTER_RESULTS"
"""Variable with the file to which an element writes what it returns."""
BLOCK_SECONDS = 0.5
"""Seconds of work for which elements are fetched at a time."""
MOST_HELD = 512
"""The most elements that are fetched for each slot."""
BEAT_SECONDS = 2.0
"""Seconds after which the agent is called, whatever happens."""
REPORT_SECONDS = 0.2
"""Seconds for which results are gathered."""
FETCH_SECONDS = 0.02
"""Seconds between calls for more elements, at least."""
ANSWER_SECONDS = 30.0
LONGEST_PAUSE = 5.0
MOST_MESSAGE = 1000
MOST_RESULT = 1000
"""Bytes of the result of an element, as JSON."""
MOST_DEPTH = 16
"""The most lists and objects in each other in a result."""
MOST_OUTPUT = 1 << 20
"""Bytes of the output of an element that are passed on; more is dropped."""
_PART = 65536
"""Bytes that are read at once; a line that is longer is passed on in pieces."""
GONE = 3
"""Exit code where the agent does not run this array any more."""
_NOT_FOUND, _OK = 404, 200
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores; a command would inherit that."""


def spans_of(elements: Iterable[int]) -> list[list[int]]:
    """Return elements as ranges, each with its first and its last one."""
    spans: list[list[int]] = []
    for element in sorted(elements):
        if spans and spans[-1][1] == element - 1:
            spans[-1][1] = element
        else:
            spans.append([element, element])
    return spans


def is_plain(value: Any, depth: int = MOST_DEPTH) -> bool:
    """Return whether every reader of JSON takes a value: its integers have at most 64 bits, and it is not nested deeply."""
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return depth > 0 and all(is_plain(one, depth - 1) for one in value)
    return True


class ElementFailed:
    """The failure of an element."""

    def __init__(self, exit_code: int | None = None, number: int | None = None, message: str = "") -> None:
        self.exit_code = exit_code
        self.signal = number
        self.message = message[-MOST_MESSAGE:]


class ElementParameters:
    """Parameters of elements: an entry for each, or a grid with an element for each combination, the last one varying fastest."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._grid = list(task.get("grid", {}).items())
        self._entries: list[dict[str, Any]] = task.get("parameters", [])

    def values_of(self, element: int) -> dict[str, Any]:
        """Return the parameters of an element; empty without any."""
        if self._entries:
            return self._entries[element]
        values = []
        for name, choices in reversed(self._grid):
            element, position = divmod(element, len(choices))
            values.append((name, choices[position]))
        return dict(reversed(values))


class WorkerOutput:
    """The output of the worker: whole lines of the elements, each with the index of its element."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def write(self, element: int, data: bytes) -> None:
        prefix = b"[%d] " % element
        lines = data.split(b"\n")
        if not lines[-1]:
            lines.pop()
        text = b"".join(prefix + line + b"\n" for line in lines)
        with self._lock:
            while text:
                text = text[os.write(1, text) :]


_SPAWNING = threading.Lock()
"""Held while a process is started: one that is not known yet is not left behind."""


class ElementRunner(abc.ABC):
    """Runs the elements of one slot, one after the other."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._parameters = ElementParameters(task)
        self._keeps_results = bool(task.get("results"))
        self._result_file: Path | None = None
        self.result: str | None = None
        """What the last element returned, as JSON, if it has succeeded and results are kept."""
        self._limit: float | None = task.get("timeLimit")
        self._lock = threading.Lock()
        self._pid = 0
        """The process of the element, which leads a process group; 0: there is none."""
        self.was_killed = False
        """Whether the last element that ran was sent a signal by this worker."""

    @property
    def pid(self) -> int:
        return self._pid

    @abc.abstractmethod
    def run(self, element: int) -> ElementFailed | None:
        """Run an element; return None for a success."""

    def close(self) -> None:
        """Remove what this runner has stored; it runs no element any more."""
        if self._result_file is not None:
            shutil.rmtree(self._result_file.parent, ignore_errors=True)

    def kill(self, number: int) -> None:
        """Send a signal to the element that runs, and all that it has started."""
        with self._lock:
            if self._pid:
                self.was_killed = True
                with contextlib.suppress(OSError):
                    os.killpg(self._pid, number)

    def _note_result(self, text: str) -> ElementFailed | None:
        """Keep what an element has returned, as JSON; return the failure that it is if it cannot be kept."""
        try:
            value = json.loads(text)
            text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
            size = len(text.encode())
        except (ValueError, RecursionError) as error:
            return ElementFailed(0, message=f"its result is no JSON value: {error}")
        if size > MOST_RESULT:
            return ElementFailed(0, message=f"its result has {size} bytes as JSON, at most {MOST_RESULT} are kept")
        if not is_plain(value):
            return ElementFailed(
                0, message=f"its result has integers beyond 64 bits, or is nested deeper than {MOST_DEPTH}"
            )
        self.result = text
        return None

    def _late(self) -> ElementFailed:
        return ElementFailed(number=signal.SIGKILL, message=f"its time limit of {self._limit:g} s is over")


def _failure_of(status: int, tail: str, what: str) -> ElementFailed | None:
    """Return the failure that the status of a process means; None for a success. ``tail``: the end of its output."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return ElementFailed(number=number, message=tail or f"{what} was ended by {signal.Signals(number).name}")
    code = os.WEXITSTATUS(status)
    return None if code == 0 else ElementFailed(code, message=tail or f"{what} ended with exit code {code}")


def words_of_image(file: str, arguments: list[str]) -> list[str]:
    """Return what of the entry point in a file comes before the arguments: all of it where there are none."""
    found = json.loads(Path(file).read_bytes())
    return [*found["entrypoint"], *([] if arguments else found["cmd"])]


class CommandRunner(ElementRunner):
    """Executes a command for each element. Its output comes by a pipe that all of them have.

    ``first``: words before the command, in which nothing is filled in: the image's own.
    """

    def __init__(self, first: list[str], command: list[str], task: dict[str, Any], output: WorkerOutput) -> None:
        super().__init__(task)
        self._first = first
        self._command = command
        self._output = output
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        self._environment = dict(os.environ)
        if self._keeps_results:
            self._result_file = Path(_new_folder()) / "result.json"
            self._environment[RESULTS] = str(self._result_file)

    def run(self, element: int) -> ElementFailed | None:
        texts = {"element": str(element)}
        for name, value in self._parameters.values_of(element).items():
            texts[name] = value if isinstance(value, str) else json.dumps(value)
        argv = [*self._first, *(_filled(part, texts) for part in self._command)]
        if not argv:
            return ElementFailed(127, message="the role has no command, and the entry point of its image is not known")
        env = {**self._environment, "TRAINMASTER_ELEMENT": str(element)}
        env.update((name, value) for name, value in texts.items() if name != "element")
        self.result = None
        if self._result_file is not None:
            with contextlib.suppress(FileNotFoundError):
                self._result_file.unlink()
        actions = [(os.POSIX_SPAWN_DUP2, self._write, 1), (os.POSIX_SPAWN_DUP2, self._write, 2)]
        try:
            with _SPAWNING, self._lock:
                self.was_killed = False
                self._pid = os.posix_spawnp(argv[0], argv, env, file_actions=actions, setpgroup=0, setsigdef=_IGNORED)
        except (OSError, ValueError) as error:
            return ElementFailed(127, message=f"{argv[0]}: {error}")
        status, tail, is_late = self._wait(element)
        failure = self._late() if is_late else _failure_of(status, tail, argv[0])
        return failure if failure is not None or self._result_file is None else self._read_result(self._result_file)

    def _read_result(self, file: Path) -> ElementFailed | None:
        """Keep what the command has written; return the failure that it is if it cannot be kept."""
        try:
            with file.open("rb") as opened:
                data = opened.read(_PART)
        except FileNotFoundError:
            return None
        except OSError as error:
            return ElementFailed(0, message=f"the file of {RESULTS} cannot be read: {error}")
        return self._note_result(data.decode(errors="replace")) if data.strip() else None

    def _wait(self, element: int) -> tuple[int, str, bool]:
        """Wait for the end of the process while its output is passed on.

        Return its status, the end of its output, and whether it was killed as its time limit was over.
        """
        end_at = None if self._limit is None else time.monotonic() + self._limit
        tail, rest, size, is_late = b"", b"", 0, False
        poller = select.poll()
        poller.register(self._read, select.POLLIN)
        watch = _process_descriptor(self._pid)
        if watch is not None:
            poller.register(watch, select.POLLIN)
        try:
            while True:
                poller.poll(1000 if watch is not None else 10)
                done, status = os.waitpid(self._pid, os.WNOHANG)
                data = rest + self._drain()
                cut = len(data) if done or len(data) > _PART else data.rfind(b"\n") + 1
                data, rest = data[:cut], data[cut:]
                if data:
                    tail = (tail + data)[-MOST_MESSAGE:]
                    self._pass_on(element, data, size)
                    size += len(data)
                if done:
                    break
                if end_at is not None and time.monotonic() >= end_at:
                    is_late = True
                    self.kill(signal.SIGKILL)
        finally:
            if watch is not None:
                os.close(watch)
        self._end_group()
        return status, tail.decode(errors="replace").strip(), is_late

    def _pass_on(self, element: int, data: bytes, before: int) -> None:
        """Pass on output of an element of which ``before`` bytes were seen already."""
        if before >= MOST_OUTPUT:
            return
        is_cut = before + len(data) > MOST_OUTPUT
        note = b"\n(more output of this element is dropped)\n" if is_cut else b""
        self._output.write(element, data[: MOST_OUTPUT - before] + note)

    def _end_group(self) -> None:
        """Kill what the element has left behind: it would hold the pipe and the member's resources."""
        with self._lock:
            pid, self._pid = self._pid, 0
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)

    def _drain(self) -> bytes:
        parts = []
        with contextlib.suppress(BlockingIOError):
            while True:
                part = os.read(self._read, _PART)
                parts.append(part)
                if len(part) < _PART:
                    break
        return b"".join(parts)


def _new_folder() -> str:
    """Return a new folder for files of this process."""
    try:
        return tempfile.mkdtemp(prefix="trainmaster-")
    except OSError:
        # A container whose image is read-only has this one all the same.
        return tempfile.mkdtemp(prefix="trainmaster-", dir="/dev/shm")


def _filled(text: str, texts: dict[str, str]) -> str:
    for name, value in texts.items():
        text = text.replace(f"${{{name}}}", value)
    return text


def _process_descriptor(pid: int) -> int | None:
    """Return a descriptor that can be read once the process has ended; None where the system has none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


class CallRunner(ElementRunner):
    """Calls a function for each element, in a process that is forked once: a crash ends only that one."""

    def __init__(self, task: dict[str, Any]) -> None:
        super().__init__(task)
        self._module, _, self._function = task["call"].partition(":")
        self._orders = self._answers = -1

    def run(self, element: int) -> ElementFailed | None:
        if not self._pid:
            self._start()
        self.was_killed = False
        self.result = None
        order = json.dumps([element, self._parameters.values_of(element)]).encode()
        answer: bytes | None = b""
        with contextlib.suppress(OSError):
            os.write(self._orders, b"%d\n%b" % (len(order), order))
            answer = self._answer()
        if answer is None:
            self.kill(signal.SIGKILL)
            self._reap()
            return self._late()
        if not answer:
            return _failure_of(self._reap(), "", "the process of the call") or ElementFailed(
                0, message="the call ended its process"
            )
        message, result = json.loads(answer)
        if message is not None:
            return ElementFailed(1, message=message)
        return None if result is None else self._note_result(result)

    def _answer(self) -> bytes | None:
        """Return the answer of the process; nothing if it has ended, None if the time limit is over."""
        end_at = None if self._limit is None else time.monotonic() + self._limit
        data = b""
        while not data.endswith(b"\n"):
            left = None if end_at is None else max(0.0, end_at - time.monotonic())
            if not select.select([self._answers], [], [], left)[0]:
                return None
            part = os.read(self._answers, _PART)
            if not part:
                return b""
            data += part
        return data

    def _start(self) -> None:
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        sys.stdout.flush()
        with _SPAWNING, self._lock:
            self._pid = os.fork()
            if self._pid == 0:
                os.setpgid(0, 0)
                os.close(self._orders)
                os.close(self._answers)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                serve_calls(self._module, self._function, orders, answers, self._keeps_results)
        os.close(orders)
        os.close(answers)

    def _reap(self) -> int:
        with self._lock:
            pid, self._pid = self._pid, 0
        _, status = os.waitpid(pid, 0)
        os.close(self._orders)
        os.close(self._answers)
        return status


def serve_calls(module: str, function: str, orders: int, answers: int, keeps_results: bool) -> NoReturn:
    """Call the function for each order that comes by a pipe, until there are no more; end the process.

    ``keeps_results``: answer with what it returns, too; nothing for None.
    """
    code = 0
    try:
        sys.path.insert(0, str(Path.cwd()))
        call = getattr(importlib.import_module(module), function)
        with os.fdopen(orders, "rb") as lines:
            while True:
                size = lines.readline()
                if not size:
                    break
                element, values = json.loads(lines.read(int(size)))
                os.environ["TRAINMASTER_ELEMENT"] = str(element)
                message = result = None
                try:
                    value = call(element, **values)
                    if keeps_results and value is not None:
                        result = json.dumps(value, allow_nan=False)
                except Exception:  # noqa: BLE001 - the function is the user's
                    message = traceback.format_exc()[-MOST_MESSAGE:]
                    sys.stderr.write(f"[{element}] {message}\n")
                sys.stdout.flush()
                os.write(answers, json.dumps([message, result]).encode() + b"\n")
    except BaseException:  # noqa: BLE001 - the exit code says so
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class ArrayWorker:
    """The elements that this member holds, and its results."""

    def __init__(self, runners: list[Any]) -> None:
        self._slots = len(runners)
        self._runners = runners
        self._lock = threading.Lock()
        """Protects everything below."""
        self._has_work = threading.Condition(self._lock)
        self._has_news = threading.Condition(self._lock)
        self.member = os.environ.get("TRAINMASTER_ROLE_INDEX", "0")
        self.life = uuid.uuid4().hex
        self._waiting: collections.deque[int] = collections.deque()
        self._running: dict[int, int] = {}
        """Element that each slot runs, by the slot's number."""
        self._dropped: set[int] = set()
        """Running elements whose end is of no interest."""
        self._succeeded: list[int] = []
        self._results: list[list[Any]] = []
        """Elements that have returned something, each with the value as JSON."""
        self._failed: list[dict[str, Any]] = []
        self._batches: collections.deque[dict[str, Any]] = collections.deque()
        """Results that the dispatcher does not have yet, in numbered batches."""
        self._batch = 0
        self._agent, self._seen = "", 0
        """The agent that was called last, and the number of the last batch that it has taken."""
        self._seconds = 0.0
        """Mean time of an element, of the recent ones."""
        self._calls = 0
        self._gives_back = False
        """Whether the agent has to hear at once what is held no longer."""
        self._is_over = False
        self._is_ending = False
        self._has_let_go = False
        """Whether the last call said that nothing is held, after the order to end."""

    # Slots

    def serve(self, slot: int) -> None:
        """Run one element after the other until there are no more."""
        runner = self._runners[slot]
        while True:
            with self._lock:
                while not self._waiting and not self._is_over:
                    self._has_work.wait()
                if self._is_over:
                    return
                element = self._waiting.popleft()
                self._running[slot] = element
                if self._needs_more():
                    self._has_news.notify()
            begin = time.monotonic()
            try:
                failure = runner.run(element)
            except Exception:  # noqa: BLE001 - the slot goes on
                failure = ElementFailed(message=traceback.format_exc())
            result = runner.result if failure is None else None
            self._note_end(slot, element, failure, result, time.monotonic() - begin)

    def _note_end(
        self, slot: int, element: int, failure: ElementFailed | None, result: str | None, seconds: float
    ) -> None:
        with self._lock:
            self._seconds = seconds if not self._seconds else self._seconds * 0.9 + seconds * 0.1
            del self._running[slot]
            if element in self._dropped:
                self._dropped.discard(element)
            elif failure is None:
                self._succeeded.append(element)
                if result is not None:
                    self._results.append([element, result])
            elif not (self._is_ending and self._runners[slot].was_killed):
                # One that this worker has killed at its own end did not fail: it is run again elsewhere.
                self._failed.append(
                    {
                        "element": element,
                        "exitCode": failure.exit_code,
                        "signal": failure.signal,
                        "message": failure.message,
                    }
                )
            if not self._waiting:
                self._has_news.notify()

    def _needs_more(self) -> bool:
        return not self._is_ending and len(self._waiting) <= self._wanted() // 2

    def _wanted(self) -> int:
        """Return how many elements are held beside those that run."""
        if not self._seconds:
            return self._slots
        return min(MOST_HELD, max(1, int(BLOCK_SECONDS / self._seconds))) * self._slots

    # The agent

    def request(self) -> dict[str, Any]:
        """Return the next call: all that the agent may not know."""
        with self._lock:
            if self._succeeded or self._failed:
                self._batch += 1
                batch = {"number": self._batch, "succeeded": spans_of(self._succeeded), "failed": self._failed}
                if self._results:
                    batch["results"] = self._results
                self._batches.append(batch)
                self._succeeded, self._failed, self._results = [], [], []
            running = set(self._running.values()) - self._dropped
            wanted = 0 if self._is_ending or self._gives_back else self._wanted() - len(self._waiting)
            body = {
                "member": self.member,
                "life": self.life,
                "call": self._calls,
                "agent": self._agent,
                "done": [one for one in self._batches if one["number"] > self._seen],
                "held": spans_of(running.union(self._waiting)),
                "running": spans_of(running),
                "want": max(0, wanted),
            }
            self._calls += 1
            self._gives_back = False
            self._has_let_go = self._is_ending and not running and not self._waiting
            return body

    def take(self, answer: dict[str, Any]) -> bool:
        """Take an answer of the agent. Return whether the worker ends."""
        drop = {element for first, last in answer.get("drop", ()) for element in range(first, last + 1)}
        with self._lock:
            while self._batches and self._batches[0]["number"] <= answer.get("stored", 0):
                self._batches.popleft()
            self._agent, self._seen = answer.get("agent", ""), answer.get("seen", 0)
            if answer.get("end"):
                drop.update(self._waiting, self._running.values())
            if drop:
                self._drop(drop)
            recalled = {element for first, last in answer.get("recall", ()) for element in range(first, last + 1)}
            if recalled:
                self._waiting = collections.deque(one for one in self._waiting if one not in recalled)
                self._gives_back = True
            if not self._is_ending:
                for first, last in answer.get("elements", ()):
                    self._waiting.extend(range(first, last + 1))
            self._is_over = bool(answer.get("end"))
            self._has_work.notify_all()
            return self._is_over

    def _drop(self, elements: set[int]) -> None:
        self._waiting = collections.deque(one for one in self._waiting if one not in elements)
        for slot, element in self._running.items():
            if element in elements and element not in self._dropped:
                self._dropped.add(element)
                self._runners[slot].kill(signal.SIGKILL)

    def end(self) -> None:
        """Begin no more elements: the member is being stopped. Those that run get the signal, too."""
        with self._lock:
            self._is_ending = True
            self._waiting.clear()
            for runner in self._runners:
                runner.kill(signal.SIGTERM)
            self._has_news.notify()

    def processes(self) -> set[int]:
        """Return the ids of the processes that slots wait for."""
        return {runner.pid for runner in self._runners}

    def has_ended(self) -> bool:
        """Return whether the last call has told all there is to tell, after the order to end."""
        with self._lock:
            return self._has_let_go

    def wait(self, pause: float) -> None:
        """Wait for at least ``pause`` seconds, and until the agent has to be called: for elements, with results, or after a while."""
        begin = time.monotonic()
        earliest, report_at, due = begin + pause, begin + max(pause, REPORT_SECONDS), begin + max(pause, BEAT_SECONDS)
        with self._lock:
            while True:
                now = time.monotonic()
                has_results = bool(self._succeeded or self._failed)
                is_idle = not self._running and not self._waiting
                if now >= due or (now >= report_at and has_results):
                    return
                if now >= earliest and (self._needs_more() or self._gives_back or is_idle or self._is_ending):
                    return
                moments = [due] + [report_at] * has_results + [earliest] * (now < earliest)
                self._has_news.wait(max(0.001, min(moments) - now))


class AgentConnection:
    """Calls to the agent over one connection."""

    def __init__(self, url: str, token: str) -> None:
        self._url = urllib.parse.urlsplit(url)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._connection: http.client.HTTPConnection | None = None

    def call(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """Return the answer; None if it has to be tried again. Raises LookupError if the agent does not run this array."""
        try:
            if self._connection is None:
                self._connection = http.client.HTTPConnection(
                    self._url.hostname or "", self._url.port, timeout=ANSWER_SECONDS
                )
            self._connection.request("POST", self._url.path, json.dumps(body).encode(), self._headers)
            answer = self._connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException):
            self._connection = None
            return None
        if answer.status == _NOT_FOUND:
            raise LookupError("the agent does not run this array any more")
        found: dict[str, Any] | None = json.loads(data) if answer.status == _OK else None
        return found


def exchange(worker: ArrayWorker, agent: AgentConnection) -> int:
    """Exchange elements and results with the agent until there are no more; return the exit code."""
    pause = 0.0
    while True:
        try:
            answer = agent.call(worker.request())
        except LookupError as error:
            sys.stderr.write(f"{error}\n")
            return GONE
        if answer is None:
            pause = min(LONGEST_PAUSE, max(0.1, pause * 2))
        else:
            pause = max(FETCH_SECONDS, answer.get("wait", 0.0))
            if worker.take(answer):
                return 0
            if worker.has_ended():
                return 128 + signal.SIGTERM
        reap_others(worker)
        worker.wait(pause)


def reap_others(worker: ArrayWorker) -> None:
    """Reap ended processes that elements have left behind: in a container, they become children of its first process."""
    with contextlib.suppress(OSError):
        while True:
            with _SPAWNING:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if found is None or found.si_pid in worker.processes():
                    return  # slots wait for their own
                os.waitpid(found.si_pid, os.WNOHANG)


def main() -> NoReturn:
    """Run elements until there are no more."""
    url, token, task = os.environ.pop(URL), os.environ.pop(TOKEN), json.loads(os.environ.pop(TASK))
    output = WorkerOutput()
    command = sys.argv[1:]
    try:
        first = words_of_image(task["entryPoint"], command) if task.get("entryPoint") else []
    except OSError as error:
        sys.exit(f"the entry point of the image is not known: {error}")
    runners = [
        CallRunner(task) if task.get("call") else CommandRunner(first, command, task, output)
        for _ in range(task.get("slots", 1))
    ]
    worker = ArrayWorker(runners)
    signal.signal(signal.SIGTERM, lambda _number, _frame: threading.Thread(target=worker.end).start())
    for slot in range(len(runners)):
        threading.Thread(target=worker.serve, args=(slot,), daemon=True).start()
    code = exchange(worker, AgentConnection(url, token))
    for runner in runners:
        runner.close()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
