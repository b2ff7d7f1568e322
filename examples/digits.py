"""The handwritten digits that scikit-learn ships (1797 pictures of 8x8 pixels), read without importing scikit-learn."""

import importlib.util
import os
from pathlib import Path

# A member uses the one CPU, or the part of one, that it asks for. OpenBLAS reads this when numpy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray

Pictures = NDArray[np.float32]
"""Shape (n, 64), each pixel from 0 to 1."""
Labels = NDArray[np.int64]
"""Shape (n,), the digits from 0 to 9."""

CLASSES = 10
_HELD_OUT = 360


def load() -> tuple[Pictures, Labels, Pictures, Labels]:
    """Return pictures and labels to train with, then those held out for the test; the same split every time.

    Raises FileNotFoundError when scikit-learn is not installed.
    """
    found = importlib.util.find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError("the digits come with scikit-learn, which is not installed: pip install scikit-learn")
    path = Path(found.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(path, delimiter=",", dtype=np.float32)
    table = table[np.random.default_rng(0).permutation(len(table))]
    pictures, labels = table[:, :64] / np.float32(16), table[:, 64].astype(np.int64)
    return pictures[:-_HELD_OUT], labels[:-_HELD_OUT], pictures[-_HELD_OUT:], labels[-_HELD_OUT:]
