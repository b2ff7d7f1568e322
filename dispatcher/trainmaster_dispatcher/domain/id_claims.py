"""The OpenID Connect issuer of an installation, and who a token of it is for, by the token's claims. No signature is checked here."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from trainmaster.protocol.notices import EMAIL_PATTERN
from trainmaster.protocol.role_bindings import LONGEST_USER_NAME

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


@dataclass(frozen=True, slots=True)
class PersonAccount:
    """Who a token is for, and until when it counts. ``email``: None where the token has none that the issuer has verified."""

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


def is_protected(url: str) -> bool:
    """Return whether nobody on the network can change what ``url`` answers: it is https, or this machine itself."""
    parts = urlsplit(url)
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
    return PersonAccount(
        subject,
        _name_of(claims, issuer.user_claims),
        _groups_of(claims, issuer.groups_claim),
        expires_at,
        _email_of(claims, issuer.user_claims),
    )


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
            f" chooses the claim by the setting TRAINMASTER_OIDC_USER_CLAIMS"
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
