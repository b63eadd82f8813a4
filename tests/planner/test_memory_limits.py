"""What a memory limit makes of a model whose batch outweighs its parameters."""

from __future__ import annotations

import torch
from torch import nn

import tensoropt_torch
from tensoropt_torch.plan import Plan
from tensoropt_torch.plan.space import make_planner

DEVICES = 4
WIDTH, HIDDEN, ROWS = 64, 256, 1 << 20


def plan(memory_limit: float | None) -> Plan:
    """Of a perceptron with very many rows."""
    with torch.device("meta"):
        up, down = (nn.Linear(*sizes, bias=False) for sizes in ((WIDTH, HIDDEN), (HIDDEN, WIDTH)))
        model = nn.Sequential(up, nn.GELU(), down)
        x, y = torch.empty(2, ROWS, WIDTH)
    return tensoropt_torch.find_strategy(
        model,
        (x,),
        loss_fn=nn.functional.mse_loss,
        targets=(y,),
        num_devices=DEVICES,
        memory="sums",
        cluster="h100-8",
        memory_limit=memory_limit,
    )


def layouts(plan: Plan) -> tuple[set[str], set[str], set[str]]:
    """Of stored parameters, of the weights that linear layers use, and of what these
    and the activation give."""
    assert plan.captured is not None
    planner = make_planner(plan.captured, plan.settings)
    stored, used, given = set(), set(), set()
    names = {source.names[0] for source in plan.captured.parameters}
    configs = plan.strategy(planner).config
    for i, (row, config) in enumerate(zip(planner.nodes(), configs, strict=True)):
        ports = planner.ports(i)[config]
        if row.name in names:
            stored.add(ports.outputs[0].value)
        if "linear" in row.target:
            used.add(ports.inputs[1].value)
        if "linear" in row.target or "gelu" in row.target:
            given.add(ports.outputs[0].value)
    return stored, used, given


def test_a_loose_limit_gives_data_parallelism() -> None:
    """Parameters may be stored in shards: then their update is split as well, for the
    price of the same collectives."""
    _, used, given = layouts(plan(None))
    assert used == {"R,R"}
    assert given == {"S0,S0"}


def test_the_least_memory_gives_sharded_parameters() -> None:
    least = min(memory for memory, _ in plan(None).frontier)
    stored, _, given = layouts(plan(least))
    assert stored
    for layout in stored | given:
        assert "R" not in layout
