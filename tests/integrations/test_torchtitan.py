"""torchtitan's trainer under the plan of docs/torchtitan.md: two processes do what one does."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import FILES, ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("torchtitan") is None, reason="torchtitan is not installed"
    ),
]

# torchtitan asks an accelerator for its memory, and reads tokens of a data set: here it is told
# that the CPU is one, and each rank draws its rows of a global batch.
PROGRAM = """
import json, os, sys
from dataclasses import dataclass
from types import SimpleNamespace

import torch

torch._utils._get_available_device_type = lambda: "cpu"
torch.cpu.get_device_name = lambda device: "CPU"
torch.cpu.get_device_properties = lambda device: SimpleNamespace(total_memory=2**34)
torch.cpu.memory_stats = lambda device: {}
torch.cpu.reset_peak_memory_stats = torch.cpu.empty_cache = lambda: None

from titan_plan import llama3
from torchtitan import distributed
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.trainer import Trainer

distributed.utils.set_pg_timeouts = lambda **arguments: None  # of groups of an accelerator

ROWS, LENGTH, STEPS = 4, 32, 3


class Tokens(BaseDataLoader):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        pass

    def __init__(self, config, *, dp_world_size, dp_rank, **others):
        self.rank, self.world = dp_rank, dp_world_size

    def __iter__(self):
        draw = torch.Generator().manual_seed(1)
        positions = torch.arange(LENGTH).expand(ROWS, LENGTH)
        while True:
            text = torch.randint(256, (ROWS, LENGTH + 1), generator=draw)
            mine = slice(self.rank * ROWS // self.world, (self.rank + 1) * ROWS // self.world)
            own = {"input": text[mine, :-1], "positions": positions[mine].clone()}
            yield own, text[mine, 1:]

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class NoTokenizer(BaseTokenizer):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, **others):
        super().__init__()

    def encode(self, *args, **kwargs):
        return []

    def decode(self, *args, **kwargs):
        return ""

    def get_vocab_size(self):
        return 256


config = llama3()
config.model_spec.model.layers = config.model_spec.model.layers[:2]
config.dataloader = Tokens.Config()
config.tokenizer = NoTokenizer.Config()
config.training.local_batch_size = ROWS // int(os.environ["WORLD_SIZE"])
config.training.seq_len, config.training.steps = LENGTH, STEPS
config.optimizer.implementation = "for-loop"
config.checkpoint.enable = config.validator.enable = False
config.debug.seed = 3
trainer = config.build()
logged = []
trainer.metrics_processor.log = lambda step, loss, most, norm, **others: logged.append([loss, norm])
trainer.train()
if os.environ["RANK"] == "0":
    parts = [p.to_local().numel() for p in trainer.model_parts[0].parameters()]
    print(json.dumps({"logged": logged, "held": sum(parts)}))
trainer.close()
torch.distributed.destroy_process_group()
"""


def run(folder: Path, processes: int) -> list[tuple[float, float]]:
    """Loss and norm of each step."""
    (folder / "titan_plan.py").write_text(FILES["titan_plan.py"].body)
    (folder / "program.py").write_text(PROGRAM)
    launch = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}")
    done = subprocess.run(
        [sys.executable, *launch, "program.py"],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "TENSOROPT_HOME": str(folder / "home"),
        },
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    (line,) = (line for line in done.stdout.splitlines() if line.startswith('{"logged"'))
    return [(loss, norm) for loss, norm in json.loads(line)["logged"]]


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    one, two = (run(folder, count) for folder, count in zip(folders, (1, 2), strict=True))
    assert len(one) == 3 and one[2][0] < one[0][0]
    for expected, got in zip(one, two, strict=True):
        assert got == pytest.approx(expected, rel=1e-3)  # order of sums
