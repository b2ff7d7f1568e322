"""One stage of the pipeline: prepare the pictures, train, evaluate a part of the test pictures, or report the scores.

The stages hand over files, in a folder of this machine that stands for a shared file system.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import digits
import numpy as np
from numpy.typing import NDArray

STAGES = ("prepare", "train", "evaluate", "report")
PARTS, STEPS, RATE = 3, 400, 0.5
FOLDER = Path(tempfile.gettempdir()) / f"trainmaster-pipeline-{os.getuid()}"


def write(name: str, **arrays: NDArray[np.float32] | NDArray[np.int64]) -> None:
    """Write arrays so that whoever reads them has all of them."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=FOLDER, suffix=".npz", delete=False) as file:
        np.savez(file, **arrays)
    Path(file.name).rename(FOLDER / f"{name}.npz")


def prepare() -> str:
    pictures, labels, test_pictures, test_labels = digits.load()
    write("data", pictures=pictures, labels=labels, test_pictures=test_pictures, test_labels=test_labels)
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


def evaluate(part: int) -> str:
    data = np.load(FOLDER / "data.npz")
    weights = np.mean([np.load(path)["weights"] for path in sorted(FOLDER.glob("weights-*.npz"))], axis=0)
    right = (data["test_pictures"][part::PARTS] @ weights).argmax(axis=1) == data["test_labels"][part::PARTS]
    write(f"score-{part}", right=right.astype(np.int64))
    return f"part {part}: {right.mean():.3f}"


def report() -> str:
    right = np.concatenate([np.load(FOLDER / f"score-{part}.npz")["right"] for part in range(PARTS)])
    return f"test accuracy: {right.mean():.3f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("part", nargs="?", type=int, default=0)
    options = parser.parse_args()
    match options.stage:
        case "prepare":
            said = prepare()
        case "train":
            said = train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        case "evaluate":
            said = evaluate(options.part)
        case _:
            said = report()
    print(said, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
