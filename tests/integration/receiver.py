"""A receiver of webhooks on this machine: checks signatures as the documentation says, keeps what came, fails when told to."""

import hashlib
import hmac
import json
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from trainmaster_dispatcher.domain.webhooks import secret_of

SECRET = "a secret of the tests"


@dataclass
class Received:
    """One request that came in, and what was answered."""

    path: str
    headers: dict[str, str]
    body: bytes
    status: int

    @property
    def value(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.body)
        return value

    def is_signed(self, root: str = SECRET, version: int = 1) -> bool:
        """Return whether it is signed with the secret of its queue, derived from the installation's."""
        secret = secret_of(root, self.value["queue"], version)
        signature = self.headers["trainmaster-signature"]
        moment = signature.split(",")[0].removeprefix("t=")
        mark = hmac.new(secret.encode(), moment.encode() + b"." + self.body, hashlib.sha256).hexdigest()
        return f"v1={mark}" in signature.split(",")


@dataclass
class Receiver:
    """Serves from ``with`` to its end. ``answer`` gives the status for the nth request, from 1."""

    answer: Callable[[int], int] = lambda number: 200
    received: list[Received] = field(default_factory=list)

    def __enter__(self) -> Self:
        receiver, lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if len(body) < int(self.headers["Content-Length"]):
                    return  # the sender was killed in the middle
                headers = {name.lower(): value for name, value in self.headers.items()}
                with lock:
                    status = receiver.answer(len(receiver.received) + 1)
                    receiver.received.append(Received(self.path, headers, body, status))
                self.send_response(status)
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, *_: object) -> None:
                """Ignore errors: a sender that was killed resets its connections."""

        self._server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def taken(self) -> list[Received]:
        """The messages that were answered with a success."""
        return [one for one in list(self.received) if one.status < 300]

    def states(self) -> dict[str, list[str]]:
        """Return the states reported of each job, in the order of arrival."""
        out = defaultdict(list)
        for one in self.taken:
            out[one.value["job"]].append(one.value["state"])
        return dict(out)
