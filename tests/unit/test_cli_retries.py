"""Calls of the command line that are tried again: the reason is told once, not for each try."""

import pytest

from trainmaster.cli import config
from trainmaster.cli.config import Context, open_client
from trainmaster.protocol.errors import UnreachableError
from trainmaster_dispatcher.cli.embedded import free_port


def test_the_same_reason_of_a_retry_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(config, "_DEADLINE_SECONDS", 1.5)
    address = f"http://127.0.0.1:{free_port()}"
    with open_client(Context(address, "tmk_x")) as client:
        for _ in range(2):
            with pytest.raises(UnreachableError):
                client.whoami()
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" in ")[0] for line in lines] == [
        f"cannot reach {address}: connection refused; trying again"
    ]


def test_it_is_told_again_after_a_while(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(config, "_DEADLINE_SECONDS", 1.5)
    monkeypatch.setattr(config, "_QUIET_SECONDS", 0.0)
    with open_client(Context(f"http://127.0.0.1:{free_port()}", "tmk_x")) as client, pytest.raises(UnreachableError):
        client.whoami()
    assert capsys.readouterr().err.count("trying again") > 1
