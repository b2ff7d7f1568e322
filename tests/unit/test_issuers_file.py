"""The file with further issuers: what it may say, and what its mistakes are called."""

import json
from pathlib import Path
from typing import Any

import pytest

from trainmaster_dispatcher.services.issuers import IssuersFileError, read_issuers
from trainmaster_dispatcher.services.settings import Settings

COMPANY = {"oidc_issuer": "https://sso.example.com", "oidc_client_ids": "trainmaster"}
PARTNER = {
    "name": "partner",
    "issuer": "https://sso.partner.example",
    "clientIds": ["trainmaster"],
    "prefix": "partner:",
}
EDGE = {
    "name": "edge",
    "issuer": "https://kubernetes.default.svc",
    "serviceAccounts": True,
    "audiences": ["trainmaster"],
    "prefix": "edge:",
    "jwks": {"keys": []},
}


def settings(file: Path, text: str, **more: str) -> Settings:
    file.write_text(text)
    found = {"database_url": "postgresql://nowhere/none", "oidc_issuers_file": str(file)}
    return Settings.model_validate({**found, **more})


def test_issuers_of_settings_and_file_know_each_others_prefixes(tmp_path: Path) -> None:
    file = tmp_path / "issuers.yaml"
    first, partner, edge = read_issuers(settings(file, json.dumps({"issuers": [PARTNER, EDGE]}), **COMPANY))
    assert (first.name, first.prefix, first.other_prefixes) == ("default", "", ("partner:", "edge:"))
    assert (partner.client_ids, partner.other_prefixes) == (("trainmaster",), ("edge:",))
    assert (edge.client_ids, edge.service_accounts, json.loads(edge.jwks)) == (("trainmaster",), True, {"keys": []})


@pytest.mark.parametrize("text", ["", "issuers: []"])
def test_a_file_may_have_none(tmp_path: Path, text: str) -> None:
    assert read_issuers(settings(tmp_path / "issuers.yaml", text)) == ()


def test_the_first_issuer_of_a_file_alone_needs_no_prefix(tmp_path: Path) -> None:
    (one,) = read_issuers(settings(tmp_path / "issuers.yaml", json.dumps({"issuers": [PARTNER | {"prefix": ""}]})))
    assert one.prefix == ""


@pytest.mark.parametrize(
    ("issuers", "why"),
    [
        ([PARTNER | {"prefix": ""}], "the issuer 'partner' needs a prefix, such as partner:"),
        ([PARTNER, PARTNER | {"issuer": "https://x.example"}], "two issuers have the name 'partner'"),
        ([PARTNER | {"name": "default"}], "which is that of TRAINMASTER_OIDC_ISSUER"),
        ([PARTNER | {"issuer": "https://sso.example.com"}], "have the same address, https://sso.example.com"),
        ([PARTNER, EDGE | {"prefix": "partner:"}], "have the same prefix, partner:"),
        ([PARTNER | {"prefix": "partner"}], "issuers[0].prefix"),
        ([PARTNER | {"prefix": "a:b:"}], "issuers[0].prefix"),
        ([PARTNER | {"prefix": "system:"}], "is a prefix of Kubernetes or of the dispatcher"),
        ([PARTNER | {"issuer": "http://sso.partner.example"}], "must be an address of https://"),
        ([PARTNER | {"issuer": "file:///etc/passwd"}], "must be an address of https://"),
        ([PARTNER | {"clientIds": []}], "clientIds is missing"),
        ([PARTNER | {"algorithms": ["HS256"]}], "issuers[0].algorithms[0]"),
        ([PARTNER | {"algorithms": []}], "algorithms must name one at least"),
        ([PARTNER | {"userClaims": []}], "userClaims must name the claim"),
        ([PARTNER | {"clientID": "x"}], "clientID"),
        ([PARTNER | {"jwks": {"keys": []}}], "jwks and jwksFile are for serviceAccounts"),
        (
            [PARTNER | {"browserClient": {"id": "w", "secretFile": "/nonexistent"}}],
            "the secretFile /nonexistent cannot be",
        ),
        ([PARTNER | {"browserClient": {"id": "w", "secretFile": "x", "secret": "y"}}], "two origins of one secret"),
        ([EDGE | {"browserClient": {"id": "w"}}], "browserClient is for accounts of people"),
        ([EDGE | {"audiences": []}], "serviceAccounts needs audiences"),
        ([EDGE | {"prefix": ""}], "serviceAccounts needs a prefix"),
        ([EDGE | {"userClaims": ["email"]}], "userClaims is for accounts of people"),
        ([EDGE | {"jwksFile": "x"}], "two origins of the same keys"),
        ([EDGE | {"caFile": "x"}], "caFile would be ignored"),
        ([EDGE | {"jwks": {}}], "jwks has no list of keys"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, issuers: list[dict[str, Any]], why: str) -> None:
    file = tmp_path / "issuers.yaml"
    with pytest.raises(IssuersFileError) as error:
        read_issuers(settings(file, json.dumps({"issuers": issuers}), **COMPANY))
    assert str(error.value).startswith(f"TRAINMASTER_OIDC_ISSUERS_FILE: {file}: ")
    assert why in str(error.value)


@pytest.mark.parametrize(("text", "why"), [("issuers: [", "line 1"), ("- x", "issuers.yaml: "), ("a\0b", "U+0000")])
def test_what_is_no_such_file_is_told(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(IssuersFileError, match="TRAINMASTER_OIDC_ISSUERS_FILE") as error:
        read_issuers(settings(tmp_path / "issuers.yaml", text))
    assert why in str(error.value)


def test_a_file_that_is_missing_is_told(tmp_path: Path) -> None:
    found = Settings.model_validate(
        {"database_url": "postgresql://nowhere/none", "oidc_issuers_file": str(tmp_path / "none.yaml")}
    )
    with pytest.raises(IssuersFileError, match="cannot be read: No such file"):
        read_issuers(found)
