"""What ``tensoropt doctor`` says of this machine, and whether the device is there."""

from __future__ import annotations

from dataclasses import asdict

import torch

from benchmarks.gpu_check.steps import ROOT
from benchmarks.gpu_check.worker import arguments, report
from tensoropt_torch import doctor


def main() -> None:
    """Passes if all is there that running on this device needs."""
    kind = arguments().device
    found = doctor.findings()
    device = torch.cuda.is_available() if kind == "cuda" else True
    missing = [finding.name for finding in found if not finding.serves]
    passed = doctor.can_run(found) and device
    name = torch.cuda.get_device_name() if kind == "cuda" and device else "CPU"
    findings = [
        {key: str(value).replace(str(ROOT), ".") for key, value in asdict(finding).items()}
        for finding in found
    ]
    report(passed, device=name, pytorch=torch.__version__, missing=missing, findings=findings)


if __name__ == "__main__":
    main()
