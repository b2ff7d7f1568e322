"""The OpenID Connect issuers of an installation, and who a token of one is for, by its claims. No signature is checked here."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any, Final, Literal, get_args
from urllib.parse import urlsplit

from trainmaster.protocol.notices import EMAIL_PATTERN
from trainmaster.protocol.role_bindings import LONGEST_USER_NAME

Algorithm = Literal["RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "EdDSA"]
ALGORITHMS: Final[tuple[Algorithm, ...]] = get_args(Algorithm)
"""Signatures that count. All are of key pairs: with a secret that both sides have (HS256), or without a signature (none), whoever
knows the public key could make tokens."""
DEFAULT_ISSUER: Final = "default"
"""The name of the issuer that the settings name."""
SERVICE_ACCOUNTS_GROUP: Final = "system:serviceaccounts"
"""The group of all service accounts of a Kubernetes cluster."""
_SERVICE_ACCOUNT = re.compile(
    r"system:serviceaccount:([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?):[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
)
_EMAIL = re.compile(EMAIL_PATTERN)
_LONGEST_EMAIL = 254
_LONGEST_SUBJECT = 255
"""Of OpenID Connect Core 1.0, section 2."""


class ClaimsError(ValueError):
    """The claims of a token that do not say who it is for. The text goes on after "the token"."""


@dataclass(frozen=True, slots=True)
class Issuer:
    """An OpenID Connect issuer and which of its tokens count. ``client_ids``: accepted audiences, first that of the command line.
    ``user_claims``: claims that may have the name of a user, the first that a token has. ``ca_file``: certificates that the issuer is
    verified by; empty: those of the system.
    """

    url: str
    client_ids: tuple[str, ...]
    user_claims: tuple[str, ...] = ("email", "preferred_username")
    groups_claim: str = "groups"
    ca_file: str = ""
    client_secret: str = ""
    name: str = DEFAULT_ISSUER
    prefix: str = ""
    """Before each name of a user and of a group of this issuer."""
    other_prefixes: tuple[str, ...] = ()
    """Prefixes of the other issuers, with which no name of this one may begin."""
    scopes: tuple[str, ...] = ()
    """What the command line asks this issuer for; empty: the usual ones."""
    algorithms: tuple[Algorithm, ...] = ALGORITHMS
    service_accounts: bool = False
    """Whether it is a Kubernetes cluster, whose tokens are of service accounts."""
    jwks: str = ""
    """Its keys, as JSON; empty: they are read of ``jwks_file`` or of the issuer."""
    jwks_file: str = ""
    browser_client: str = ""
    """The client as which browsers sign in."""
    browser_secret: str = field(default="", repr=False)
    """Its secret; empty: it is a public one."""


@dataclass(frozen=True, slots=True)
class PersonAccount:
    """Who a token is for, and until when it counts. ``email``: None where the token has none that the issuer has verified."""

    issuer: str
    subject: str
    name: str
    groups: tuple[str, ...]
    expires_at: datetime
    email: str | None = None


def check_issuer(url: str) -> str:
    """Return the address of an issuer. Raises ValueError for one that is not https, unless it is this machine itself."""
    parts = urlsplit(url)
    if parts.query or parts.fragment or not is_protected(url):
        raise ValueError("must be an address of https:// without ? and #, such as https://sso.example.com")
    return url


def check_origin(url: str) -> str:
    """Return the address of a host, without a / at its end. Raises ValueError for one with a path, and as ``check_issuer`` does."""
    parts = urlsplit(url)
    if parts.path.strip("/") or parts.query or parts.fragment or parts.username or not is_protected(url):
        raise ValueError("must be an address of https:// without a path, such as https://trainmaster.example.com")
    return f"{parts.scheme}://{parts.netloc}".lower()


def is_protected(url: str) -> bool:
    """Return whether nobody on the network can change what ``url`` answers: it is https, or this machine itself."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False  # such as https://[x
    if parts.scheme == "https":
        return bool(parts.hostname)
    host = parts.hostname or ""
    try:
        return parts.scheme == "http" and ip_address(host).is_loopback
    except ValueError:
        return parts.scheme == "http" and host == "localhost"


def account_of(claims: Mapping[str, Any], issuer: Issuer) -> PersonAccount:
    """Return who a token is for, of claims that an issuer has signed. Raises ClaimsError."""
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= _LONGEST_SUBJECT:
        raise ClaimsError(f"has no claim sub with 1 to {_LONGEST_SUBJECT} characters")
    try:
        expires_at = datetime.fromtimestamp(int(claims["exp"]), UTC)
    except (KeyError, TypeError, ValueError, OverflowError, OSError) as error:
        raise ClaimsError("has no claim exp with a time") from error
    if issuer.service_accounts:
        name, groups = _service_account_of(subject)
        email = None
    else:
        name, groups = _name_of(claims, issuer.user_claims), _groups_of(claims, issuer.groups_claim)
        email = _email_of(claims, issuer.user_claims)
    return PersonAccount(issuer.url, subject, _own_name(name, issuer), _own_groups(groups, issuer), expires_at, email)


def _service_account_of(subject: str) -> tuple[str, tuple[str, ...]]:
    """Return the name and the groups that Kubernetes gives a service account."""
    found = _SERVICE_ACCOUNT.fullmatch(subject)
    if found is None:
        raise ClaimsError(f"is of {subject!r}, which is no service account: system:serviceaccount:NAMESPACE:NAME")
    return subject, (SERVICE_ACCOUNTS_GROUP, f"{SERVICE_ACCOUNTS_GROUP}:{found[1]}")


def _own_name(name: str, issuer: Issuer) -> str:
    """Return the name of a user of this issuer, which no user of another one has."""
    if _is_of_another(name, issuer):
        raise ClaimsError(f"names the user {name!r}, whose name begins as those of another issuer do")
    whole = issuer.prefix + name
    if len(whole) > LONGEST_USER_NAME:
        raise ClaimsError(
            f"names the user {whole!r}: with the prefix of its issuer, a name has up to {LONGEST_USER_NAME} characters"
        )
    return whole


def _own_groups(groups: tuple[str, ...], issuer: Issuer) -> tuple[str, ...]:
    """Return the groups of this issuer's users; without those that could be another issuer's, so that they give no rights."""
    return tuple(issuer.prefix + group for group in groups if not _is_of_another(group, issuer))


def _is_of_another(name: str, issuer: Issuer) -> bool:
    return not issuer.prefix and name.startswith(issuer.other_prefixes)


def _email_of(claims: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    """Return the address for e-mail. One that the issuer has not verified may be another person's; issuers that do not say so are
    trusted where they are for names.
    """
    email = claims.get("email")
    if not isinstance(email, str) or len(email) > _LONGEST_EMAIL:
        return None
    is_verified = claims.get("email_verified", "email" in names) is True
    return email if is_verified and _EMAIL.fullmatch(email) else None


def _name_of(claims: Mapping[str, Any], names: tuple[str, ...]) -> str:
    claim = next((name for name in names if claims.get(name) not in (None, "")), None)
    if claim is None:
        raise ClaimsError(f"names no user: it has none of the claims {', '.join(names)}")
    name = claims[claim]
    if not isinstance(name, str) or len(name) > LONGEST_USER_NAME or not name.isprintable() or name != name.strip():
        raise ClaimsError(
            f"has a claim {claim} that is no user's name: up to {LONGEST_USER_NAME} printable characters without spaces around"
        )
    if claim == "email" and claims.get("email_verified", True) is not True:
        raise ClaimsError(f"has an e-mail address that the issuer has not verified, {name!r}")
    if claim != names[0] and "@" in name:
        # People choose such names at many issuers: it could be the e-mail address of somebody else.
        raise ClaimsError(
            f"has no claim {names[0]}, and its {claim} {name!r} has an @ in it, so it could be another user's {names[0]}; an admin"
            f" chooses the claim by the setting TRAINMASTER_OIDC_USER_CLAIMS, or by userClaims of the issuer"
        )
    return name


def _groups_of(claims: Mapping[str, Any], claim: str) -> tuple[str, ...]:
    """Return the groups; some issuers write a single one as a text."""
    groups = claims.get(claim)
    if groups is None or groups == "":
        return ()
    if isinstance(groups, str):
        return (groups,)
    if not isinstance(groups, list) or not all(isinstance(group, str) for group in groups):
        raise ClaimsError(f"has a claim {claim} that is no list of names")
    return tuple(dict.fromkeys(groups))
