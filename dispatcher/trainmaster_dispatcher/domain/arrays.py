"""States of the elements of an array as bitmaps, and what they mean for the job. Pure.

A block has the bits of ``BLOCK`` elements; bit ``i`` of block ``b`` is element ``b * BLOCK + i``. An element that has ended stays as
it is: a second report of it, by another attempt or after a lost answer, is not counted.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from trainmaster.protocol.arrays import ArrayCounts, ArrayStop, Span

BLOCK = 32_768
"""Elements of a block: a bitmap has at most 4 KiB."""
_SHOWN_FAILURES = 5


class Block(NamedTuple):
    """Bitmaps of one block. No element is in two of them."""

    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0

    @property
    def ended(self) -> int:
        return self.succeeded | self.failed | self.cancelled

    @property
    def counts(self) -> ArrayCounts:
        return ArrayCounts(self.succeeded.bit_count(), self.failed.bit_count(), self.cancelled.bit_count())

    def with_ended(self, succeeded: int = 0, failed: int = 0, cancelled: int = 0) -> "Block":
        """Return the block after these elements have ended; those that have ended before stay as they are."""
        good = succeeded & ~self.ended
        bad = failed & ~(self.ended | good)
        left = cancelled & ~(self.ended | good | bad)
        return Block(self.succeeded | good, self.failed | bad, self.cancelled | left)

    def since(self, before: "Block") -> "Block":
        """Return the elements that have ended since the block was as ``before``."""
        return Block(*(now & ~old for now, old in zip(self, before, strict=True)))

    def without(self, elements: int) -> "Block":
        """Return the block with those of these elements that have failed or were cancelled as waiting."""
        return Block(self.succeeded, self.failed & ~elements, self.cancelled & ~elements)


def masks(spans: Iterable[Span]) -> dict[int, int]:
    """Return the bits of elements, by block."""
    found: dict[int, int] = {}
    for first, last in spans:
        for block in range(first // BLOCK, last // BLOCK + 1):
            low = max(first - block * BLOCK, 0)
            high = min(last - block * BLOCK, BLOCK - 1)
            found[block] = found.get(block, 0) | ((1 << (high - low + 1)) - 1) << low
    return found


def to_bytes(bits: int) -> bytes:
    """Return a bitmap as it is stored: little-endian, without zero bytes at its end."""
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def from_bytes(stored: bytes) -> int:
    return int.from_bytes(stored, "little")


def spans_of_bits(bits: int, begin: int = 0) -> Iterator[Span]:
    """Yield the ranges of the elements of a bitmap whose first bit is element ``begin``."""
    while bits:
        skipped = (bits & -bits).bit_length() - 1
        bits >>= skipped
        length = (~bits & (bits + 1)).bit_length() - 1
        yield begin + skipped, begin + skipped + length - 1
        bits >>= length
        begin += skipped + length


def spans_of_blocks(bitmaps: Mapping[int, int]) -> Iterator[Span]:
    """Yield the ranges of elements of bitmaps by block, in order; those that go over the end of a block are one."""
    last: Span | None = None
    for block, bits in sorted(bitmaps.items()):
        for span in spans_of_bits(bits, block * BLOCK):
            if last is None:
                last = span
            elif span[0] == last[1] + 1:
                last = (last[0], span[1])
            else:
                yield last
                last = span
    if last is not None:
        yield last


def counts_after(counts: ArrayCounts, before: Mapping[int, Block], changed: Mapping[int, Block]) -> ArrayCounts:
    """Return the numbers of an array with ``counts`` after these of its blocks have changed."""
    total = list(counts)
    for number, block in changed.items():
        old = before.get(number, Block()).counts
        total = [one + new - known for one, new, known in zip(total, block.counts, old, strict=True)]
    return ArrayCounts(*total)


class ArrayVerdict(NamedTuple):
    """The end of a run of an array. ``message``: why it has failed, for people; empty for a success.

    ``is_final``: no retry of the job can change it.
    """

    succeeded: bool
    message: str = ""
    is_final: bool = True


def is_over(count: int, stop: ArrayStop | None, counts: ArrayCounts) -> bool:
    """Return whether no further element has to be run."""
    return counts.ended >= count or _stops(stop, counts)


def _stops(stop: ArrayStop | None, counts: ArrayCounts) -> bool:
    if stop is None:
        return False
    enough = stop.successes is not None and counts.succeeded >= stop.successes
    return enough or (stop.failures is not None and counts.failed >= stop.failures)


def verdict(
    count: int, stop: ArrayStop | None, counts: ArrayCounts, failed: Iterable[Span] = ()
) -> ArrayVerdict | None:
    """Return how an array has ended; None if elements of it still have to be run.

    ``failed``: its failed elements, or the first of them.
    """
    if not is_over(count, stop, counts):
        return None
    if stop is not None and stop.successes is not None and counts.succeeded >= stop.successes:
        return ArrayVerdict(succeeded=True)
    if not counts.failed:
        return ArrayVerdict(succeeded=True)
    named = [element for first, last in failed for element in range(first, min(last, first + _SHOWN_FAILURES) + 1)]
    shown = ", ".join(map(str, named[:_SHOWN_FAILURES])) + (", ..." if counts.failed > _SHOWN_FAILURES else "")
    left = count - counts.ended
    not_run = f"; {left} were not run, as stopOn says" if left else ""
    return ArrayVerdict(succeeded=False, message=f"{counts.failed} of {count} elements failed ({shown}){not_run}")
