"""Ports that are chosen for processes of a local installation."""

import socket

import pytest

from trainmaster_dispatcher.cli import embedded


def test_a_free_port_is_one_that_linux_gives_to_no_outgoing_connection() -> None:
    ports = {embedded.free_port() for _ in range(50)}
    assert all(1024 <= port < 30_000 for port in ports)
    assert len(ports) > 40, "two that choose at once hardly get the same one"


def test_a_port_at_which_something_listens_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        port = embedded.free_port()
        taken.bind(("127.0.0.1", port))
        taken.listen()
        monkeypatch.setattr(embedded, "_FREE_PORTS", range(port, port + 1))
        assert embedded.free_port() != port
