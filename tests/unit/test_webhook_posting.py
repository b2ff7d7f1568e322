"""Posting to webhooks: the connection goes to an address that was checked, whatever the name says a moment later."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path

import pytest

from trainmaster_dispatcher.domain.webhooks import AddressPolicy, Target
from trainmaster_dispatcher.services.webhooks import DeliveryError
from trainmaster_dispatcher.worker.http import Poster, look_up

HERE = AddressPolicy(allow_http=True, networks=(ip_network("127.0.0.1/32"), ip_network("127.0.0.2/32")))
CERTIFICATE = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg+pmifYoHvFWkxlWM
efycGhBzNiIzPVKMXeR7RTwWUAGhRANCAASslCrQFxIllK1UZH1DfQlG2W7PNaQH
yJu4UJQzD0lud7GvJP3CIuZdQ66CoZ+MEGyhY3kwsfRYoXdXBeQQzOxi
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBmDCCAT6gAwIBAgIUCbSoMJKIUqGq/35L5cxRehSXt60wCgYIKoZIzj0EAwIw
FTETMBEGA1UEAwwKaG9va3MudGVzdDAgFw0yNjExMjEwODAwMjVaGA8yMTI2MTAy
ODA4MDAyNVowFTETMBEGA1UEAwwKaG9va3MudGVzdDBZMBMGByqGSM49AgEGCCqG
SM49AwEHA0IABKyUKtAXEiWUrVRkfUN9CUbZbs81pAfIm7hQlDMPSW53sa8k/cIi
5l1DroKhn4wQbKFjeTCx9Fihd1cF5BDM7GKjajBoMB0GA1UdDgQWBBSxZYyuw5av
odb3h3SVkiW3Ct9AODAfBgNVHSMEGDAWgBSxZYyuw5avodb3h3SVkiW3Ct9AODAP
BgNVHRMBAf8EBTADAQH/MBUGA1UdEQQOMAyCCmhvb2tzLnRlc3QwCgYIKoZIzj0E
AwIDSAAwRQIhAKNHGiNipuUii8EkR77TJuSau6uQjEJMBmBBzkKVJu6hAiBbPO65
bxpz6xtZBI8itomw8bXiOLecIPvcKSIo8FiLTA==
-----END CERTIFICATE-----
"""
"""Of hooks.test, signed by its own key; the key protects nothing."""


class Names:
    """A name server that a test controls: gives the next answer each time it is asked."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = [[ip_address(text) for text in answer] for answer in answers]
        self.looked_up: list[str] = []

    async def __call__(self, host: str, port: int) -> list[IPv4Address | IPv6Address]:
        self.looked_up.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class Server:
    """Answers every request with the same bytes; keeps the heads of requests, and the names that TLS clients asked for."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.heads: list[list[str]] = []
        self.names: list[str | None] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                length = next(int(line.split(":")[1]) for line in head if line.lower().startswith("content-length"))
                await reader.readexactly(length)
                self.heads.append(head)
                writer.write(self.answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


OK = b"HTTP/1.1 204 No Content\r\n\r\n"


@asynccontextmanager
async def serving(
    answer: bytes = OK, *, tls: ssl.SSLContext | None = None, address: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[Server]:
    server = Server(answer)
    if tls is not None:
        tls.sni_callback = lambda _socket, name, _context: server.names.append(name)
    listener = await asyncio.start_server(server.serve, address, port, ssl=tls)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()


def target(server: Server, host: str = "hooks.test", scheme: str = "http") -> Target:
    return HERE.read(f"{scheme}://{host}:{server.port}/in?a=b")


async def test_a_message_goes_to_the_checked_address_under_its_name() -> None:
    names = Names(["127.0.0.1"])
    async with serving() as server, Poster(HERE, resolve=names) as post:
        await post(target(server), {"Trainmaster-Attempt": "1"}, b"{}")
        await post(target(server), {"Trainmaster-Attempt": "2"}, b"{}")
    assert server.heads[0][0] == "POST /in?a=b HTTP/1.1"
    assert f"Host: hooks.test:{server.port}" in server.heads[0]
    assert "Trainmaster-Attempt: 2" in server.heads[1]
    assert names.looked_up == ["hooks.test"], "looked up once for both"


async def test_a_name_that_changes_after_the_check_changes_nothing() -> None:
    names = Names(["127.0.0.1"], ["127.0.0.3"])  # the second answer would be refused
    async with serving() as server, serving(address="127.0.0.3", port=server.port) as forbidden:
        async with Poster(HERE, resolve=names) as post:
            await post(target(server), {}, b"{}")
        assert names.looked_up == ["hooks.test"], "the name is not looked up a second time, by anybody, to connect"
        async with Poster(HERE, resolve=names) as post:
            with pytest.raises(DeliveryError, match=r"^hooks.test has no address that messages may go to$"):
                await post(target(server), {}, b"{}")
    assert len(server.heads) == 1
    assert forbidden.heads == []


@pytest.mark.parametrize("addresses", [["127.0.0.1", "10.0.0.1"], ["10.0.0.1", "127.0.0.1"], ["::ffff:127.0.0.1"]])
async def test_one_forbidden_address_is_enough_to_refuse_a_name(addresses: list[str]) -> None:
    async with serving() as server, Poster(HERE, resolve=Names(addresses)) as post:
        with pytest.raises(DeliveryError, match="has no address that messages may go to"):
            await post(target(server), {}, b"{}")
    assert server.heads == []


async def test_the_next_address_is_tried_where_the_first_does_not_connect() -> None:
    async with serving() as server, Poster(HERE, resolve=Names(["127.0.0.2", "127.0.0.1"])) as post:
        await post(target(server), {}, b"{}")
    assert len(server.heads) == 1


async def test_tls_is_checked_against_the_name_though_the_connection_goes_to_an_address(tmp_path: Path) -> None:
    (tmp_path / "pem").write_text(CERTIFICATE)
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own.load_cert_chain(tmp_path / "pem")
    trusting = ssl.create_default_context(cafile=str(tmp_path / "pem"))
    async with serving(tls=own) as server:
        async with Poster(HERE, resolve=Names(["127.0.0.1"]), tls=trusting) as post:
            await post(target(server, scheme="https"), {}, b"{}")
            # Same address, same port: the connection of the other name must not serve this one.
            with pytest.raises(DeliveryError, match="CERTIFICATE_VERIFY_FAILED"):
                await post(target(server, "other.test", "https"), {}, b"{}")
        async with Poster(HERE, resolve=Names(["127.0.0.1"])) as post:
            with pytest.raises(DeliveryError, match="CERTIFICATE_VERIFY_FAILED"):
                await post(target(server, scheme="https"), {}, b"{}")
    assert server.names == ["hooks.test", "other.test", "hooks.test"]
    assert len(server.heads) == 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.3/\r\nContent-Length: 0\r\n\r\n",
            "redirects are not followed",
        ),
        (b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", "hooks.test answered 500"),
        (b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", "hooks.test answered 404"),
        (b"nonsense\r\n\r\n", "hooks.test: "),
        (b"", "did not answer within"),
    ],
)
async def test_what_is_no_success_is_a_failure(answer: bytes, said: str) -> None:
    async with serving(answer) as server, Poster(HERE, 0.2, resolve=Names(["127.0.0.1"])) as post:
        with pytest.raises(DeliveryError, match=said):
            await post(target(server), {}, b"{}")
    assert len(server.heads) == 1


async def test_a_success_is_one_although_its_body_never_ends() -> None:
    """The message was taken; sending it again for the sake of a body that is dropped would only double it."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"
    async with serving(answer) as server, Poster(HERE, 0.2, resolve=Names(["127.0.0.1"])) as post:
        await post(target(server), {}, b"{}")
    assert len(server.heads) == 1


async def test_no_more_than_a_part_of_a_long_answer_is_read() -> None:
    endless = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n" + b"x" * 200_000
    async with serving(endless) as server, Poster(HERE, 0.5, resolve=Names(["127.0.0.1"])) as post:
        await post(target(server), {}, b"{}")


async def test_a_post_ends_within_its_time_as_a_whole() -> None:
    async def never(_host: str, _port: int) -> list[IPv4Address | IPv6Address]:
        await asyncio.Event().wait()
        raise AssertionError

    async with Poster(HERE, 60, 0.1, resolve=never) as post:
        with pytest.raises(DeliveryError, match=r"longer than 0.1 s"):
            await post(Target("http", "hooks.test", 80, "/"), {}, b"{}")
    async with Poster(HERE, 0.1, 60, resolve=never) as post:
        with pytest.raises(DeliveryError, match="has no address that messages may go to"):
            await post(Target("http", "hooks.test", 80, "/"), {}, b"{}")


async def test_a_look_up_that_failed_is_made_again() -> None:
    answers: list[Callable[[], Awaitable[list[IPv4Address | IPv6Address]]]] = []

    async def fails() -> list[IPv4Address | IPv6Address]:
        raise OSError("no such host")

    async def finds() -> list[IPv4Address | IPv6Address]:
        return [ip_address("127.0.0.1")]

    async def resolve(_host: str, _port: int) -> list[IPv4Address | IPv6Address]:
        return await answers.pop(0)()

    answers.extend((fails, finds))
    async with serving() as server, Poster(HERE, resolve=resolve) as post:
        with pytest.raises(DeliveryError, match="has no address that messages may go to"):
            await post(target(server), {}, b"{}")
        await post(target(server), {}, b"{}")


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as server, serving() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        async with Poster(HERE, resolve=Names(["127.0.0.1"])) as post:
            await post(target(server), {}, b"{}")
    assert len(server.heads) == 1
    assert proxy.heads == []


async def test_the_systems_names_are_looked_up() -> None:
    assert await look_up("127.0.0.1", 80) == [ip_address("127.0.0.1")]
    assert set(map(str, await look_up("localhost", 80))) <= {"127.0.0.1", "::1"}
