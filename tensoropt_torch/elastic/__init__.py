"""Jobs that go on with other numbers of processes.

A script that plans with ``plan_of_job`` and keeps a ``Checkpoints`` goes on wherever it is started
again: with as many processes as there are, under the plan for that many. ``torchrun --nnodes 1:4
--max-restarts 3`` starts it again with the machines that remain; on one machine, where torchrun
starts as many processes as before, ``python -m tensoropt_torch.elastic --processes 1:4`` does with
those that remain (docs/surviving.md, Fewer devices).
"""

from tensoropt_torch.elastic.plans import plan_of_job

__all__ = ["plan_of_job"]
