"""Bounds the disk space of members' output: the middle of a long file is given back, its first and last parts stay.

Members write to their files themselves, so that output outlives agent and supervisor. A hole in the file keeps all offsets.
Manual page: fallocate(2). Standard library only.
"""

import os
from pathlib import Path

from trainmaster_agent.runtime.local import kernel

MOST_OUTPUT = 32 << 20
"""Bytes of a member's output that stay on this machine: the first and the last half. The dispatcher stores at most as much of it."""
_SLACK = 4 << 20
"""Bytes beyond it that are left until the next look: a hole of less is not worth the call."""
_BLOCK = 1 << 16


def bound_output(path: Path, most: int) -> int:
    """Give back the middle of a file that takes more than ``most`` bytes of disk space; return the file's length.

    A file system without holes leaves the file as it is. Raises OSError for a file that does not exist.
    """
    state = path.stat()
    if state.st_blocks * 512 <= most + _SLACK:
        return state.st_size
    begin = _up(most // 2)
    end = (state.st_size - most // 2) // _BLOCK * _BLOCK
    if end > begin:
        fd = os.open(path, os.O_RDWR)
        try:
            kernel.punch_hole(fd, begin, end - begin)
        finally:
            os.close(fd)
    return state.st_size


def next_data(fd: int, offset: int, size: int) -> tuple[int, int]:
    """Return the begin and the end of the first bytes at or after ``offset`` outside of holes; ``size`` twice if there are none."""
    if os.fstat(fd).st_blocks * 512 >= size:
        return offset, size
    try:
        begin = os.lseek(fd, offset, os.SEEK_DATA)
        return begin, min(size, os.lseek(fd, begin, os.SEEK_HOLE))
    except OSError:
        return size, size


def _up(offset: int) -> int:
    return -(-offset // _BLOCK) * _BLOCK
