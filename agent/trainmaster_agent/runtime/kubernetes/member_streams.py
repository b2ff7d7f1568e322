"""Streams to the pods of members: WebSockets of the API server, whose frames are passed on as they are."""

import contextlib
from functools import partial

import aiohttp

from trainmaster.protocol.member_streams import MemberStreamKind, MemberStreamOptions, OpenMemberStream
from trainmaster_agent.kube.client import ApiServer
from trainmaster_agent.kube.errors import ForbiddenError, KubeError, RefusedError
from trainmaster_agent.kube.paths import PODS
from trainmaster_agent.kube.pods import PodSight
from trainmaster_agent.runtime.kubernetes import held_commands
from trainmaster_agent.runtime.lasting_command import LastingCommand
from trainmaster_agent.runtime.port import MemberStream, StreamCutError, StreamRefusedError

_SUBRESOURCES = {
    MemberStreamKind.EXEC: "exec",
    MemberStreamKind.ATTACH: "attach",
    MemberStreamKind.PORT_FORWARD: "portforward",
}
_BAD_GATEWAY = 502


class PodStream:
    """A stream of the API server. It has sent its last frame when the API server closes it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    @property
    def protocol(self) -> str:
        return self._socket.protocol or ""

    async def receive(self) -> bytes | None:
        message = await self._socket.receive()
        if message.type is aiohttp.WSMsgType.BINARY:
            return bytes(message.data)
        if message.type is aiohttp.WSMsgType.TEXT:
            return bytes(message.data.encode())
        if message.type is aiohttp.WSMsgType.CLOSE:
            return None
        raise StreamCutError("the connection to the API server of the member's cluster was cut")

    async def send(self, frame: bytes) -> None:
        with contextlib.suppress(ConnectionError, aiohttp.ClientError):
            await self._socket.send_bytes(frame)

    async def close(self) -> None:
        await self._socket.close()


class PodStreams:
    """Streams of a cluster, and its lasting commands. Those of containers with Python are held there, and outlive the agent; others
    go on while this agent runs, in whose memory their output waits.
    """

    def __init__(self) -> None:
        self._lasting: dict[tuple[str, str, int, str], LastingCommand] = {}

    async def open(self, api: ApiServer, pod: PodSight, order: OpenMemberStream) -> MemberStream:
        """Open a stream to a pod, or connect again to a command that runs in it. Raises StreamRefusedError."""
        options = order.options
        if not options.lasting or options.kind is not MemberStreamKind.EXEC:
            return await open_stream(api, pod, options)
        key = (order.run, order.role, order.index, options.lasting)
        known = self._lasting.get(key)
        open_exec = partial(open_stream, api, pod)
        if known is None and options.received is not None:
            return await held_commands.join(open_exec, options)
        if known is None:
            held = await held_commands.start(open_exec, options)
            if held is not None:
                return held
            stream = await open_stream(api, pod, options)
            known = self._lasting[key] = LastingCommand(stream, lambda: self._lasting.pop(key, None))
        return known.connect(options.received or 0)

    async def close(self) -> None:
        for command in tuple(self._lasting.values()):
            await command.end()


async def open_stream(api: ApiServer, pod: PodSight, options: MemberStreamOptions) -> PodStream:
    """Open a stream to a pod. Raises StreamRefusedError."""
    subresource = _SUBRESOURCES[options.kind]
    known = options.kind.protocols
    protocols = [one for one in options.protocols if one in known] or list(known)
    try:
        socket = await api.web_socket(PODS.path(pod.namespace, pod.name, subresource), _query(pod, options), protocols)
    except ForbiddenError as error:
        message = f"the agent may not do this: it lacks the permission pods/{subresource} ({error})"
        raise StreamRefusedError(error.status, message) from error
    except RefusedError as error:
        raise StreamRefusedError(error.status, f"the stream to pod {pod.name} was refused: {error}") from error
    except KubeError as error:
        message = f"the stream to pod {pod.name} could not be opened: {error}"
        raise StreamRefusedError(_BAD_GATEWAY, message) from error
    return PodStream(socket)


def _query(pod: PodSight, options: MemberStreamOptions) -> list[tuple[str, str]]:
    if options.kind is MemberStreamKind.PORT_FORWARD:
        return [("ports", str(port)) for port in options.ports]
    flags = {"stdin": options.stdin, "stdout": options.stdout, "stderr": options.stderr, "tty": options.tty}
    return [
        ("container", options.container or pod.container),
        *((name, "true") for name, is_set in flags.items() if is_set),
        *(("command", one) for one in options.command),
    ]
