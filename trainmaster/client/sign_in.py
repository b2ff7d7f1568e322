"""Signing in with an account of the dispatcher's OpenID Connect issuer: the device authorization flow (RFC 8628), and new tokens in
place of those that end (RFC 6749, section 6). Imports little, because transports read it for each request.
"""

import fcntl
import json
import math
import os
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlsplit

from trainmaster.client.config import (
    Context,
    Contexts,
    config_path,
    file_of,
    is_this_machine,
    read_contexts,
    read_token_file,
    write_contexts,
)
from trainmaster.client.errors import ConfigurationError
from trainmaster.protocol.suggestions import suggestion

_EARLY_SECONDS: Final = 60.0
"""Time before its end at which a token is replaced; a fifth of its time where that is less."""
_EARLY_PART: Final = 0.2
_TIMEOUT_SECONDS: Final = 15.0
_DISCOVERY: Final = "/.well-known/openid-configuration"
_DEVICE_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
_SCOPES: Final = ("openid", "email", "profile", "groups", "offline_access")
_USUAL_INTERVAL: Final = 5.0
"""Seconds between two questions whether the person has signed in, of RFC 8628, section 3.2."""
_SLOWER_SECONDS: Final = 5.0
"""Added to the pause when the issuer says ``slow_down``."""
_LEAST_SECONDS: Final = 1.0
_HTTP_OK: Final = 200
_HTTP_NOT_FOUND: Final = 404


class SignInError(ConfigurationError):
    """Nobody has signed in, or the issuer refuses: the sign-in has ended, was denied, or took too long."""


@dataclass(frozen=True, slots=True)
class SignInTerms:
    """An issuer, and the client as which this program asks it for tokens, as a dispatcher names them."""

    issuer: str
    client_id: str
    client_secret: str = ""
    scopes: tuple[str, ...] = ()
    """Scopes to ask for; empty: the usual ones that the issuer knows."""
    others: tuple[str, ...] = ()
    """Names of the dispatcher's other issuers."""


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """A code with which a person signs in, at ``address``; ``whole_address``, where there is one, has the code in it."""

    address: str
    code: str
    whole_address: str
    _secret: str
    _interval: float
    _expires_in: float


def is_token(text: str) -> bool:
    """Return whether a credential is a JSON Web Token, and no API key."""
    return text.startswith("eyJ") and "." in text


def end_of(token: str) -> float:
    """Return the time at which a token ends, in seconds since the epoch; infinity for one that does not say so."""
    return _time_in(_claims_of(token), "exp", math.inf)


def _claims_of(token: str) -> Mapping[str, Any]:
    """Return the claims of a token, which nobody has verified; none of what is no token."""
    payload = token.split(".")[1] if is_token(token) else ""
    try:
        claims = json.loads(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except ValueError:
        return {}
    return claims if isinstance(claims, dict) else {}


def _time_in(claims: Mapping[str, Any], name: str, missing: float) -> float:
    value = claims.get(name)
    return float(value) if isinstance(value, int | float) else missing


def lasting(token: str, url: str) -> str:
    """Return a credential for a dispatcher that lasts: the same, or a new token in place of one that ends soon.

    New tokens are of the context that has the token, or had it: with the address ``url`` and the same account. They are stored
    there. A credential that was read of a file is what the file has now: Kubernetes writes new tokens there before the old ones end.
    Raises SignInError, ConfigurationError and UnreachableError.
    """
    if path := file_of(token):
        return read_token_file(path)
    if not is_token(token) or not _ends_soon(token):
        return token
    account, of_account = _account_of(token), ""
    for name, one in read_contexts().by_name.items():
        if one.id_token == token:
            return refreshed(name).id_token
        if one.url.rstrip("/") == url.rstrip("/") and _account_of(one.id_token) == account:
            of_account = of_account or name
    return refreshed(of_account).id_token if of_account else token


def _account_of(token: str) -> tuple[object, object]:
    claims = _claims_of(token)
    return claims.get("iss"), claims.get("sub")


def refreshed(name: str) -> Context:
    """Return a context whose token lasts, which another process may have stored meanwhile. Raises SignInError."""
    with _locked():
        contexts = read_contexts()
        context = contexts.named(name)
        if not context.id_token or not _ends_soon(context.id_token):
            return context
        again = f"sign in again: trainmaster login {context.url} --oidc --name {name}"
        if not context.refresh_token:
            raise SignInError(f"the sign-in of context {name!r} has ended; {again}")
        form = {"grant_type": "refresh_token", "refresh_token": context.refresh_token}
        terms = SignInTerms(context.issuer, context.client_id, context.client_secret)
        status, answer = _send(str(_discovery(terms.issuer).get("token_endpoint", "")), _with_client(form, terms))
        if status != _HTTP_OK or not answer.get("id_token"):
            raise SignInError(f"the sign-in of context {name!r} has ended: {_reason(status, answer)}; {again}")
        context = replace(
            context,
            id_token=str(answer["id_token"]),
            refresh_token=str(answer.get("refresh_token") or context.refresh_token),
        )
        write_contexts(Contexts({**contexts.by_name, name: context}, contexts.current))
        return context


def terms_of(url: str, name: str | None = None) -> SignInTerms:
    """Return an issuer of a dispatcher, by its name; the first one without. Raises SignInError where there is none."""
    status, answer = _send(f"{url.rstrip('/')}/v1/sign-in")
    found = {str(one.get("name")): one for one in answer.get("issuers") or () if isinstance(one, dict)}
    if name is not None and answer.get("issuer") and name not in found:
        raise SignInError(f"{url} has no issuer {name!r}{suggestion(name, found)}; there are: {', '.join(found)}")
    chosen = found.get(name or "") or next(iter(found.values()), answer)
    issuer, client_id = chosen.get("issuer"), chosen.get("clientId")
    if status not in (_HTTP_OK, _HTTP_NOT_FOUND):
        raise SignInError(f"{url} does not say how to sign in: {_reason(status, answer)}")
    if not issuer or not client_id:
        raise SignInError(
            f"{url} has no OpenID Connect issuer; use an API key: trainmaster login {url}, or let an admin set TRAINMASTER_OIDC_ISSUER"
        )
    scopes = tuple(map(str, chosen.get("scopes") or ()))
    others = tuple(other for other, one in found.items() if one is not chosen)
    return SignInTerms(str(issuer), str(client_id), str(chosen.get("clientSecret") or ""), scopes, others)


class DeviceFlow:
    """The device authorization flow at an issuer. Raises SignInError and UnreachableError."""

    def __init__(
        self,
        terms: SignInTerms,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._terms = terms
        self._sleep = sleep
        self._clock = clock
        self._endpoints = _discovery(terms.issuer)

    def begin(self) -> DeviceCode:
        """Return the code for a person to enter."""
        address = self._endpoints.get("device_authorization_endpoint")
        if not address:
            raise SignInError(
                f"the issuer {self._terms.issuer} has no device authorization flow for this program; an admin enables it there,"
                " or makes an API key"
            )
        known = self._endpoints.get("scopes_supported")
        usual = [one for one in _SCOPES if not isinstance(known, list) or one in known]
        scopes = self._terms.scopes or usual
        status, answer = _send(str(address), _with_client({"scope": " ".join(scopes)}, self._terms))
        if status != _HTTP_OK or not answer.get("device_code"):
            raise SignInError(f"the issuer {self._terms.issuer} refuses to sign in: {_reason(status, answer)}")
        # Google writes verification_url, which drafts of the RFC had.
        place = str(answer.get("verification_uri") or answer.get("verification_url") or "")
        return DeviceCode(
            place,
            str(answer.get("user_code", "")),
            str(answer.get("verification_uri_complete") or ""),
            str(answer["device_code"]),
            float(answer.get("interval") or _USUAL_INTERVAL),
            float(answer.get("expires_in") or 300),
        )

    def finish(self, code: DeviceCode, url: str) -> Context:
        """Wait until the person has signed in; return a context for the dispatcher at ``url``."""
        form = _with_client({"grant_type": _DEVICE_GRANT, "device_code": code._secret}, self._terms)
        pause, deadline = max(_LEAST_SECONDS, code._interval), self._clock() + code._expires_in
        while self._clock() < deadline:
            self._sleep(pause)
            status, answer = _send(str(self._endpoints.get("token_endpoint", "")), form)
            error = answer.get("error")
            if status == _HTTP_OK:
                if not answer.get("id_token"):
                    raise SignInError(f"the issuer {self._terms.issuer} has given no ID token")
                return Context(
                    url,
                    "",
                    issuer=self._terms.issuer,
                    client_id=self._terms.client_id,
                    client_secret=self._terms.client_secret,
                    id_token=str(answer["id_token"]),
                    refresh_token=str(answer.get("refresh_token") or ""),
                )
            if error == "slow_down":
                pause += _SLOWER_SECONDS
            elif error != "authorization_pending":
                raise SignInError(f"the issuer {self._terms.issuer} refuses to sign in: {_reason(status, answer)}")
        raise SignInError("nobody has entered the code in time; nothing was stored")


def _ends_soon(token: str) -> bool:
    claims = _claims_of(token)
    end = _time_in(claims, "exp", math.inf)
    early = min(_EARLY_SECONDS, _EARLY_PART * (end - _time_in(claims, "iat", -math.inf)))
    return end - time.time() < early


def _with_client(form: Mapping[str, str], terms: SignInTerms) -> dict[str, str]:
    secret = {"client_secret": terms.client_secret} if terms.client_secret else {}
    return {**form, "client_id": terms.client_id, **secret}


def _discovery(issuer: str) -> dict[str, Any]:
    """Return an issuer's addresses."""
    _check_protected(issuer)
    status, answer = _send(issuer.rstrip("/") + _DISCOVERY)
    if status != _HTTP_OK or answer.get("issuer") != issuer:
        raise SignInError(f"{issuer} is no OpenID Connect issuer: {_reason(status, answer)}")
    return answer


def _check_protected(url: str) -> None:
    """Raise SignInError for an address where others on the network could read tokens."""
    if urlsplit(url).scheme != "https" and not (urlsplit(url).scheme == "http" and is_this_machine(url)):
        raise SignInError(f"tokens are asked for over https alone, and {url!r} is not")


def _send(url: str, form: Mapping[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    """Return status and body of an answer, of a POST if there is a form; an empty body for what is no object of JSON."""
    import httpx

    from trainmaster.client import wire

    if form is not None:
        _check_protected(url)
    with (
        wire.mapped_errors(url),
        httpx.Client(
            timeout=wire.timeouts(_TIMEOUT_SECONDS),
            trust_env=wire.goes_through_proxies(url),
            verify=wire.trusted_certificates(url),
        ) as http,
    ):
        headers = {"Accept": "application/json"}
        answer = http.get(url, headers=headers) if form is None else http.post(url, data=dict(form), headers=headers)
    try:
        value = answer.json()
    except ValueError:
        value = {}
    return answer.status_code, value if isinstance(value, dict) else {}


def _reason(status: int, answer: Mapping[str, Any]) -> str:
    said = answer.get("error_description") or answer.get("error") or answer.get("detail")
    return str(said)[:300] if said else f"it answers {status}"


@contextmanager
def _locked() -> Iterator[None]:
    """Let one process at a time replace tokens: many issuers take each refresh token once."""
    path = config_path()
    handle = os.open(path.with_name(f".{path.name}.lock"), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
