"""An OpenID Connect issuer in the process of the tests: real HTTP, real signatures, and tokens that a test may spoil."""

import json
import threading
import time
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

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
    gives_refresh: bool = True
    """Whether an authorization code gives a refresh token, too."""
    client_secret: str = ""
    """The secret of the client, which it has to show; empty: it is a public one."""
    by_form: bool = False
    """Whether the client has to show its secret in the form, and not in a header."""
    sent_to_sign_in: list[dict[str, str]] = field(default_factory=list)
    """The queries with which browsers were sent to it."""
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    """Authorization codes that were not used, with the query of each."""
    has_device_flow: bool = True
    end_session_endpoint: Any = None
    """Where browsers end its own session, as its discovery document has it; None: it has none."""

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
        more = {"device_authorization_endpoint": f"{self.url}/device/code"} if self.has_device_flow else {}
        if self.end_session_endpoint is not None:
            more["end_session_endpoint"] = self.end_session_endpoint
        return {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/keys",
            "token_endpoint": f"{self.url}/token",
            "authorization_endpoint": f"{self.url}/auth",
            "token_endpoint_auth_methods_supported": ["client_secret_post" if self.by_form else "client_secret_basic"],
            "scopes_supported": ["openid", "email", "groups", "offline_access"],
            **more,
        }

    def sign_in(self, address: str, **changes: str) -> str:
        """Return where a browser is sent after somebody has signed in at an address of this issuer. ``changes``: of the query that it
        was sent with.
        """
        query = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()} | changes
        self.sent_to_sign_in.append(query)
        code = f"code-{len(self.sent_to_sign_in)}"
        self.codes[code] = query
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def _code_mistake(self, form: dict[str, str], query: dict[str, str] | None) -> str:
        """Return why an authorization code is refused (RFC 6749, section 4.1.3, and RFC 7636, section 4.6); empty where it is not."""
        if query is None:
            return "the code was used before, or is none"
        if form.get("redirect_uri") != query["redirect_uri"]:
            return "another redirect_uri"
        challenge = urlsafe_b64encode(sha256(form.get("code_verifier", "").encode()).digest()).decode().rstrip("=")
        if query.get("code_challenge_method") != "S256" or challenge != query.get("code_challenge"):
            return "another code_verifier"
        return ""

    def granted(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """Return status and body of an answer of the token endpoint."""
        self.grants.append(form["grant_type"])
        if form["client_id"] != CLIENT_ID or form.get("client_secret", "") != self.client_secret:
            return 401, {"error": "invalid_client"}
        nonce: dict[str, str] = {}
        if form["grant_type"] == "authorization_code":
            query = self.codes.pop(form["code"], None)
            if mistake := self._code_mistake(form, query):
                return 400, {"error": "invalid_grant", "error_description": mistake}
            nonce = {"nonce": query["nonce"]} if query else {}
        if form["grant_type"] == "refresh_token" and self.refuses_refresh:
            return 400, {"error": "invalid_grant", "error_description": "the session has ended"}
        if form["grant_type"].endswith("device_code") and not self.approved:
            self.approved = True  # the person enters the code after the first question
            return 400, {"error": "authorization_pending"}
        now = int(time.time())
        refresh = {"refresh_token": f"refresh-{len(self.grants)}"} if self.gives_refresh else {}
        return 200, {
            "id_token": self.token(**{"iat": now - self.age, "exp": now + self.seconds, **nonce, **self.claims}),
            **refresh,
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
            issuer.answers.wait(30)
            text = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(text).items()}
            if issuer.client_secret and self.path == "/token" and issuer.by_form != ("client_secret" in form):
                self._answer(401, {"error": "invalid_client"})
                return
            kind, _, named = self.headers.get("Authorization", "").partition(" ")
            if kind == "Basic":
                client, _, secret = b64decode(named).decode().partition(":")
                form |= {"client_id": unquote(client), "client_secret": unquote(secret)}
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
