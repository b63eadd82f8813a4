"""``benchmarks/one_rank.py`` with little time: memory and operators of one rank of eight."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.gpu_check.steps import ROOT
from benchmarks.gpu_check.worker import arguments, report

SCRIPT = ROOT / "benchmarks" / "one_rank.py"
MOST_ERROR_OF_MEMORY = 0.05  # of the mean over plans


def main() -> None:
    """Passes if simulated memory is near that of the allocator; times are told only."""
    chosen = arguments()
    options = ["--device", chosen.device, "--ranks", "4" if chosen.small else "8"]
    options += ["--models", *(["llama"] if chosen.small else ["gpt2", "llama"])]
    options += ["--strategies", "1" if chosen.small else "2"]
    options += ["--budget", "3" if chosen.small else "15"]
    if chosen.small:
        options += ["--small"]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "one_rank.json"
        command = [sys.executable, str(SCRIPT), *options, "--output", str(output)]
        done = subprocess.run(command, stdout=sys.stderr)
        found = json.loads(output.read_text()) if output.exists() else {}
    near = all(row["mean_error_of_memory"] < MOST_ERROR_OF_MEMORY for row in found.values())
    report(done.returncode == 0 and bool(found) and near, models=found)


if __name__ == "__main__":
    main()
