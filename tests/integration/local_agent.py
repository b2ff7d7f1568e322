"""A bare agent process for tests that kill it: opens a local runtime and starts runs as it is told.

Arguments: the state directory, the cluster as JSON, a file with one run per line. Says ``accepted <run>`` for each, then waits.
"""

import asyncio
import sys
from pathlib import Path

from trainmaster.protocol.agent import StartRun
from trainmaster_agent.runtime.local.config import LocalCluster
from trainmaster_agent.runtime.local.layout import boottime
from trainmaster_agent.runtime.local.runtime import LocalRuntime


async def main() -> None:
    runtime = LocalRuntime(Path(sys.argv[1]), LocalCluster.model_validate_json(sys.argv[2]))
    await runtime.open()
    await runtime.renew(boottime())
    lines = (await asyncio.to_thread(Path(sys.argv[3]).read_text)).splitlines()
    for run in map(StartRun.model_validate_json, lines):
        await runtime.start(run)
        print("accepted", run.run, flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
