"""An agent of a test that has room for all jobs, and reports the states of their runs as the test says."""

from typing import Any

from tests.conftest import Service
from trainmaster.protocol.states import RunState


class ReportedRuns:
    """An agent with room for all jobs, and the runs that it was told to start, by job."""

    def __init__(self, service: Service, cluster: str = "private") -> None:
        self._service = service
        self._agent = service.agent(cluster, session=f"session-{cluster}", holder=f"holder-{cluster}")
        self._starts: dict[str, dict[str, Any]] = {}
        self._seq = 0

    async def connect(self) -> "ReportedRuns":
        await self._agent.connect(cpu=64)
        return self

    async def starts(self, *ids: str) -> None:
        """Wait until the next runs are of these jobs."""
        for _ in ids:
            await self._next()
        assert set(ids) <= self._starts.keys()

    async def have(self, *ids: str) -> None:
        """Wait until these jobs have runs, whichever others get some meanwhile."""
        while not set(ids) <= self._starts.keys():
            await self._next()

    async def have_another(self, job_id: str) -> None:
        """Wait for the next run of a job whose run has ended."""
        del self._starts[job_id]
        await self.have(job_id)

    async def _next(self) -> None:
        start = await self._agent.next_start()
        self._starts[start["job"]] = start

    def spec(self, job_id: str) -> dict[str, Any]:
        """Return the specification with which a job's run was to be started."""
        found: dict[str, Any] = self._starts[job_id]["spec"]
        return found

    async def come_to(self, job_id: str, *passed: RunState, **fields: Any) -> None:
        for state in passed:
            self._seq += 1
            await self._agent.report(
                self._starts[job_id]["run"], state, self._seq, **(fields if state is passed[-1] else {})
            )

    async def cancel(self, job_id: str) -> None:
        """Report the first run of a job as cancelled, also where its start never came."""
        self._seq += 1
        await self._agent.report(f"{job_id}-r1", RunState.CANCELLED, self._seq)

    async def end(self, job_id: str, *, failed: bool = False, **fields: Any) -> None:
        """End the run of a job; ``fields``: of the report of its end."""
        end = RunState.FAILED if failed else RunState.SUCCEEDED
        await self.come_to(job_id, RunState.RUNNING, end, **fields)
        await self._service.until(job_id, end.value)
