"""``trainmaster dashboard``: the address of the page, and a browser that opens it, or none."""

import webbrowser

import pytest
from typer.testing import CliRunner

from trainmaster.cli.main import app

URL = "https://trainmaster.example.org"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the addresses that a browser was given."""
    found: list[str] = []

    def open_it(url: str) -> bool:
        found.append(url)
        return True

    monkeypatch.setattr(webbrowser, "open", open_it)
    monkeypatch.setenv("TRAINMASTER_URL", URL)
    monkeypatch.setenv("TRAINMASTER_API_KEY", "tmk_key")
    return found


def test_it_prints_the_address_and_opens_it(opened: list[str]) -> None:
    done = CliRunner().invoke(app, ["dashboard"])
    assert (done.exit_code, done.stdout, opened) == (0, f"{URL}/\n", [f"{URL}/"])


def test_it_opens_nothing_where_that_is_not_wanted(opened: list[str]) -> None:
    done = CliRunner().invoke(app, ["dashboard", "--no-open"])
    assert (done.exit_code, done.stdout, opened) == (0, f"{URL}/\n", [])


def test_it_says_so_where_there_is_no_browser(opened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    done = CliRunner().invoke(app, ["dashboard"])
    assert (done.exit_code, done.stdout) == (0, f"{URL}/\n")
    assert "no browser was found" in done.stderr
