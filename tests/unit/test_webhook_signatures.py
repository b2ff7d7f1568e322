"""Checking signatures as a receiver does, and secrets of queues."""

import pytest

from trainmaster.client.webhooks import is_genuine
from trainmaster_dispatcher.domain.webhooks import secret_of, sign

BODY, NOW = b'{"queue": "a"}', 1_800_000_000


def test_any_of_several_secrets_is_enough() -> None:
    signature = sign(("one", "two"), NOW, BODY)
    for secrets in (("one",), ("two",), ("none", "two")):
        assert is_genuine(BODY, signature, *secrets, now=NOW)
    assert not is_genuine(BODY, signature, "none", now=NOW)
    assert not is_genuine(BODY, signature, now=NOW)
    assert not is_genuine(BODY + b" ", signature, "one", now=NOW)


def test_a_message_is_genuine_for_five_minutes() -> None:
    signature = sign(("one",), NOW, BODY)
    assert is_genuine(BODY, signature, "one", now=NOW + 299)
    assert not is_genuine(BODY, signature, "one", now=NOW + 301)
    assert not is_genuine(BODY, signature, "one", now=NOW - 301)


@pytest.mark.parametrize(
    "signature",
    ["", "t=", "v1=ab", "t=x,v1=ab", "t=1,t=1800000000,v1=ab", f"t={NOW}", f"t={NOW},v1=é", "t=" + "9" * 99],
)
def test_what_is_no_signature_is_not_genuine(signature: str) -> None:
    assert not is_genuine(BODY, signature, "one", now=NOW)


def test_secrets_differ_by_installation_queue_and_version() -> None:
    made = [secret_of(root, queue, number) for root in ("r", "s") for queue in ("a", "a/b") for number in (1, 2)]
    assert len(set(made)) == len(made)
    assert {(one[:6], len(one)) for one in made} == {("whsec_", 49)}
