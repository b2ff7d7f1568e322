"""Data-parallel training with PyTorch's DistributedDataParallel: on CPUs or GPUs, from the newest checkpoint where there is one.

``torchrun`` starts it, once for each GPU of a member or once without; the environment that Trainmaster sets says where the others
are. The data are synthetic: a network learns what another one with random weights, the teacher, computes.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

INPUTS, HIDDEN, EXAMPLES, BATCH = 16, 64, 4096, 64
RATE = 0.05
LEAST_GAIN = 4.0
"""The loss has to become this many times smaller: less means that nothing was learned."""


def say(text: str) -> None:
    """Print a line, of rank 0 alone."""
    if dist.get_rank() == 0:
        print(text, flush=True)


def network(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(INPUTS, width), nn.Tanh(), nn.Linear(width, 1))


def data(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inputs and targets of this rank: a part of all, which are the same in each process."""
    torch.manual_seed(1)
    teacher, inputs = network(width=8), torch.randn(EXAMPLES, INPUTS)
    with torch.no_grad():
        targets = 3 * teacher(inputs)
    own = slice(dist.get_rank(), None, dist.get_world_size())
    return inputs[own].to(device), targets[own].to(device)


def newest(path: Path, device: torch.device) -> dict[str, Any] | None:
    """Return the checkpoint as rank 0 finds it, in every rank: the others need not see its folder."""
    found = [torch.load(path, map_location="cpu") if dist.get_rank() == 0 and path.exists() else None]
    dist.broadcast_object_list(found, src=0, device=device)
    return found[0]


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint, of rank 0 alone; whoever is killed meanwhile leaves the one before."""
    if dist.get_rank() == 0:
        part = path.with_suffix(".part")
        torch.save(state, part)
        part.replace(path)
        say(f"checkpoint at step {state['step']}: loss {state['loss']:.4f}")


def mean_loss(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> float:
    """Return the loss over the data of all ranks."""
    with torch.no_grad():
        total = nn.functional.mse_loss(model(inputs), targets)
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def check_equal(model: nn.Module) -> None:
    """Raise RuntimeError where the weights of a rank are not those of rank 0."""
    own = torch.cat([weights.detach().flatten() for weights in model.parameters()])
    first = own.clone()
    dist.broadcast(first, src=0)
    differs = torch.tensor([0 if torch.equal(own, first) else 1], device=own.device)
    dist.all_reduce(differs)
    if int(differs):
        raise RuntimeError(f"the weights of {int(differs)} ranks differ from those of rank 0")


def train(path: Path, steps: int, every: int, device: torch.device) -> dict[str, Any]:
    """Train until ``steps`` are done, and return the results."""
    inputs, targets = data(device)
    torch.manual_seed(2)
    local = network(HIDDEN).to(device)
    optimizer = torch.optim.SGD(local.parameters(), lr=RATE, momentum=0.9)
    found = newest(path, device)
    if found is not None:
        local.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
    model = DistributedDataParallel(local, device_ids=[device.index] if device.type == "cuda" else None)
    begin = 0 if found is None else int(found["step"])
    loss = mean_loss(local, inputs, targets)
    first = loss if found is None else float(found["first"])
    say(f"{dist.get_world_size()} processes on {device.type} go on after step {begin} of {steps}: loss {loss:.4f}")
    for step in range(begin + 1, steps + 1):
        torch.manual_seed(step * dist.get_world_size() + dist.get_rank())
        batch = torch.randint(len(inputs), (BATCH,), device=device)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs[batch]), targets[batch]).backward()
        optimizer.step()
        if step % every == 0 or step == steps:
            loss = mean_loss(local, inputs, targets)
            state = {"model": local.state_dict(), "optimizer": optimizer.state_dict()}
            save(path, state | {"step": step, "loss": loss, "first": first})
    check_equal(local)
    processes = dist.get_world_size()
    return {
        "processes": processes,
        "steps": steps,
        "resumedAt": begin,
        "firstLoss": round(first, 6),
        "loss": round(loss, 6),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--every", type=int, default=100, help="steps from one checkpoint to the next")
    parser.add_argument("--checkpoints", type=Path, required=True, help="a folder that outlives the members")
    options = parser.parse_args()
    has_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if has_gpu else "gloo")
    path = options.checkpoints / f"{os.environ['TRAINMASTER_JOB_ID']}.pt"
    results = train(path, options.steps, options.every, device)
    if dist.get_rank() == 0:
        Path(os.environ["TRAINMASTER_RESULTS"]).write_text(json.dumps(results))
        print(f"the weights of all ranks are equal; {json.dumps(results)}", flush=True)
    dist.destroy_process_group()
    if results["firstLoss"] < LEAST_GAIN * results["loss"]:
        raise SystemExit("the loss has not fallen enough")


if __name__ == "__main__":
    main()
