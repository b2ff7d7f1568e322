"""The comparison of an output that a page shows with a real one: in its shape, not in what differs from run to run."""

import re
from collections.abc import Sequence
from functools import cache

_PLACEHOLDERS = [
    (re.compile(pattern), name)
    for pattern, name in (
        (r"https?://[^\s,;)]+", "URL"),
        (r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", "ID"),
        (r"\b[0-9a-f]{12,}\b", "ID"),
        (r"(?<=[a-z0-9]-)w?[0-9a-hjkmnp-tv-z]{7}(?:-r\d+)?\b", "ID"),
        (r"\btmk_[\w-]+", "KEY"),
        (r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)?)?", "TIME"),
        (r"\b\d\d:\d\d(?::\d\d(?:\.\d+)?)?\b", "TIME"),
        (r"(?<![\w.@-])(?:~|\.{1,2})?(?:/[\w.@+-]+)+/?", "PATH"),
        (r"\b(?:\d+(?:\.\d+)?(?:ms|us|[smhdwy])){1,4}\b", "DURATION"),
        (r"(?<![\w.])\d+(?:\.\d+){2,}(?![\w.])", "VERSION"),
        (r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w])", "NUMBER"),
    )
]
"""What varies, and what stands for it; the first that matches counts. The suffix of a job's id has seven characters,
that of a workflow's a w before them."""
_PROMPT = re.compile(r"(\[y/N\]:) (?:y$)?\n?", re.MULTILINE)
ANY = "..."
"""A line of a page that stands for any number of lines; within a line it stands for any text."""


def shape_of(line: str) -> str:
    """Return the line with placeholders for what varies, and single spaces."""
    for pattern, name in _PLACEHOLDERS:
        line = pattern.sub(f"<{name}>", line)
    return " ".join(line.split())


def lines_of(output: str) -> list[str]:
    """Return an output's lines without empty ones at the end, each question on a line of its own, as a terminal shows it."""
    lines = _PROMPT.sub(r"\1\n", output).splitlines()
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def difference(shown: Sequence[str], real: Sequence[str]) -> str | None:
    """Return in one sentence where the output of a page differs from the real one, or ``None`` if they have the same shape."""
    patterns = [None if line.strip() == ANY else _pattern(line) for line in shown]
    shapes = [shape_of(line) for line in real]
    furthest = (0, 0)

    @cache
    def matches(page: int, line: int) -> bool:
        nonlocal furthest
        furthest = max(furthest, (page, line))
        if page == len(patterns):
            return line == len(shapes)
        pattern = patterns[page]
        if pattern is None:
            return matches(page + 1, line) or (line < len(shapes) and matches(page, line + 1))
        return line < len(shapes) and bool(pattern.fullmatch(shapes[line])) and matches(page + 1, line + 1)

    if matches(0, 0):
        return None
    page, line = furthest
    if page == len(patterns):
        return f"line {line + 1} of the output is not in the page: {real[line]!r}"
    if line == len(shapes):
        return f"the output ends before this line of the page: {shown[page]!r}"
    return f"the page has {shown[page]!r}, the output {real[line]!r}"


def _pattern(line: str) -> re.Pattern[str]:
    """Return what matches the shape of a line of the page; a word with ``...`` in it matches any text."""
    parts = re.split(r"\s*\S*\.\.\.\S*\s*", line)
    return re.compile(".*".join(re.escape(shape_of(part)) for part in parts))
