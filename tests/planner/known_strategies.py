"""Strategies that people choose by hand, found in the space by what they do.

A role per mesh axis says what the axis is used for; a strategy is the frontier
of the space restricted to configs that play these roles.
"""

from __future__ import annotations

from tensoropt_torch import _C

COLUMN = ("q", "k", "v", "gate", "up", "head")  # split by output features
ROW = ("o", "down")  # split by input features
BATCH = ("b", "b0", "d0", "t0")
VIEWS = ("reshape", "flatten", "transpose", "chunk")  # they take what they get

# What each mesh axis does, outermost first, on 4 devices.
ROLES: dict[str, tuple[str, str]] = {
    "data parallel": ("data", "data"),
    "fully sharded": ("shard", "shard"),
    "tensor parallel": ("tensor", "tensor"),
    "sequence parallel": ("sequence", "sequence"),
    "data and tensor parallel": ("data", "tensor"),
    "fully sharded and tensor parallel": ("shard", "tensor"),
    "fully sharded and sequence parallel": ("shard", "sequence"),
}


def allowed_configs(space: _C.SearchSpace, roles: tuple[str, ...]) -> list[list[bool]]:
    """For every node, which configs play the roles; all if the node has no choice."""
    masks = []
    for row in space.nodes():
        mask = [_plays(row, label, roles) for label in row.configs]
        if not any(mask):
            mask = [_plays_as_far_as_possible(label, roles) for label in row.configs]
        masks.append(mask if any(mask) else [True] * len(mask))
    return masks


def _axes(label: str) -> list[str]:
    return label.split("/")[0].split(" ")[0].split(",")


def _plays(row: _C.NodeRow, label: str, roles: tuple[str, ...]) -> bool:
    uses = _axes(label)
    return len(uses) == len(roles) and all(
        _fits(row, use, role) for use, role in zip(uses, roles, strict=True)
    )


def _fits(row: _C.NodeRow, use: str, role: str) -> bool:
    target = row.target
    if role in ("data", "shard"):
        if target == "":  # a parameter, by its storage
            return use == "R" if role == "data" else use.startswith("S")
        if any(view in target for view in VIEWS):
            return True
        return use == "S0" if target == "relay" else use in BATCH
    return _fits_tensor(row.name.split("."), target, use, role == "sequence")


def _fits_tensor(name: list[str], target: str, use: str, sequence: bool) -> bool:
    if target == "aten.linear.default":
        return use == ("n" if any(part in COLUMN for part in name) else "k")
    if target == "aten.scaled_dot_product_attention.default":
        return use == "h"
    if target == "aten.cross_entropy_loss.default":
        return use == "c"
    if target == "aten.rms_norm.default":
        return use == ("b1" if sequence else "-")
    return True  # the rest follows from its neighbours: the search finds it


def _plays_as_far_as_possible(label: str, roles: tuple[str, ...]) -> bool:
    """Nodes without a batch dim, or parameters too small to shard."""
    return all(
        use in ("-", "R", *BATCH, "S0", "S1") or role not in ("data", "shard")
        for use, role in zip(_axes(label), roles, strict=False)
    )
