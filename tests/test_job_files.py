"""Job files of schedulers are read by these, and call torchrun with arguments that it knows."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.distributed.run import get_args_parser

JOBS = Path(__file__).parents[1] / "examples" / "jobs"
MACHINES, GPUS = 2, 8


def kubernetes() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((JOBS / "kubernetes.yaml").read_text()))


def container() -> dict[str, Any]:
    (found,) = kubernetes()[1]["spec"]["template"]["spec"]["containers"]
    return found


def commands() -> dict[str, str]:
    """What torchrun is called with, by the name of the scheduler."""
    script = (JOBS / "slurm.sh").read_text().replace("\\\n", " ")
    values = {
        "$SLURM_JOB_NUM_NODES": str(MACHINES),
        "$SLURM_JOB_ID": "7",
        "$first": "host",
        "$JOB_COMPLETION_INDEX": "1",
    }
    (in_script,) = re.findall(r"^srun .*torchrun (.*)", script, re.MULTILINE)
    (in_pod,) = re.findall(r"torchrun (.*)", container()["args"][0])
    found = {"slurm": in_script, "kubernetes": in_pod}
    for name, value in values.items():
        found = {key: text.replace(name, value) for key, text in found.items()}
    return found


@pytest.mark.parametrize("scheduler", ["slurm", "kubernetes"])
def test_torchrun_is_started_on_all_machines(scheduler: str) -> None:
    arguments = get_args_parser().parse_args(shlex.split(commands()[scheduler]))
    assert arguments.nnodes == str(MACHINES)
    assert arguments.nproc_per_node == str(GPUS)
    assert arguments.training_script == "train.py"
    meets = arguments.rdzv_endpoint or f"{arguments.master_addr}:{arguments.master_port}"
    assert meets.endswith(":29500")


def test_the_script_is_one() -> None:
    subprocess.run(["bash", "-n", str(JOBS / "slurm.sh")], check=True)
    asked = re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", (JOBS / "slurm.sh").read_text(), re.MULTILINE)
    assert dict(asked) | {"job-name": ""} == {
        "job-name": "",
        "nodes": str(MACHINES),
        "ntasks-per-node": "1",
        "gpus-per-node": str(GPUS),
    }


def test_pods_find_the_first_one() -> None:
    service, job = kubernetes()
    name = job["metadata"]["name"]
    pods = job["spec"]["template"]["spec"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": name}
    assert pods["subdomain"] == service["metadata"]["name"]
    assert f"--master-addr {name}-0.{pods['subdomain']} " in container()["args"][0]
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == MACHINES
    assert container()["resources"]["limits"] == {"nvidia.com/gpu": GPUS}
    assert {v["name"] for v in pods["volumes"]} >= {m["name"] for m in container()["volumeMounts"]}
