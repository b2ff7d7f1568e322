"""Notices for people: which entries are taken, what messages say, that nothing of users is read as markup, and digests."""

import json
import random
from datetime import UTC, datetime
from email import message_from_bytes, policy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trainmaster.protocol.jobs import Notify
from trainmaster.protocol.notices import Chat, ChatFormat, NoticesSpec
from trainmaster.protocol.workflows import WorkflowNotify
from trainmaster_dispatcher.domain.digests import DigestWindow, Gathering, GatheringStep, digest_body, next_step
from trainmaster_dispatcher.domain.id_claims import Issuer, account_of
from trainmaster_dispatcher.domain.mail_server import MailServer, read_mail_server
from trainmaster_dispatcher.domain.notices import (
    Destination,
    NoticeChannel,
    chat_body,
    chat_destination,
    destination_of,
    destinations,
    email_destination,
    is_allowed_domain,
    mail_of,
    notice_of,
    ran_for,
    text_of,
)

AT = datetime(2037, 1, 1, tzinfo=UTC)
URL = "https://hooks.example.org/x"
JOB: dict[str, Any] = {
    "version": 1,
    "job": "bert-7k2p9xq",
    "name": "bert",
    "queue": "research/vision",
    "labels": {},
    "seq": 5,
    "event": "run.failed",
    "states": ["failed"],
    "state": "failed",
    "attempt": 2,
    "cluster": "private",
    "message": "exit code 3",
    "at": "2037-01-01T01:10:00.000Z",
    "startedAt": "2037-01-01T00:00:00.000Z",
    "endedAt": "2037-01-01T01:10:00.000Z",
}
HOSTILE = [
    "<!channel> <!here> <@U123> <https://evil.example|look>",
    "@here @channel @all @everyone",
    "[look](https://evil.example) ![x](https://evil.example/a.png) **bold** `code` # head",
    "<script>alert(1)</script><img src=x onerror=alert(1)> &lt;b&gt; \"quoted\" 'single'",
    "<at>everybody</at>",
    "a\r\nBcc: victim@example.org\r\n\r\nbody",
    "\u202egnp.exe \u2028 \x00 \x1b[31m",
]


# Entries of notify


@pytest.mark.parametrize("model", [Notify, WorkflowNotify])
@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({}, "exactly one of url, email and chat"),
        ({"url": URL, "email": ["a@example.com"]}, "exactly one of url, email and chat"),
        ({"email": []}, "email needs at least one address"),
        ({"email": ["a@example.com"] * 9}, "8"),
        ({"email": ["a"]}, "should match pattern"),
        ({"email": ["a@example.com\r\nBcc: b@example.com"]}, "should match pattern"),
        ({"email": ["a@example.com\n"]}, "should match pattern"),
        ({"email": ["a,b@example.com"]}, "should match pattern"),
        ({"email": ["<a@example.com>"]}, "should match pattern"),
        ({"email": ["a@localhost"]}, "should match pattern"),
        ({"email": ["j\u00f6rg@example.com"]}, "should match pattern"),
        ({"chat": {"url": URL, "format": "irc"}}, "slack"),
        ({"chat": {"url": "ftp://a", "format": "slack"}}, "should match pattern"),
        ({"chat": {"url": URL}}, "Field required"),
    ],
)
def test_an_entry_that_goes_nowhere_or_to_no_address_is_refused(model: Any, fields: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValidationError, match=wrong):
        model.model_validate(fields)


def test_the_outbox_has_the_channel_in_the_address() -> None:
    mail = Notify.model_validate({"email": ["a@example.com", "b@example.com"]})
    assert destinations(mail) == ["mailto:a@example.com", "mailto:b@example.com"]
    assert destination_of("mailto:a@example.com") == Destination(NoticeChannel.EMAIL, "a@example.com")
    for one in ChatFormat:
        text = chat_destination(Chat(url=URL, format=one))
        assert destination_of(text) == Destination(NoticeChannel(one.value), URL)
        assert destinations(Notify.model_validate({"chat": {"url": URL, "format": one.value}})) == [text]
    assert destination_of(URL) == Destination(NoticeChannel.WEBHOOK, URL)
    assert destinations(Notify.model_validate({"url": URL})) == [URL]


def test_domains_are_those_that_an_admin_names_and_below_a_dot_all() -> None:
    assert is_allowed_domain("a@Example.com", ["example.com"])
    assert not is_allowed_domain("a@sub.example.com", ["example.com"])
    assert is_allowed_domain("a@sub.example.com", [".example.com"])
    assert not is_allowed_domain("a@example.com", [".example.com"])
    assert not is_allowed_domain("a@badexample.com", ["example.com", ".example.com"])
    assert not is_allowed_domain("a@example.com", [])


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({}, "needs email: true, or a chat"),
        ({"email": True, "events": []}, "needs at least one event"),
        ({"email": True, "events": ["running"]}, "failed"),
        ({"email": True, "window": "1s"}, "at least 1m and at most 1d"),
        ({"email": True, "window": "2d"}, "at least 1m and at most 1d"),
        ({"email": True, "minDuration": "soon"}, "not a duration"),
        ({"email": "ada@example.com"}, "boolean"),
        ({"email": True, "address": "victim@example.org"}, "Extra inputs"),
    ],
)
def test_preferences_that_cannot_be_met_are_refused(fields: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValidationError, match=wrong):
        NoticesSpec.model_validate(fields)


# What messages say


def test_a_message_says_what_happened_to_what_and_how_to_look_at_it() -> None:
    assert text_of(notice_of(JOB, "https://tm.example.com")) == (
        "Job bert-7k2p9xq failed\n\nJob: bert-7k2p9xq\nQueue: research/vision\nState: failed\nReason: exit code 3\n"
        "Cluster: private\nAttempt: 2\nRan for: 1h10m\nAt: 2037-01-01T01:10:00.000Z\n\n"
        "Look at it: trainmaster job bert-7k2p9xq\nhttps://tm.example.com/v1/jobs/bert-7k2p9xq\n"
    )
    late = JOB | {"event": "deadline.missed", "state": "running", "states": []}
    assert notice_of(late).title == "Job bert-7k2p9xq has missed its deadline"
    assert notice_of(JOB | {"state": "cancelled"}).title == "Job bert-7k2p9xq was cancelled"
    assert notice_of(JOB | {"state": "queued"}).title == "Job bert-7k2p9xq is queued"
    never_ran = JOB | {"startedAt": None}
    assert ran_for(never_ran) == ""
    assert "Ran for" not in text_of(notice_of(never_ran))


def test_workflows_and_groups_have_words_of_their_own() -> None:
    workflow = {
        "workflow": "nightly-w7k2p9xq",
        "name": "nightly",
        "queue": "a",
        "event": "step.failed",
        "state": "running",
        "steps": {"failed": 1, "succeeded": 2},
        "step": "train",
        "message": "exit code 3",
        "at": "2037-01-01T00:00:00.000Z",
    }
    said = notice_of(workflow)
    assert said.title == "Workflow nightly-w7k2p9xq has a failed step, train"
    assert ("Steps", "1 failed, 2 succeeded") in said.facts
    group = {
        "group": "sweep",
        "queue": "a",
        "state": "failed",
        "event": "groupEnded",
        "jobs": 3,
        "succeeded": 2,
        "failed": 1,
    }
    said = notice_of(group | {"cancelled": 0, "at": ""})
    assert (said.title, said.command) == ("Group sweep failed", "trainmaster groups show sweep")
    assert ("Of these", "2 succeeded, 1 failed") in said.facts


# Nothing of users is markup


def hostile(text: str) -> dict[str, Any]:
    return JOB | {"message": text, "queue": text, "cluster": text, "name": text, "job": text}


@pytest.mark.parametrize("text", HOSTILE)
def test_slack_reads_no_mention_and_no_link(text: str) -> None:
    body = chat_body(NoticeChannel.SLACK, notice_of(hostile(text)))
    words = json.dumps(body, ensure_ascii=False)
    assert "<" not in words
    assert ">" not in words
    assert "://" not in words
    for name in ("here", "channel", "all", "everyone"):
        assert f"@{name}" not in words
    assert {block["text"]["type"] for block in body["blocks"] if "text" in block} == {"plain_text"}
    assert (body["mrkdwn"], body["link_names"], body["unfurl_links"]) == (False, False, False)


@pytest.mark.parametrize("text", HOSTILE)
def test_teams_reads_no_markdown(text: str) -> None:
    card = chat_body(NoticeChannel.TEAMS, notice_of(hostile(text)))["attachments"][0]["content"]
    assert {one["type"] for one in card["body"]} == {"RichTextBlock"}
    assert "msteams" not in card, "no entities: nobody is mentioned"
    assert "://" not in json.dumps(card["body"])


@pytest.mark.parametrize("text", HOSTILE)
def test_mattermost_reads_no_mention_no_link_and_no_image(text: str) -> None:
    attachment = chat_body(NoticeChannel.MATTERMOST, notice_of(hostile(text)))["attachments"][0]
    words = json.dumps(attachment, ensure_ascii=False)
    for name in ("here", "channel", "all", "everyone"):
        assert f"@{name}" not in words
    assert "://" not in words
    for field in attachment["fields"]:
        rest = field["value"].replace("\\\\", "")
        for mark in "[]()<>*`#!|~":
            assert rest.count(mark) == rest.count("\\" + mark), field["value"]


@pytest.mark.parametrize("text", HOSTILE)
def test_mail_has_no_header_and_no_markup_of_a_user(text: str) -> None:
    mail = mail_of(notice_of(hostile(text)), "tm@example.com", "ada@example.com", "bert-7k2p9xq/5", AT)
    read = message_from_bytes(mail.as_bytes(), policy=policy.default)
    assert read.get_all("To") == ["ada@example.com"]
    assert read["Bcc"] is None
    assert set(read.keys()) == {
        "From", "To", "Subject", "Date", "Message-ID", "Auto-Submitted", "MIME-Version", "Content-Type",
    }  # fmt: skip
    subject = str(read["Subject"])
    assert subject.isprintable()
    assert len(subject) <= 150
    html = read.get_body(("html",))
    assert html is not None
    page = html.get_content()
    for mark in ("<script", "<img", "<at>", "<b>gt", "<!channel>", "<@", "<https"):
        assert mark not in page


@given(st.text(max_size=400))
def test_any_text_gives_a_mail_that_can_be_read_again(text: str) -> None:
    mail = mail_of(notice_of(hostile(text)), "tm@example.com", "ada@example.com", "e/1", AT)
    read = message_from_bytes(mail.as_bytes(), policy=policy.default)
    assert (read.get_all("To"), read["Bcc"]) == (["ada@example.com"], None)
    assert read.get_body(("plain",)) is not None
    for channel in (NoticeChannel.SLACK, NoticeChannel.TEAMS, NoticeChannel.MATTERMOST):
        assert "@here" not in json.dumps(chat_body(channel, notice_of(hostile(text))))


def test_repeats_of_a_message_have_one_message_id_and_others_have_others() -> None:
    def number(recipient: str, event: str) -> str:
        return str(mail_of(notice_of(JOB), "tm@example.com", recipient, event, AT)["Message-ID"])

    assert number("a@example.com", "j/5") == number("a@example.com", "j/5")
    found = {number(who, event) for who in ("a@example.com", "b@example.com") for event in ("j/5", "j/6")}
    assert len(found) == 4
    assert all(one.endswith("@example.com>") for one in found)


def test_chats_get_bounded_messages_with_a_link_of_the_installation_alone() -> None:
    notice = notice_of(JOB | {"message": "x" * 100_000}, "https://tm.example.com")
    for channel in (NoticeChannel.SLACK, NoticeChannel.TEAMS, NoticeChannel.MATTERMOST):
        words = json.dumps(chat_body(channel, notice))
        assert len(words) < 10_000
        assert words.count("https://tm.example.com/v1/jobs/bert-7k2p9xq") == 1
    blocks = chat_body(NoticeChannel.SLACK, notice)["blocks"]
    assert len(blocks[0]["text"]["text"]) <= 150
    assert len(blocks[1]["text"]["text"]) <= 3000
    assert notice.failed
    assert chat_body(NoticeChannel.MATTERMOST, notice)["attachments"][0]["color"] == "#c62828"


# The mail server


def test_a_mail_server_is_read_from_its_url() -> None:
    assert read_mail_server("smtp://mail.example.com") == MailServer("mail.example.com", 587, False, False)
    assert read_mail_server("smtps://a%40b:p%2Fw@mail.example.com:1465") == MailServer(
        "mail.example.com", 1465, True, False, "a@b", "p/w"
    )
    for host in ("localhost", "127.0.0.1", "[::1]"):
        assert read_mail_server(f"smtp://{host}:25").may_be_plain
    for wrong in (
        "mail.example.com",
        "http://a",
        "smtp://",
        "smtp://a/b",
        "smtp://a?b=1",
        "smtp://a:x",
        "smtp://u:p%0a@a",
    ):
        with pytest.raises(ValueError, match="must") as error:
            read_mail_server(wrong)
        assert "p%0a" not in str(error.value)


# The address of a person


@pytest.mark.parametrize(
    ("claims", "names", "email"),
    [
        ({"email": "ada@example.com", "email_verified": True}, ("preferred_username",), "ada@example.com"),
        ({"email": "ada@example.com"}, ("email", "preferred_username"), "ada@example.com"),
        ({"email": "ada@example.com"}, ("preferred_username",), None),
        ({"email": "victim@example.org", "email_verified": False}, ("preferred_username",), None),
        ({"email": "victim@example.org", "email_verified": "true"}, ("preferred_username",), None),
        ({"email": "a@example.com\nBcc: b@example.org", "email_verified": True}, ("preferred_username",), None),
        ({"email": ["a@example.com"], "email_verified": True}, ("preferred_username",), None),
        ({}, ("preferred_username",), None),
    ],
)
def test_only_an_address_that_the_issuer_vouches_for_is_a_persons(
    claims: dict[str, Any], names: tuple[str, ...], email: str | None
) -> None:
    issuer = Issuer("https://sso.example.com", ("trainmaster",), user_claims=names)
    whole = {"sub": "1", "exp": 4_000_000_000, "preferred_username": "ada"} | claims
    assert account_of(whole, issuer).email == email


# Digests


MINUTES = 600.0


def test_few_events_are_reported_at_once_and_the_rest_at_the_end_of_the_window() -> None:
    step = next_step(None, 1, 0, 0.0, most=3, seconds=MINUTES)
    assert step == GatheringStep(Gathering.ONE_BY_ONE, DigestWindow(MINUTES, 1))
    step = next_step(step.window, 2, 2, 10.0, most=3, seconds=MINUTES)
    assert step == GatheringStep(Gathering.ONE_BY_ONE, DigestWindow(MINUTES, 3))
    step = next_step(step.window, 1, 1, 20.0, most=3, seconds=MINUTES)
    assert step == GatheringStep(Gathering.HOLD, DigestWindow(MINUTES, 3))
    step = next_step(step.window, 500, 500, MINUTES - 1, most=3, seconds=MINUTES)
    assert step.gathering is Gathering.HOLD
    step = next_step(step.window, 997, 996, MINUTES, most=3, seconds=MINUTES)
    assert step == GatheringStep(Gathering.DIGEST, DigestWindow(2 * MINUTES, 3))
    assert next_step(step.window, 1, 1, MINUTES + 1, most=3, seconds=MINUTES).gathering is Gathering.HOLD
    assert next_step(step.window, 0, 0, 2 * MINUTES, most=3, seconds=MINUTES) == GatheringStep(Gathering.HOLD, None)


def test_an_event_long_after_a_window_is_reported_at_once() -> None:
    step = next_step(DigestWindow(MINUTES, 3), 1, 0, 10 * MINUTES, most=3, seconds=MINUTES)
    assert step == GatheringStep(Gathering.ONE_BY_ONE, DigestWindow(11 * MINUTES, 1))


def test_many_at_once_are_one_digest() -> None:
    step = next_step(None, 1000, 0, 0.0, most=3, seconds=MINUTES)
    assert step == GatheringStep(Gathering.HOLD, DigestWindow(MINUTES, 3))
    assert next_step(step.window, 1000, 1000, MINUTES, most=3, seconds=MINUTES).gathering is Gathering.DIGEST


@pytest.mark.parametrize("seed", range(20))
def test_however_events_come_none_waits_longer_than_a_window_and_messages_are_few(seed: int) -> None:
    chance = random.Random(seed)
    window: DigestWindow | None = None
    waiting: list[float] = []
    messages, now = 0, 0.0
    while now < 20 * MINUTES:
        arrived = chance.choice([0, 0, 0, 0, 1, 2, 50]) if now < 18 * MINUTES else 0
        waiting += [now] * arrived
        now += 2.0
        held = 0 if window is None else sum(at < window.ends_at for at in waiting)
        step = next_step(window, len(waiting), held, now, most=3, seconds=MINUTES)
        window = step.window
        if step.gathering is Gathering.HOLD:
            assert all(now - at <= MINUTES + 2 for at in waiting)
            continue
        messages += 1 if step.gathering is Gathering.DIGEST else len(waiting)
        waiting = []
    assert not waiting
    assert messages <= 20 * 4


def test_a_digest_counts_all_events_and_names_the_first_failures() -> None:
    bodies = [JOB | {"job": f"j-{n}", "state": "failed" if n % 100 == 7 else "succeeded"} for n in range(1000)]
    body = digest_body("7-31", bodies)
    assert body["counts"] == {"failed": 10, "succeeded": 990}
    assert [one["job"] for one in body["jobs"]] == [f"j-{n}" for n in range(7, 1000, 100)]
    notice = notice_of(body)
    assert notice.title == "1000 events of your jobs: 10 failed, 990 succeeded"
    assert ("Further", "990 not shown") in notice.facts
    assert ("j-7", "failed, queue research/vision: exit code 3") in notice.facts
    late = digest_body("7-32", [JOB | {"event": "deadline.missed", "state": "running"}, JOB | {"state": "succeeded"}])
    assert late["counts"] == {"deadline.missed": 1, "succeeded": 1}


def test_addresses_of_mail_are_kept_as_given() -> None:
    assert destination_of(email_destination("Ada.L+x@Example.com")).address == "Ada.L+x@Example.com"
