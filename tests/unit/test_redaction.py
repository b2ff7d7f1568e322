"""Protected parts of texts: who reads them, what others read instead, and what becomes of texts that were cut off."""

import orjson
import pytest

from trainmaster_dispatcher.domain.redaction import (
    everything,
    nothing,
    of_queue,
    protected,
    rendered,
    rendered_json,
    sentence_case,
)

TEXT = f'preempted for {protected("a-b", "org/a", "a job")}: {protected("3 of 4", ("org/a", "org/b"), "all")}, "so" \\'


def as_read(text: str, queue: str) -> str:
    """Return what a user of ``queue`` reads of a text, which must be the same alone and in a JSON document."""
    may_read = of_queue(queue)
    read: str = orjson.loads(rendered_json(orjson.dumps({"text": [text, text]}), may_read))["text"][1]
    assert read == rendered(text, may_read)
    return read


@pytest.mark.parametrize(
    ("queue", "read"),
    [
        ("org", 'preempted for a-b: 3 of 4, "so" \\'),
        ("org/a", 'preempted for a-b: all, "so" \\'),
        ("org/b", 'preempted for a job: all, "so" \\'),
        ("org/ab", 'preempted for a job: all, "so" \\'),
    ],
)
def test_a_part_is_read_with_rights_to_all_of_its_queues(queue: str, read: str) -> None:
    assert as_read(TEXT, queue) == read


def test_who_reads_all_and_who_reads_nothing() -> None:
    assert rendered(TEXT) == rendered(TEXT, everything) == as_read(TEXT, "org")
    assert rendered(TEXT, nothing) == as_read(TEXT, "other")
    assert rendered_json(b'{"plain": "\xc3\xa9"}', nothing) == b'{"plain": "\xc3\xa9"}'


def test_a_text_that_was_cut_off_tells_nothing_of_its_last_part() -> None:
    for end in range(len(TEXT)):
        read = as_read(TEXT[:end], "other")
        assert "a-b" not in read
        assert "3 of" not in read
        assert read.startswith("preempted for "[:end])


def test_marks_in_what_users_wrote_break_no_document() -> None:
    for text in (
        "\ufdd0",
        "\ufdd2 \ufdd1",
        '\ufdd0a\ufdd1b\ufdd1"c"\ufdd2 d',
        '\ufdd0\\\\" \ufdd1',
        "\ufdd0\ufdd0\ufdd2",
    ):
        assert isinstance(orjson.loads(rendered_json(orjson.dumps([text]), nothing))[0], str)


def test_a_sentence_begins_with_a_capital_letter_for_whoever_reads_it() -> None:
    for text in ("queue a is full", protected("queue a is full", "a", "it is full")):
        assert rendered(sentence_case(text)).startswith("Queue a")
    assert rendered(sentence_case(protected("queue a", "a", "another queue")), nothing) == "Another queue"
