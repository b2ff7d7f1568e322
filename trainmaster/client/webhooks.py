"""Verification of webhook messages, for their receivers. Reads the clock only if ``now`` is not given, and does no I/O."""

import hashlib
import hmac
import time

MOST_AGE = 300.0
"""The most seconds between the time of a message's attempt and now."""


def is_genuine(body: bytes, signature: str, *secrets: str, now: float | None = None) -> bool:
    """Return whether a message was signed with one of these secrets, a short while ago.

    ``body`` is the received body, byte for byte; ``signature`` the header ``Trainmaster-Signature``; ``secrets`` those of the queue
    whose jobs are reported. A message of another queue is not genuine, whatever its body says.
    """
    parts = [part.partition("=") for part in signature.split(",")]
    moments = [value for name, _, value in parts if name == "t"]
    if len(moments) != 1 or not (moments[0].isascii() and moments[0].isdigit() and len(moments[0]) <= 15):
        return False
    if abs((time.time() if now is None else now) - int(moments[0])) > MOST_AGE:
        return False
    text = moments[0].encode() + b"." + body
    wanted = [hmac.new(secret.encode(), text, hashlib.sha256).hexdigest().encode() for secret in secrets]
    given = [value.encode() for name, _, value in parts if name == "v1"]
    return any(hmac.compare_digest(one, mark) for one in wanted for mark in given)
