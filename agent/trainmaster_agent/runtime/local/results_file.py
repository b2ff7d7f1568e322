"""The file to which a run's member of rank 0 writes its results, and what it has by the end of the run.

The supervisor keeps it open and reads what it has opened itself: where the supervisor is root and the member is not, the name may
lead elsewhere by then. Standard library only: it runs in supervisors.
"""

import contextlib
import os
from pathlib import Path
from typing import Any

from trainmaster.protocol.results import MOST_RESULTS_BYTES, read_results

_ENDING = ".results"
_OPEN_TO_ALL = Path("/tmp")  # noqa: S108 - the name is new, and not followed where somebody made it before


class ResultsFile:
    """A file of its own for each run. Raises OSError when it cannot be created."""

    def __init__(self, folder: Path, member: str, user: list[int] | None) -> None:
        """``folder``: that of the run. ``user``: ids of the user and the group of the member, if they are not those of the supervisor:
        then the file is among the temporary ones, as that user may not pass through the agent's folders.
        """
        self._member = member
        self._folder = folder
        self.path = folder / f"{member}{_ENDING}"
        if user is not None:
            link, self.path = self.path, _OPEN_TO_ALL / f"trainmaster-{os.urandom(8).hex()}{_ENDING}"
            link.symlink_to(self.path)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        if user is not None:
            os.fchown(self._fd, *user)

    def empty(self) -> None:
        """Drop what an earlier life of the member has left."""
        os.ftruncate(self._fd, 0)

    def read(self) -> tuple[dict[str, Any] | None, str]:
        """Return the results, and a sentence on why they cannot be read; neither if the member has left none."""
        found, wrong = read_results(os.pread(self._fd, MOST_RESULTS_BYTES + 1, 0))
        if os.fstat(self._fd).st_nlink == 0:
            found, wrong = None, "cannot be read: their file was removed or replaced, and not written to"
        return found, f"the results of {self._member} {wrong}" if wrong else ""

    def remove(self) -> None:
        """Remove the file where it is not in the run's own folder."""
        remove_outside(self._folder)


def remove_outside(folder: Path) -> None:
    """Remove the files for results that are not in a run's own folder; also for an agent, once the supervisor has died."""
    for link in folder.glob(f"*{_ENDING}"):
        with contextlib.suppress(OSError):  # most are no links
            link.readlink().unlink()
