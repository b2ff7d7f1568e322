"""Submit one job, wait for it, and say how it ended: ``python submit_and_wait.py [QUEUE]``.

Address and key come from TRAINMASTER_URL and TRAINMASTER_API_KEY, or from the file that ``trainmaster up`` writes.
"""

import sys

from trainmaster import Client, JobFailedError, ProblemError


def main(queue: str = "default") -> None:
    spec = {
        "name": "hello",
        "queue": queue,
        "roles": [
            {
                "name": "main",
                "template": {
                    "command": [sys.executable, "-c", "print('hello from the fleet')"],
                    "resources": {"cpu": "1"},
                },
            }
        ],
    }
    with Client() as client:
        try:
            (job,) = client.submit(spec)
        except ProblemError as error:
            for mistake in error.mistakes:
                print(f"{mistake.path}: {mistake.message}")
            sys.exit(f"not submitted: {error}")
        print(f"{job} is submitted: {client.why(job).sentence}")
        try:
            ended = client.wait(job, check=True)
        except JobFailedError as error:
            sys.exit(f"{error}")
        print(f"{job} {ended.state} on {ended.cluster}")


if __name__ == "__main__":
    main(*sys.argv[1:])
