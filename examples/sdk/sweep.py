"""One specification, a table of parameters, and the best result: ``python sweep.py [QUEUE]``.

Each trial prints its result as its last line of output, which is gathered from its log.
"""

import sys

from trainmaster import Client, LogPiece

TRIAL = """
rate, layers = float("${rate}"), int("${layers}")
print("loss", round((rate - 0.01) ** 2 * 1e4 + abs(layers - 4), 3))
"""


def result(client: Client, job: str) -> float:
    """Return the last number that a job has printed."""
    output = "".join(piece.data for piece in client.logs(job) if isinstance(piece, LogPiece))
    return float(output.split()[-1])


def main(queue: str = "default") -> None:
    spec = {
        "name": "sweep",
        "queue": queue,
        "roles": [{"name": "trial", "template": {"command": [sys.executable, "-c", TRIAL], "resources": {"cpu": "1"}}}],
    }
    table = [{"rate": rate, "layers": layers} for rate in (0.001, 0.01, 0.1) for layers in (2, 4)]
    with Client() as client:
        jobs = client.submit_parameters(spec, table)
        client.wait(jobs, check=True)
        losses = {job: result(client, job) for job in jobs}
    for job, row in zip(jobs, table, strict=True):
        print(f"{job}  rate {row['rate']:<6} layers {row['layers']}  loss {losses[job]}")
    best = min(jobs, key=lambda job: losses[job])
    print(f"best: {table[jobs.index(best)]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
