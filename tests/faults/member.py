"""What the jobs of the fault tests run: ``python -I -S member.py FOLDER SECONDS [FAILURES]``.

Holds an exclusive lock on a file of its job and member for its whole life, and writes a line where it finds it taken: two copies
of a member at one instant would be seen here. Fails with exit code 3 in its first FAILURES attempts.
"""

import fcntl
import os
import sys
import time


def main() -> None:
    folder, seconds = sys.argv[1], float(sys.argv[2])
    failures = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    env = os.environ
    identity = f"{env['TRAINMASTER_JOB_ID']}.{env['TRAINMASTER_ROLE']}-{env['TRAINMASTER_ROLE_INDEX']}"
    run = env["TRAINMASTER_RUN_ID"]
    lock = os.open(os.path.join(folder, identity + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)  # noqa: PTH118 - few imports
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        _note(folder, "overlaps", f"{identity} {run} met {os.pread(lock, 100, 0).decode()}")
        fcntl.flock(lock, fcntl.LOCK_EX)
    os.pwrite(lock, f"{run} of process {os.getpid()}".ljust(100).encode(), 0)
    _note(folder, identity + ".starts", run)
    time.sleep(seconds)
    _note(folder, identity + ".ends", run)
    sys.exit(3 if int(env["TRAINMASTER_ATTEMPT"]) <= failures else 0)


def _note(folder: str, name: str, line: str) -> None:
    out = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)  # noqa: PTH118 - few imports
    os.write(out, line.encode() + b"\n")
    os.close(out)


if __name__ == "__main__":
    main()
