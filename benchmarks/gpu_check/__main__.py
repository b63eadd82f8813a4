"""What the project does on a GPU, step by step, in one command.

    make gpu-check                                       # or: python -m benchmarks.gpu_check
    python -m benchmarks.gpu_check --device cpu --small  # the same steps without a GPU

It needs a Python with PyTorch and what ``tensoropt doctor`` lists to run and to build, and no
network. Every step is a process of its own with a limit of time: one that fails or hangs is
told with its last words, and the next one is run. The times of all steps together are
limited as well. Writes benchmarks/results/gpu_check.json after every step; ends with
status 1 if one of them failed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.steps import ROOT, Step, steps_of
from benchmarks.machine import machine

RESULTS = ROOT / "benchmarks" / "results" / "gpu_check.json"
LIMIT_S = 460.0
LEAST_S = 5.0  # a step that has less is not begun
LAST_WORDS = 3000  # characters of what a failed step printed


def run(step: Step, limit_s: float) -> dict[str, Any]:
    """What a step found, or what it said before it failed."""
    began = time.monotonic()
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    process = subprocess.Popen(
        step.command,
        cwd=ROOT,
        env=environment | {"PYTHONPATH": os.pathsep.join(_python_path())},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    late = False
    try:
        out, error = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        late = True
        os.killpg(process.pid, signal.SIGKILL)  # with the ranks that it has started
        out, error = process.communicate()
    record: dict[str, Any] = {"seconds": round(time.monotonic() - began, 1)}
    result = None if late else _last_json(out)
    if process.returncode == 0 and result is not None:
        return {"passed": bool(result.pop("passed")), **record, **result}
    reason = f"did not end within {limit_s:.0f} s" if late else f"status {process.returncode}"
    return {"passed": False, **record, "reason": reason, "last_words": _end_of(out, error)}


def _python_path() -> list[str]:
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [str(ROOT), *(path for path in given if path)]


def _last_json(out: str) -> dict[str, Any] | None:
    """The record that a step prints on its last line."""
    lines = out.strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else None
    except json.JSONDecodeError:
        return None
    return found if isinstance(found, dict) and "passed" in found else None


def _end_of(out: str, error: str) -> str:
    return (out[-LAST_WORDS // 3 :] + error[-LAST_WORDS:]).strip()


def _summary(name: str, record: dict[str, Any]) -> str:
    state = "passed" if record["passed"] else "FAILED"
    reason = record.get("reason", "")
    return f"{name:14} {state} {record.get('seconds', 0):7.1f} s  {reason}"


def _found_before(output: Path, about: dict[str, Any], again: set[str]) -> dict[str, Any]:
    """Of an equal machine, by other steps than those that are run now."""
    earlier = json.loads(output.read_text()) if output.exists() else {}
    kept: dict[str, Any] = earlier.pop("steps", {})
    return {name: found for name, found in kept.items() if earlier == about and name not in again}


def check(steps: list[Step], limit_s: float, output: Path, about: dict[str, Any]) -> bool:
    """Runs the steps in order, as long as there is time; whether all passed."""
    end = time.monotonic() + limit_s
    earlier = _found_before(output, about, {step.name for step in steps})
    found: dict[str, Any] = {}
    for step in steps:
        print(f"{step.name}: {step.shows}", flush=True)
        left_s = end - time.monotonic()
        blocked = [name for name in step.needs if name in found and not found[name]["passed"]]
        if blocked:
            found[step.name] = {"passed": False, "reason": f"not run, since {blocked[0]} failed"}
        elif left_s < LEAST_S:
            found[step.name] = {"passed": False, "reason": "not run: no time was left"}
        else:
            found[step.name] = run(step, min(step.limit_s, left_s))
        print("  " + _summary(step.name, found[step.name]), flush=True)
        if "last_words" in found[step.name]:
            print(found[step.name]["last_words"][-1200:], flush=True)
        unfinished = output.with_suffix(".unfinished")
        unfinished.write_text(json.dumps({**about, "steps": earlier | found}, indent=1) + "\n")
        unfinished.replace(output)
    print("\n".join(["", *(_summary(name, record) for name, record in found.items())]))
    return all(record["passed"] for record in found.values())


def main() -> int:
    """Runs what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true", help="less of everything")
    parser.add_argument("--steps", nargs="+", help="some of them only")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds of all steps")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    steps = steps_of(arguments.device, arguments.small)
    names = [step.name for step in steps]
    unknown = set(arguments.steps or ()) - set(names)
    if unknown:
        parser.error(f"there is no step {sorted(unknown)}; there are {', '.join(names)}")
    chosen = [step for step in steps if not arguments.steps or step.name in arguments.steps]
    about = {"device": arguments.device, "small": arguments.small, "machine": machine()}
    return 0 if check(chosen, arguments.limit, arguments.output, about) else 1


if __name__ == "__main__":
    sys.exit(main())
