"""ID tokens of OpenID Connect issuers: their signature, issuer, audience and times (OpenID Connect Core 1.0, section 3.1.3.7)."""

from collections.abc import Mapping
from typing import Any, Final

import jwt
from jwt.exceptions import (
    ExpiredSignatureError,
    ImmatureSignatureError,
    InvalidAudienceError,
    InvalidSignatureError,
    MissingRequiredClaimError,
    PyJWTError,
)

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster_dispatcher.api.issuer_keys import IssuerKeys
from trainmaster_dispatcher.domain.id_claims import ClaimsError, Issuer, PersonAccount, account_of

LEEWAY_SECONDS: Final = 60
"""The most that clocks of the issuer and of this machine may differ."""
MOST_TOKEN_BYTES: Final = 16 * 1024
_REQUIRED: Final = ("iss", "sub", "aud", "exp", "iat")
_MOST_TRIED: Final = 10
"""The most keys that are tried for a token that does not name its key."""
_SHOWN: Final = 200


async def read_token(
    token: str,
    trusted: Mapping[str, IssuerKeys],
    *,
    may_read: bool = True,
    audience: str = "",
    nonce: str | None = None,
) -> PersonAccount:
    """Return who a token is for, and until when it counts.

    ``trusted``: the keys of each issuer by its address; a token is checked by those of the one that its ``iss`` names, and by no
    others. ``may_read`` False: no keys are read of the issuer for it. ``audience``: the only client for which it may be.
    ``nonce``: that of the sign-in for which it was made.

    Raises ProblemError UNAUTHENTICATED with what is wrong with the token, or ISSUER_AWAY.
    """
    if len(token) > MOST_TOKEN_BYTES:
        raise _refused(f"has {len(token)} bytes, and may have {MOST_TOKEN_BYTES}")
    header, claims = _unverified(token)
    algorithm, kid = header.get("alg"), header.get("kid")
    # Read before anything is verified, so that a token of somebody else makes nobody read keys.
    named = claims.get("iss")
    keys = trusted.get(named) if isinstance(named, str) else None
    if keys is None:
        raise _refused(f"is of the issuer {_shown(named)}, not of {' or '.join(trusted)}")
    issuer = keys.issuer
    if algorithm not in issuer.algorithms:
        raise _refused(f"is signed by {_shown(algorithm)}, and may be by {', '.join(issuer.algorithms)}")
    found = await keys.find(kid, algorithm, may_read=may_read)
    if not found:
        raise _refused(f"is signed with the key {_shown(kid)} for {algorithm}, which {issuer.url} does not publish")
    verified = _verified(token, issuer, algorithm, found[:_MOST_TRIED], audience)
    if nonce is not None and verified.get("nonce") != nonce:
        raise _refused("was not made for this sign-in: it has another nonce")
    try:
        return account_of(verified, issuer)
    except ClaimsError as error:
        raise _refused(str(error)) from error


async def may_be_hint(token: str, keys: IssuerKeys) -> bool:
    """Return whether a token may be in an address, as id_token_hint for its issuer: the issuer still publishes its key, and it opens
    no calls, as addresses stay in the history of browsers and in logs. That it has expired does not matter to the issuer (OpenID
    Connect RP-Initiated Logout 1.0, section 2). False where the issuer is away.
    """
    try:
        header, _ = _unverified(token)
        if not await keys.find(header.get("kid"), str(header.get("alg"))):
            return False
    except ProblemError:
        return False
    try:
        await read_token(token, {keys.issuer.url: keys})
    except ProblemError as error:
        return error.code is Code.UNAUTHENTICATED
    return False


def _unverified(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return header and claims of a token that anybody may have made. Raises ProblemError UNAUTHENTICATED."""
    try:
        parts = jwt.decode_complete(token, options={"verify_signature": False})
    except (PyJWTError, ValueError, RecursionError) as error:
        raise _refused(f"cannot be read: {_shown(str(error))}") from error
    return parts["header"], parts["payload"]


def _verified(token: str, issuer: Issuer, algorithm: str, keys: list[jwt.PyJWK], audience: str) -> dict[str, Any]:
    """Return the claims of a token that one of the keys has signed. Raises ProblemError UNAUTHENTICATED."""
    for key in keys:
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=[audience] if audience else list(issuer.client_ids),
                issuer=issuer.url,
                leeway=LEEWAY_SECONDS,
                options={"require": list(_REQUIRED)},
            )
        except InvalidSignatureError:
            continue
        except PyJWTError as error:
            raise _refused(_words(error, issuer)) from error
        return claims
    raise _refused("has a signature that is wrong")


def _words(error: PyJWTError, issuer: Issuer) -> str:
    match error:
        case ExpiredSignatureError() if issuer.service_accounts:
            return "has expired; Kubernetes writes a new one into the file of a projected volume before its end"
        case ExpiredSignatureError():
            return "has expired; sign in again: trainmaster login URL --oidc"
        case ImmatureSignatureError():
            return "is not valid yet: compare the clocks of the issuer and of the dispatcher"
        case InvalidAudienceError():
            return f"is for another client: its aud has to have {' or '.join(issuer.client_ids)}"
        case MissingRequiredClaimError():
            return f"has no claim {error.claim}"
        case _:
            return f"is not valid: {_shown(str(error))}"


def _shown(value: object) -> str:
    return repr(value)[:_SHOWN]


def _refused(why: str) -> ProblemError:
    return ProblemError(Code.UNAUTHENTICATED, f"the token {why}")
