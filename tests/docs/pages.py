"""Fenced blocks of pages, and the marks that writers put before them. It runs nothing and knows nothing of Trainmaster.

A mark is an HTML comment directly before a block, invisible to readers of the page; ``CONTRIBUTING.md`` lists them.
"""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ("sh", "console")
"""Languages of blocks with commands: ``sh`` has commands alone, ``console`` has ``$ COMMAND`` and what it prints."""
MARKS = ("not run", "run by", "file", "first", "with", "checked as")
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\S*)\s*$")
_COMMENT = re.compile(r"<!--\s*(?P<name>[a-z ]+?):\s*(?P<value>.*?)\s*-->", re.DOTALL)
_INLINE = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block; ``line`` is that of its opening fence, and ``marks`` are in their order."""

    page: str
    line: int
    language: str
    text: str
    marks: tuple[tuple[str, str], ...] = ()

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_run(self) -> bool:
        return self.language in COMMANDS and self.mark("not run") is None and self.mark("run by") is None

    def mark(self, name: str) -> str | None:
        return next((value for key, value in self.marks if key == name), None)


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a block, and what the page shows as its output: nothing if it is ``None``."""

    line: int
    command: str
    shown: tuple[str, ...] | None = None


def user_pages() -> list[Path]:
    """Return the pages whose blocks are all accounted for: README, tutorial and how-tos."""
    docs = ROOT / "docs"
    return [ROOT / "README.md", *sorted((docs / "tutorial").glob("*.md")), *sorted((docs / "how-to").rglob("*.md"))]


def all_pages() -> list[Path]:
    return [
        *user_pages(),
        *sorted((ROOT / "docs/explanation").glob("*.md")),
        *sorted((ROOT / "docs/reference").glob("*.md")),
    ]


def blocks_of(path: Path) -> list[Block]:
    return list(read_blocks(path.relative_to(ROOT).as_posix(), path.read_text()))


def read_blocks(page: str, text: str) -> Iterator[Block]:
    """Find the fenced blocks of a page. Raises ValueError for a fence that is not closed."""
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        opening = _FENCE.match(lines[number])
        if opening is None:
            number += 1
            continue
        end = next((n for n in range(number + 1, len(lines)) if lines[n].strip() == "```"), None)
        if end is None:
            raise ValueError(f"{page}:{number + 1}: this block is not closed")
        content = textwrap.dedent("\n".join(lines[number + 1 : end]) + "\n")
        yield Block(page, number + 1, opening["language"], content, _marks_before(lines, number))
        number = end + 1


def _marks_before(lines: list[str], number: int) -> tuple[tuple[str, str], ...]:
    """Return the marks in the comments that end on the line above ``number``, one after the other."""
    start = number
    while start and lines[start - 1].rstrip().endswith("-->"):
        start -= 1
        while start and not lines[start].lstrip().startswith("<!--"):
            start -= 1
    comments = textwrap.dedent("\n".join(lines[start:number]))
    return tuple((found["name"], found["value"]) for found in _COMMENT.finditer(comments))


def steps_of(block: Block) -> list[Step]:
    """Return the commands of a block of commands. Raises ValueError for a ``console`` block that begins with output."""
    return _console(block) if block.language == "console" else _plain(block)


def _console(block: Block) -> list[Step]:
    steps: list[Step] = []
    lines = enumerate(block.text.splitlines(), block.line + 1)
    for number, line in lines:
        if line.startswith("$ "):
            command = line[2:]
            while command.endswith("\\"):
                command += "\n" + next(lines)[1].removeprefix("> ")
            steps.append(Step(number, command, ()))
        elif steps:
            steps[-1] = Step(steps[-1].line, steps[-1].command, (*(steps[-1].shown or ()), line))
        else:
            raise ValueError(f"{block.page}:{number}: a console block begins with '$ COMMAND'")
    return steps


def _plain(block: Block) -> list[Step]:
    """Return the commands of an ``sh`` block. The comment behind ``echo $?`` begins with the exit code."""
    steps = []
    lines = enumerate(block.text.splitlines(), block.line + 1)
    for number, line in lines:
        command = line
        while command.endswith("\\"):
            command += "\n" + next(lines)[1]
        if command.strip() and not command.startswith("#"):
            code = re.match(r"echo \$\?\s+# (\d+)", command)
            steps.append(Step(number, command, (code[1],) if code else None))
    return steps


def inline_code(path: Path) -> Iterator[tuple[int, str]]:
    """Find the code within sentences: its line and its text."""
    text = re.sub(r"^ *```.*?^ *```", lambda block: "\n" * block[0].count("\n"), path.read_text(), flags=re.M | re.S)
    for found in _INLINE.finditer(text):
        yield text.count("\n", 0, found.start()) + 1, " ".join(found[1].split())
