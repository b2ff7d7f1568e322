"""The few Linux calls that Python 3.11 does not offer: prctl, timerfd and holes in files. Standard library only.

Manual pages: prctl(2), timerfd_create(2), fallocate(2).
"""

import ctypes
import os
import signal

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_CLOCK_BOOTTIME = 7
_TIMER_ABSTIME = 1
_FALLOC_FL_KEEP_SIZE = 1
_FALLOC_FL_PUNCH_HOLE = 2


class _TimerSetting(ctypes.Structure):
    """struct itimerspec"""

    _fields_ = (
        ("interval_seconds", ctypes.c_long),
        ("interval_nanoseconds", ctypes.c_long),
        ("seconds", ctypes.c_long),
        ("nanoseconds", ctypes.c_long),
    )


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def adopt_orphans() -> None:
    """Make this process the parent of all descendants whose parent ends, so that none escapes it."""
    _check(_LIBC.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0))


def die_with_parent(parent: int) -> None:
    """Request SIGKILL for this process when its parent ends, also if that has happened before this call."""
    _check(_LIBC.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0))
    if os.getppid() != parent:
        os._exit(127)


def set_name(name: str) -> None:
    """Set the name that ``ps`` and ``top`` show; at most 15 bytes are used."""
    _check(_LIBC.prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode("ascii")), 0, 0, 0))


def punch_hole(fd: int, offset: int, length: int) -> bool:
    """Give back the disk space of a part of a file, whose length stays; return False where the file system cannot do that."""
    mode = _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE
    return bool(_LIBC.fallocate(fd, mode, ctypes.c_longlong(offset), ctypes.c_longlong(length)) == 0)


class BootTimer:
    """Makes ``fd`` readable at a time of CLOCK_BOOTTIME, which goes on while the machine sleeps."""

    def __init__(self) -> None:
        self.fd = _check(_LIBC.timerfd_create(_CLOCK_BOOTTIME, os.O_CLOEXEC | os.O_NONBLOCK))

    def arm(self, moment: float | None) -> None:
        """Fire at ``moment``: at once if that is past, never if it is None."""
        nanoseconds = 0 if moment is None else max(1, int(moment * 1e9))
        setting = _TimerSetting(0, 0, nanoseconds // 10**9, nanoseconds % 10**9)
        _check(_LIBC.timerfd_settime(self.fd, _TIMER_ABSTIME, ctypes.byref(setting), None))
