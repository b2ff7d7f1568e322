"""The address of a dispatcher as people give it."""

import pytest
from typer.testing import CliRunner

from tests.unit.fake_api import run
from trainmaster.client.address import checked_address
from trainmaster.client.errors import ConfigurationError
from trainmaster.client.http import Client
from trainmaster.protocol.states import Exit
from trainmaster_agent.cli.run import agent_app


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("https://trainmaster.example.org", "https://trainmaster.example.org"),
        ("https://trainmaster.example.org/", "https://trainmaster.example.org"),
        ("https://trainmaster.example.org/v1", "https://trainmaster.example.org"),
        ("https://example.org/trainmaster/v1//", "https://example.org/trainmaster"),
        ("http://127.0.0.1:8470", "http://127.0.0.1:8470"),
        ("http://[::1]:8470/", "http://[::1]:8470"),
    ],
)
def test_an_address_is_taken_without_what_calls_add_to_it(text: str, address: str) -> None:
    assert checked_address(text) == address


WRONG = {
    "http://[": "is not the address of a dispatcher; it looks like https://",
    "127.0.0.1:9400": "is not the address of a dispatcher",
    "ftp://example.org": "is not the address of a dispatcher",
    "http://": "is not the address of a dispatcher",
    "https://exam ple.org": "is not the address of a dispatcher",
    "http://example.org:0": "a port is a number from 1 to 65535",
    "http://example.org:65536": "a port is a number from 1 to 65535",
    "http://example.org:http": "a port is a number from 1 to 65535",
    "https://ann:secret@example.org": "the API key is given by itself",
    "https://example.org?queue=a": "has a query or a fragment",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_none_is_refused_in_words_everywhere(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for call in (lambda: checked_address(text), lambda: Client(text, "tmk_x")):
        with pytest.raises(ConfigurationError) as caught:
            call()
        assert WRONG[text] in str(caught.value)
        assert "secret" not in str(caught.value)
    monkeypatch.setenv("TRAINMASTER_API_KEY", "tmk_x")
    of_agent = CliRunner().invoke(agent_app, ["run", "--url", text])
    for done in (run("--url", text, "jobs"), of_agent):
        said = " ".join(done.stderr.split())
        assert done.exit_code == Exit.USAGE
        assert WRONG[text] in said
        assert "secret" not in said


@pytest.mark.parametrize("text", ["http://[", "https://ann:secret@example.org", "example.org:99999"])
def test_login_and_doctor_refuse_it_too(text: str) -> None:
    done = run("login", text, says="tmk_x\n")
    assert done.exit_code == Exit.USAGE
    assert "secret" not in done.stderr
    done = run("--url", text, "doctor")
    assert done.exit_code == Exit.UNHEALTHY
    assert "secret" not in done.stdout
