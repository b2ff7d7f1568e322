"""One point of a sweep: softmax regression on the digits with one learning rate, for some two seconds."""

import argparse
import sys

import digits
import numpy as np


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--steps", type=int, default=8000)
    options = parser.parse_args()
    pictures, labels, test_pictures, test_labels = digits.load()
    wanted = np.eye(digits.CLASSES, dtype=np.float32)[labels]
    weights = np.zeros((pictures.shape[1], digits.CLASSES), dtype=np.float32)
    for step in range(1, options.steps + 1):
        scores = pictures @ weights
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        weights -= options.rate * (pictures.T @ (chances - wanted)) / len(labels)
        if step % max(1, options.steps // 4) == 0:
            print(f"step {step}/{options.steps}", flush=True)
    score = float(((test_pictures @ weights).argmax(axis=1) == test_labels).mean())
    print(f"rate {options.rate:g}: test accuracy {score:.3f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
