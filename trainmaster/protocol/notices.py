"""Notices for people: addresses of e-mail and chats, and preferences of users."""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from trainmaster.protocol.base import Lenient, Strict, bounded, example, worded_pattern
from trainmaster.protocol.durations import Duration, parse_duration

MOST_RECIPIENTS = 8
"""The most addresses of one entry of ``notify``."""
_SHORTEST_WINDOW, _LONGEST_WINDOW = 60.0, 86_400.0

WebhookUrl = Annotated[
    str,
    StringConstraints(
        max_length=2000, pattern=worded_pattern(r"^https?://[^\s]+$", "an address such as https://example.com/hook")
    ),
]
EMAIL_PATTERN = (
    r"^[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)+[A-Za-z][A-Za-z0-9-]{0,62}$"
)
EmailAddress = Annotated[
    str,
    StringConstraints(
        max_length=254, pattern=worded_pattern(EMAIL_PATTERN, "an e-mail address such as ada@example.com, in ASCII")
    ),
]
EmailAddresses = Annotated[tuple[EmailAddress, ...], bounded(MOST_RECIPIENTS, least=1)]


class ChatFormat(StrEnum):
    """The format of messages that a chat service reads."""

    SLACK = "slack"
    TEAMS = "teams"
    MATTERMOST = "mattermost"


class Chat(Strict):
    """An incoming webhook of a chat service."""

    model_config = example(url="https://hooks.slack.com/services/T0/B0/X", format="slack")

    url: WebhookUrl
    """Address of the incoming webhook, as the chat service shows it."""
    format: ChatFormat
    """Format of the messages that the service reads."""


def check_one_channel(url: str | None, email: tuple[str, ...] | None, chat: Chat | None) -> None:
    """Raise ValueError unless exactly one of the three is given, and has an address."""
    if email == ():
        raise ValueError("email needs at least one address")
    if sum(one is not None for one in (url, email, chat)) != 1:
        raise ValueError("needs exactly one of url, email and chat: where its messages go")


class NoticeEvent(StrEnum):
    """An event of a job that its owner may be notified of."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DEADLINE_AT_RISK = "deadline.atRisk"
    DEADLINE_MISSED = "deadline.missed"
    SESSION_WARNING = "session.warning"
    GPU_IDLE = "gpu.idle"


class NoticesSpec(Strict):
    """Preferences of a user about notices: which events of the user's own jobs are reported, and where."""

    model_config = example(email=True, events=["failed", "deadline.missed"], minDuration="10m", window="10m")

    email: bool = False
    """True for messages to the caller's own address, which the token has or an admin has set for the key."""
    chat: Chat | None = None
    """Incoming webhook of a chat service that gets the messages, too."""
    events: Annotated[tuple[NoticeEvent, ...], bounded(7)] = (NoticeEvent.FAILED, NoticeEvent.SUCCEEDED)
    """Events to report."""
    min_duration: Duration = "0s"
    """Only ends of jobs that ran for at least this time."""
    most: Annotated[int, Field(ge=1, le=100)] = 3
    """Events in a window that are reported one by one; with more, the rest is one message at the end of the window."""
    window: Duration = "10m"
    """Time for which further events are gathered: 1m to 1d."""

    @field_validator("events")
    @classmethod
    def _some_event(cls, value: tuple[NoticeEvent, ...]) -> tuple[NoticeEvent, ...]:
        if not value:
            raise ValueError("needs at least one event: without any there would be no message")
        return tuple(dict.fromkeys(value))

    @field_validator("window")
    @classmethod
    def _sensible(cls, value: str) -> str:
        if not _SHORTEST_WINDOW <= parse_duration(value) <= _LONGEST_WINDOW:
            raise ValueError("must be at least 1m and at most 1d")
        return value

    @model_validator(mode="after")
    def _goes_somewhere(self) -> Self:
        if not self.email and self.chat is None:
            raise ValueError("needs email: true, or a chat: where its messages go; to get no messages, remove it")
        return self


class KeyEmailSpec(Strict):
    """The e-mail address of an API key's user."""

    model_config = example(email="ada@example.com")

    email: EmailAddress | None = None
    """Address that gets what the user wants to be notified of; without it there is none any more."""


class Notices(Lenient):
    """Preferences of the caller about notices, and the address for e-mail."""

    model_config = example(
        address="ada@example.com", sendsEmail=True, notices={"email": True, "events": ["failed"], "window": "10m"}
    )

    address: str | None = None
    """The caller's own e-mail address; None: the token has none, or an admin has set none for the key."""
    sends_email: bool = False
    """True if this installation sends e-mail."""
    notices: NoticesSpec | None = None
    """Preferences of the caller; None: nothing is reported."""
