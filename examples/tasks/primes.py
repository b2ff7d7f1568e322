"""Primes below ten million, counted in a hundred thousand pieces; and their sum, from what the pieces have left.

``count`` is called for each element of the array by workers that have imported this file once. ``python primes.py`` adds up.
"""

import json
import os
import tempfile
from pathlib import Path

ELEMENTS, WIDTH = 100_000, 100
FOLDER = Path(tempfile.gettempdir()) / f"trainmaster-primes-{os.getuid()}"
_ROOT = int((ELEMENTS * WIDTH) ** 0.5) + 1


def _small_primes() -> list[int]:
    found: list[int] = []
    for number in range(2, _ROOT + 1):
        if all(number % prime for prime in found if prime * prime <= number):
            found.append(number)
    return found


_PRIMES = _small_primes()
_FILE = None


def is_prime(number: int) -> bool:
    for prime in _PRIMES:
        if prime * prime > number:
            return number > 1
        if number % prime == 0:
            return False
    return number > 1


def count(element: int) -> None:
    """Count the primes of one piece, and note their number in a file of this process."""
    global _FILE
    if _FILE is None:
        FOLDER.mkdir(exist_ok=True)
        _FILE = (FOLDER / f"{os.uname().nodename}-{os.getpid()}").open("a", buffering=1)
    _FILE.write(f"{element} {sum(map(is_prime, range(element * WIDTH, (element + 1) * WIDTH)))}\n")


def main() -> None:
    """Add up the pieces. One that was counted twice, as its worker was killed in between, is taken once."""
    pieces: dict[str, int] = {}
    for file in FOLDER.iterdir():
        for line in file.read_text().splitlines():
            element, _, number = line.partition(" ")
            pieces[element] = int(number)
        file.unlink()
    FOLDER.rmdir()
    found = {"pieces": len(pieces), "primes": sum(pieces.values())}
    print(found)
    if path := os.environ.get("TRAINMASTER_RESULTS"):
        Path(path).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
