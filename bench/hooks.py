"""A receiver of webhooks that fails one time in five, checks every signature, and records the order of messages."""

import hashlib
import hmac
import json
import random
import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from trainmaster_dispatcher.domain.webhooks import secret_of

SECRET = "the secret of the benchmark"  # noqa: S105
FAILS = 0.2


class Receiver:
    """Counts of what was taken; a message that is refused comes again and is counted when it is taken."""

    def __init__(self, seed: int = 1) -> None:
        self._draw = random.Random(seed)
        self._lock = threading.Lock()
        self.taken: dict[str, list[int]] = defaultdict(list)
        """By job: the reported versions, in the order of their first acceptance."""
        self.refused = 0
        self.repeated = 0
        self.badly_signed = 0

    def take(self, headers: dict[str, str], body: bytes) -> int:
        """Check and count a message; return the status to answer with."""
        moment, *marks = (part.split("=", 1)[1] for part in headers["trainmaster-signature"].split(","))
        secret = secret_of(SECRET, json.loads(body)["queue"], 1)
        mark = hmac.new(secret.encode(), moment.encode() + b"." + body, hashlib.sha256).hexdigest()
        message: dict[str, Any] = json.loads(body)
        with self._lock:
            if mark not in marks:
                self.badly_signed += 1
                return 401
            if self._draw.random() < FAILS:
                self.refused += 1
                return 500
            seqs = self.taken[message["job"]]
            if message["seq"] in seqs:
                self.repeated += 1
            else:
                seqs.append(message["seq"])
        return 204

    @property
    def out_of_order(self) -> int:
        """Jobs whose messages came in another order than they happened."""
        return sum(seqs != sorted(seqs) for seqs in self.taken.values())

    @property
    def messages(self) -> int:
        return sum(len(seqs) for seqs in self.taken.values())

    def __enter__(self) -> Self:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if len(body) < int(self.headers["Content-Length"]):
                    self.close_connection = True  # the worker was killed while it sent this
                    return
                status = receiver.take({name.lower(): value for name, value in self.headers.items()}, body)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/hook"
