"""The commands of a page, run one after the other in one shell, as a reader would who copies them.

Variables, the working folder and files stay from block to block. The folder is new and has the checkout's files in it by links,
so that nothing a page writes gets into the checkout. Questions are answered with yes. ``trainmaster`` is a function of the shell
that hands the call to this process, so that ``tests.preloaded`` can fork it; it has the shell's folder, environment and streams.
"""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import preloaded
from tests.docs.pages import ROOT, Block, Step, steps_of
from tests.docs.shape import difference, lines_of

_LEFT_OUT = {".git", "dist", ".mypy_cache", ".ruff_cache", ".pytest_cache"}
_CODE = "echo $?"
"""The command after one that may fail: it shows with which exit code."""
_RUNNER = """
trainmaster() {
  local code
  { printf '%s\\0' "$BASHPID" "$PWD" $# "$@"; env -0; } >"$CALLS"
  read -r code <"$CODES"
  return "$code"
}
code=0
for file in "$STEPS"/*; do
  (exit $code); . "$file" <"$ANSWERS" >>"$OUTPUT/${file##*/}" 2>&1; code=$?
  printf '%s' $code >"$OUTPUT/${file##*/}.code"
done
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that was run; ``place`` names its page and line, ``code`` is empty if the shell ended before or in it."""

    place: str
    step: Step
    output: str
    code: str
    is_hidden: bool = False


def run_page(blocks: Sequence[Block], folder: Path, env: Mapping[str, str], seconds: float) -> list[Ran]:
    """Run all blocks of a page that are to be run. ``folder`` must not exist yet. ``env`` is the whole environment."""
    work, steps, output = folder / "work", folder / "steps", folder / "output"
    for one in (work, steps, output):
        one.mkdir(parents=True)
    for entry in ROOT.iterdir():
        if entry.name not in _LEFT_OUT:
            (work / entry.name).symlink_to(entry)
    answers = folder / "answers"
    answers.write_text("y\n" * 100)
    written: list[tuple[str, Step, bool]] = []
    for place, step, text, is_hidden in _scripts(blocks):
        (steps / f"{len(written):04}").write_text(text)
        written.append((place, step, is_hidden))
    calls = _Calls(folder)
    shell = subprocess.Popen(
        ["bash", "--noprofile", "--norc", "-c", _RUNNER],
        cwd=work,
        env={
            **{name: value for name, value in os.environ.items() if name.startswith(preloaded.SAME_PREFIXES)},
            **env,
            "STEPS": str(steps),
            "ANSWERS": str(answers),
            "OUTPUT": str(output),
            "CALLS": str(calls.calls),
            "CODES": str(calls.codes),
        },
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        shell.wait(seconds)
    except subprocess.TimeoutExpired:
        pass  # the command that it is in has no exit code
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
        calls.close()
    return [
        Ran(place, step, _text(output / f"{number:04}"), _text(output / f"{number:04}.code"), is_hidden)
        for number, (place, step, is_hidden) in enumerate(written)
    ]


class _Calls:
    """Runs the calls of ``trainmaster`` that a shell writes to the pipe ``calls``, and answers each with its exit code."""

    def __init__(self, folder: Path) -> None:
        self.calls, self.codes = folder / "calls", folder / "codes"
        for pipe in (self.calls, self.codes):
            os.mkfifo(pipe)
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        """End what a shell that was killed has left, and stop."""
        answers = os.open(self.codes, os.O_RDONLY | os.O_NONBLOCK)  # nobody else may read the last one
        try:
            if (process := self._process) is not None:
                process.kill()
            self.calls.write_bytes(b"")
            self._thread.join()
        finally:
            os.close(answers)

    def _serve(self) -> None:
        while message := self.calls.read_bytes():
            pid, folder, count, *parts = message.decode().split("\0")
            words, env = parts[: int(count)], parts[int(count) :]
            # Opened for appending, as the shell's own streams are: each is a file of its own here.
            modes = (os.O_RDONLY, os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_APPEND)
            try:
                streams = [os.open(f"/proc/{pid}/fd/{number}", mode) for number, mode in enumerate(modes)]
            except FileNotFoundError:  # the shell was killed
                continue
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "trainmaster.cli.main", *words],
                    cwd=folder,
                    env=dict(one.split("=", 1) for one in env if one),
                    stdin=streams[0],
                    stdout=streams[1],
                    stderr=streams[2],
                )
            finally:
                for stream in streams:
                    os.close(stream)
            code = self._process.wait()
            self._process = None
            self.codes.write_text(f"{code}\n")


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _scripts(blocks: Sequence[Block]) -> Iterator[tuple[str, Step, str, bool]]:
    """Give each command with its place and the shell's text of it; hidden are those that marks bring.

    The value of a word is found out right before the first command that has the word.
    """
    meanings: dict[str, str] = {}
    values: dict[str, str] = {}
    for block in blocks:
        for name, value in block.marks:
            if name == "file":
                yield block.place, Step(block.line, value), _file(value, block.text), True
            elif name == "first":
                yield block.place, Step(block.line, value), value + "\n", True
            elif name == "with":
                word, _, meaning = (part.strip() for part in value.partition(" = "))
                meanings[word] = meaning
        if block.is_run:
            for step in steps_of(block):
                for word in [one for one in meanings if _word(one).search(step.command)]:
                    values[word] = f"PAGE_{len(values)}_{step.line}"
                    meaning = meanings.pop(word)
                    yield block.place, Step(block.line, f"{word} = {meaning}"), f"{values[word]}={meaning}\n", True
                yield f"{block.page}:{step.line}", step, _replaced(step.command, values) + "\n", False


def _file(name: str, text: str) -> str:
    return f"mkdir -p $(dirname {name})\ncat >{name} <<'END OF FILE'\n{text}END OF FILE\n"


def _replaced(command: str, values: Mapping[str, str]) -> str:
    for word, variable in values.items():
        command = _word(word).sub(f"${{{variable}}}", command)
    return command


def _word(word: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w/]){re.escape(word)}(?!\w)")


def complaints(ran: Sequence[Ran]) -> Iterator[str]:
    """Find the commands that did not end with 0, if the page does not show another code, and outputs of another shape."""
    for number, one in enumerate(ran):
        if one.code == "":
            yield f"{one.place}: {one.step.command}\n  did not end; its output until then:\n{one.output}"
            return
        says_code = number + 1 < len(ran) and ran[number + 1].step.command.startswith(_CODE)
        if one.code != "0" and not says_code:
            yield f"{one.place}: {one.step.command}\n  ended with {one.code}:\n{one.output}"
        elif one.step.command.startswith(_CODE):
            if list(one.step.shown or ()) != lines_of(one.output):
                yield f"{one.place}: the exit code is {one.output.strip()}, the page says {one.step.shown}"
        elif one.step.shown is not None:
            found = difference(_lines(one.step.shown), lines_of(one.output))
            if found:
                yield f"{one.place}: {one.step.command}\n  {found}; the whole output is:\n{one.output}"


def _lines(shown: Sequence[str]) -> list[str]:
    return lines_of("\n".join(shown))
