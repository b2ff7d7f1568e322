"""Rules of webhooks: which transitions are reported, where messages may go, how they are signed, when delivery is retried.

A tenant chooses the address that the dispatcher connects to. To prevent misuse, the form of an address is checked when
a job is submitted, and the addresses behind its name are checked at each delivery; the connection goes to the checked
address.
"""

import hashlib
import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import SplitResult, urlsplit

from trainmaster.protocol.states import JobState, RunState
from trainmaster_dispatcher.domain.job_machine import Job

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

BODY_VERSION = 1
"""Version of the messages. Fields may be added within a version; a receiver ignores what it does not know."""

_LOWEST_FREE_PORT = 1024
_PORTS = {"http": 80, "https": 443}
_LABEL = r"[A-Za-z0-9_]([-A-Za-z0-9_]{0,61}[A-Za-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,253}}$)({_LABEL}\.)*{_LABEL}")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
_VISIBLE = re.compile(r"[!-~]+")

_CLOSED: tuple[Network, ...] = (
    IPv4Network("0.0.0.0/8"),  # this network
    IPv4Network("100.64.0.0/10"),  # between a carrier and its customers
    IPv4Network("168.63.129.16/32"),  # the host of an Azure virtual machine, seen from inside it
    IPv4Network("192.0.0.0/24"),  # protocol assignments
    IPv4Network("192.88.99.0/24"),  # relays of 6to4
    IPv6Network("::/96"),  # IPv4 in IPv6: compatible,
    IPv6Network("::ffff:0:0/96"),  # mapped,
    IPv6Network("::ffff:0:0:0/96"),  # translated,
    IPv6Network("64:ff9b::/96"),  # behind NAT64,
    IPv6Network("64:ff9b:1::/48"),  # the same for local use,
    IPv6Network("2001::/32"),  # through Teredo,
    IPv6Network("2002::/16"),  # and through 6to4
    IPv6Network("3fff::/20"),  # for documentation
    IPv6Network("5f00::/16"),  # segments of a network's own routing
    IPv6Network("fec0::/10"),  # of a site
)
"""Networks that ``ipaddress`` calls public, or may, although they lead into a private network."""


class RefusedAddressError(ValueError):
    """A webhook's address is not allowed; the message says what is."""


@dataclass(frozen=True, slots=True)
class Target:
    """A checked and parsed address. ``path`` is what goes into the request line, including the query."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def host_header(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == _PORTS[self.scheme] else f"{name}:{self.port}"


@dataclass(frozen=True, slots=True)
class AddressPolicy:
    """The addresses that messages may go to. ``networks`` are always allowed."""

    allow_http: bool = False
    networks: tuple[Network, ...] = ()

    def read(self, url: str) -> Target:
        """Parse an address and check its form. Raises RefusedAddressError."""
        parts, port = _split(url)
        if parts.scheme not in _PORTS:
            raise RefusedAddressError("a webhook's address begins with https://")
        if parts.scheme == "http" and not self.allow_http:
            raise RefusedAddressError("webhooks go to https:// addresses only")
        if "@" in parts.netloc:
            raise RefusedAddressError("an address of a webhook has no user name and no password")
        host = parts.hostname or ""
        port = _PORTS[parts.scheme] if port is None else port
        if port not in _PORTS.values() and port < _LOWEST_FREE_PORT:
            raise RefusedAddressError(f"port {port} is not for webhooks; allowed are 443, 80 and 1024 to 65535")
        literal = _literal(host, bracketed="[" in parts.netloc)
        if literal is not None:
            self.check(literal)
        elif not _NAME.fullmatch(host):
            raise RefusedAddressError(f"{host!r} is not a host name; write other alphabets as xn--...")
        elif _NUMBER.fullmatch(host.rpartition(".")[2]):
            raise RefusedAddressError(f"{host!r} is a number; write an IPv4 address as four decimal numbers")
        path = parts.path or "/"
        return Target(parts.scheme, host, port, f"{path}?{parts.query}" if parts.query else path)

    def check(self, address: Address) -> None:
        """Raise RefusedAddressError unless messages may go to this address."""
        if any(address.version == network.version and address in network for network in self.networks):
            return
        if (
            not address.is_global
            or address.is_private
            or address.is_multicast
            or address.is_reserved
            or any(address.version == network.version and address in network for network in _CLOSED)
        ):
            raise RefusedAddressError(f"{address} is not a public address")


def _split(url: str) -> tuple[SplitResult, int | None]:
    if not _VISIBLE.fullmatch(url) or "\\" in url:
        raise RefusedAddressError("an address has no spaces, no backslashes and ASCII characters only")
    try:
        parts = urlsplit(url)
        return parts, parts.port
    except ValueError as error:
        raise RefusedAddressError(f"this is no address: {error}") from error


def _literal(host: str, *, bracketed: bool) -> Address | None:
    try:
        address = ip_address(host)
    except ValueError as error:
        if bracketed:
            raise RefusedAddressError(f"[{host}] is no IPv6 address") from error
        return None
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        raise RefusedAddressError(f"{host} is of one network interface")
    return address


def secret_of(root: str, queue: str, version: int) -> str:
    """Return the secret that signs messages of a queue's jobs, derived from one of the installation's.

    A queue's secret cannot sign messages of other queues, nor those of an earlier or a later version.
    """
    text = f"trainmaster webhook\n{queue}\n{version}".encode()
    return "whsec_" + urlsafe_b64encode(hmac.new(root.encode(), text, hashlib.sha256).digest()).decode().rstrip("=")


def sign(secrets: Sequence[str], moment: int, body: bytes) -> str:
    """Return the signature header of a message: its time, and one HMAC-SHA256 for each secret."""
    text = b"%d." % moment + body
    marks = [hmac.new(secret.encode(), text, hashlib.sha256).hexdigest() for secret in secrets]
    return ",".join([f"t={moment}", *(f"v1={mark}" for mark in marks)])


@dataclass(frozen=True, slots=True)
class Persistence:
    """The time for which delivery of a refused message is retried."""

    first_seconds: float = 5.0
    most_seconds: float = 600.0
    attempts: int = 12
    give_up_seconds: float = 86_400.0

    def pause(self, failed: int, chance: float) -> float:
        """Return the seconds until the next attempt after ``failed`` of them: doubling, with full jitter. ``chance`` is
        from 0 to 1."""
        return chance * min(self.most_seconds, self.first_seconds * 2.0 ** min(failed - 1, 60))


def states_passed(before: Job, after: Job, run_states: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the states that a job reached in one transition, in order; none if its state is the same.

    A run whose first report is its end was running: ``run_states`` are the states in the event.
    """
    passed = []
    ran = RunState.RUNNING.value in run_states and before.state is JobState.DISPATCHED
    if ran and after.state is not JobState.RUNNING and before.attempt == after.attempt:
        passed.append(JobState.RUNNING.value)
    if after.state is not before.state or after.hold_cause is not before.hold_cause:
        passed.append(after.state.value)
    return tuple(passed)
