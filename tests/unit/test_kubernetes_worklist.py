"""Which run the agent on Kubernetes looks at next."""

import asyncio

from trainmaster_agent.runtime.kubernetes.worklist import Worklist


def of(*, new: set[str]) -> Worklist:
    return Worklist(new.__contains__)


async def take(worklist: Worklist, count: int) -> list[str]:
    taken = []
    for _ in range(count):
        taken.append(run := await asyncio.wait_for(worklist.take(), 1))
        worklist.done(run)
    return taken


async def test_new_runs_go_first_and_of_four_looks_one_goes_to_the_others() -> None:
    new = {f"new-{number}" for number in range(7)}
    worklist = of(new=new)
    for run in ("old-0", "old-1", "old-2", *sorted(new)):
        worklist.add(run)
    assert await take(worklist, 10) == [
        *("new-0", "new-1", "new-2", "old-0"),
        *("new-3", "new-4", "new-5", "old-1"),
        *("new-6", "old-2"),
    ]
    assert len(worklist) == 0


async def test_a_run_is_in_the_list_once() -> None:
    worklist = of(new=set())
    for run in ("a", "b", "a"):
        worklist.add(run)
    assert len(worklist) == 2
    assert await take(worklist, 2) == ["a", "b"]


async def test_what_changes_while_it_is_looked_at_has_another_turn_afterwards() -> None:
    worklist = of(new=set())
    worklist.add("a")
    run = await worklist.take()
    worklist.add("a")
    assert len(worklist) == 0, "no second worker may look at it now"
    worklist.done(run)
    assert await take(worklist, 1) == ["a"]
    assert len(worklist) == 0, "one more turn, however often it changed"


async def test_who_waits_is_woken() -> None:
    worklist = of(new=set())
    waiting = asyncio.create_task(worklist.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    worklist.add("a")
    assert await asyncio.wait_for(waiting, 1) == "a"


async def test_a_run_that_was_new_is_not_new_when_it_comes_again() -> None:
    new = {"a"}
    worklist = of(new=new)
    worklist.add("a")
    assert await worklist.take() == "a"
    worklist.add("a")
    new.clear()
    worklist.add("b")
    worklist.done("a")
    assert await take(worklist, 2) == ["b", "a"]
