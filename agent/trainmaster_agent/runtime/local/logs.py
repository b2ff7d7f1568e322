"""Reads members' output from their files. Blocking."""

import os
from pathlib import Path

from trainmaster_agent.runtime.local.output_bounds import next_data
from trainmaster_agent.runtime.port import LogSlice, RunStatus


def read(path: Path, offset: int, limit: int, *, over: bool) -> LogSlice:
    """Return at most ``limit`` bytes from ``offset``, from the end if negative; ``over``: no more will be written.

    What was given back of a long file is passed over: the offset of the bytes says so.
    """
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return LogSlice(0, b"", over)
    try:
        size = os.fstat(fd).st_size
        wanted = max(0, size + offset) if offset < 0 else min(offset, size)
        start, end = next_data(fd, wanted, size)
        data = os.pread(fd, min(limit, end - start), start)
    finally:
        os.close(fd)
    return LogSlice(start, data, over and start + len(data) >= size)


def member_is_over(status: RunStatus, role: str, index: int) -> bool:
    """Return whether a member has ended. Processes it left behind may write until the run itself has ended."""
    if status.state.is_terminal:
        return True
    return any(
        member.role == role and member.index == index and member.state in ("succeeded", "stopped")
        for member in status.members
    )
