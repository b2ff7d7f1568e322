"""The network between nodes: a bridge in a network namespace that this process enters, so that nothing of it is the host's.

What a thread starts while it is in the namespace, processes and threads, is in it, too.
"""

import asyncio
import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL

from tests.cluster.processes import Daemon
from tests.waiting import eventually_sync

GATEWAY = "10.77.0.1"
"""The address of this process, and of all that it starts, on the bridge."""
BRIDGE = "fabric"
DISPATCHER = "10.79.0.1"
"""The address of this process at an uplink's end."""
_AT_BRIDGE, _AT_UPLINK = "10.77.0.2", "10.79.0.2"
_UPLINK = "uplink"
_NETWORK_NAMESPACE = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def address_of(node: int) -> str:
    return f"10.77.0.{10 + node}"


def pods_of(node: int) -> str:
    """Return the range of the addresses of a node's pods."""
    return f"10.78.{node}.0/24"


def run(*command: str | Path) -> str:
    """Run a program to its end; return its output. Raises AssertionError with the output if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}: {done.stdout}"
    return done.stdout


@contextmanager
def separate_network() -> Iterator[None]:
    """Move this thread into a new network namespace with a bridge, and back at the end. Needs root."""
    with Path("/proc/thread-self/ns/net").open("rb") as before:
        _checked(_libc.unshare(_NETWORK_NAMESPACE))
        try:
            run("ip", "link", "set", "lo", "up")
            run("ip", "link", "add", BRIDGE, "type", "bridge")
            run("ip", "addr", "add", f"{GATEWAY}/24", "dev", BRIDGE)
            run("ip", "link", "set", BRIDGE, "up")
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
            yield
        finally:
            _checked(_libc.setns(before.fileno(), _NETWORK_NAMESPACE))


def connect(node: int, pid: int) -> None:
    """Connect the network namespace of a process to the bridge, as node ``node``, with a route to its pods."""
    link = link_of(node)
    inside = ("nsenter", "--target", str(pid), "--net", "ip")
    run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    run("ip", "link", "set", link, "master", BRIDGE, "up")
    run(*inside, "addr", "add", f"{address_of(node)}/24", "dev", "eth0")
    run(*inside, "link", "set", "eth0", "up")
    run(*inside, "route", "add", "default", "via", GATEWAY)
    run("ip", "route", "replace", pods_of(node), "via", address_of(node))


def link_of(node: int) -> str:
    """Return the name of the bridge's end of a node's cable."""
    return f"node{node}"


class Uplink:
    """A network namespace that is at the bridge, as nodes are, and from which only one cable leads to the dispatcher.

    What runs there reaches API servers and nodes while that cable is cut. Packets to the dispatcher are lost then, without an answer.
    """

    def __init__(self, folder: Path) -> None:
        self._holder = Daemon(["unshare", "--net", "sleep", "infinity"], folder / "uplink.log")
        self._holder.start()
        eventually_sync(self._is_apart)
        pid = str(self._holder.pid)
        self.enter = ("nsenter", "--target", pid, "--net", "--")
        """Begins the command of whatever is to run there."""
        run(*self.enter, "ip", "link", "set", "lo", "up")
        for link, inside, address in (("site", "eth0", f"{_AT_BRIDGE}/24"), (_UPLINK, "wan", f"{_AT_UPLINK}/30")):
            run("ip", "link", "add", link, "type", "veth", "peer", "name", inside, "netns", pid)
            run(*self.enter, "ip", "addr", "add", address, "dev", inside)
            run(*self.enter, "ip", "link", "set", inside, "up")
        run("ip", "link", "set", "site", "master", BRIDGE, "up")
        run("ip", "addr", "add", f"{DISPATCHER}/30", "dev", _UPLINK)
        self.mend()

    def cut(self) -> None:
        run("ip", "link", "set", _UPLINK, "down")

    def mend(self) -> None:
        run("ip", "link", "set", _UPLINK, "up")

    def close(self) -> None:
        asyncio.run(self._holder.stop(SIGKILL))

    def _is_apart(self) -> bool:
        name = Path("/proc") / str(self._holder.pid) / "ns" / "net"
        return name.readlink() != Path("/proc/thread-self/ns/net").readlink()


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
