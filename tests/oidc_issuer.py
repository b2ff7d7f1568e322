"""An OpenID Connect issuer in the process of the tests: real HTTP, real signatures, and tokens that a test may spoil."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

CLIENT_ID = "trainmaster"
PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
_ALGORITHMS = {rsa.RSAPrivateKey: "RS256", ec.EllipticCurvePrivateKey: "ES256", ed25519.Ed25519PrivateKey: "EdDSA"}


def make_key(bits: int = 2048) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, bits)


def algorithm_of(key: PrivateKey) -> str:
    return next(name for kind, name in _ALGORITHMS.items() if isinstance(key, kind))


@dataclass
class ServedIssuer:
    """An issuer with keys by id. Tokens are signed with ``signs_with``. ``answers`` cleared: it takes calls and answers none."""

    url: str = ""
    keys: dict[str, PrivateKey] = field(default_factory=dict)
    signs_with: str = "first"
    answers: threading.Event = field(default_factory=threading.Event)
    reads: int = 0
    """How often the keys were read."""
    claims: dict[str, Any] = field(default_factory=dict)
    """Claims of the tokens of its token endpoint."""
    seconds: int = 3600
    """How long the tokens of its token endpoint count from now."""
    age: int = 0
    """How long ago the tokens of its token endpoint were made."""
    approved: bool = True
    """Whether the person has entered the code of the device flow."""
    grants: list[str] = field(default_factory=list)
    """What its token endpoint was asked for."""
    refuses_refresh: bool = False
    has_device_flow: bool = True

    def token(self, key: PrivateKey | None = None, header: dict[str, Any] | None = None, **claims: Any) -> str:
        """Return a token for the user ana@example.com. Claims that are None are left out."""
        now = int(time.time())
        given = {
            "iss": self.url,
            "sub": "1001",
            "aud": CLIENT_ID,
            "iat": now,
            "exp": now + 600,
            "email": "ana@example.com",
            "groups": ["vision"],
            **claims,
        }
        signing = key or self.keys[self.signs_with]
        return jwt.encode(
            {name: value for name, value in given.items() if value is not None},
            signing,
            algorithm=(header or {}).get("alg", algorithm_of(signing)),
            headers={"kid": self.signs_with, **(header or {})},
        )

    def jwks(self) -> dict[str, Any]:
        return {
            "keys": [
                {**_algorithm(key).to_jwk(key.public_key(), as_dict=True), "kid": kid, "use": "sig"}
                for kid, key in self.keys.items()
            ]
        }

    def discovery(self) -> dict[str, Any]:
        device = {"device_authorization_endpoint": f"{self.url}/device/code"} if self.has_device_flow else {}
        return {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/keys",
            "token_endpoint": f"{self.url}/token",
            "authorization_endpoint": f"{self.url}/auth",
            "scopes_supported": ["openid", "email", "groups", "offline_access"],
            **device,
        }

    def granted(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """Return status and body of an answer of the token endpoint."""
        self.grants.append(form["grant_type"])
        if form["client_id"] != CLIENT_ID:
            return 401, {"error": "invalid_client"}
        if form["grant_type"] == "refresh_token" and self.refuses_refresh:
            return 400, {"error": "invalid_grant", "error_description": "the session has ended"}
        if form["grant_type"].endswith("device_code") and not self.approved:
            self.approved = True  # the person enters the code after the first question
            return 400, {"error": "authorization_pending"}
        now = int(time.time())
        return 200, {
            "id_token": self.token(**{"iat": now - self.age, "exp": now + self.seconds, **self.claims}),
            "refresh_token": f"refresh-{len(self.grants)}",
            "access_token": "opaque",
            "token_type": "bearer",
        }


def _algorithm(key: PrivateKey) -> Any:
    return jwt.get_algorithm_by_name(algorithm_of(key))


@contextmanager
def running_issuer() -> Iterator[ServedIssuer]:
    """Serve an issuer with one key."""
    issuer = ServedIssuer(keys={"first": make_key()})
    issuer.answers.set()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Print nothing."""

        def do_GET(self) -> None:
            issuer.answers.wait(30)
            if self.path == "/.well-known/openid-configuration":
                self._answer(200, issuer.discovery())
            elif self.path == "/keys":
                issuer.reads += 1
                self._answer(200, issuer.jwks())
            else:
                self._answer(404, {})

        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(text).items()}
            if self.path == "/device/code":
                self._answer(
                    200,
                    {
                        "device_code": "device-1",
                        "user_code": "WDJB-MJHT",
                        "verification_uri": f"{issuer.url}/device",
                        "verification_uri_complete": f"{issuer.url}/device?user_code=WDJB-MJHT",
                        "expires_in": 300,
                        "interval": 1,
                    },
                )
            else:
                self._answer(*issuer.granted(form))

        def _answer(self, status: int, value: dict[str, Any]) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        issuer.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield issuer
        issuer.answers.set()
        server.shutdown()
