"""One stage of the pipeline: prepare the pictures, train, evaluate a part of the test pictures, or report the scores.

The stages hand over files, in a folder of this machine that stands for a shared file system, and small values as results.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import digits
import numpy as np
from numpy.typing import NDArray

STAGES = ("prepare", "train", "evaluate", "report")
STEPS, RATE = 400, 0.5
FOLDER = Path(tempfile.gettempdir()) / f"trainmaster-pipeline-{os.getuid()}"


def write(name: str, **arrays: NDArray[np.float32] | NDArray[np.int64]) -> None:
    """Write arrays so that whoever reads them has all of them."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=FOLDER, suffix=".npz", delete=False) as file:
        np.savez(file, **arrays)
    Path(file.name).rename(FOLDER / f"{name}.npz")


def give(**results: Any) -> None:
    """Return small values to the workflow."""
    Path(os.environ["TRAINMASTER_RESULTS"]).write_text(json.dumps(results))


def prepare(parts: int) -> str:
    pictures, labels, test_pictures, test_labels = digits.load()
    write("data", pictures=pictures, labels=labels, test_pictures=test_pictures, test_labels=test_labels)
    give(parts=[f"{part}/{parts}" for part in range(parts)])
    return f"prepared {len(labels)} pictures, and {len(test_labels)} for the test"


def train(rank: int, members: int) -> str:
    data = np.load(FOLDER / "data.npz")
    pictures, labels = data["pictures"][rank::members], data["labels"][rank::members]
    wanted = np.eye(digits.CLASSES, dtype=np.float32)[labels]
    weights = np.zeros((pictures.shape[1], digits.CLASSES), dtype=np.float32)
    for _ in range(STEPS):
        scores = pictures @ weights
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        weights -= RATE * (pictures.T @ (chances - wanted)) / len(labels)
    write(f"weights-{rank}", weights=weights)
    return f"member {rank} of {members} has trained on {len(labels)} pictures"


def evaluate(part: str) -> str:
    number, parts = map(int, part.split("/"))
    data = np.load(FOLDER / "data.npz")
    weights = np.mean([np.load(path)["weights"] for path in sorted(FOLDER.glob("weights-*.npz"))], axis=0)
    right = (data["test_pictures"][number::parts] @ weights).argmax(axis=1) == data["test_labels"][number::parts]
    give(right=int(right.sum()), of=len(right))
    return f"part {part}: {right.mean():.3f}"


def report(scores: str) -> str:
    found = json.loads(scores)
    return f"test accuracy: {sum(one['right'] for one in found) / sum(one['of'] for one in found):.3f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("value", nargs="?", default="")
    options = parser.parse_args()
    match options.stage:
        case "prepare":
            said = prepare(int(options.value))
        case "train":
            said = train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        case "evaluate":
            said = evaluate(options.value)
        case _:
            said = report(options.value)
    print(said, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
