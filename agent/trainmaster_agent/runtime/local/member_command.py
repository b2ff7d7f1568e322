"""The program that becomes a command run in a member: ``python -m`` this, with its orders on a pipe. Standard library only.

It is a process of its own, so that nothing of the agent's threads is forked: own session, killed when the agent ends, the member's
user, folder and environment.
"""

import fcntl
import json
import os
import signal
import sys
import termios
from typing import NoReturn, TypedDict

from trainmaster_agent.runtime.local import kernel

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes of shells for a command that does not exist or cannot be executed."""


_RESET_SIGNALS = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGPIPE),
    *(signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
)
"""Signals that the agent may ignore, as one under ``nohup`` does SIGHUP, and Python SIGPIPE: a command inherits what is ignored."""


class CommandOrders(TypedDict):
    """Orders of one command."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    user: list[int] | None
    """Ids of the user and the group; None: those of the agent."""
    tty: bool
    parent: int
    """Process id of the agent."""


def main() -> NoReturn:
    """Read the orders from the pipe whose number is the argument, and become the command."""
    with os.fdopen(int(sys.argv[1]), "rb") as pipe:
        orders: CommandOrders = json.load(pipe)
    argv = orders["argv"]
    for number in _RESET_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        os.setsid()
        if orders["tty"]:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        os.chdir(orders["cwd"])
        if orders["user"] is not None:
            user, group = orders["user"]
            os.setgroups([])
            os.setresgid(group, group, group)
            os.setresuid(user, user, user)
        kernel.die_with_parent(orders["parent"])
        os.execvpe(argv[0], argv, orders["env"])  # noqa: S606 - this is what it is for
    except FileNotFoundError:
        sys.stderr.write(f"the command {argv[0]!r} was not found\n")
        sys.exit(NOT_FOUND)
    except OSError as error:
        sys.stderr.write(f"the command {argv[0]!r} cannot be executed: {error.strerror}\n")
        sys.exit(NOT_EXECUTABLE)


if __name__ == "__main__":
    main()
