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
        socket = web.WebSocketResponse(protocols=_PROTOCOLS)
        if not socket.can_prepare(request):
            raise ApiError(400, "Upgrade request required")
        statuses = pod["status"].get("containerStatuses") or []
        if not statuses or "running" not in statuses[0]["state"]:
            raise ApiError(400, "container not found")
        await socket.prepare(request)
        status = self._run(pod, request.query.getall("command"))
        await socket.send_bytes(_ERRORS + orjson.dumps(status))
        await socket.close()
        return socket

    def _run(self, pod: Object, command: Sequence[str]) -> Object:
        image = pod["spec"]["containers"][0]["image"]
        if list(command[:2]) == _SHELL:
            if image == "scratch":
                return _missing('exec: "/bin/sh": stat /bin/sh: no such file or directory: unknown')
            words = command[2].split()
        elif command[0] == "kill" and image in ("slim", "scratch"):
            return _missing('exec: "kill": executable file not found in $PATH: unknown')
        else:
            words = list(command)
        if words[0] != "kill" or words[2:] != ["1"]:
            message = "command terminated with non-zero exit code"
            causes = [{"reason": "ExitCode", "message": "2"}]
            return {"status": "Failure", "message": message, "reason": "NonZeroExitCode", "details": {"causes": causes}}
        self.signals.append((pod["metadata"]["name"], words[1].removeprefix("-")))
        return {"metadata": {}, "status": "Success"}


def _missing(why: str) -> Object:
    message = (
        "Internal error occurred: error executing command in container: failed to exec in container: failed to start exec: "
        f"OCI runtime exec failed: exec failed: unable to start container process: {why}"
    )
    return {"metadata": {}, "status": "Failure", "message": message, "reason": "InternalError", "code": 500}
