"""Notices for people: messages of the outbox in words, as e-mail and in the formats of chats. No I/O, no clock.

Names, labels and messages come from users and their programs. Nothing of them may be read as markup, as a mention of people, or as
a header: each format has an escape of its own, and control characters are replaced before any of them.
"""

import hashlib
import html
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from enum import StrEnum
from typing import Any, Final, NamedTuple
from unicodedata import category

from trainmaster.protocol.durations import format_duration
from trainmaster.protocol.jobs import Notify
from trainmaster.protocol.notices import Chat, ChatFormat

SHOWN_JOBS: Final = 10
"""The most jobs that a digest names."""
_LONGEST_TEXT: Final = 500
_LONGEST_SUBJECT: Final = 150
_MAILTO: Final = "mailto:"
_BROKEN: Final = "\u200b"
"""Zero-width space: breaks what a chat would take for a mention or an address."""
_MARKDOWN: Final = re.compile(r"([\\`*_{}\[\]()#!|>~<&:])")


class NoticeChannel(StrEnum):
    """The way in which a message is sent, by the first part of its address."""

    WEBHOOK = "webhook"
    EMAIL = "email"
    SLACK = "slack"
    TEAMS = "teams"
    MATTERMOST = "mattermost"


class Destination(NamedTuple):
    """The destination of a message. ``address``: an e-mail address for ``EMAIL``, else a URL."""

    channel: NoticeChannel
    address: str


def email_destination(address: str) -> str:
    """Return the address of a message as the outbox has it, for e-mail."""
    return _MAILTO + address


def chat_destination(chat: Chat) -> str:
    """Return the address of a message as the outbox has it, for a chat."""
    return f"{chat.format.value}+{chat.url}"


def destinations(hook: Notify) -> list[str]:
    """Return the addresses of messages, as the outbox has them, of an entry of ``notify``."""
    if hook.chat is not None:
        return [chat_destination(hook.chat)]
    return [hook.url] if hook.url is not None else [email_destination(one) for one in hook.email or ()]


def destination_of(text: str) -> Destination:
    """Return the destination by an address of the outbox."""
    if text.startswith(_MAILTO):
        return Destination(NoticeChannel.EMAIL, text.removeprefix(_MAILTO))
    for one in ChatFormat:
        if text.startswith(one.value + "+"):
            return Destination(NoticeChannel(one.value), text.removeprefix(one.value + "+"))
    return Destination(NoticeChannel.WEBHOOK, text)


def is_allowed_domain(address: str, domains: Sequence[str]) -> bool:
    """Return whether e-mail may go to an address, by the domains that an admin allows; ``.example.com`` is every one below."""
    domain = address.rpartition("@")[2].lower()
    return any(domain == one or (one.startswith(".") and domain.endswith(one)) for one in domains)


class NoticeFact(NamedTuple):
    """A line of a notice."""

    label: str
    text: str


class NoticeText(NamedTuple):
    """A message for people. ``command`` shows more about it, ``link`` the same in the API; empty where there is none."""

    title: str
    facts: tuple[NoticeFact, ...]
    command: str = ""
    link: str = ""
    failed: bool = False


def notice_of(body: Mapping[str, Any], public_url: str = "") -> NoticeText:
    """Return the words for the body of a message of the outbox, whose protected parts were rendered."""
    if "digest" in body:
        return _of_digest(body)
    if "group" in body:
        return _of_group(body, public_url)
    return _of_workflow(body, public_url) if "workflow" in body else _of_job(body, public_url)


_WORDS: Final = {
    "deadline.atRisk": "may miss its deadline",
    "deadline.missed": "has missed its deadline",
    "session.warning": "ends its session soon",
    "gpu.idle": "holds GPUs that do nothing",
}


def _outcome(body: Mapping[str, Any]) -> str:
    """Return what happened to a job or workflow, as a sentence about it goes on."""
    event, state = str(body.get("event", "")), str(body.get("state", ""))
    if event == "step.failed":
        return f"has a failed step, {_plain(str(body.get('step')))}"
    ends = {"succeeded": "succeeded", "failed": "failed", "cancelled": "was cancelled"}
    return _WORDS.get(event) or ends.get(state) or f"is {_plain(state)}"


def _of_job(body: Mapping[str, Any], public_url: str) -> NoticeText:
    text = _plain(str(body["job"]))
    facts = [NoticeFact("Job", text), NoticeFact("Queue", str(body["queue"])), NoticeFact("State", str(body["state"]))]
    facts += _named("Reason", body.get("message")) + _named("Cluster", body.get("cluster"))
    facts += _named("Attempt", body.get("attempt")) + _named("Ran for", ran_for(body)) + _named("At", body.get("at"))
    link = f"{public_url}/v1/jobs/{text}" if public_url else ""
    return NoticeText(f"Job {text} {_outcome(body)}", _clean(facts), f"trainmaster job {text}", link, _is_bad(body))


def _of_workflow(body: Mapping[str, Any], public_url: str) -> NoticeText:
    text = _plain(str(body["workflow"]))
    steps = ", ".join(f"{many} {state}" for state, many in dict(body.get("steps") or {}).items())
    facts = [NoticeFact("Workflow", text), NoticeFact("Queue", str(body["queue"]))]
    facts += [NoticeFact("State", str(body["state"])), *_named("Steps", steps), *_named("Step", body.get("step"))]
    facts += _named("Reason", body.get("message")) + _named("At", body.get("at"))
    link = f"{public_url}/v1/workflows/{text}" if public_url else ""
    title = f"Workflow {text} {_outcome(body)}"
    return NoticeText(title, _clean(facts), f"trainmaster workflows show {text}", link, _is_bad(body))


def _of_group(body: Mapping[str, Any], public_url: str) -> NoticeText:
    name = _plain(str(body["group"]))
    numbers = ", ".join(f"{body[one]} {one}" for one in ("succeeded", "failed", "cancelled") if body.get(one))
    facts = [NoticeFact("Group", name), NoticeFact("Queue", str(body["queue"])), NoticeFact("Jobs", str(body["jobs"]))]
    facts += [*_named("Of these", numbers), *_named("At", body.get("at"))]
    return NoticeText(
        f"Group {name} {_outcome(body)}", _clean(facts), f"trainmaster groups show {name}", "", _is_bad(body)
    )


def _of_digest(body: Mapping[str, Any]) -> NoticeText:
    counts = {str(event): int(many) for event, many in dict(body["counts"]).items()}
    total = sum(counts.values())
    said = ", ".join(f"{many} {event}" for event, many in counts.items())
    facts = [NoticeFact("Events", said), *_named("From", body.get("since")), *_named("To", body.get("until"))]
    jobs: Sequence[Mapping[str, Any]] = body["jobs"]
    for one in jobs:
        reason = f": {one['message']}" if one.get("message") else ""
        facts.append(NoticeFact(str(one["job"]), f"{_outcome(one)}, queue {one['queue']}{reason}"))
    if total > len(jobs):
        facts.append(NoticeFact("Further", f"{total - len(jobs)} not shown"))
    return NoticeText(
        f"{total} events of your jobs: {said}", _clean(facts), "trainmaster jobs --mine", "", _is_bad(body)
    )


def _is_bad(body: Mapping[str, Any]) -> bool:
    if "digest" in body:
        return any(event in body["counts"] for event in ("failed", "deadline.atRisk", "deadline.missed"))
    return body["state"] == "failed" or str(body.get("event")) in ("deadline.atRisk", "deadline.missed", "step.failed")


def _named(label: str, value: object) -> list[NoticeFact]:
    return [] if value in (None, "") else [NoticeFact(label, str(value))]


def _clean(facts: Sequence[NoticeFact]) -> tuple[NoticeFact, ...]:
    return tuple(NoticeFact(_plain(one.label), _plain(one.text)) for one in facts)


def _plain(text: str) -> str:
    """Return a text on one line, without control and formatting characters, of bounded length."""
    visible = "".join(" " if category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp") else one for one in text)
    joined = " ".join(visible.split())
    return joined if len(joined) <= _LONGEST_TEXT else joined[: _LONGEST_TEXT - 3] + "..."


def ran_for(body: Mapping[str, Any]) -> str:
    """Return how long a job ran, from its first start to its end; empty where it did not run or has not ended."""
    try:
        start, end = (datetime.fromisoformat(str(body[one])) for one in ("startedAt", "endedAt"))
    except (KeyError, ValueError):
        return ""
    return format_duration(max(0.0, float(round((end - start).total_seconds()))))


# E-mail


def mail_of(notice: NoticeText, sender: str, recipient: str, event: str, at: datetime) -> EmailMessage:
    """Return a notice as e-mail: plain text and HTML. Messages about the same event to the same recipient have the same Message-ID."""
    mail = EmailMessage(policy=SMTP)
    mail["From"] = Address("Trainmaster", addr_spec=sender)
    mail["To"] = Address(addr_spec=recipient)
    mail["Subject"] = f"[Trainmaster] {notice.title}"[:_LONGEST_SUBJECT]
    mail["Date"] = at
    mail["Message-ID"] = message_id(sender, recipient, event)
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(text_of(notice))
    mail.add_alternative(_html_of(notice), subtype="html")
    return mail


def message_id(sender: str, recipient: str, event: str) -> str:
    """Return the Message-ID of a message about an event to a recipient."""
    digest = hashlib.sha256(f"{event}\n{recipient}".encode()).hexdigest()[:32]
    return f"<{digest}@{sender.rpartition('@')[2]}>"


def text_of(notice: NoticeText) -> str:
    """Return a notice as plain text."""
    lines = [notice.title, "", *(f"{one.label}: {one.text}" for one in notice.facts)]
    lines += ["", f"Look at it: {notice.command}"] if notice.command else []
    lines += [notice.link] if notice.link else []
    return "\n".join(lines) + "\n"


def _html_of(notice: NoticeText) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(one.label)}</td><td>{html.escape(one.text)}</td></tr>" for one in notice.facts
    )
    more = f"<p>Look at it: <code>{html.escape(notice.command)}</code></p>" if notice.command else ""
    if notice.link:
        more += f'<p><a href="{html.escape(notice.link)}">{html.escape(notice.link)}</a></p>'
    return (
        f"<!doctype html><html><body><p><b>{html.escape(notice.title)}</b></p><table>{rows}</table>{more}</body></html>"
    )


# Chats


def chat_body(channel: NoticeChannel, notice: NoticeText) -> dict[str, Any]:
    """Return what the incoming webhook of a chat service gets."""
    if channel is NoticeChannel.SLACK:
        return _slack(notice)
    return _teams(notice) if channel is NoticeChannel.TEAMS else _mattermost(notice)


def _unlinked(text: str) -> str:
    """Return a text in which no chat finds a mention or an address."""
    return text.replace("@", "@" + _BROKEN).replace("://", ":" + _BROKEN + "//").replace("www.", "www" + _BROKEN + ".")


def _slack_text(text: str) -> str:
    return _unlinked(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _slack(notice: NoticeText) -> dict[str, Any]:
    lines = "\n".join(_slack_text(f"{one.label}: {one.text}") for one in notice.facts)
    blocks: list[dict[str, Any]] = [
        # Of plain_text, Slack reads no markup; it has at most 150 and 3,000 characters.
        {"type": "header", "text": {"type": "plain_text", "text": _slack_text(notice.title)[:150], "emoji": False}},
        {"type": "section", "text": {"type": "plain_text", "text": lines[:3000], "emoji": False}},
    ]
    if notice.command:
        command = {"type": "plain_text", "text": _slack_text(notice.command), "emoji": False}
        blocks.append({"type": "context", "elements": [command]})
    if notice.link:
        button = {"type": "button", "text": {"type": "plain_text", "text": "Open"}, "url": notice.link}
        blocks.append({"type": "actions", "elements": [button]})
    return {
        "text": _slack_text(notice.title),
        "mrkdwn": False,
        "link_names": False,
        "unfurl_links": False,
        "unfurl_media": False,
        "blocks": blocks,
    }


def _teams(notice: NoticeText) -> dict[str, Any]:
    def line(*runs: dict[str, Any]) -> dict[str, Any]:
        # Of a TextRun no Markdown is read, unlike of a TextBlock or a Fact.
        return {"type": "RichTextBlock", "inlines": [{"type": "TextRun", **run} for run in runs]}

    body = [line({"text": _unlinked(notice.title), "weight": "Bolder", "size": "Medium"})]
    body += [
        line({"text": f"{_unlinked(one.label)}: ", "weight": "Bolder"}, {"text": _unlinked(one.text)})
        for one in notice.facts
    ]
    if notice.command:
        body.append(line({"text": _unlinked(notice.command), "fontType": "Monospace"}))
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "fallbackText": _unlinked(notice.title),
        "body": body,
    }
    if notice.link:
        card["actions"] = [{"type": "Action.OpenUrl", "title": "Open", "url": notice.link}]
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}


def _mattermost_text(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", _unlinked(text))


def _mattermost(notice: NoticeText) -> dict[str, Any]:
    fields = [
        {"short": len(one.text) < 40, "title": _mattermost_text(one.label), "value": _mattermost_text(one.text)}
        for one in notice.facts
    ]
    attachment: dict[str, Any] = {
        "fallback": _unlinked(notice.title),
        "color": "#c62828" if notice.failed else "#2e7d32",
        "title": _unlinked(notice.title),  # of which Mattermost reads no Markdown
        "fields": fields,
    }
    if notice.link:
        attachment["title_link"] = notice.link
    if notice.command:
        attachment["text"] = _mattermost_text(notice.command)
    return {"text": "", "attachments": [attachment]}
