"""The Dockerfile as a list of instructions, by stage."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from tests.compose_file import ROOT


@dataclass(frozen=True, slots=True)
class Instruction:
    word: str
    rest: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.rest)

    @property
    def array(self) -> list[str]:
        """The words of an instruction in the form of a JSON array."""
        words: list[str] = json.loads(self.rest)
        return words


@dataclass(slots=True)
class Stage:
    image: str
    name: str = ""
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, word: str) -> list[Instruction]:
        return [instruction for instruction in self.instructions if instruction.word == word]


def stages() -> list[Stage]:
    """Return the stages from first to last, with the arguments before them replaced in the names of their images."""
    arguments: dict[str, str] = {}
    found: list[Stage] = []
    for instruction in _instructions((ROOT / "Dockerfile").read_text()):
        if instruction.word == "FROM":
            image = instruction.words[0]
            for name, value in arguments.items():
                image = image.replace(f"${{{name}}}", value)
            found.append(Stage(image, instruction.words[-1]))
        elif found:
            found[-1].instructions.append(instruction)
        else:
            assert instruction.word == "ARG", instruction
            name, _, value = instruction.rest.partition("=")
            arguments[name] = value
    return found


def stage(name: str) -> Stage:
    """Return the stage of this name."""
    return next(one for one in stages() if one.name == name)


def chain(name: str) -> list[Stage]:
    """Return a stage with those that it is made from, the first one first."""
    named = {one.name: one for one in stages()}
    found = [named[name]]
    while found[0].image in named:
        found.insert(0, named[found[0].image])
    return found


def _instructions(text: str) -> Iterator[Instruction]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            word, _, rest = line.partition(" ")
            yield Instruction(word, rest.strip())


def sources(copy: Instruction) -> list[str]:
    """Return what a COPY takes from the checkout; nothing if it takes from another stage."""
    return [] if copy.words[0].startswith("--from=") else copy.words[:-1]


def is_sent(path: str) -> bool:
    """Return whether the builder is sent a path: the last matching line of .dockerignore decides."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.strip()
        if pattern and not pattern.startswith("#"):
            negated = pattern.startswith("!")
            plain = pattern.removeprefix("!")
            inside = [path, *map(str, Path(path).parents)]
            if any(part != "." and (fnmatch(part, plain) or fnmatch(f"/{part}", f"/{plain}")) for part in inside):
                sent = negated
    return sent
