"""The cookies of browsers that sign in, and the addresses to which they may return. Pure: it knows nothing of requests."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from hmac import compare_digest
from hmac import digest as keyed_digest
from http.cookies import SimpleCookie
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlencode, urlsplit

import orjson

Headers = Sequence[tuple[bytes, bytes]]

SESSION_COOKIE: Final = "trainmaster"
SIGN_IN_COOKIE: Final = "trainmaster-sign-in-"
CSRF_HEADER: Final = "x-trainmaster-csrf"
SIGN_IN_SECONDS: Final = 600.0
"""The time that a person has to sign in at the issuer."""
_HOST: Final = "__Host-"
"""Of a cookie over TLS: browsers take it from this very host alone, and send it nowhere else."""
_LONGEST_RETURN: Final = 1000
_LONGEST_COOKIE: Final = 4000
_SIGN_IN: Final = "/v1/sign-in"
LONGEST_HINT: Final = 4000
"""The most characters of an ID token in an address: servers take addresses of 8 KiB, some only shorter ones."""


@dataclass(frozen=True, slots=True)
class PendingSignIn:
    """A sign-in that a browser has begun. Only this browser has it, in a cookie: an answer of the issuer counts in no other one."""

    issuer: str
    """Name of the issuer."""
    state: str
    nonce: str
    verifier: str
    """The secret of PKCE (RFC 7636)."""
    return_to: str

    @property
    def challenge(self) -> str:
        """The text that the issuer is sent in place of the verifier (S256)."""
        return urlsafe_b64encode(sha256(self.verifier.encode()).digest()).decode().rstrip("=")


def checked_return(path: str) -> str:
    """Return a path of this host. Raises ValueError for any other address, also for what only some browsers read as one."""
    if not path.startswith("/") or path.startswith(("//", "/\\")) or "\\" in path:
        raise ValueError("must be a path of this host, such as /jobs?queue=research")
    if len(path) > _LONGEST_RETURN or any(not "!" <= sign <= "~" for sign in path):
        raise ValueError(f"must have up to {_LONGEST_RETURN} characters of ASCII without spaces; encode others as %XX")
    if path.startswith(_SIGN_IN):
        raise ValueError("cannot be the sign-in itself")
    return path


def end_session_address(endpoint: str, client: str, origin: str, id_token: str) -> str:
    """Return where a browser ends the session at an issuer and comes back to the first page of ``origin`` (OpenID Connect
    RP-Initiated Logout 1.0, section 2). ``id_token``: the last one of the session; empty: the issuer knows it by its own cookie.
    """
    hint = {"id_token_hint": id_token} if id_token else {}
    query = urlencode({"client_id": client, "post_logout_redirect_uri": f"{origin}/", **hint})
    parts = urlsplit(endpoint)
    return parts._replace(query=f"{parts.query}&{query}" if parts.query else query, fragment="").geturl()


def sign_in_cookie_name(state: str) -> str:
    """Return the name of the cookie of a sign-in, of which a browser may have begun several in its tabs."""
    return SIGN_IN_COOKIE + sha256(state.encode()).hexdigest()[:8]


def written(pending: PendingSignIn) -> str:
    return urlsafe_b64encode(orjson.dumps(asdict(pending))).decode().rstrip("=")


def read_pending(text: str, state: str) -> PendingSignIn | None:
    """Return what a cookie says of the sign-in with this ``state``; None where it is of another one, or damaged."""
    if len(text) > _LONGEST_COOKIE:
        return None
    try:
        value = orjson.loads(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        found = PendingSignIn(**value)
        checked_return(found.return_to)
    except (ValueError, TypeError, AttributeError):
        return None
    if not all(isinstance(one, str) and one for one in asdict(found).values()):
        return None
    return found if compare_digest(found.state.encode(), state.encode()) else None


def cookie_of(headers: Headers, name: str, *, is_secure: bool) -> str:
    """Return the value of a cookie; empty where there is none."""
    whole = (_HOST if is_secure else "") + name
    for key, value in headers:
        if key.lower() == b"cookie":
            for part in value.decode("latin-1").split(";"):
                found, equals, text = part.strip().partition("=")
                if equals and found == whole:
                    return text
    return ""


def set_cookie(name: str, value: str, seconds: float, *, is_secure: bool) -> str:
    """Return the value of ``Set-Cookie`` for a cookie of this host that no script reads; 0 seconds remove it."""
    jar: SimpleCookie = SimpleCookie()
    jar[(_HOST if is_secure else "") + name] = value
    (morsel,) = jar.values()
    morsel.update({"path": "/", "max-age": str(round(seconds)), "httponly": "1", "samesite": "Lax"})
    if is_secure:
        morsel["secure"] = "1"
    return morsel.OutputString()


def origin_of(scheme: str, host: str) -> str:
    """Return the origin of a page at the address of a call: its ``scheme``, also of a WebSocket, and its header Host."""
    return f"{'https' if scheme in ('https', 'wss') else 'http'}://{host.lower()}"


def is_of_this_machine(host: str) -> bool:
    """Return whether a header Host, or an address, is one of the machine itself."""
    name = host.lower()
    name = (
        name[1:].partition("]")[0] if name.startswith("[") else name if name.count(":") > 1 else name.partition(":")[0]
    )
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def csrf_token(secret: str) -> str:
    """Return the token that calls which change something have in a header, beside the cookie with this secret."""
    return keyed_digest(secret.encode(), b"csrf", "sha256").hex()


def has_csrf_token(secret: str, given: str) -> bool:
    """Return whether ``given`` is the token of a session."""
    return compare_digest(csrf_token(secret).encode(), given.encode())
