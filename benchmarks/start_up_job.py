"""A job that ``start_up.py`` times: a GPT trains one step, by DDP or by what we pick.

The last line that the first rank prints are the seconds of each part from the start of the
process on, as JSON, of the slowest rank. Nothing but the standard library is imported before the
parts begin.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "examples")]

LAYERS, WIDTH, HEADS, TOKENS, BATCH = 6, 256, 8, 128, 16
VOCABULARY = 4096
DDP = "DDP"


def age_s() -> float:
    """Seconds since the start of this process (Linux)."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s


def main(way: str) -> None:
    """One step of the way, and what its parts took."""
    ends: dict[str, float] = {"interpreter": age_s()}
    import torch
    import torch.distributed as dist
    from gpt import GPT, GPTConfig

    ends["import of torch"] = age_s()
    if way != DDP:
        import tensoropt_torch

        ends["import of tensoropt_torch"] = age_s()
    dist.init_process_group("gloo")
    ends["process group"] = age_s()
    torch.manual_seed(0)
    model = GPT(GPTConfig(VOCABULARY, TOKENS, LAYERS, HEADS, WIDTH))
    batch = tuple(torch.randint(VOCABULARY, (2, BATCH, TOKENS)))
    ends["model"] = age_s()
    if way == DDP:
        parallel: torch.nn.Module = torch.nn.parallel.DistributedDataParallel(model)
        ends["DDP"] = age_s()
    else:
        plan = tensoropt_torch.find_strategy(model, batch, inputs="sharded")
        ends["plan"] = age_s()
        parallel = tensoropt_torch.parallelize(model, plan)
        ends["emission"] = age_s()
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-4)
    own = [tensor.chunk(dist.get_world_size())[dist.get_rank()] for tensor in batch]
    parallel(*own).backward()
    optimizer.step()
    dist.barrier()
    ends["first step"] = age_s()
    slowest = torch.tensor(list(ends.values()), dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(json.dumps(parts(dict(zip(ends, slowest.tolist(), strict=True)))), flush=True)
    dist.barrier()
    os._exit(0)  # nothing is timed any more, and threads of DDP's Gloo may outlive its group


def parts(ends: dict[str, float]) -> dict[str, float]:
    """Seconds of each part, which ends there, and in all."""
    starts = [0.0, *ends.values()]
    found = {name: end - start for (name, end), start in zip(ends.items(), starts, strict=False)}
    return {**found, "all": starts[-1]}


if __name__ == "__main__":
    main(sys.argv[-1])
