"""Output of a simulated member. Any part of it is generated when it is read, so nothing is stored."""

from trainmaster.fake_cluster.run import FakeRun
from trainmaster.fake_cluster.seeded_random import draw
from trainmaster.protocol.ids import member_id

LINE_BYTES = 80
"""Length of every generated line, so that an offset determines its line."""


def read(run: FakeRun, role: str, index: int, now: float, offset: int, limit: int) -> tuple[int, bytes, bool]:
    """Return the offset of the bytes, the bytes, and whether the member is over and nothing follows.

    A negative offset counts from the end. Raises KeyError for a member that the run does not have.
    """
    position = run.plan.position(role) if run.plan is not None else None
    total = length(run, role, index, now)
    if total is None or run.plan is None or position is None:
        raise KeyError(f"run {run.id} has no member {role}-{index}")
    does = run.plan.roles[position].behaviour
    ends = run.role_gone or run.role_ends
    over = run.state.is_terminal or (bool(ends) and ends[position] <= now and not run.paused)
    text = does.output.encode()
    start = max(0, total + offset) if offset < 0 else min(offset, total)
    end = min(total, start + limit)
    if does.output:
        return start, text[start:end], over and end == total
    first, last = start // LINE_BYTES, -(-end // LINE_BYTES)
    made = b"".join(_line(run.id, role, index, number) for number in range(first, last))
    return start, made[start - first * LINE_BYTES : end - first * LINE_BYTES], over and end == total


def length(run: FakeRun, role: str, index: int, now: float) -> int | None:
    """Return the bytes that a member has printed; None for a member that the run does not have."""
    position = run.plan.position(role) if run.plan is not None else None
    if run.plan is None or position is None or not 0 <= index < run.plan.roles[position].count:
        return None
    does = run.plan.roles[position].behaviour
    if does.output:
        return len(does.output.encode()) if run.started_at <= now else 0
    ends = run.role_gone or run.role_ends
    until = min(now, run.ended_at, ends[position] if ends else now)
    return int(max(0.0, until - run.started_at) * does.output_rate) * LINE_BYTES


def _line(run: str, role: str, index: int, number: int) -> bytes:
    loss = (1 + draw(0, run, role, index, number)) / (1 + number / 100)
    text = f"{member_id(run, role, index)} step {number} loss {loss:.6f}"
    return text.encode()[: LINE_BYTES - 1].ljust(LINE_BYTES - 1) + b"\n"
