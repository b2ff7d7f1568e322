"""What a simulated container does: ``sim`` and words, in its command, its args or the annotation of its pod.

    sim [print TEXT | results TEXT | sleep SECONDS | gate NAME]... [END]

``print`` adds a line to the log, ``results`` is the termination message of a container that ends by itself, ``sleep`` and ``gate``
wait (the gate until a test opens it), and then comes the end, which is ``succeed`` unless another is named:

    succeed, exit CODE, signal NUMBER, oom    ends at once
    run, peaceful                             run until they are asked to end, then with exit code 143 or 0
    stubborn                                  runs until it is killed, after the grace period (137)
    hang                                      as on a node that is cut off: its end is never confirmed
    image-error, config-error                 never starts
    no-such-command                           the runtime cannot execute the command (StartError, 128)

``fail-first TIMES CODE`` exits with CODE until the variable TRAINMASTER_RESTARTS has come to TIMES, and succeeds then. ``oom-first
TIMES`` ends for lack of memory until then, and runs after that.

Containers with any other command run as ``run`` does.
"""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

ANNOTATION = "trainmaster.test/sim"
"""The words after ``sim``, for the first container."""
WordsOf = Callable[[dict[str, Any], dict[str, Any]], Sequence[str]]
"""Returns the words after ``sim`` for a container of a pod."""


class Step(StrEnum):
    PRINT = "print"
    RESULTS = "results"
    SLEEP = "sleep"
    GATE = "gate"


_STEPS = frozenset(step.value for step in Step)


class End(StrEnum):
    SUCCEED = "succeed"
    EXIT = "exit"
    SIGNAL = "signal"
    OOM = "oom"
    RUN = "run"
    PEACEFUL = "peaceful"
    STUBBORN = "stubborn"
    HANG = "hang"
    IMAGE_ERROR = "image-error"
    CONFIG_ERROR = "config-error"
    NO_SUCH_COMMAND = "no-such-command"

    @property
    def has_number(self) -> bool:
        return self in (End.EXIT, End.SIGNAL)

    @property
    def ignores_sigterm(self) -> bool:
        return self in (End.STUBBORN, End.HANG)

    @property
    def waiting_reason(self) -> str | None:
        """The kubelet's reason why the container never starts."""
        return {End.IMAGE_ERROR: "ImagePullBackOff", End.CONFIG_ERROR: "CreateContainerConfigError"}.get(self)


@dataclass(frozen=True)
class Exit:
    """How a container ended."""

    code: int
    reason: str
    message: str = ""
    never_began: bool = False
    """The runtime could not execute the command: then the start is reported to have been in 1970."""

    @classmethod
    def of(cls, code: int) -> "Exit":
        return cls(code, "Error" if code else "Completed")


KILLED = Exit.of(137)
OUT_OF_MEMORY = Exit(137, "OOMKilled")
CRASHED = Exit(255, "Unknown")
"""What containerd says of a container that ran when its machine went down."""
NO_SUCH_COMMAND = Exit(
    128,
    "StartError",
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start "
    'container process: error during container init: exec: "/opt/none": stat /opt/none: no such file or directory: unknown',
    never_began=True,
)


@dataclass(frozen=True)
class Behaviour:
    steps: tuple[tuple[Step, str], ...] = field(default=())
    end: End = End.RUN
    number: int = 0

    @property
    def on_sigterm(self) -> Exit:
        return Exit.of(0 if self.end is End.PEACEFUL else 143)

    @property
    def at_once(self) -> Exit | None:
        """The exit of a container that ends by itself after its steps; None if it waits for something."""
        match self.end:
            case End.SUCCEED:
                return Exit.of(0)
            case End.EXIT:
                return Exit.of(self.number)
            case End.SIGNAL:
                return Exit.of(128 + self.number)
            case End.OOM:
                return OUT_OF_MEMORY
            case End.NO_SUCH_COMMAND:
                return NO_SUCH_COMMAND
        return None


def is_scripted(container: dict[str, Any], annotations: dict[str, str] | None = None) -> bool:
    """Return whether a container, or the annotation of its pod, says by itself what it does."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    return ANNOTATION in (annotations or {}) or words[:1] == ["sim"]


def behaviour_of(container: dict[str, Any], annotations: dict[str, str] | None = None) -> Behaviour:
    """Return the behaviour of a container of a pod's spec; raises ValueError for words after ``sim`` that mean nothing."""
    if annotations and ANNOTATION in annotations:
        return parse(shlex.split(annotations[ANNOTATION]))
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    if words[:2] in (["sim", "fail-first"], ["sim", "oom-first"]):
        env = {one["name"]: one.get("value", "") for one in container.get("env") or ()}
        is_first = int(env.get("TRAINMASTER_RESTARTS") or 0) < int(words[2])
        if words[1] == "fail-first":
            words = ["sim", "exit", words[3]] if is_first else ["sim"]
        else:
            words = ["sim", "oom" if is_first else "run"]
    return parse(words[1:]) if words and words[0] == "sim" else Behaviour()


def parse(words: list[str]) -> Behaviour:
    """Parse the words after ``sim``. Raises ValueError for words that mean nothing."""
    steps: list[tuple[Step, str]] = []
    rest = list(words)
    while rest and rest[0] in _STEPS:
        if len(rest) < 2:
            raise ValueError(f"sim {rest[0]}: a word is missing")
        steps.append((Step(rest[0]), rest[1]))
        rest = rest[2:]
    end = End(rest.pop(0)) if rest else End.SUCCEED
    number = int(rest.pop(0)) if end.has_number else 0
    if rest:
        raise ValueError(f"sim: nothing may follow {end}: {rest}")
    return Behaviour(tuple(steps), end, number)
