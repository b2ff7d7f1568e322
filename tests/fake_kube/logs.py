"""What containers have printed, and who reads on while they print."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tests.fake_kube.containers import container_id
from tests.fake_kube.errors import ApiError
from tests.fake_kube.objects import Object, node_of, now, parse_time, rfc3339_nano


@dataclass
class _Log:
    lines: list[tuple[datetime, bytes]] = field(default_factory=list)
    ended: bool = False
    cut: bool = False
    """Whoever follows loses the connection."""
    lost: bool = False
    grown: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        grown, self.grown = self.grown, asyncio.Event()
        grown.set()


class Logs:
    """Logs by pod uid and container; whoever plays the kubelet opens, writes and ends them."""

    def __init__(self) -> None:
        self._logs: dict[tuple[str, str], _Log] = {}
        self.silent: set[str] = set()
        """Nodes whose kubelet does not answer."""

    def open(self, uid: str, container: str) -> None:
        """Make the log of a container readable, because it runs now."""
        self._logs.setdefault((uid, container), _Log())

    def write(self, uid: str, container: str, text: str) -> None:
        """Print lines; raises KeyError for a container that never ran."""
        log = self._logs[uid, container]
        log.lines.extend((now(), line.encode()) for line in text.splitlines())
        log.wake()

    def end(self, uid: str, container: str) -> None:
        """End the log: readers that follow it are released."""
        if log := self._logs.get((uid, container)):
            log.ended = True
            log.wake()

    def drop(self, uid: str) -> None:
        """Remove the logs of a pod that is gone."""
        for key in [key for key in self._logs if key[0] == uid]:
            self.end(*key)
            del self._logs[key]

    def lose(self, uid: str) -> None:
        """Cut off readers because the machine went down; from now on its kubelet knows nothing of these containers."""
        for (of, _), log in self._logs.items():
            if of == uid:
                log.cut = log.lost = True
                log.wake()

    def read(self, pod: Object, options: Mapping[str, str]) -> AsyncIterator[bytes]:
        """Stream the log of one container as ``options`` say (follow, tailLines, limitBytes, timestamps, sinceTime, sinceSeconds).

        Raises ApiError 400 for a container that does not exist, is not named though there are several, or did not start, and 500
        for a node that is silent.
        """
        name, container = pod["metadata"]["name"], _container(pod, options.get("container", ""))
        if node_of(pod) in self.silent:
            raise ApiError(
                500, f'Get "https://{node_of(pod)}:10250/containerLogs/": dial tcp: connect: no route to host'
            )
        log = self._logs.get((pod["metadata"]["uid"], container))
        if log is None and node_of(pod):
            raise ApiError(
                400, f'container "{container}" in pod "{name}" is waiting to start: {_waiting(pod, container)}'
            )
        if log is not None and log.lost:
            return _unable(pod, container)
        return _follow(log or _Log(ended=True), _since(options), options)


async def _unable(pod: Object, container: str) -> AsyncIterator[bytes]:
    """Yield a kubelet's answer for a container that it no longer finds: with status 200, as if it were the program's output."""
    yield f"unable to retrieve container logs for {container_id(pod['metadata']['uid'], container)}".encode()


async def _follow(log: _Log, since: datetime | None, options: Mapping[str, str]) -> AsyncIterator[bytes]:
    follows, stamped = (options.get(name) in ("1", "true") for name in ("follow", "timestamps"))
    left = int(options["limitBytes"]) if "limitBytes" in options else None
    position = 0
    if "tailLines" in options:
        position = max(0, len(log.lines) - int(options["tailLines"]))
    while True:
        grown, ended = log.grown, log.ended
        for moment, line in log.lines[position:]:
            if since and moment < since:
                continue
            piece = (f"{rfc3339_nano(moment)} ".encode() if stamped else b"") + line + b"\n"
            yield piece if left is None else piece[:left]
            if left is not None:
                left -= len(piece)
                if left <= 0:
                    return
        position = max(position, len(log.lines))
        if log.cut:
            raise ConnectionResetError("the node is gone")
        if ended or not follows:
            return
        await grown.wait()


def _since(options: Mapping[str, str]) -> datetime | None:
    if text := options.get("sinceTime"):
        try:
            return parse_time(text)
        except ValueError as error:
            raise ApiError(400, f"sinceTime cannot be read: {text}") from error
    return now() - timedelta(seconds=int(options["sinceSeconds"])) if "sinceSeconds" in options else None


def _container(pod: Object, requested: str) -> str:
    name = pod["metadata"]["name"]
    names: list[str] = [one["name"] for one in pod["spec"]["containers"]]
    if not requested and len(names) > 1:
        raise ApiError(400, f"a container name must be specified for pod {name}, choose one of: [{' '.join(names)}]")
    if requested and requested not in names:
        raise ApiError(400, f"container {requested} is not valid for pod {name}")
    return requested or names[0]


def _waiting(pod: Object, container: str) -> str:
    statuses = pod["status"].get("containerStatuses") or []
    state: Object = next((one["state"] for one in statuses if one["name"] == container), {})
    reason: str = state.get("waiting", {}).get("reason", "ContainerCreating")
    return reason
