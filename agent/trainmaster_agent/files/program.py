"""The program that fetches a member's inputs and stores its outputs. Standard library and ``trainmaster.archives`` only.

``run -- COMMAND``: of a member that is a process: fetch, run the command, store the outputs, end as the command did.
``fetch``: of an init container. ``store``: of a container beside the member's, which is ended once the member has ended.

Its environment has the address of the run's files at the agent and the run's token; the command does not get them.
"""

import argparse
import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from trainmaster.archives import Packed

URL, TOKEN = "TM_FILES_URL", "TM_FILES_TOKEN"
FAILED = 81
"""Exit code where an input could not be fetched."""
_PART = 4 * 1024 * 1024
_CHUNK = 1024 * 1024
_PATIENCE_SECONDS = 900.0
"""Seconds for which what may pass is tried again."""
_ANSWER_SECONDS, _VERIFY_SECONDS = 120.0, 960.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0
_PR_SET_PDEATHSIG = 1
_FINAL = (400, 401, 404, 409, 410)
_HERE = Path()
"""The folder of a member that is a process: relative, as its user may not pass through the agent's folders above it."""
_PREFIX = "trainmaster-files-"
_FORWARDED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT)


class FilesRefusedError(Exception):
    """A call that was refused for good; says why."""


class FilesAwayError(Exception):
    """A call that may succeed later; says why it did not. It never quotes an address, which may have a signature."""


class AgentFiles:
    """Calls to the agent about the files of one run."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._token = token

    def ask(self) -> dict[str, Any]:
        """Return inputs and outputs of the run. Raises FilesRefusedError."""
        found: dict[str, Any] = json.loads(patiently(lambda: self._call("GET", "")))
        return found

    def read(self, number: int, offset: int) -> bytes:
        """Return a part of an input. Raises FilesRefusedError and FilesAwayError."""
        return self._call("GET", f"/inputs/{number}?offset={offset}")

    def begin(self, name: str, packed: "Packed") -> dict[str, Any]:
        """Begin to store an output. Raises FilesRefusedError and FilesAwayError."""
        body = {"name": name, "size": packed.size, "sha256": packed.sha256}
        found: dict[str, Any] = json.loads(self._call("POST", "/outputs", json.dumps(body).encode()))
        return found

    def write(self, upload: str, offset: int, data: bytes) -> None:
        """Send a part of an output. Raises FilesRefusedError and FilesAwayError."""
        self._call("PUT", f"/uploads/{upload}?offset={offset}", data)

    def finish(self, upload: str) -> None:
        """Let an output be verified. Raises FilesRefusedError and FilesAwayError."""
        self._call("POST", f"/uploads/{upload}", b"{}", _VERIFY_SECONDS)

    def tell(self, problem: str) -> None:
        """Say why files were not fetched or stored; without success it is only in the member's output."""
        with contextlib.suppress(FilesRefusedError, FilesAwayError):
            self._call("POST", "/problem", json.dumps({"message": problem[:1000]}).encode())

    def _call(self, method: str, path: str, body: bytes | None = None, seconds: float = _ANSWER_SECONDS) -> bytes:
        headers = {"Authorization": f"Bearer {self._token}"}
        if body is not None:
            headers["Content-Type"] = "application/octet-stream"
        request = urllib.request.Request(self._url + path, data=body, headers=headers, method=method)  # noqa: S310
        return _send(request, seconds, "the agent")


def _send(request: urllib.request.Request, seconds: float, whose: str) -> bytes:
    """Return an answer's body. Raises FilesRefusedError and FilesAwayError."""
    try:
        with _open(request, seconds) as answer:
            data: bytes = answer.read()
            return data
    except urllib.error.HTTPError as error:
        said = ""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            said = str(json.loads(error.read()).get("error") or "")
        if error.code in _FINAL and whose == "the agent":
            raise FilesRefusedError(said or f"the agent answered with status {error.code}") from None
        raise FilesAwayError(said or f"{whose} answered with status {error.code}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
        raise FilesAwayError(f"{whose} does not answer: {reason}") from None


def _open(request: urllib.request.Request, seconds: float) -> Any:
    """Open an address: of the agent without the proxies of the environment, of others with them."""
    if request.has_header("Authorization"):
        return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=seconds)
    return urllib.request.urlopen(request, timeout=seconds)  # noqa: S310 - an address of the dispatcher


def patiently(call: Any) -> Any:
    """Return what a call returns; try again while what prevents it may pass. Raises FilesRefusedError, also if that takes too long."""
    ends, pause = time.monotonic() + _PATIENCE_SECONDS, _FIRST_PAUSE
    while True:
        try:
            return call()
        except FilesAwayError as error:
            if time.monotonic() + pause > ends:
                raise FilesRefusedError(f"{error}; this was tried for {_PATIENCE_SECONDS:.0f} s") from None
            say(f"{error}; trying again")
        time.sleep(pause)
        pause = min(_LONGEST_PAUSE, pause * 2)


def say(sentence: str) -> None:
    """Print a sentence among the member's output."""
    sys.stderr.write(f"trainmaster: {sentence}\n")
    sys.stderr.flush()


# Inputs


def fetch(agent: AgentFiles, folder: Path, *, may_be_shared: bool = False) -> None:
    """Extract all inputs to the member's folder. Raises FilesRefusedError."""
    from trainmaster.archives import ArchiveError, unpack

    count = len(agent.ask()["inputs"])
    for number in range(count):
        with tempfile.TemporaryFile() as file:
            # Its address is asked for anew with each try: one from before a long download has ended.
            one = patiently(lambda number=number, file=file: _fetch_one(agent, number, file))
            file.seek(0)
            try:
                entries = unpack(file, folder / one["path"], may_be_shared=may_be_shared)
            except (ArchiveError, OSError) as error:
                raise FilesRefusedError(f"the input sha256:{one['sha256'][:12]} was not extracted: {error}") from error
        say(f"input sha256:{one['sha256'][:12]}: {entries} files and folders in {one['path']}")


def _fetch_one(agent: AgentFiles, number: int, file: IO[bytes]) -> dict[str, Any]:
    one: dict[str, Any] = agent.ask()["inputs"][number]
    file.seek(0)
    file.truncate()
    digest, size = hashlib.sha256(), 0
    for chunk in _data_of(agent, number, one):
        digest.update(chunk)
        file.write(chunk)
        size += len(chunk)
    if (digest.hexdigest(), size) != (one["sha256"], one["size"]):
        raise FilesAwayError(f"the input sha256:{one['sha256'][:12]} came incomplete: {size} of {one['size']} bytes")
    return one


def _data_of(agent: AgentFiles, number: int, one: Mapping[str, Any]) -> Iterator[bytes]:
    if one.get("url"):
        try:
            with _open(urllib.request.Request(one["url"]), _ANSWER_SECONDS) as answer:  # noqa: S310
                while chunk := answer.read(_CHUNK):
                    yield chunk
        except urllib.error.HTTPError as error:
            raise FilesAwayError(f"the file store answered with status {error.code}") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or type(error).__name__
            raise FilesAwayError(f"the file store does not answer: {reason}") from None
        return
    offset = 0
    while offset < one["size"]:
        chunk = agent.read(number, offset)
        if not chunk:
            return
        offset += len(chunk)
        yield chunk


# Outputs


def store(agent: AgentFiles, folder: Path) -> None:
    """Pack and store the outputs that there are; say which required ones are missing. Returns at once where the run was stopped."""
    try:
        outputs = agent.ask()["outputs"]
    except FilesRefusedError as error:
        say(f"no outputs are stored: {error}")
        return
    for one in outputs:
        try:
            _store_one(agent, folder, one)
        except FilesRefusedError as error:
            problem = f"the output {one['name']} was not stored: {error}"
            say(problem)
            agent.tell(problem)


def _store_one(agent: AgentFiles, folder: Path, one: Mapping[str, Any]) -> None:
    from trainmaster.archives import ArchiveError, pack, real_path

    if not (folder / one["path"]).exists():
        if one.get("optional"):
            return
        raise FilesRefusedError(f"{one['path']} does not exist")
    try:
        inside = folder / real_path(folder, one["path"])
    except ArchiveError as error:
        raise FilesRefusedError(f"{one['path']} {error}") from error
    with tempfile.TemporaryFile() as file:
        try:
            packed = pack(inside, file, honours_ignore_file=False)
        except (ArchiveError, OSError) as error:
            raise FilesRefusedError(str(error)) from error
        patiently(lambda: _send_output(agent, one["name"], packed, file))
    say(f"output {one['name']}: {packed.size} bytes stored")


def _send_output(agent: AgentFiles, name: str, packed: "Packed", file: IO[bytes]) -> None:
    begun = agent.begin(name, packed)
    upload = begun.get("upload")
    if not upload:
        return  # the same is stored already
    file.seek(0)
    if begun.get("url"):
        request = urllib.request.Request(begun["url"], data=file, method="PUT")  # noqa: S310
        request.add_header("Content-Length", str(packed.size))
        request.add_header("Content-Type", "application/octet-stream")
        _send(request, _ANSWER_SECONDS, "the file store")
    else:
        offset = 0
        while data := file.read(_PART):
            agent.write(upload, offset, data)
            offset += len(data)
    agent.finish(upload)


# A member that is a process


def run(agent: AgentFiles, command: list[str], *, stores: bool) -> NoReturn:
    """Fetch, run the command, store the outputs, and end as the command did."""
    stopped = threading.Event()
    # The command is in the same process group, so that it gets a SIGTERM to the member itself, once.
    signal.signal(signal.SIGTERM, lambda _number, _frame: _stop(stopped))
    with passable_folder():
        code = _run_between(agent, command, stopped, stores=stores)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        os._exit(128 - code)
    os._exit(code)


def _run_between(agent: AgentFiles, command: list[str], stopped: threading.Event, *, stores: bool) -> int:
    """Fetch, run the command and store; return the command's code, negative for a signal."""
    try:
        fetch(agent, _HERE)
    except FilesRefusedError as error:
        _give_up(agent, error)
    child = _start(command)

    def forward(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    signal.signal(signal.SIGTERM, lambda _number, _frame: stopped.set())
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if stores and not stopped.is_set():
        signal.signal(signal.SIGTERM, lambda _number, _frame: _stop(stopped))
        store(agent, _HERE)
    return code


@contextlib.contextmanager
def passable_folder() -> Iterator[None]:
    """Be in a folder whose path can be walked: a member with a user of its own may not pass through the agent's folders, and a program
    such as Python opens its script by the whole path.

    Such a folder is among the temporary ones, and removed at the end; those that killed members have left are removed first.
    """
    if os.access(Path.cwd(), os.X_OK):
        yield
        return
    for old in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), _locked(old):
            shutil.rmtree(old, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=_PREFIX))
    with _locked(made):
        if os.environ.get("HOME") == str(Path.cwd()):
            os.environ["HOME"] = str(made)
        os.chdir(made)
        try:
            yield
        finally:
            shutil.rmtree(made, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which the kernel releases with the process. Raises OSError where another one has it."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(file)


def _stop(stopped: threading.Event) -> NoReturn:
    stopped.set()
    sys.exit(128 + signal.SIGTERM)


def _start(command: list[str]) -> int:
    """Start the command as it would be without this program; return its process id."""
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        for number in (*_FORWARDED, signal.SIGTERM, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)  # noqa: S606 - this is what it is for
    except FileNotFoundError:
        say(f"the command {command[0]!r} was not found")
        os._exit(127)
    except OSError as error:
        say(f"the command {command[0]!r} cannot be executed: {error.strerror}")
        os._exit(126)


def _give_up(agent: AgentFiles, error: FilesRefusedError) -> NoReturn:
    problem = f"the member's files were not fetched: {error}"
    say(problem)
    agent.tell(problem)
    sys.exit(FAILED)


def main() -> None:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=("run", "fetch", "store"))
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--packages", help="folder of the packages that this program imports")
    own, command = sys.argv[1:], []
    if "--" in own:  # the command's own options are behind it
        own, command = own[: own.index("--")], own[own.index("--") + 1 :]
    given = parser.parse_args(own)
    if given.packages:
        sys.path.insert(0, given.packages)
    agent = AgentFiles(os.environ.pop(URL), os.environ.pop(TOKEN))
    if given.action == "run":
        run(agent, command, stores=os.environ.get("TRAINMASTER_RANK") == "0")
    if given.action == "fetch":
        try:
            fetch(agent, given.folder, may_be_shared=True)
        except FilesRefusedError as error:
            _give_up(agent, error)
        return
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: ended.set())
    while not ended.wait(60.0):
        pass
    store(agent, given.folder)


if __name__ == "__main__":
    main()
