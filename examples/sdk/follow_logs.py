"""Submit a job and show what it prints while it runs: ``python follow_logs.py [QUEUE]``.

The output goes on over lost connections and over the job's later runs; nothing is shown twice.
"""

import sys

from trainmaster import Client, Ended, LogPiece

COUNT = "import time\nfor step in range(5):\n    print('step', step, flush=True)\n    time.sleep(0.2)"


def main(queue: str = "default") -> None:
    spec = {
        "name": "count",
        "queue": queue,
        "roles": [{"name": "main", "template": {"command": [sys.executable, "-c", COUNT], "resources": {"cpu": "1"}}}],
    }
    with Client() as client:
        (job,) = client.submit(spec)
        for item in client.logs(job, follow=True):
            if isinstance(item, LogPiece):
                print(item.data, end="", flush=True)
            elif isinstance(item, Ended):
                print(f"{job} {item.state}")
            else:
                print(item.text, file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
