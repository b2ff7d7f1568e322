"""Webhooks: which transitions are reported, where messages may go, how they are signed and how long they are tried."""

import re
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from trainmaster.protocol.states import HoldCause, JobState
from trainmaster_dispatcher.domain.job_machine import Job
from trainmaster_dispatcher.domain.webhooks import (
    AddressPolicy,
    Persistence,
    RefusedAddressError,
    Target,
    sign,
    states_passed,
)
from trainmaster_dispatcher.services.settings import Settings

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "webhooks.md"
STRICT = AddressPolicy()


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://example.org", Target("https", "example.org", 443, "/")),
        ("https://Example.org:8443/a/b?c=d#e", Target("https", "example.org", 8443, "/a/b?c=d")),
        ("https://example.de/%20?", Target("https", "example.de", 443, "/%20")),
        ("https://hooks.cafe:80/", Target("https", "hooks.cafe", 80, "/")),
        ("https://1.1.1.1/", Target("https", "1.1.1.1", 443, "/")),
        ("https://[2606:4700:4700::1111]:1024/", Target("https", "2606:4700:4700::1111", 1024, "/")),
        ("https://xn--bcher-kva.example/", Target("https", "xn--bcher-kva.example", 443, "/")),
    ],
)
def test_an_allowed_address_is_taken_apart(url: str, target: Target) -> None:
    assert STRICT.read(url) == target


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://example.org/", "https:// addresses only"),
        ("ftp://example.org/", "begins with https://"),
        ("https://user@example.org/", "no user name"),
        ("https://user:word@example.org/", "no user name"),
        ("https://@example.org/", "no user name"),
        ("https://example.org:22/", "port 22"),
        ("https://example.org:0/", "port 0"),
        ("https://example.org:1023/", "port 1023"),
        ("https://example.org:65536/", "no address"),
        ("https://example.org:x/", "no address"),
        ("https:///path", "not a host name"),
        ("https://exa mple.org/", "no spaces"),
        ("https://example.org\\@10.0.0.1/", "no backslashes"),
        ("https://example.org/\r\nX-Evil: 1", "no spaces"),
        ("https://exämple.org/", "ASCII"),
        ("https://a..b/", "not a host name"),
        ("https://-a.org/", "not a host name"),
        ("https://a%2eb/", "not a host name"),
        ("https://127.1/", "is a number"),
        ("https://2130706433/", "is a number"),
        ("https://0x7f.0x1/", "is a number"),
        ("https://0177.0.0.1/", "is a number"),
        ("https://127.0.0.1/", "not a public address"),
        ("https://10.1.2.3/", "not a public address"),
        ("https://169.254.169.254/latest/meta-data", "not a public address"),
        ("https://[::1]/", "not a public address"),
        ("https://[::ffff:8.8.8.8]/", "not a public address"),
        ("https://[fe80::1%25eth0]/", "of one network interface"),
        ("https://[nonsense]/", "no "),
    ],
)
def test_a_refused_address_is_told_why(url: str, said: str) -> None:
    with pytest.raises(RefusedAddressError, match=re.escape(said)):
        STRICT.read(url)


PRIVATE = [
    "0.0.0.0",  # noqa: S104 - refused, not listened on
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "100.127.255.254",
    "127.0.0.1",
    "127.255.255.254",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.8",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "224.0.1.1",
    "239.1.1.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "::8.8.8.8",
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",
    "::ffff:0:8.8.8.8",
    "64:ff9b::7f00:1",
    "64:ff9b::808:808",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "3fff::1",
    "3fff:fff:ffff::1",
    "5f00::1",
    "2002:7f00:1::",
    "fc00::1",
    "fd12::1",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
]
PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "100.63.255.255",
    "100.128.0.1",
    "172.32.0.1",
    "192.169.0.1",
    "2606:4700:4700::1111",
    "2a00:1450:4001::200e",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_no_message_goes_into_somebodys_own_network(address: str) -> None:
    with pytest.raises(RefusedAddressError):
        STRICT.check(ip_address(address))


@pytest.mark.parametrize("address", PUBLIC)
def test_messages_go_to_public_addresses(address: str) -> None:
    STRICT.check(ip_address(address))


def test_networks_can_be_allowed() -> None:
    policy = AddressPolicy(networks=(ip_network("10.0.0.0/8"), ip_network("::1/128")))
    for address in ("10.9.8.7", "::1", "1.1.1.1"):
        policy.check(ip_address(address))
    for address in ("127.0.0.1", "::ffff:10.9.8.7", "192.168.0.1"):
        with pytest.raises(RefusedAddressError):
            policy.check(ip_address(address))


def test_plain_http_can_be_allowed() -> None:
    assert AddressPolicy(allow_http=True).read("http://example.org/x") == Target("http", "example.org", 80, "/x")


def test_the_host_header_names_unusual_ports_only() -> None:
    assert STRICT.read("https://example.org/").host_header == "example.org"
    assert STRICT.read("https://example.org:8443/").host_header == "example.org:8443"
    assert STRICT.read("https://[2606:4700:4700::1111]:8443/").host_header == "[2606:4700:4700::1111]:8443"


def test_the_documented_check_takes_messages_and_nothing_else() -> None:
    snippet = re.search(r"```python\n(.*?)```", REFERENCE.read_text(), re.DOTALL)
    assert snippet is not None
    names: dict[str, object] = {}
    exec(snippet[1], names)  # noqa: S102 - the very text that receivers are told to use
    is_genuine = names["is_genuine"]
    assert callable(is_genuine)
    body, moment = b'{"a": 1}', 1_800_000_000
    header = sign(["the old secret", "the new secret"], moment, body)
    for secret in ("the old secret", "the new secret"):
        assert is_genuine(body, header, secret, now=moment + 10)
    assert not is_genuine(body, header, "another secret", now=moment)
    assert not is_genuine(b'{"a": 2}', header, "the new secret", now=moment)
    assert not is_genuine(body, header.replace(str(moment), str(moment + 1)), "the new secret", now=moment)
    assert not is_genuine(body, header, "the new secret", now=moment + 600), "a message kept by somebody and sent again"


def test_pauses_double_up_to_the_most_and_have_full_jitter() -> None:
    persistence = Persistence(first_seconds=5, most_seconds=600)
    assert [persistence.pause(failed, 1.0) for failed in (1, 2, 3, 8, 9, 500)] == [5, 10, 20, 600, 600, 600]
    assert persistence.pause(4, 0.0) == 0
    assert persistence.pause(4, 0.5) == 20


def job(state: JobState, attempt: int = 1, cause: HoldCause | None = None) -> Job:
    return Job(state=state, attempt=attempt, hold_cause=cause)


@pytest.mark.parametrize(
    ("before", "after", "run_states", "passed"),
    [
        (job(JobState.QUEUED, 0), job(JobState.DISPATCHED), (), ("dispatched",)),
        (job(JobState.DISPATCHED), job(JobState.RUNNING), ("accepted", "running"), ("running",)),
        (job(JobState.DISPATCHED), job(JobState.SUCCEEDED), ("running", "succeeded"), ("running", "succeeded")),
        (job(JobState.RUNNING), job(JobState.SUCCEEDED), ("succeeded",), ("succeeded",)),
        # A run that failed and is tried again is no failed job.
        (job(JobState.RUNNING), job(JobState.HELD, cause=HoldCause.BACK_OFF), ("failed",), ("held",)),
        (job(JobState.DISPATCHED), job(JobState.QUEUED), ("returned",), ("queued",)),
        (job(JobState.RUNNING), job(JobState.RUNNING), (), ()),
        (job(JobState.QUEUED), job(JobState.QUEUED), ("queued",), ()),
        (job(JobState.HELD, cause=HoldCause.BACK_OFF), job(JobState.HELD, cause=HoldCause.USER), (), ("held",)),
    ],
)
def test_what_is_told_are_the_states_that_the_job_came_to(
    before: Job, after: Job, run_states: tuple[str, ...], passed: tuple[str, ...]
) -> None:
    assert states_passed(before, after, run_states) == passed


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"webhook_secret": "short"}, "at least 16 characters"),
        ({"webhook_secret": "a secret that is long, short"}, "at least 16 characters"),
        ({"webhook_allow_networks": "10.0.0.0/33"}, "does not appear to be"),
        ({"keep_idempotency": "6d"}, "at least 7d"),
        ({"keep_events": "1h"}, "at least 1d"),
        ({"usage_half_life": "59s"}, "at least 60 seconds"),
        ({"usage_half_life": "a week"}, "duration"),
        ({"user_usage_half_life": "59s"}, "0s or at least 60 seconds"),
        ({"keep_jobs": "soon"}, "is not a duration"),
    ],
)
def test_settings_out_of_range_are_refused(fields: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Settings.model_validate(fields)


def test_settings_list_secrets_and_networks() -> None:
    settings = Settings.model_validate(
        {"webhook_secret": "the first secret, the second secret,", "webhook_allow_networks": "10.0.0.0/8, ::1/128"}
    )
    assert settings.webhook_secrets == ("the first secret", "the second secret")
    assert settings.webhook_policy.networks == (ip_network("10.0.0.0/8"), ip_network("::1/128"))
    assert "first secret" not in repr(settings)
