"""Streams to containers: some commands, the first process's output, and ports that answer with what they are sent.

Commands: ``kill -NAME 1``, directly or by a shell that has it built in, ``exit N`` of a shell, ``echo`` and ``cat``.
Images: ``slim`` has a shell and no kill program, ``scratch`` has neither; any other has both.
"""

from collections.abc import Sequence

import orjson
from aiohttp import WSMsgType, web

from tests.fake_kube.errors import ApiError
from tests.fake_kube.objects import Object

_INPUT, _OUTPUT, _STATUS, _CLOSE = b"\x00", b"\x01", b"\x03", b"\xff"
_PROTOCOLS = ("v5.channel.k8s.io",)
_PORT_PROTOCOLS = ("v4.channel.k8s.io",)
_SUCCESS: Object = {"metadata": {}, "status": "Success"}
_SHELL = ["/bin/sh", "-c"]


class Execs:
    """``signals``: what reached the first process of a container: name of the pod, and of the signal."""

    def __init__(self) -> None:
        self.signals: list[tuple[str, str]] = []

    async def serve(self, request: web.Request, pod: Object) -> web.WebSocketResponse:
        """Run the command; raises ApiError 400 for a container that does not run, and for any other request than by web socket."""
        _check_runs(request, pod, _PROTOCOLS)
        status, signal = run_command(pod["spec"]["containers"][0]["image"], request.query.getall("command"))
        if signal is not None:
            self.signals.append((pod["metadata"]["name"], signal))
        return await answer_exec(request, request.query.getall("command"), status)

    async def attach(self, request: web.Request, pod: Object) -> web.WebSocketResponse:
        """Attach to a container, which says its pod's name. Raises ApiError 400 for one that does not run."""
        _check_runs(request, pod, _PROTOCOLS)
        return await answer_attach(request, pod["metadata"]["name"])

    async def forward(self, request: web.Request, pod: Object) -> web.WebSocketResponse:
        """Connect to ports of a pod. Raises ApiError 400 for a pod that does not run."""
        _check_runs(request, pod, _PORT_PROTOCOLS)
        return await answer_ports(request)


def _check_runs(request: web.Request, pod: Object, protocols: Sequence[str]) -> None:
    if not web.WebSocketResponse(protocols=protocols).can_prepare(request):
        raise ApiError(400, "Upgrade request required")
    statuses = pod["status"].get("containerStatuses") or []
    if not statuses or "running" not in statuses[0]["state"]:
        raise ApiError(400, "container not found")


def run_command(image: str, command: Sequence[str]) -> tuple[Object, str | None]:
    """Return the status with which a command ends in a container of ``image``, and the signal that it has sent, if any."""
    if list(command[:2]) == _SHELL:
        if image == "scratch":
            return _missing('exec: "/bin/sh": stat /bin/sh: no such file or directory: unknown'), None
        words = command[2].split()
    elif command[0] == "kill" and image in ("slim", "scratch"):
        return _missing('exec: "kill": executable file not found in $PATH: unknown'), None
    else:
        words = list(command)
    if words[0] in ("echo", "cat"):
        return _SUCCESS, None
    if words[0] != "kill" or words[2:] != ["1"]:
        message = "command terminated with non-zero exit code"
        code = words[1] if words[0] == "exit" and len(words) > 1 else "2"
        details = {"causes": [{"reason": "ExitCode", "message": code}]}
        return {"status": "Failure", "message": message, "reason": "NonZeroExitCode", "details": details}, None
    return _SUCCESS, words[1].removeprefix("-")


async def answer_exec(request: web.Request, command: Sequence[str], status: Object) -> web.WebSocketResponse:
    """Answer with what a command prints, and the status with which it ended."""
    socket = web.WebSocketResponse(protocols=_PROTOCOLS)
    await socket.prepare(request)
    if command[0] == "echo":
        await socket.send_bytes(_OUTPUT + " ".join(command[1:]).encode() + b"\n")
    has_input = "1" in (
        request.query.get("input"),
        request.query.get("stdin", "").replace("true", "1"),
    )  # a kubelet's, or ours
    if command[0] == "cat" and has_input:
        async for message in socket:
            if message.type is not WSMsgType.BINARY or message.data[:1] == _CLOSE:
                break
            if message.data[:1] == _INPUT:
                await socket.send_bytes(_OUTPUT + message.data[1:])
    await socket.send_bytes(_STATUS + orjson.dumps(status))
    await socket.close()
    return socket


async def answer_attach(request: web.Request, text: str) -> web.WebSocketResponse:
    """Answer with a process that says ``text`` and ends."""
    return await answer_exec(request, ["echo", text], _SUCCESS)


async def answer_ports(request: web.Request) -> web.WebSocketResponse:
    """Answer with one port that sends back whatever it is sent."""
    socket = web.WebSocketResponse(protocols=_PORT_PROTOCOLS)
    await socket.prepare(request)
    number = int(request.query.get("ports", request.query.get("port", "0"))).to_bytes(2, "little")
    for channel in (b"\x00", b"\x01"):
        await socket.send_bytes(channel + number)
    async for message in socket:
        if message.type is WSMsgType.BINARY and message.data[:1] == b"\x00":
            await socket.send_bytes(message.data)
    return socket


def _missing(why: str) -> Object:
    message = (
        "Internal error occurred: error executing command in container: failed to exec in container: failed to start exec: "
        f"OCI runtime exec failed: exec failed: unable to start container process: {why}"
    )
    return {"metadata": {}, "status": "Failure", "message": message, "reason": "InternalError", "code": 500}
