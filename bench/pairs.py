"""Compares this checkout with an earlier revision by any other benchmark.

    python -m bench.pairs --base REVISION [--rounds 3] [--turns] [--figures REGEX] -- bench.cycle --cases standard,mixed

In each round the benchmark runs in both trees at the same time, each on a core of its own, and the cores are swapped from round to
round: the speed of a machine that is shared with others changes by half within minutes, for both by as much. With ``--turns`` one
runs after the other on all cores, in the order base head head base base head: for what needs several cores. Both use the packages
of this environment. Of each figure in the benchmark's JSON that both have, the values of each round, and by how many percent the
mean of the head differs.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_IMPORT_ROOTS = ("", "dispatcher", "agent", "migrations")


def figures(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a JSON value by path, such as ``cases.mixed.rss_bytes``."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from figures(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from figures(inner, f"{path}[{index}]")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, float(value)


def last_json(text: str) -> Any:
    """Return the JSON object that a benchmark has printed last. Raises ValueError."""
    begin = 0 if text.startswith("{") else text.find("\n{") + 1
    if not text.startswith("{", begin):
        raise ValueError("the benchmark has printed no JSON object")
    while (later := text.find("\n{", begin)) >= 0:
        begin = later + 1
    return json.loads(text[begin:])


class Tree:
    """A checkout, with the figures of its benchmark."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self._folder = folder
        self.found: dict[str, list[float]] = {}

    def start(self, words: list[str], core: int | None) -> "subprocess.Popen[str]":
        path = os.pathsep.join(str(self._folder / root) for root in _IMPORT_ROOTS)
        pinned = [] if core is None else ["taskset", "--cpu-list", str(core)]
        return subprocess.Popen(
            [*pinned, sys.executable, "-P", "-m", *words],
            cwd=self._folder,
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            text=True,
        )

    def take(self, process: "subprocess.Popen[str]") -> None:
        """Wait for a benchmark and keep its figures. Raises RuntimeError where it fails."""
        out, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"the benchmark failed in {self.name} with {process.returncode}")
        for name, value in figures(last_json(out)):
            self.found.setdefault(name, []).append(value)


def run(base: Tree, head: Tree, words: list[str], rounds: int, *, turns: bool) -> None:
    for number in range(rounds):
        order = (base, head) if number % 2 == 0 else (head, base)
        if turns:
            for tree in order:
                tree.take(tree.start(words, None))
        else:
            started = [(tree, tree.start(words, core)) for core, tree in enumerate(order)]
            for tree, process in started:
                tree.take(process)
        print(f"round {number + 1} of {rounds} is over", file=sys.stderr, flush=True)


def compared(base: Tree, head: Tree, wanted: str) -> dict[str, Any]:
    out = {}
    for name in base.found.keys() & head.found.keys():
        before, after = base.found[name], head.found[name]
        if re.search(wanted, name) and fmean(before):
            percent = round(100 * (fmean(after) / fmean(before) - 1), 1)
            out[name] = {"base": before, "head": after, "percent": percent}
    return dict(sorted(out.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True, help="a revision, such as the last release")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", action="store_true", help="one after the other, on all cores")
    parser.add_argument("--figures", default="per_second|p50|p99|rss", help="which figures: %(default)s")
    parser.add_argument("benchmark", nargs="+", help="after --: a module, such as bench.cycle, and its options")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trainmaster-bench-") as folder:
        subprocess.run(["git", "clone", "--quiet", str(ROOT), folder], check=True)
        subprocess.run(["git", "-C", folder, "checkout", "--quiet", options.base], check=True)
        base, head = Tree("base", Path(folder)), Tree("head", ROOT)
        run(base, head, options.benchmark, options.rounds, turns=options.turns)
    print(
        json.dumps(
            {
                "bench": "pairs",
                "benchmark": options.benchmark,
                "turns": options.turns,
                "figures": compared(base, head, options.figures),
            }
        )
    )


if __name__ == "__main__":
    main()
