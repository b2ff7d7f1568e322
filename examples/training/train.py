"""Data-parallel training by a gang: rank 0 averages the gradients that all other ranks compute on their shards.

Every member runs this file; the environment that Trainmaster sets tells it who it is and where the others are.
"""

import argparse
import os
import socket
import sys
import time
from dataclasses import dataclass

import digits
import model
import numpy as np
import wire

PATIENCE_SECONDS = 60.0
"""How long a member waits for another one before it gives up."""
BATCH = 64
RATE, MOMENTUM = 0.02, 0.9
LEAST_ACCURACY = 0.90


@dataclass(frozen=True)
class Seat:
    """This member's place in the gang, as its environment says."""

    run: str
    rank: int
    world: int
    own: tuple[str, int]
    launcher: tuple[str, int]

    @classmethod
    def from_environment(cls) -> "Seat":
        env = os.environ
        return cls(
            run=env["TRAINMASTER_RUN_ID"],
            rank=int(env["RANK"]),
            world=int(env["WORLD_SIZE"]),
            own=(env["TRAINMASTER_HOST"], int(env["TRAINMASTER_PORT"])),
            launcher=(env["MASTER_ADDR"], int(env["MASTER_PORT"])),
        )


def say(text: str) -> None:
    print(text, flush=True)


def launch(seat: Seat, steps: int) -> int:
    """Hold the parameters, average the gradients, and test at the end; for rank 0."""
    _, _, pictures, labels = digits.load()
    links = gather(seat)
    say(f"{len(links)} workers are here, {model.SIZE} parameters, {steps} steps")
    parameters = model.initial(seed=1)
    velocity = np.zeros_like(parameters)
    for step in range(1, steps + 1):
        gradients = exchange(links, parameters)
        velocity = MOMENTUM * velocity - RATE * np.mean(gradients, axis=0)
        parameters = parameters + velocity
        if step % max(1, steps // 10) == 0:
            say(f"step {step}/{steps}: accuracy {model.accuracy(parameters, pictures, labels):.3f}")
    for link in links.values():
        wire.send(link, wire.END, parameters.tobytes())
        link.close()
    result = model.accuracy(parameters, pictures, labels)
    say(f"test accuracy: {result:.3f}")
    return 0 if result > LEAST_ACCURACY else 1


def gather(seat: Seat) -> dict[int, socket.socket]:
    """Return connections to all workers of this run, by rank."""
    if seat.world < 2:
        raise ValueError("the gang needs a launcher and at least one worker")
    links: dict[int, socket.socket] = {}
    deadline = time.monotonic() + PATIENCE_SECONDS
    with socket.create_server(seat.own) as server:
        while len(links) < seat.world - 1:
            server.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                link, peer = server.accept()
            except TimeoutError as error:
                missing = sorted(set(range(1, seat.world)) - set(links))
                raise wire.LinkError(f"ranks {missing} did not connect in {PATIENCE_SECONDS:.0f} s") from error
            link.settimeout(PATIENCE_SECONDS)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            run, _, rank = wire.receive(link, wire.HELLO)[1].decode().rpartition(":")
            if run != seat.run or int(rank) in links:
                say(f"turned away {peer[0]}:{peer[1]}: it is not of this run")
                link.close()
                continue
            links[int(rank)] = link
    return links


def exchange(links: dict[int, socket.socket], parameters: model.Vector) -> list[model.Vector]:
    """Send the parameters to all workers and get a gradient from each. Raises LinkError that names the rank."""
    gradients: list[model.Vector] = []
    rank = 0
    try:
        for rank, link in links.items():  # noqa: B007 -- the last rank is told when it fails
            wire.send(link, wire.PARAMETERS, parameters.tobytes())
        for rank, link in links.items():  # noqa: B007
            gradients.append(np.frombuffer(wire.receive(link, wire.GRADIENT)[1], np.float32))
    except wire.LinkError as error:
        raise wire.LinkError(f"rank {rank}: {error}") from error
    return gradients


def work(seat: Seat, steps: int) -> int:
    """Compute gradients on the shard of this rank until the launcher ends the training; for every rank but 0."""
    pictures, labels, _, _ = digits.load()
    shard = slice(seat.rank - 1, None, seat.world - 1)
    pictures, labels = pictures[shard], labels[shard]
    random = np.random.default_rng(seat.rank)
    with wire.connect(seat.launcher, PATIENCE_SECONDS) as link:
        wire.send(link, wire.HELLO, f"{seat.run}:{seat.rank}".encode())
        say(f"rank {seat.rank} has {len(labels)} pictures")
        for step in range(1, steps + 2):
            kind, body = wire.receive(link, wire.PARAMETERS, wire.END)
            parameters = np.frombuffer(body, np.float32)
            if kind == wire.END:
                break
            batch = random.integers(0, len(labels), BATCH)
            loss, gradient = model.gradient(parameters, pictures[batch], labels[batch])
            wire.send(link, wire.GRADIENT, gradient.tobytes())
            if step % max(1, steps // 4) == 0:
                say(f"step {step}/{steps}: loss {loss:.3f}")
    say(f"accuracy on the shard of rank {seat.rank}: {model.accuracy(parameters, pictures, labels):.3f}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10000)
    steps = parser.parse_args().steps
    try:
        seat = Seat.from_environment()
        return launch(seat, steps) if seat.rank == 0 else work(seat, steps)
    except KeyError as error:
        print(f"error: the environment has no {error}: this is run by Trainmaster", file=sys.stderr)
    except (wire.LinkError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
