"""Commands in containers, as far as signals go: ``kill -NAME 1``, directly or by a shell that has it built in.

Images: ``slim`` has a shell and no kill program, ``scratch`` has neither; any other has both.
"""

from collections.abc import Sequence

import orjson
from aiohttp import web

from tests.fake_kube.errors import ApiError
from tests.fake_kube.objects import Object

_ERRORS = b"\x03"
_PROTOCOLS = ("v5.channel.k8s.io",)
_SHELL = ["/bin/sh", "-c"]


class Execs:
    """``signals``: what reached the first process of a container: name of the pod, and of the signal."""

    def __init__(self) -> None:
        self.signals: list[tuple[str, str]] = []

    async def serve(self, request: web.Request, pod: Object) -> web.WebSocketResponse:
        """Run the command; raises ApiError 400 for a container that does not run, and for any other request than by web socket."""
        if not web.WebSocketResponse(protocols=_PROTOCOLS).can_prepare(request):
            raise ApiError(400, "Upgrade request required")
        statuses = pod["status"].get("containerStatuses") or []
        if not statuses or "running" not in statuses[0]["state"]:
            raise ApiError(400, "container not found")
        status, signal = run_command(pod["spec"]["containers"][0]["image"], request.query.getall("command"))
        if signal is not None:
            self.signals.append((pod["metadata"]["name"], signal))
        return await answer_exec(request, status)


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
    if words[0] != "kill" or words[2:] != ["1"]:
        message = "command terminated with non-zero exit code"
        details = {"causes": [{"reason": "ExitCode", "message": "2"}]}
        return {"status": "Failure", "message": message, "reason": "NonZeroExitCode", "details": details}, None
    return {"metadata": {}, "status": "Success"}, words[1].removeprefix("-")


async def answer_exec(request: web.Request, status: Object) -> web.WebSocketResponse:
    """Answer with nothing but the status with which the command ended."""
    socket = web.WebSocketResponse(protocols=_PROTOCOLS)
    await socket.prepare(request)
    await socket.send_bytes(_ERRORS + orjson.dumps(status))
    await socket.close()
    return socket


def _missing(why: str) -> Object:
    message = (
        "Internal error occurred: error executing command in container: failed to exec in container: failed to start exec: "
        f"OCI runtime exec failed: exec failed: unable to start container process: {why}"
    )
    return {"metadata": {}, "status": "Failure", "message": message, "reason": "InternalError", "code": 500}
