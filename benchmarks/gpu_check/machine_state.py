"""What ``tensoropt doctor`` says of this machine, and whether the device is there."""

from __future__ import annotations

from dataclasses import asdict

import torch

from benchmarks.gpu_check.worker import arguments, report
from tensoropt_torch import doctor


def main() -> None:
    """Passes if all is there that running on this device needs."""
    kind = arguments().device
    found = doctor.findings()
    device = torch.cuda.is_available() if kind == "cuda" else True
    missing = [finding.name for finding in found if not finding.serves]
    passed = doctor.can_run(found) and device
    report(passed, missing=missing, findings=[asdict(finding) for finding in found])


if __name__ == "__main__":
    main()
