"""Parts of texts that only people with rights to a queue may read.

Reasons and messages name jobs and queues of other tenants. They are stored whole, with such parts marked: the queues
whose rights are needed, what others read instead, and the part itself. Texts are rendered where they leave the
dispatcher, with the rights of the reader; an admin reads all of it. The marks are Unicode noncharacters, which exist
for such use inside a program.
"""

import re
from collections.abc import Callable, Iterable

_OPEN, _NEXT, _CLOSE = "\ufdd0", "\ufdd1", "\ufdd2"
_MARK = b"\xef\xb7"
"""The first bytes of each mark in UTF-8."""

_PART = rb"((?:(?!\xef\xb7[\x90-\x92])[^\"\\])*)"
_PROTECTED = re.compile(
    _OPEN.encode()
    + _PART
    + _NEXT.encode()
    + _PART
    + _NEXT.encode()
    + _PART
    + _CLOSE.encode()
    # A part whose end was cut off is left out up to the end of its text.
    + rb"|\xef\xb7[\x90-\x92](?:(?!\xef\xb7[\x90-\x92])(?:[^\"\\]|\\.))*"
)
_CUT_OFF = b"..."

ANOTHER_JOB = "a job of another queue"
ANOTHER_QUEUE = "another queue"
OTHER_QUEUES = "other queues"

MayRead = Callable[[str], bool]
"""Returns whether the reader may read about the jobs of a queue, by its path."""


def protected(text: str, queues: str | Iterable[str], otherwise: str) -> str:
    """Return ``text`` marked as readable with rights to all of ``queues``; others read ``otherwise``."""
    paths = queues if isinstance(queues, str) else ",".join(queues)
    return f"{_OPEN}{paths}{_NEXT}{otherwise}{_NEXT}{text}{_CLOSE}"


def sentence_case(text: str) -> str:
    """Return a text with a capital letter first, in a protected part and in its replacement."""
    if not text.startswith(_OPEN):
        return text[:1].upper() + text[1:]
    paths, otherwise, rest = text.split(_NEXT, 2)
    return _NEXT.join((paths, otherwise[:1].upper() + otherwise[1:], rest[:1].upper() + rest[1:]))


def everything(_queue: str) -> bool:
    """Return True: an admin reads all parts."""
    return True


def nothing(_queue: str) -> bool:
    """Return False: the reader may read no protected part."""
    return False


def of_queue(path: str) -> MayRead:
    """Return the reader rule of a queue's owner: its own jobs and those of the queues below it."""
    return lambda queue: queue == path or queue.startswith(path + "/")


def rendered_json(payload: bytes, may_read: MayRead) -> bytes:
    """Return a JSON document with each protected part, or with its replacement."""
    if _MARK not in payload:
        return payload

    def render(found: "re.Match[bytes]") -> bytes:
        paths, otherwise, text = found.groups()
        if paths is None:
            return _CUT_OFF
        return text if all(map(may_read, paths.decode().split(","))) else otherwise

    return _PROTECTED.sub(render, payload)


def rendered(text: str, may_read: MayRead = everything) -> str:
    """Return a text with each protected part, or with its replacement."""
    if _OPEN not in text:
        return text

    def render(found: "re.Match[str]") -> str:
        paths, otherwise, whole = found.groups()
        if paths is None:
            return _CUT_OFF.decode()
        return whole if all(map(may_read, paths.split(","))) else otherwise

    return _PROTECTED_TEXT.sub(render, text)


_TEXT_PART = f"([^{_OPEN}{_NEXT}{_CLOSE}]*)"
_PROTECTED_TEXT = re.compile(
    f"{_OPEN}{_TEXT_PART}{_NEXT}{_TEXT_PART}{_NEXT}{_TEXT_PART}{_CLOSE}"
    f"|[{_OPEN}{_NEXT}{_CLOSE}][^{_OPEN}{_NEXT}{_CLOSE}]*",
    re.DOTALL,
)
