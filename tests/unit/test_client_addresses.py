"""Addresses that cannot be a dispatcher's: each is told at once, in one sentence, by real servers."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from tests.cluster.certificates import Certificates
from tests.unit.scripted import JOB, Script, job
from trainmaster.cli.config import open_client
from trainmaster.client import wire
from trainmaster.client.config import Context
from trainmaster.client.errors import AddressError, CutError, UnknownHostError
from trainmaster.protocol.errors import UnreachableError


class Handler(BaseHTTPRequestHandler):
    """Answers as a server that is not a dispatcher."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class Server(ThreadingHTTPServer):
    """A server that prints no failed handshakes: they are what is tested."""

    def handle_error(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[int]:
    """Provide the port of a server, with TLS if it is given a context."""
    server = Server(("0.0.0.0", 0), Handler)  # noqa: S104 - also at 127.0.0.2
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def tls_port(certificates: Certificates) -> Iterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server, certificates.server_key)
    with serving(context) as port:
        yield port


def refusal(url: str) -> AddressError:
    """Return the error of a first call, as commands make it; a call that is repeated fails the test."""
    with open_client(Context(url, "tmk_x")) as client, pytest.raises(AddressError) as caught:
        client.whoami()
    return caught.value


@pytest.fixture(autouse=True)
def _no_retry(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    monkeypatch.setenv("TRAINMASTER_PLAIN_HTTP", "1")
    yield
    assert "trying again" not in capsys.readouterr().err


def test_https_to_a_port_without_tls() -> None:
    with serving() as port:
        said = str(refusal(f"https://127.0.0.1:{port}"))
    assert said == (
        f"cannot reach https://127.0.0.1:{port}: this port does not speak TLS; if that is right, use http://127.0.0.1:{port}"
    )


def test_http_to_a_port_with_tls(tls_port: int) -> None:
    said = str(refusal(f"http://127.0.0.1:{tls_port}"))
    assert said == f"cannot reach http://127.0.0.1:{tls_port}: this port speaks TLS; use https://127.0.0.1:{tls_port}"


def test_a_certificate_that_is_not_trusted(tls_port: int) -> None:
    said = str(refusal(f"https://127.0.0.1:{tls_port}"))
    assert "the certificate of the server is not trusted" in said
    assert "SSL_CERT_FILE" in said


def test_a_certificate_for_another_name(
    tls_port: int, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    with (
        open_client(Context(f"https://127.0.0.1:{tls_port}", "tmk_x")) as client,
        pytest.raises(UnreachableError) as error,
    ):
        client.whoami()
    assert not isinstance(error.value, AddressError), "the right name is trusted"
    assert "the certificate of the server is for another name" in str(refusal(f"https://127.0.0.2:{tls_port}"))


def test_a_certificate_that_has_expired() -> None:
    cause = ssl.SSLCertVerificationError(1, "certificate verify failed")
    cause.verify_code, cause.verify_message = 10, "certificate has expired"
    with (
        pytest.raises(AddressError, match="the certificate of the server has expired"),
        wire.mapped_errors("https://a"),
    ):
        raise httpx.ConnectError("failed") from cause


def test_a_host_that_does_not_exist() -> None:
    error = refusal("http://nowhere.invalid:8470")
    assert isinstance(error, UnknownHostError)
    assert str(error) == "cannot reach http://nowhere.invalid:8470: there is no host 'nowhere.invalid'"


def test_a_proxy_that_says_that_its_port_is_for_https() -> None:
    said = "<html>400 The plain HTTP request was sent to HTTPS port</html>"
    script = Script(httpx.Response(400, text=said, headers={"Content-Type": "text/html"}))
    with pytest.raises(AddressError, match="speaks TLS"):
        script.client().whoami()


def test_a_connection_that_is_only_cut_is_repeated() -> None:
    script = Script(httpx.RemoteProtocolError("Server disconnected without sending a response."))
    script.answers.append(httpx.Response(200, json=job("queued")))
    assert script.client().job(JOB).state == "queued"
    with pytest.raises(CutError), wire.mapped_errors("http://a"):
        raise httpx.ReadError("reset")


def test_a_name_that_is_not_resolved_for_a_moment_does_not_end_a_wait() -> None:
    unknown = httpx.ConnectError("[Errno -2] Name or service not known")
    unknown.__cause__ = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    script = Script(httpx.Response(200, json=job("queued")), unknown, unknown)
    script.answers.append(httpx.Response(200, text="", headers={"Content-Type": "text/event-stream"}))
    script.answers += [unknown] * 3
    script.answers.append(httpx.Response(200, text="event: end\ndata: succeeded\n\n"))
    script.answers.append(httpx.Response(200, json=job("succeeded")))
    assert script.client().wait(JOB).state == "succeeded"
