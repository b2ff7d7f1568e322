"""The leader's part in groups: adds up the numbers of their jobs, and finds which of them have ended.

    changes of numbers ──▶ rows of groups, locked ──▶ state ──▶ webhook messages at the first end, and conditions of jobs on the groups

All of it is one transaction, which the leader's token guards: whoever is killed leaves all or nothing of it, and no group ends for the
first time twice.
"""

from typing import Final

from trainmaster.protocol.states import GroupState
from trainmaster_dispatcher.domain.groups import counted, state_of
from trainmaster_dispatcher.services.context import Stores
from trainmaster_dispatcher.store import dependencies, outbox, scheduling
from trainmaster_dispatcher.store import groups as store
from trainmaster_dispatcher.store.database import Transaction

_BATCH: Final = 500


async def settle_due(stores: Stores, token: int, limit: int = _BATCH) -> int:
    """Deal with groups whose numbers have changed, as the leader with this token; return how many have got another state."""
    async with stores.database.transaction() as tx:
        due = await store.due(tx, limit)
    if not due:
        return 0
    async with stores.database.transaction() as tx:
        if not await scheduling.is_lead(tx, token):
            return 0
        changed = await _states(tx, due)
        if changed:
            first = await store.write_states(tx, changed)
            await dependencies.follow_groups(tx, changed)
            await outbox.add_ended_groups(tx, first)
    return len(changed)


async def _states(tx: Transaction, due: list[int]) -> dict[int, GroupState]:
    """Add up the numbers of groups; return the states of those that get another one."""
    changed: dict[int, GroupState] = {}
    for group in await store.fold(tx, due):
        facts = group.facts
        if facts.is_closed and not facts.is_consistent:
            facts = counted(facts, await store.stored_states(tx, group.id))
            await store.write_numbers(tx, group.id, facts)
        state = state_of(facts)
        if state is not group.state:
            changed[group.id] = state
    return changed


async def look_again(stores: Stores, token: int, limit: int = _BATCH) -> int:
    """Look at closed groups whose last jobs an older release has ended, as the leader with this token; return how many."""
    async with stores.database.transaction() as tx:
        if not await scheduling.is_lead(tx, token):
            return 0
        return await store.wake_forgotten(tx, limit)
