"""A program that plans, trains, saves, loads and reports opens no port but those of c10d."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAM = '''
import os, sys

asked = []
EVENTS = "socket.bind", "socket.connect", "socket.getaddrinfo", "socket.gethostbyname"
sys.addaudithook(lambda event, given: asked.append((event, given)) if event in EVENTS else None)

def listening():
    """Addresses of this process that others may call."""
    own = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            own.add(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            pass
    found = []
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        if os.path.exists(f"/proc/self/net/{kind}"):
            rows = [line.split() for line in open(f"/proc/self/net/{kind}")][1:]
            found += [
                row[1] for row in rows
                if f"socket:[{row[9]}]" in own and (row[3] == "0A" or kind.startswith("udp"))
            ]
    return found

import torch
import torch.distributed as dist
import tensoropt_torch
from tensoropt_torch.cli import main

folder = sys.argv[1]
if sys.argv[2:]:  # what is looked for is found
    import socket
    opened = socket.create_server(("127.0.0.1", 0))
    assert asked and len(listening()) == 1, (asked, listening())
    sys.exit()
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
x = torch.randn(8, 8)
frontier = tensoropt_torch.find_frontier(model, (x,), loss_fn=torch.mean, num_devices=2)
frontier.report(f"{folder}/frontier.html")
frontier.fastest.plan.save(f"{folder}/plan.json")
assert main(["show", f"{folder}/plan.json"]) == 0
assert listening() == [] == asked, (listening(), asked)

groups = 1  # of Gloo, each of which may listen
new_group = dist.new_group
def counted(*given, **options):
    global groups
    groups += 1
    return new_group(*given, **options)
dist.new_group = counted
tensoropt_torch.init()
before = listening()
parallel = tensoropt_torch.auto_parallel(model, (x,), loss_fn=torch.mean)
optimizer = torch.optim.AdamW(parallel.parameters())
checkpoints = tensoropt_torch.Checkpoints(f"{folder}/run", parallel, optimizer)
for step in range(2):
    parallel(x).backward()
    optimizer.step()
checkpoints.save(2)
checkpoints.wait()
assert checkpoints.load() == 2
tensoropt_torch.save({"model": parallel.state_dict()}, f"{folder}/run.pt")
assert asked == [], asked
assert len(listening()) <= groups, (listening(), groups)
'''


def run(folder: Path, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TENSOROPT_HOME": str(folder / "home")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_no_port_is_opened_but_those_of_process_groups(tmp_path: Path) -> None:
    run(tmp_path)


def test_a_port_that_is_opened_would_be_seen(tmp_path: Path) -> None:
    run(tmp_path, "opens one")
