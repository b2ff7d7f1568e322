"""Log lines about an agent's contact with the dispatcher: that it is there, why it is not, and how long it was not."""

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)

_AGAIN_SECONDS = 60.0
"""Time after which the same obstacle is logged again."""


class ContactLog:
    """Logs changes of the contact, not each call. The same obstacle is logged once a minute."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._is_there = self._was_there = False
        self._lost_at: float | None = None
        self._obstacle = ""
        self._logged_at = 0.0

    def failed(self, obstacle: str) -> None:
        """Take note of the failure of a call, of whichever kind."""
        now = self._clock()
        if obstacle != self._obstacle or now - self._logged_at >= _AGAIN_SECONDS:
            log.warning("%s", obstacle)
            self._obstacle, self._logged_at = obstacle, now

    def lost(self) -> None:
        """Take note of a sync that the dispatcher has not answered."""
        if self._lost_at is None:
            self._lost_at = self._clock()
        self._is_there = False

    def answered(self, session: str) -> None:
        """Take note of a sync that the dispatcher has answered."""
        if self._is_there:
            return
        if self._was_there and self._lost_at is not None:
            log.info("in contact with the dispatcher again, after %.0f s", self._clock() - self._lost_at)
        else:
            log.info("in contact with the dispatcher, session %s", session)
        self._is_there, self._was_there, self._lost_at = True, True, None
