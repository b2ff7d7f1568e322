"""Cookies of browsers that sign in, and what counts as a path of the own host."""

from dataclasses import replace

import pytest
from pydantic import ValidationError

from trainmaster_dispatcher.api.browser_pages import refusal_page, sign_in_address
from trainmaster_dispatcher.domain import browser_sign_in
from trainmaster_dispatcher.domain.browser_sign_in import (
    PendingSignIn,
    checked_return,
    cookie_of,
    csrf_token,
    has_csrf_token,
    read_pending,
    set_cookie,
    sign_in_cookie_name,
    written,
)
from trainmaster_dispatcher.services.settings import Settings, mistakes_in

PENDING = PendingSignIn("default", "state", "nonce", "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk", "/jobs")


def test_the_challenge_is_that_of_the_rfc() -> None:
    """Compare with RFC 7636, appendix B."""
    assert PENDING.challenge == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"


def test_a_sign_in_is_read_by_its_state_alone() -> None:
    text = written(PENDING)
    assert read_pending(text, "state") == PENDING
    assert read_pending(text, "stat") is None
    assert read_pending(text[:-3], "state") is None
    assert read_pending("", "state") is None
    assert read_pending("x" * 5000, "state") is None
    for damaged in (
        written(replace(PENDING, return_to="//evil.example.com")),
        written(replace(PENDING, verifier="")),
        written(replace(PENDING, nonce=None)),  # type: ignore[arg-type]
        "e30",
        "W10",
    ):
        assert read_pending(damaged, "state") is None, damaged


def test_cookies_of_tabs_have_names_of_their_own() -> None:
    assert sign_in_cookie_name("a") != sign_in_cookie_name("b")
    assert sign_in_cookie_name("a").startswith(browser_sign_in.SIGN_IN_COOKIE)


@pytest.mark.parametrize(("is_secure", "name"), [(True, "__Host-trainmaster"), (False, "trainmaster")])
def test_a_cookie_is_of_this_host_alone(is_secure: bool, name: str) -> None:
    line = set_cookie("trainmaster", "x", 60, is_secure=is_secure)
    attributes = {one.strip().lower() for one in line.split(";")[1:]}
    assert line.startswith(f"{name}=x;")
    assert attributes == {"httponly", "max-age=60", "path=/", "samesite=lax"} | ({"secure"} if is_secure else set())
    headers = [(b"cookie", f"a=b; {name}=x; c".encode()), (b"cookie", f"{name}=y".encode())]
    assert cookie_of(headers, "trainmaster", is_secure=is_secure) == "x"
    assert cookie_of(headers, "trainmaster", is_secure=not is_secure) == ""
    assert cookie_of([(b"cookie", f"{name}-other=x; x{name}=y".encode())], "trainmaster", is_secure=is_secure) == ""


def test_tokens_follow_from_the_secret_and_do_not_show_it() -> None:
    token = csrf_token("secret")
    assert has_csrf_token("secret", token)
    assert not has_csrf_token("other", token)
    assert not has_csrf_token("secret", "")
    assert not has_csrf_token("secret", "\xe4")
    assert "secret" not in token


@pytest.mark.parametrize("path", ["/", "/jobs?queue=a&b=%2F%2Fevil", "/a//b", "/%5Cevil", "/?x=https://a.test/"])
def test_paths_of_this_host(path: str) -> None:
    assert checked_return(path) == path


def test_pages_quote_what_they_show() -> None:
    page = refusal_page('<b>"no"</b>', '/"><script>').decode()
    assert "&lt;b&gt;" in page
    assert "<script>" not in page
    assert sign_in_address("/a?b=c&d", "x") == "/v1/sign-in/browser?return=%2Fa%3Fb%3Dc%26d&issuer=x"


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://Trainmaster.example.com/", "https://trainmaster.example.com"),
        ("http://127.0.0.1:8470", "http://127.0.0.1:8470"),
        ("", ""),
    ],
)
def test_the_public_address_is_an_origin(url: str, origin: str) -> None:
    assert Settings.model_validate({"public_url": url}).public_url == origin


@pytest.mark.parametrize(
    "url", ["http://trainmaster.example.com", "https://a.test/base", "https://a.test?b", "https://u:p@a.test", "a.test"]
)
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(ValidationError) as error:
        Settings.model_validate({"public_url": url})
    (said,) = mistakes_in(error.value)
    assert said.startswith("setting TRAINMASTER_PUBLIC_URL: must be an address of https:// without a path")
