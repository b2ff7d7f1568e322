"""The side job that finds the labels that all jobs of a block have, a few blocks at a time."""

from collections.abc import Callable

from trainmaster_dispatcher.store import label_blocks
from trainmaster_dispatcher.store.database import Database

_BLOCKS_AT_ONCE = 64
"""The number of blocks of one transaction, which reads their jobs."""
_BEGUN_AT_ONCE = 4096


async def find_common_labels(database: Database, goes_on: Callable[[], bool] = lambda: True) -> None:
    """Find what is not known yet, as long as ``goes_on`` says. Raises ProblemError if the store is unreachable.

    Several processes may do this at a time. Blocks that begin are looked at by a later call, when the transactions that may still
    store jobs in them have ended.
    """
    more = True
    while more and goes_on():
        async with database.transaction() as tx:
            more = await label_blocks.find_common(tx, _BLOCKS_AT_ONCE)
    more = True
    while more and goes_on():
        async with database.transaction() as tx:
            more = await label_blocks.begin(tx, _BEGUN_AT_ONCE)
