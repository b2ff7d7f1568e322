"""A registry of images for tests: an HTTP server that answers by the OCI distribution API, also with tokens and with mistakes."""

import base64
import hashlib
import json
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.local_server import Answer, serving

OCI = "application/vnd.oci.image"
DOCKER = "application/vnd.docker"
USER = "Basic " + base64.b64encode(b"reader:secret").decode()
TOKEN = "token-of-this-registry"


def digest_of(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


class ImageRegistry:
    """Manifests and blobs of one repository, ``team/train``, by what they are called.

    ``auth``: empty, ``basic``, or ``token`` for tokens, which everybody gets, or ``private`` for tokens of ``reader:secret`` alone.
    ``answers``: what is answered in place of the next calls, as status and body. ``calls``: paths with the authorization they had.
    """

    def __init__(self, auth: str = "", redirects_to: str = "") -> None:
        self.url = ""
        self.auth = auth
        self.redirects_to = redirects_to
        self.manifests: dict[str, tuple[str, bytes]] = {}
        self.blobs: dict[str, bytes] = {}
        self.answers: list[tuple[int, bytes]] = []
        self.calls: list[tuple[str, str]] = []

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://")

    def add_manifest(self, document: dict[str, Any], kind: str, tag: str = "") -> str:
        body = json.dumps(document).encode()
        digest = digest_of(body)
        for name in (digest, tag) if tag else (digest,):
            self.manifests[name] = kind, body
        return digest

    def add_image(self, config: Any, tag: str = "", kind: str = f"{OCI}.manifest.v1+json") -> str:
        """Add an image with this configuration; return its digest."""
        body = json.dumps(config).encode()
        self.blobs[digest_of(body)] = body
        described = {"mediaType": f"{OCI}.config.v1+json", "digest": digest_of(body), "size": len(body)}
        return self.add_manifest({"schemaVersion": 2, "mediaType": kind, "config": described, "layers": []}, kind, tag)

    def add_index(
        self, platforms: dict[tuple[str, str, str], str], tag: str, kind: str = f"{OCI}.index.v1+json"
    ) -> str:
        """Add an index with a manifest's digest for each platform, of operating system, architecture and variant."""
        listed = [
            {
                "digest": digest,
                "platform": {"os": system, "architecture": architecture, **({"variant": variant} if variant else {})},
            }
            for (system, architecture, variant), digest in platforms.items()
        ]
        return self.add_manifest({"schemaVersion": 2, "mediaType": kind, "manifests": listed}, kind, tag)

    def answer(self, path: str, authorization: str, accepted: str) -> tuple[int, dict[str, str], bytes]:
        self.calls.append((path, authorization))
        if self.answers:
            status, body = self.answers.pop(0)
            return status, {}, body
        parts = urllib.parse.urlsplit(path)
        if parts.path == "/token":
            return self._token(dict(urllib.parse.parse_qsl(parts.query)), authorization)
        if refusal := self._refusal(authorization):
            return refusal
        name = parts.path.rpartition("/")[2]
        if parts.path.startswith("/v2/team/train/manifests/") and name in self.manifests:
            kind, body = self.manifests[name]
            return (200, {"Content-Type": kind}, body) if kind in accepted else (404, {}, b"{}")
        if parts.path.startswith("/v2/team/train/blobs/") and name in self.blobs:
            if self.redirects_to:
                return 307, {"Location": f"{self.redirects_to}{parts.path}"}, b""
            return 200, {"Content-Type": "application/octet-stream"}, self.blobs[name]
        return 404, {}, b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}'

    def _token(self, query: dict[str, str], authorization: str) -> tuple[int, dict[str, str], bytes]:
        if (self.auth == "private" or authorization) and authorization != USER:
            return 401, {}, b'{"errors": [{"message": "wrong password"}]}'
        if query != {"service": "tests", "scope": "repository:team/train:pull"}:
            return 400, {}, b""
        return 200, {}, json.dumps({"token": TOKEN}).encode()

    def _refusal(self, authorization: str) -> tuple[int, dict[str, str], bytes] | None:
        bearer = f'Bearer realm="{self.url}/token",service="tests",scope="repository:team/train:pull"'
        wanted, challenge = {
            "": ("", ""),
            "basic": (USER, 'Basic realm="tests"'),
            "token": (f"Bearer {TOKEN}", bearer),
            "private": (f"Bearer {TOKEN}", bearer),
        }[self.auth]
        return None if not wanted or authorization == wanted else (401, {"WWW-Authenticate": challenge}, b"{}")


@contextmanager
def serving_images(registry: ImageRegistry, host: str = "127.0.0.1") -> Iterator[ImageRegistry]:
    """Serve a registry over plain HTTP on a free port of an address of this machine."""

    def answer(call: BaseHTTPRequestHandler) -> Answer:
        return registry.answer(call.path, call.headers.get("Authorization", ""), call.headers.get("Accept", ""))

    with serving(answer, host) as registry.url:
        yield registry
