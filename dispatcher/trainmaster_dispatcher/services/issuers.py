"""The OpenID Connect issuers of an installation: one that the settings name, and those of a file.

Read at the start of an api and never stored: whose accounts count is decided by who runs the apis, as no right in the store may.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Self

import orjson
import yaml
from pydantic import AfterValidator, Field, StringConstraints, ValidationError, model_validator

from trainmaster.protocol.base import Name40, Strict, bounded, worded_pattern
from trainmaster.protocol.errors import TrainmasterError
from trainmaster.protocol.validation_errors import mistakes_of, worded
from trainmaster.protocol.yaml_text import load, place_of
from trainmaster_dispatcher.domain.id_claims import (
    ALGORITHMS,
    DEFAULT_ISSUER,
    Algorithm,
    Issuer,
    check_issuer,
)
from trainmaster_dispatcher.services.settings import Settings

_MOST_BYTES = 1024 * 1024
_MOST_ISSUERS = 200
_TAKEN_PREFIXES = ("system:", "trainmaster:")
"""Names of Kubernetes, and of the groups that the dispatcher itself gives to callers of its Kubernetes API."""

_Text = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
_Listed = Annotated[tuple[_Text, ...], bounded(100)]
_USUAL_CLAIMS = Issuer("", ()).user_claims


def _check_prefix(value: str) -> str:
    if value in _TAKEN_PREFIXES:
        raise ValueError(f"{value!r} is a prefix of Kubernetes or of the dispatcher; take another one")
    return value


_Prefix = Annotated[
    str,
    StringConstraints(
        max_length=40,
        pattern=worded_pattern(
            r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?:)?$",
            "lower-case letters, digits, - and . with one colon at the end, such as partner:",
        ),
    ),
    AfterValidator(_check_prefix),
]


class IssuersFileError(TrainmasterError):
    """The file with issuers cannot be read, or has mistakes."""


class BrowserClient(Strict):
    """The client as which browsers sign in, where it is another one than that of the command line, or has a secret."""

    id: _Text
    secret: str = ""
    secret_file: str = ""

    @model_validator(mode="after")
    def _has_one_secret(self) -> Self:
        if self.secret and self.secret_file:
            raise ValueError("secret and secretFile are two origins of one secret; give one of them")
        return self


class IssuerSpec(Strict):
    """An issuer of the file. With ``serviceAccounts`` it is a Kubernetes cluster."""

    name: Name40
    issuer: Annotated[str, StringConstraints(max_length=1000), AfterValidator(check_issuer)]
    prefix: _Prefix = ""
    service_accounts: bool = False
    client_ids: _Listed = ()
    audiences: _Listed = ()
    user_claims: _Listed = _USUAL_CLAIMS
    groups_claim: _Text = "groups"
    scopes: _Listed = ()
    algorithms: Annotated[tuple[Algorithm, ...], bounded(len(ALGORITHMS))] = ALGORITHMS
    public_client_secret: str = ""
    browser_client: BrowserClient | None = None
    ca_file: str = ""
    jwks: dict[str, Any] | None = None
    jwks_file: str = ""

    @model_validator(mode="after")
    def _is_for_people_or_for_service_accounts(self) -> Self:
        if self.service_accounts:
            if not self.audiences:
                raise ValueError(
                    "serviceAccounts needs audiences: without one, tokens for the API server would count here"
                )
            if not self.prefix:
                raise ValueError("serviceAccounts needs a prefix, such as the name of the cluster and a colon")
            for field in (
                "client_ids",
                "user_claims",
                "groups_claim",
                "scopes",
                "public_client_secret",
                "browser_client",
            ):
                if field in self.model_fields_set:
                    raise ValueError(
                        f"{IssuerSpec.model_fields[field].alias} is for accounts of people; with serviceAccounts leave it out"
                    )
        elif not self.client_ids:
            raise ValueError("clientIds is missing: the clients that the issuer makes tokens for")
        elif self.jwks is not None or self.jwks_file:
            raise ValueError("jwks and jwksFile are for serviceAccounts; an issuer of people publishes its keys")
        if not self.user_claims:
            raise ValueError("userClaims must name the claim with the name of a user, such as email")
        if not self.algorithms:
            raise ValueError("algorithms must name one at least; leave it out for all")
        return self

    @model_validator(mode="after")
    def _has_keys_of_one_origin(self) -> Self:
        if self.jwks is not None and self.jwks_file:
            raise ValueError("jwks and jwksFile are two origins of the same keys; give one of them")
        if self.ca_file and (self.jwks is not None or self.jwks_file):
            raise ValueError("caFile would be ignored: keys that are given are not read of the issuer")
        if self.jwks is not None and not isinstance(self.jwks.get("keys"), list):
            raise ValueError("jwks has no list of keys")
        return self


class IssuersFile(Strict):
    """The content of the file."""

    issuers: Annotated[tuple[IssuerSpec, ...], bounded(_MOST_ISSUERS)] = Field(default=())


def read_issuers(settings: Settings) -> tuple[Issuer, ...]:
    """Return all issuers, that of the settings first. Raises IssuersFileError."""
    first = settings.issuer
    if not settings.oidc_issuers_file:
        return () if first is None else (first,)
    path = settings.oidc_issuers_file
    found = [*([] if first is None else [first]), *(_issuer_of(spec, path) for spec in _read(path).issuers)]
    mistake = next(_clashes(found), None)
    if mistake is not None:
        raise _wrong(path, mistake)
    return tuple(
        replace(one, other_prefixes=tuple(other.prefix for other in found if other is not one and other.prefix))
        for one in found
    )


def _clashes(issuers: Sequence[Issuer]) -> Iterator[str]:
    """Yield what would let two issuers name the same person, or leaves open which of them a token is of."""
    addresses: dict[str, str] = {}
    names: set[str] = set()
    prefixes: dict[str, str] = {}
    for place, one in enumerate(issuers):
        if one.name in names:
            yield f"two issuers have the name {one.name!r}" + (
                ", which is that of TRAINMASTER_OIDC_ISSUER" if one.name == DEFAULT_ISSUER else ""
            )
        if one.url in addresses:
            yield (
                f"the issuers {addresses[one.url]!r} and {one.name!r} have the same address, {one.url}, by which tokens name"
                " their issuer; clusters get one of their own by --service-account-issuer of the API server"
            )
        if place and not one.prefix:
            yield (
                f"the issuer {one.name!r} needs a prefix, such as {one.name}: with the colon, as it is not the first one: two issuers"
                " could name the same person"
            )
        if one.prefix and one.prefix in prefixes:
            yield f"the issuers {prefixes[one.prefix]!r} and {one.name!r} have the same prefix, {one.prefix}"
        names.add(one.name)
        addresses[one.url] = prefixes[one.prefix] = one.name


def _issuer_of(spec: IssuerSpec, path: str) -> Issuer:
    """Return an issuer of the file at ``path``. Raises IssuersFileError."""
    browser = spec.browser_client or (BrowserClient(id=spec.client_ids[0]) if spec.client_ids else None)
    return Issuer(
        spec.issuer,
        tuple(dict.fromkeys((*spec.client_ids, *spec.audiences))),
        spec.user_claims,
        spec.groups_claim,
        spec.ca_file,
        spec.public_client_secret,
        name=spec.name,
        prefix=spec.prefix,
        scopes=spec.scopes,
        algorithms=spec.algorithms,
        service_accounts=spec.service_accounts,
        jwks="" if spec.jwks is None else orjson.dumps(spec.jwks).decode(),
        jwks_file=spec.jwks_file,
        browser_client=browser.id if browser else "",
        browser_secret=_secret_of(browser, path) if browser else "",
    )


def _secret_of(client: BrowserClient, path: str) -> str:
    if not client.secret_file:
        return client.secret
    try:
        return Path(client.secret_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(path, f"the secretFile {client.secret_file} cannot be read: {error}") from error


def _read(path: str) -> IssuersFile:
    """Return what the file has. Raises IssuersFileError."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise _wrong(path, f"cannot be read: {error.strerror or error}") from error
    if len(data) > _MOST_BYTES:
        raise _wrong(path, f"has more than {_MOST_BYTES} bytes")
    try:
        value = load(data.decode())
    except UnicodeDecodeError as error:
        raise _wrong(path, "is not text in UTF-8") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise _wrong(path, place_of(error)) from error
    try:
        return IssuersFile.model_validate({} if value is None else value)
    except ValidationError as error:
        raise _wrong(path, worded(mistakes_of(error)[0])) from error


def _wrong(path: str, mistake: str) -> IssuersFileError:
    return IssuersFileError(f"TRAINMASTER_OIDC_ISSUERS_FILE: {path}: {mistake}")
