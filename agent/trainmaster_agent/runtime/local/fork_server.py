"""The fork server: a small process that forks a supervisor for each run the agent asks for.

Forking a process with its modules loaded takes a millisecond; starting a Python takes ten times that, and forking the agent itself
would copy its sockets, its threads and its memory. It ends when the agent's end of the socket closes. Standard library only;
`COMMAND` starts it without ``site`` and without the agent's environment.
"""

import gc
import os
import signal
import sys
from pathlib import Path

from trainmaster.protocol import states
from trainmaster_agent.runtime.local import kernel, supervisor

COMMAND = (
    "-I",
    "-S",
    "-c",
    "import sys; sys.path += sys.argv[1].split(':'); from trainmaster_agent.runtime.local.fork_server import main; main()",
    ":".join(
        dict.fromkeys((str(Path(__file__).resolve().parents[3]), str(Path(states.__file__).resolve().parents[2])))
    ),
)
_LONGEST_REQUEST = 8192


def main() -> None:
    """Serve until the agent closes its end. Arguments: the folders of the packages, descriptors of socket and lock."""
    requests, lock = int(sys.argv[2]), int(sys.argv[3])
    os.set_inheritable(requests, False)
    os.set_inheritable(lock, False)
    kernel.set_name("tm-fork-server")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps supervisors
    gc.disable()
    gc.freeze()
    while packet := os.read(requests, _LONGEST_REQUEST):
        run_dir = os.fsdecode(packet)
        try:
            child = os.fork()
        except OSError as error:
            _refuse(requests, Path(run_dir), error)
            continue
        if child == 0:
            _be_supervisor(Path(run_dir), requests, lock)


def _be_supervisor(run_dir: Path, requests: int, lock: int) -> None:
    """Run a supervisor in this fresh child; never return.

    The child shares the fork server's lock until it has claimed the run: an agent that gets the lock knows that no start is
    in progress.
    """
    status = 1
    try:
        os.setsid()
        try:
            claimed = supervisor.claim(run_dir)
        except OSError as error:
            _refuse(requests, run_dir, error)
            claimed = False
        os.close(requests)
        os.close(lock)
        if claimed:
            supervisor.keep(run_dir)
        status = 0
    except BaseException:  # noqa: BLE001 - the last frame of this process; the agent sees its lock fall
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def _refuse(requests: int, run_dir: Path, error: OSError) -> None:
    """Report to the agent that its request will get no supervisor."""
    os.write(requests, os.fsencode(f"{run_dir.name} {error.strerror}"))
