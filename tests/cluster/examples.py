"""Programs of other projects' example manifests, as simulated nodes play them: shorter, with the exit codes that they mean."""

import re
from collections.abc import Sequence
from typing import Any

INDEX = "batch.kubernetes.io/job-completion-index"
SECONDS = "2"
"""How long a program takes that succeeds."""
FAILURE_SECONDS = "4"
"""How long one takes that fails: where some of a Job have to succeed, these are not too late."""
LONG_SECONDS = "20"
"""How long one takes that its manifest lets wait for others, as by ``sleep 10000``: they have come to their end by then."""
_SERVES = re.compile(r"sleep (?:infinity|\d+d)|while true|\bsshd\b|\bray start\b|\bnginx\b|\btail -[fF]\b")
_WAITS_LONG = re.compile(r"\bsleep \d{4,}")
_BRANCH = re.compile(r"""== "?(\d+)"?.*?\bexit[ (]+(\d+)""", re.DOTALL)
_OTHERWISE = re.compile(r"\belse\b.*?\bexit[ (]+(\d+)", re.DOTALL)
_EVEN = re.compile(r"% 2 == 0.*?\bexit[ (]+(\d+)", re.DOTALL)
_EXIT = re.compile(r"\bexit[ (]+(\d+)")


def words_of_example(pod: dict[str, Any], container: dict[str, Any]) -> Sequence[str]:
    """Return the words of ``tests.cluster.behaviour`` for a container of an example.

    Servers, and all containers of pods that restart, run until they are asked to end. Other programs end soon, those that pick an exit
    code by their index with that one.
    """
    if not re.fullmatch(r"[\w./:@-]+", container["image"]) or "non-existing" in container["image"]:
        return ["image-error"]
    text = " ".join([*(container.get("command") or ()), *(container.get("args") or ())])
    if pod["spec"].get("restartPolicy") == "Always" or _SERVES.search(text):
        return ["run"]
    code = _exit_code(text, _index(pod))
    if code:
        return ["sleep", FAILURE_SECONDS, "exit", str(code)]
    return ["sleep", LONG_SECONDS if code is None and _WAITS_LONG.search(text) else SECONDS, "succeed"]


def _index(pod: dict[str, Any]) -> int:
    meta = pod["metadata"]
    return int((meta.get("annotations") or {}).get(INDEX) or (meta.get("labels") or {}).get(INDEX) or 0)


def _exit_code(text: str, index: int) -> int | None:
    """Return the exit code that a program names for this index; None if it names none."""
    if even := _EVEN.search(text):
        return int(even[1]) if index % 2 == 0 else None
    branches = {int(which): int(code) for which, code in _BRANCH.findall(text)}
    if not branches:
        plain = _EXIT.search(text)
        return int(plain[1]) if plain else None
    otherwise = _OTHERWISE.search(text)
    return branches.get(index, int(otherwise[1]) if otherwise else None)
