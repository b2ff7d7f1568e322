"""Figures of a schedule, whoever made it: waits, bounded slowdown, and what each user sees of them.

D. Feitelson, L. Rudolph, U. Schwiegelshohn, K. Sevcik and P. Wong, "Theory and Practice in Parallel Job Scheduling", JSSPP 1997:
bounded slowdown, here with the 10 seconds of ``tests.textbook_easy``.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean

from bench.swf import LoggedJob
from tests.textbook_easy import bounded_slowdown


@dataclass(frozen=True, slots=True)
class Figures:
    """Waits are in seconds; the 95th percentile is the shortest wait that 95 % of the jobs do not exceed."""

    mean_wait: float
    wait_95: float
    longest_wait: float
    mean_bounded_slowdown: float
    mean_wait_by_user: dict[int, float]
    jobs_by_user: dict[int, int]

    @classmethod
    def of(cls, jobs: Sequence[LoggedJob], starts: Mapping[int, float]) -> "Figures":
        """Return the figures of a schedule. Raises ValueError for no jobs, KeyError for one that has not started."""
        if not jobs:
            raise ValueError("there are no jobs; the figures of a schedule need one at least")
        by_user: defaultdict[int, list[float]] = defaultdict(list)
        for job in jobs:
            by_user[job.user].append(starts[job.number] - job.submit)
        waits = sorted(wait for of_user in by_user.values() for wait in of_user)
        return cls(
            mean_wait=fmean(waits),
            wait_95=waits[ceil(0.95 * len(waits)) - 1],
            longest_wait=waits[-1],
            mean_bounded_slowdown=fmean(bounded_slowdown(starts[job.number] - job.submit, job.run) for job in jobs),
            mean_wait_by_user={user: fmean(of_user) for user, of_user in sorted(by_user.items())},
            jobs_by_user={user: len(of_user) for user, of_user in sorted(by_user.items())},
        )

    def changes(self, other: "Figures", floor: float = 60.0, fewest: int = 10) -> dict[int, float]:
        """Return how many times as long as in ``other`` each user's mean wait is.

        Mean waits below ``floor`` seconds count as ``floor``, and users with less than ``fewest`` jobs are left out, so that neither
        those who hardly wait nor single jobs decide.
        """
        return {
            user: max(wait, floor) / max(other.mean_wait_by_user[user], floor)
            for user, wait in self.mean_wait_by_user.items()
            if self.jobs_by_user[user] >= fewest
        }

    def worst_change(self, other: "Figures", floor: float = 60.0, fewest: int = 10) -> tuple[int, float]:
        """Return the user with the largest of the ``changes``, and how large it is. Raises ValueError if no user is left."""
        ratios = self.changes(other, floor, fewest)
        if not ratios:
            raise ValueError(f"no user has {fewest} jobs; a change is that of a user with as many at least")
        worst = max(ratios, key=lambda user: ratios[user])
        return worst, ratios[worst]
