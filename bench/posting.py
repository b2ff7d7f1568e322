"""A plain client for benchmarks: POSTs over one kept connection with as little of its own work as possible."""

import http.client
import time
from typing import Any
from urllib.parse import urlsplit

from bench.stage import ADMIN_KEY


class RefusedError(Exception):
    """An answer that is neither a success nor a request to try again."""


class Poster:
    """One connection to one api. Waits out 429 and 503 as asked, and counts them."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=120)
        self.refused = 0

    def post(self, path: str, body: bytes, key: str | None = None) -> bytes:
        """Return the body of a 2xx answer. Raises RefusedError."""
        headers: dict[str, Any] = {"Authorization": f"Bearer {ADMIN_KEY}", "Content-Type": "application/json"}
        if key is not None:
            headers["Idempotency-Key"] = key
        while True:
            try:
                self._connection.request("POST", path, body, headers)
                answer = self._connection.getresponse()
                text = answer.read()
            except http.client.HTTPException as error:
                raise ConnectionError(str(error)) from error
            if answer.status < 300:
                return text
            if answer.status not in (429, 503):
                raise RefusedError(f"{answer.status}: {text[:300]!r}")
            self.refused += 1
            time.sleep(float(answer.headers.get("Retry-After", "1")))

    def close(self) -> None:
        """Drop the connection; the next call opens another."""
        self._connection.close()
