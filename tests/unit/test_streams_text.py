"""Output of any kind as text, cut where characters end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster_agent.streams import whole_text

LOST = "\ufffd"
TEXTS: dict[str, tuple[bytes, str, int]] = {
    "nothing": (b"", "", 0),
    "plain text": (b"hello\n", "hello\n", 6),
    "a whole character": ("na\u00efve".encode(), "na\u00efve", 6),
    "half a character waits for its rest": ("a\u20ac".encode()[:-1], "a", 1),
    "the first byte of a character waits": (b"\xf0", "", 0),
    "three bytes of four wait": ("x\U0001f600".encode()[:-1], "x", 1),
    "a byte that begins nothing is replaced at once": (b"\xff", LOST, 1),
    "a stray middle byte is replaced": (b"a\x80b", f"a{LOST}b", 3),
    "a character that breaks off is replaced": (b"\xe2\x82(", f"{LOST}(", 3),
    "noise at the beginning does not break the end": (
        b"\xff" + b"x" * 40 + "\u20ac".encode()[:-1],
        LOST + "x" * 40,
        41,
    ),
    "a surrogate is no text": (b"\xed\xa0\x80", LOST * 3, 3),
    "an overlong form is no text": (b"\xc0\xaf", LOST * 2, 2),
}


@pytest.mark.parametrize(("data", "text", "used"), TEXTS.values(), ids=TEXTS)
def test_the_text_of(data: bytes, text: str, used: int) -> None:
    assert whole_text(data) == (text, used)


def in_pieces(data: bytes, sizes: list[int]) -> str:
    """Return the text as a follower gets it, who reads ``sizes`` bytes in turn, from where the last chunk ended."""
    out, offset, turn = "", 0, 0
    while offset < len(data):
        size = sizes[turn % len(sizes)]
        text, used = whole_text(data[offset : offset + size])
        if used == 0 and offset + size >= len(data):
            break
        turn += 1
        out += text
        offset += used
    return out


@given(st.text(), st.lists(st.integers(4, 9), min_size=1))
def test_text_comes_through_whole_however_it_is_cut(text: str, sizes: list[int]) -> None:
    assert in_pieces(text.encode(), sizes) == text


@given(st.binary(), st.lists(st.integers(4, 9), min_size=1))
def test_bytes_of_any_kind_come_through_as_they_would_at_once(data: bytes, sizes: list[int]) -> None:
    at_once, used = whole_text(data)
    assert len(data) - used < 4
    assert in_pieces(data, sizes) == at_once


@given(st.binary(min_size=4))
def test_a_read_of_four_bytes_or_more_always_goes_on(data: bytes) -> None:
    assert whole_text(data)[1] > 0
