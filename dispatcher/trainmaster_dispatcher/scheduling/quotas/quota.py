"""Quota: what each queue uses of each flavor, and whether a start would exceed a limit or a borrowing limit, or use
what others keep.

A queue's usage counts for all queues above it. Of a flavor a queue may have at most

    min(limit, guaranteed + borrowing limit)

and, of what its parent may have, what the parent's other queues do not keep: ``max(0, guaranteed - lending limit -
used)`` each. At the top is the capacity of the clusters. The recursion is that of the hierarchical cohorts of Kueue
(KEP-79), with real capacity in place of the sum of nominal quotas: guarantees above it are then worth less, and nothing
else breaks.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from trainmaster.protocol.reasons import Token
from trainmaster_dispatcher.domain.redaction import protected
from trainmaster_dispatcher.scheduling.state.declared_objects import Queue
from trainmaster_dispatcher.scheduling.state.flavors import Amounts, Flavor, Quota
from trainmaster_dispatcher.scheduling.state.state import SchedulerState

_NONE = Quota()
_NOTHING: Mapping[Flavor, int] = {}
_NO_PAST: Mapping[int, float] = {}
_NO_PAST_OF_USERS: Mapping[tuple[int, str], float] = {}
_NO_RIGHT = 1e-9
"""The share of a queue that uses nothing beyond its guarantee and lacks nothing of it: it comes after queues that lack some."""


class Obstacle(NamedTuple):
    """The limit that a start would exceed: the token, the queue, and a sentence without its full stop."""

    token: Token
    queue: Queue
    sentence: str


@dataclass(slots=True)
class Account:
    """The usage of a queue and all queues below it."""

    used: Amounts
    running: int = 0


def _add_to(account: Account, charge: Mapping[Flavor, int], running: int, sign: int = 1) -> None:
    used = account.used
    for flavor, amount in charge.items():
        used[flavor] = used.get(flavor, 0) + sign * amount
    account.running += sign * running


class QuotaLimits:
    """The values that follow from the quotas of all queues alone; built again when any of them changes."""

    def __init__(self, state: SchedulerState) -> None:
        self.state = state
        self.roots = [queue for queue in state.queues.values() if queue.parent_id is None]
        self.lending_limited: dict[int | None, dict[Flavor, list[Queue]]] = {}
        """By parent and flavor: the queues that do not lend all of their guarantee."""
        self.guaranteed = {
            flavor for queue in state.queues.values() for flavor, quota in queue.quotas.items() if quota.guaranteed
        }
        """Flavors on which any queue has a guarantee."""
        self.guarantees = _guarantees(state, self.guaranteed)
        for queue in state.queues.values():
            for flavor, quota in queue.quotas.items():
                if quota.kept:
                    self.lending_limited.setdefault(queue.parent_id, {}).setdefault(flavor, []).append(queue)
        self.narrowed_kept = sorted(
            {flavor for flavors in self.lending_limited.values() for flavor in flavors if flavor.product or flavor.kind}
        )
        """Flavors with a product or cluster kind of which any queue keeps something for itself."""
        self.owed = {queue_id for queue_id, _ in self.guarantees}
        """Queues that have any guarantee."""
        self.limits_users = any(queue.limits_users for queue in state.queues.values())
        """Whether any queue limits what one user may have."""
        self._limits: dict[int, tuple[tuple[Queue, tuple[tuple[Flavor, Quota, int], ...]], ...]] = {}
        self._measures: dict[int, dict[Flavor, tuple[float, int | None]]] = {}

    def limits(self, queue_id: int) -> tuple[tuple[Queue, tuple[tuple[Flavor, Quota, int], ...]], ...]:
        """Return the queue and those above it that have any limit, also of users, the nearest first, with their flavors and the
        most that may be used."""
        found = self._limits.get(queue_id)
        if found is None:
            every = (
                (
                    queue,
                    tuple(
                        (flavor, quota, quota.most) for flavor, quota in queue.quotas.items() if quota.most is not None
                    ),
                )
                for queue in self.state.ancestry(queue_id)
            )
            found = self._limits[queue_id] = tuple(
                (queue, flavors)
                for queue, flavors in every
                if flavors or queue.max_running is not None or queue.limits_users
            )
        return found

    def measures(self, queue: Queue) -> dict[Flavor, tuple[float, int | None]]:
        """Return, by flavor, what ``measure`` has found for a queue so far."""
        found = self._measures.get(queue.id)
        if found is None:
            found = self._measures[queue.id] = {}
        return found

    def measure(self, queue: Queue, flavor: Flavor) -> tuple[float, int | None]:
        """Return the weight by which a queue's share of a flavor is counted, and its guarantee if any queue has one on
        the flavor."""
        measures = self.measures(queue)
        found = measures.get(flavor)
        if found is None:
            quota = queue.quotas.get(flavor)
            weight = queue.weight if quota is None or quota.weight is None else quota.weight
            guarantee = self.guarantees.get((queue.id, flavor), 0) if flavor in self.guaranteed else None
            found = measures[flavor] = weight, guarantee
        return found


@lru_cache(maxsize=4096)
def _over(path: str, flavor: Flavor, quota: Quota, used: int, need: int) -> tuple[Token, str]:
    """Return the token and sentence of a queue's limit or borrowing limit that ``need`` more than ``used`` would break.

    Cached: a job that waits for quota waits for the same cycle after cycle.
    """
    needs = f"this job needs {flavor.format(need)} more"
    if quota.limit is not None and used + need > quota.limit:
        uses = f"uses {flavor.format(used)} of its {flavor.format(quota.limit)} {flavor}"
        uses = protected(uses, path, f"has too little {flavor} left")
        return Token.QUEUE_LIMIT, f"queue {path} {uses}; {needs}"
    own, borrowing = flavor.format(quota.guaranteed), flavor.format(quota.borrowing or 0)
    uses = f"uses {flavor.format(used)} {flavor}; {own} are guaranteed to it and it may borrow {borrowing}"
    uses = protected(uses, path, f"may not borrow enough {flavor}")
    return Token.BORROWING_LIMIT, f"queue {path} {uses}; {needs}"


@lru_cache(maxsize=4096)
def _over_of_user(path: str, user: str, running: int, most: int) -> str:
    """Return the sentence of a limit of users. Cached, as those of queues."""
    runs = protected(f"runs {running} of at most {most} jobs", path, "runs as many jobs as it may")
    return f"user {user} {runs} in queue {path}"


@lru_cache(maxsize=4096)
def _beyond_of_user(path: str, user: str, flavor: Flavor, used: int, need: int, most: int) -> str:
    """Return the sentence of a limit of users on a resource. Cached, as those of queues."""
    uses = f"uses {flavor.format(used)} of the {flavor.format(most)} {flavor} that each user may have"
    uses = protected(uses, path, f"may not have enough {flavor} more")
    return f"user {user} {uses} in queue {path}; this job needs {flavor.format(need)} more"


def past_shares(state: SchedulerState, now: float) -> Mapping[int, float]:
    """Return, by queue, the past usage that counts now."""
    return _NO_PAST if state.past is None else state.past.shares(now)


def overpromised(tree: QuotaLimits, capacity: Mapping[Flavor, int]) -> dict[int, list[str]]:
    """Return, by queue, where its guarantee, or the sum of those of all top queues, exceeds the capacity. This is
    allowed, but such a guarantee is worth less."""
    out: dict[int, list[str]] = {}
    for flavor in sorted(tree.guaranteed):
        there = capacity.get(flavor, 0)
        has = f"the clusters have {flavor.format(there)}"
        for queue in tree.state.queues.values():
            own = tree.guarantees.get((queue.id, flavor), 0)
            if own > there:
                out.setdefault(queue.id, []).append(f"{flavor.format(own)} {flavor} are guaranteed to it, {has}")
        tops = [queue for queue in tree.roots if tree.guarantees.get((queue.id, flavor), 0)]
        together = sum(tree.guarantees[queue.id, flavor] for queue in tops)
        if together > there and len(tops) > 1:
            for queue in tops:
                text = f"{flavor.format(together)} {flavor} are guaranteed to it and other queues together, {has}"
                out.setdefault(queue.id, []).append(text)
    return out


def past_shares_of_users(state: SchedulerState, now: float) -> Mapping[tuple[int, str], float]:
    """Return, by queue and user, the past usage that counts now."""
    return _NO_PAST_OF_USERS if state.past_of_users is None else state.past_of_users.shares(now)


class QuotaTree:
    """The accounts of all queues, and of the users of each. ``capacity``: what the clusters have of each flavor. ``past``: past
    usage of queues; ``past_of_users``: of users, by queue and user.
    """

    def __init__(
        self,
        state: SchedulerState,
        limits: QuotaLimits,
        capacity: Mapping[Flavor, int],
        past: Mapping[int, float] = _NO_PAST,
        past_of_users: Mapping[tuple[int, str], float] = _NO_PAST_OF_USERS,
    ) -> None:
        self.state = state
        self.capacity = capacity
        self.past = past
        self.past_of_users = past_of_users
        self.tree = limits
        self._accounts: dict[int, Account] = {}
        self._users: dict[tuple[int, str], Account] = {}
        """By queue and user: what the user's runs in the queue itself use; ``running`` counts those in the queues below it, too."""
        self._limited: dict[tuple[int, str], Amounts] = {}
        """By queue and user: what the user's runs in the queue and all below it use of what the queue limits for users."""
        self._count_running()
        for (queue_id, user), many in state.running_by.items():
            self._add_user(queue_id, user, state.flavors.charge(state.used_by.get((queue_id, user), {})), many)

    def _count_running(self) -> None:
        """Count what runs in each queue, there and in the queues above it: for all children of a queue at once."""
        state, charge_of = self.state, self.state.flavors.charge
        above: dict[int, Account] = {}
        for queue_id, many in state.running.items():
            charge = charge_of(state.used.get(queue_id, {}))
            queue = state.queues.get(queue_id)
            if queue is None:
                continue
            _add_to(self.account(queue_id), charge, many)
            if queue.parent_id is not None:
                _add_to(above.setdefault(queue.parent_id, Account({})), charge, many)
        for queue_id, sums in above.items():
            self.add(queue_id, sums.used, sums.running)

    def account(self, queue_id: int) -> Account:
        account = self._accounts.get(queue_id)
        if account is None:
            account = self._accounts[queue_id] = Account({})
        return account

    def used(self, queue_id: int, flavor: Flavor) -> int:
        account = self._accounts.get(queue_id)
        return 0 if account is None else account.used.get(flavor, 0)

    def add(self, queue_id: int, charge: Mapping[Flavor, int], running: int = 1, sign: int = 1, user: str = "") -> None:
        """Charge runs to the queue and all queues above it, and to their user there; ``sign`` -1 removes them."""
        if user:
            self._add_user(queue_id, user, charge, running, sign)
        for queue in self.state.ancestry(queue_id):
            _add_to(self.account(queue.id), charge, running, sign)

    def _add_user(self, queue_id: int, user: str, charge: Mapping[Flavor, int], running: int, sign: int = 1) -> None:
        _add_to(self._of_user(queue_id, user), charge, running, sign)
        if self.tree.limits_users:
            for queue in self.state.ancestry(queue_id):
                if queue.id != queue_id:
                    self._of_user(queue.id, user).running += sign * running
                if queue.limits_per_user:
                    amounts = self._limited.setdefault((queue.id, user), {})
                    for flavor in queue.limits_per_user.keys() & charge.keys():
                        amounts[flavor] = amounts.get(flavor, 0) + sign * charge[flavor]

    def _limited_of(self, queue: Queue, user: str, flavor: Flavor) -> int:
        """Return what a user's runs in a queue and all below it use of a resource that the queue limits for users."""
        return self._limited.get((queue.id, user), _NOTHING).get(flavor, 0)

    def _of_user(self, queue_id: int, user: str) -> Account:
        account = self._users.get((queue_id, user))
        if account is None:
            account = self._users[queue_id, user] = Account({})
        return account

    def guarantee(self, queue: Queue, flavor: Flavor) -> int:
        """Return the guarantee of a queue; where it declares none itself, the sum of those of the queues below it."""
        return self.tree.guarantees.get((queue.id, flavor), 0)

    # Limits

    def obstacle(self, queue_id: int, charge: Mapping[Flavor, int], runs: int = 1, user: str = "") -> Obstacle | None:
        """Return what a start with this charge would exceed now, the nearest queue first; None if nothing.

        ``runs``: 0 if a run grows that is counted already. ``user``: who submitted the job; without one, limits of users do not count.
        """
        if user and self.tree.limits_users:
            for queue in self.state.ancestry(queue_id):
                most_runs, running = queue.max_running_per_user, self._of_user(queue.id, user).running
                if runs and most_runs is not None and running >= most_runs:
                    return Obstacle(Token.USER_LIMIT, queue, _over_of_user(queue.path, user, running, most_runs))
                for flavor, most in queue.limits_per_user.items():
                    need, used = charge.get(flavor, 0), self._limited_of(queue, user, flavor)
                    if need and used + need > most:
                        text = _beyond_of_user(queue.path, user, flavor, used, need, most)
                        return Obstacle(Token.USER_LIMIT, queue, text)
        for queue, limits in self.tree.limits(queue_id):
            account = self.account(queue.id)
            for flavor, quota, most in limits:
                need = charge.get(flavor, 0)
                if need and account.used.get(flavor, 0) + need > most:
                    token, sentence = _over(queue.path, flavor, quota, account.used.get(flavor, 0), need)
                    return Obstacle(token, queue, sentence)
            if runs and queue.max_running is not None and account.running >= queue.max_running:
                runs_now = f"{account.running} of at most {queue.max_running} jobs"
                text = protected(runs_now, queue.path, "as many jobs as it may")
                return Obstacle(Token.QUEUE_LIMIT, queue, f"queue {queue.path} runs {text}")
        return self._kept_from(self.state.ancestry(queue_id), charge) if self.tree.lending_limited else None

    def usage_under_limits(self, queue_id: int, user: str = "") -> tuple[int, ...]:
        """Return everything that ``obstacle`` depends on for a queue and a user except the charge, as long as no queue changes.

        For a tree in which no queue keeps anything for itself.
        """
        usage = []
        if user and self.tree.limits_users:
            for queue in self.state.ancestry(queue_id):
                usage.append(self._of_user(queue.id, user).running)
                usage += [self._limited_of(queue, user, flavor) for flavor in queue.limits_per_user]
        for queue, limits in self.tree.limits(queue_id):
            account = self.account(queue.id)
            usage += [account.used.get(flavor, 0) for flavor, _, _ in limits]
            usage.append(account.running)
        return tuple(usage)

    def max_starts(self, queue_id: int, charge: Mapping[Flavor, int], most: int, user: str = "") -> int:
        """Return how many starts with this charge, up to ``most``, exceed nothing one after the other.

        0 if queues keep something for themselves, which has to be checked one by one.
        """
        if self.tree.lending_limited:
            return 0
        if user and self.tree.limits_users:
            for queue in self.state.ancestry(queue_id):
                if queue.max_running_per_user is not None:
                    most = min(most, queue.max_running_per_user - self._of_user(queue.id, user).running)
                for flavor, allowed in queue.limits_per_user.items():
                    if need := charge.get(flavor, 0):
                        most = min(most, (allowed - self._limited_of(queue, user, flavor)) // need)
        for queue, limits in self.tree.limits(queue_id):
            account = self.account(queue.id)
            for flavor, _, allowed in limits:
                need = charge.get(flavor, 0)
                if need:
                    most = min(most, (allowed - account.used.get(flavor, 0)) // need)
            if queue.max_running is not None:
                most = min(most, queue.max_running - account.running)
        return max(most, 0)

    def _kept_from(self, ancestry: tuple[Queue, ...], charge: Mapping[Flavor, int]) -> Obstacle | None:
        """Return the obstacle if the start would use what other queues keep for themselves."""
        for flavor, need in charge.items():
            left = self.capacity.get(flavor, 0) - sum(self.used(queue.id, flavor) for queue in self.tree.roots)
            for queue in reversed(ancestry):
                lending_limited = self.tree.lending_limited.get(queue.parent_id, {}).get(flavor, ())
                kept: dict[str, int] = {
                    other.path: max(0, other.quotas[flavor].kept - self.used(other.id, flavor))
                    for other in lending_limited
                    if other.id != queue.id
                }
                held_back = sum(kept.values(), 0)
                left -= held_back
                own = max(0, queue.quotas.get(flavor, _NONE).kept - self.used(queue.id, flavor))
                if need > max(left, own) and any(kept.values()):
                    withholding = sorted(path for path, amount in kept.items() if amount)
                    whom = f"queue {' and '.join(withholding)}"
                    keeps = (
                        f"{whom} keeps {flavor.format(held_back)} {flavor} that it does not lend;"
                        f" {flavor.format(max(left, 0))} is left for others"
                    )
                    keeps = protected(keeps, withholding, f"other queues keep {flavor} that they do not lend")
                    text = f"{keeps}, and this job needs {flavor.format(need)}"
                    return Obstacle(Token.KEPT_FOR_OTHERS, queue, text)
        return None

    def never(self, queue_id: int, charge: Mapping[Flavor, int]) -> Obstacle | None:
        """Return what the job exceeds even when it is alone in the tree."""
        for queue, limits in self.tree.limits(queue_id):
            for flavor, _, most in limits:
                need = charge.get(flavor, 0)
                if need > most:
                    needed, allowed = flavor.format_apart(need, most)
                    text = f"it needs {needed} {flavor}, and queue {queue.path} is limited to {allowed}"
                    return Obstacle(Token.QUEUE_LIMIT, queue, text)
            if queue.max_running == 0:
                return Obstacle(Token.QUEUE_LIMIT, queue, f"queue {queue.path} may run no job at all")
        for queue in self.state.ancestry(queue_id) if self.tree.limits_users else ():
            if queue.max_running_per_user == 0:
                return Obstacle(Token.USER_LIMIT, queue, f"no user may run a job in queue {queue.path}")
            for flavor, most in queue.limits_per_user.items():
                need = charge.get(flavor, 0)
                if need > most:
                    needed, allowed_text = flavor.format_apart(need, most)
                    text = f"it needs {needed} {flavor}, and each user may have {allowed_text} in queue {queue.path}"
                    return Obstacle(Token.USER_LIMIT, queue, text)
        return None

    # Fairness

    def standing(
        self, queue: Queue, charge: Mapping[Flavor, int] = _NOTHING, times: int = 0, resource: str | None = None
    ) -> tuple[float, float]:
        """Return the key of a queue's turn: its share, and its past usage where that counts. ``resource``: see ``share``.

        Queues that have less than their guarantee come before all others, whatever they have used before.
        """
        share, whole = self.share(queue, charge, times, resource)
        if share <= 0.0 and self.tree.guaranteed and not self._lacks(queue, charge, times):
            # Otherwise what was reclaimed for a queue could go to one that has no right to it, and be reclaimed again.
            share = _NO_RIGHT
        past = self.past.get(queue.id)
        if not past:
            return share, whole
        is_within = share <= _NO_RIGHT and queue.id in self.tree.owed
        return (share if is_within else share + past), whole + past

    def standing_of_user(
        self, queue: Queue, user: str, charge: Mapping[Flavor, int] = _NOTHING, times: int = 0
    ) -> float:
        """Return the key of a user's turn in a queue: the dominant share of what the user's runs there use, divided by the user's
        weight, and past usage where that counts. With ``charge``, after ``times`` starts with it.
        """
        past = self.past_of_users.get((queue.id, user), 0.0)
        return self._share_of_user(queue, user, charge, times) + past

    def _share_of_user(self, queue: Queue, user: str, charge: Mapping[Flavor, int] = _NOTHING, times: int = 0) -> float:
        account = self._users.get((queue.id, user))
        usage = _NOTHING if account is None else account.used
        share = 0.0
        for flavor in usage.keys() | charge.keys() if times else usage:
            there = self.capacity.get(flavor, 0)
            if there > 0:
                share = max(share, (usage.get(flavor, 0) + times * charge.get(flavor, 0)) / there)
        return share / self.state.weight_of_user(queue.id, user)

    def shares_of_users(self) -> dict[tuple[int, str], float]:
        """Return, by queue and user, the part of the capacity that the user's runs there use now, divided by the user's weight."""
        return {
            (queue_id, user): self._share_of_user(self.state.queues[queue_id], user)
            for queue_id, user in self._users
            if queue_id in self.state.queues
        }

    def _lacks(self, queue: Queue, charge: Mapping[Flavor, int], times: int) -> bool:
        """Return whether the queue has less than its guarantee on any flavor after ``times`` starts with this charge."""
        return queue.id in self.tree.owed and any(
            self.used(queue.id, flavor) + times * charge.get(flavor, 0) < self.guarantee(queue, flavor)
            for flavor in self.tree.guaranteed
        )

    def share(
        self, queue: Queue, charge: Mapping[Flavor, int] = _NOTHING, times: int = 0, resource: str | None = None
    ) -> tuple[float, float]:
        """Return the dominant share of what the queue uses beyond its guarantees, and of all it uses, each divided by its weight.

        Ghodsi et al., "Dominant Resource Fairness", NSDI 2011: the largest part of any flavor that it has. Queues
        within their guarantees all have 0 first and are ordered by the second number. Flavors without any guarantee
        count for a queue only once it is beyond its guarantee on another flavor, or has none: a right to GPUs includes
        the cores they need.

        With ``charge``, the shares after ``times`` starts with it. With ``resource``, only flavors of this resource are compared,
        unless the queue is within its guarantees.
        """
        account = self._accounts.get(queue.id)
        usage = _NOTHING if account is None else account.used
        if times:
            usage = {
                flavor: usage.get(flavor, 0) + times * charge.get(flavor, 0) for flavor in usage.keys() | charge.keys()
            }
        if not usage:
            return 0.0, 0.0
        beyond = most_beyond = whole = aside = 0.0
        is_owed = False
        measures, capacity = self.tree.measures(queue), self.capacity
        for flavor, used in usage.items():
            if used <= 0 or (there := capacity.get(flavor, 0)) <= 0:
                continue
            weight, guarantee = measures.get(flavor) or self.tree.measure(queue, flavor)
            is_compared = resource is None or flavor.resource == resource
            if is_compared and (part := used / there / weight) > whole:
                whole = part
            # Comparisons, as calls of ``max`` cost most of the time of a cycle's first turns.
            if guarantee is not None:
                is_owed = is_owed or guarantee > 0
                exceeds = (used - guarantee) / there / weight
                if exceeds > most_beyond:
                    most_beyond = exceeds
                if is_compared and exceeds > beyond:
                    beyond = exceeds
            elif is_compared and part > aside:
                aside = part
        return (0.0 if is_owed and most_beyond <= 0.0 else max(beyond, aside)), whole

    def within_guarantee(self, queue: Queue, charge: Mapping[Flavor, int]) -> bool:
        """Return whether the queue would be within its guarantee with this charge, on every flavor that any queue has a
        guarantee on."""
        return all(
            self.used(queue.id, flavor) + amount <= self.guarantee(queue, flavor)
            for flavor, amount in charge.items()
            if flavor in self.tree.guaranteed
        )

    def keeps_guarantee(self, queue: Queue, charge: Mapping[Flavor, int]) -> bool:
        """Return whether the queue would still be at least at its guarantee without this charge, on every flavor of the charge."""
        return all(
            self.used(queue.id, flavor) - amount >= self.guarantee(queue, flavor)
            for flavor, amount in charge.items()
            if flavor in self.tree.guaranteed
        )


def _guarantees(state: SchedulerState, flavors: Iterable[Flavor]) -> dict[tuple[int, Flavor], int]:
    """Return the guarantee by queue and flavor: the queue's own, else the sum of those of its children."""
    out: dict[tuple[int, Flavor], int] = {}
    deepest_first = sorted(state.queues.values(), key=lambda queue: -queue.path.count("/"))
    for flavor in flavors:
        below: dict[int | None, int] = {}
        for queue in deepest_first:
            quota = queue.quotas.get(flavor)
            amount = quota.guaranteed if quota is not None and quota.guaranteed else below.get(queue.id, 0)
            if amount:
                out[queue.id, flavor] = amount
                below[queue.parent_id] = below.get(queue.parent_id, 0) + amount
    return out
