"""A training that goes on with the processes that remain, from its last checkpoint.

    python -m tensoropt_torch.elastic --processes 1:4 examples/elastic.py run
    torchrun --nnodes 1:4 --max-restarts 3 ... examples/elastic.py run   # on several machines

The first start plans for 4, 3, 2 and 1 processes; later ones take the plan for as many as they are.
"""

import sys

import torch
from torch import nn

import tensoropt_torch
from tensoropt_torch import elastic

STEPS, ROWS, WIDTH = 40, 24, 64


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The data's position is the step."""
    x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(step))
    return x, x.roll(1, 1)


def train(folder: str, steps: int = STEPS) -> None:
    """Goes on from the last checkpoint in the folder."""
    tensoropt_torch.init()
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * WIDTH, WIDTH)]
    example = tensoropt_torch.Example(
        nn.Sequential(*layers), batch(0)[:1], loss_fn=nn.functional.mse_loss, targets=batch(0)[1:]
    )
    plan = elastic.plan_of_job(folder, example, counts=(4, 3, 2, 1))
    parallel = tensoropt_torch.parallelize(example, plan)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-3)
    checkpoints = tensoropt_torch.Checkpoints(folder, parallel, optimizer)
    for step in range(checkpoints.load(), steps):
        loss = parallel(*batch(step))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        checkpoints.save(step + 1)
        if torch.distributed.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.9f}, {plan.num_devices} processes", flush=True)
    checkpoints.wait()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    train(sys.argv[1])
