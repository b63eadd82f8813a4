"""Where a graph is cut: at modules that a user names, or so that stages have equal work."""

from __future__ import annotations

import bisect
import difflib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.frontend.passes.nodes import value_of
from tensoropt_torch.space.rows import loss_node
from tensoropt_torch.stages.roles import Roles, is_heavy, tensors_of

# An even cut may give a stage so much more or less than its share of the work, for fewer bytes.
SLACK = 0.25


@dataclass(frozen=True)
class Before:
    """Before the first call of a module, by its name in the model."""

    module: str


@dataclass(frozen=True)
class After:
    """After the last call of a module, by its name in the model."""

    module: str


Cut = Before | After


def cut_points(captured: CapturedModel, cuts: Sequence[str | Cut]) -> list[int]:
    """The numbers of the calls before which the graph is cut. A name alone is that of the module
    that a stage begins with.

    Raises:
        TensorOptError: the model has no such module, it computes nothing, or the cuts are not in
            the order in which the modules run.
    """
    wanted = [Before(cut) if isinstance(cut, str) else cut for cut in cuts]
    if not wanted:
        return []
    roles = Roles(captured, loss_node(captured))
    numbers = [_number(roles, cut) for cut in wanted]
    for (first, a), (second, b) in itertools.pairwise(zip(wanted, numbers, strict=True)):
        if a >= b:
            raise TensorOptError(
                f"stages are cut at {first} and then at {second}, which does not run after it; "
                "name the modules in the order in which they run"
            )
    for cut, number in zip(wanted, numbers, strict=True):
        if not 0 < number < len(roles.calls):
            raise TensorOptError(
                f"a cut at {cut} leaves nothing on one side of it; name a module further inside"
            )
    return numbers


def module_of(node: fx.Node) -> list[str]:
    """The names of the modules that make a call, outermost first."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = (str(path) for path, _ in stack.values())
    return [p.removeprefix("L['self'].").removeprefix("model").removeprefix(".") for p in paths]


def trained_modules(captured: CapturedModel) -> list[str]:
    """The innermost modules whose calls take parameters that are trained, in their order."""
    roles = Roles(captured, loss_node(captured))
    names = (module_of(node) for node in roles.calls if node in roles.owning)
    return list(dict.fromkeys(path[-1] for path in names if path))


def _number(roles: Roles, cut: Cut) -> int:
    fixed = [(n, node) for n, node in enumerate(roles.calls) if node not in roles.again]
    found = [
        n for n, node in fixed if node not in roles.before_batch and cut.module in module_of(node)
    ]
    if not found:
        known = sorted({name for _, node in fixed for name in module_of(node)} - {""})
        near = difflib.get_close_matches(cut.module, known, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"those are {', '.join(known[:20])}"
        raise TensorOptError(
            f"stages are cut at module '{cut.module}', which computes nothing in the captured "
            f"graph; give the name of a module that does; {hint}"
        )
    return found[0] if isinstance(cut, Before) else found[-1] + 1


def even_cuts(captured: CapturedModel, count: int) -> list[int]:
    """Cuts into so many stages of about equal work, where few bytes cross; each stage has
    parameters that are trained, and the whole of a buffer that forward changes.

    Raises:
        TensorOptError: there are no such cuts.
    """
    loss = loss_node(captured)
    roles = Roles(captured, loss)
    work = list(itertools.accumulate(work_of(node) for node in roles.calls))
    owning = list(itertools.accumulate(int(node in roles.owning) for node in roles.calls))
    closed = _closed(roles, loss)
    places = [n for n in range(1, len(work)) if n not in closed]
    found = even_places(work, crossing_bytes(roles), owning, places, count)
    if found is None:
        raise _too_few(owning[-1], count)
    return found


def even_places(
    work: Sequence[float],
    bytes_at: Sequence[int],
    owning: Sequence[int],
    places: Sequence[int],
    count: int,
) -> list[int] | None:
    """Of the places before calls where a cut may be, those of so many stages, each of which owns
    something; None: there are none.

    Args:
        work, owning: up to each call, with it.
        bytes_at: what crosses a cut at a place.
        places: in ascending order.
    """
    behind = _cuts_behind(owning, places)
    found: list[int] = []
    for number in range(1, count):
        share, slack = work[-1] * number / count, SLACK * work[-1] / count
        before = owning[found[-1] - 1] if found else 0
        left = count - 1 - number
        off = [abs(done - share) for done in work]
        fit = [n for n in places if before < owning[n - 1] and left <= behind[n]]
        if not fit:
            return None
        closest = min(off[n - 1] for n in fit)
        near = [(bytes_at[n], off[n - 1], n) for n in fit if off[n - 1] <= max(slack, closest)]
        found.append(min(near)[-1])
    return found


def _cuts_behind(owning: Sequence[int], places: Sequence[int]) -> dict[int, int]:
    """How many more cuts fit behind one at each place; -1: none may be there, as nothing behind it
    owns something. The next cut as early as can be leaves the most."""
    levels = [owning[place - 1] for place in places]
    found: dict[int, int] = {}
    for place, level in zip(reversed(places), reversed(levels), strict=True):
        following = bisect.bisect_right(levels, level)
        more = 1 + found[places[following]] if following < len(places) else 0
        found[place] = more if level < owning[-1] else -1
    return found


def _closed(roles: Roles, loss: fx.Node | None) -> set[int]:
    """Where a graph cannot be cut: behind its loss, and between the uses of a buffer that forward
    changes."""
    numbers = {node: n for n, node in enumerate(roles.calls) if node not in roles.again}
    found = set(range(numbers[loss] + 1, len(roles.calls))) if loss in numbers else set()
    for memory in roles.changed:
        users = {_made(user) for user in memory.users}
        places = [numbers[user] for user in users if user in numbers]
        found.update(range(min(places, default=0) + 1, max(places, default=0) + 1))
    return found


def _made(user: fx.Node) -> fx.Node:
    """What is written into a buffer at the end of forward is computed before."""
    copied = user.args[1] if user.target is torch.ops.aten.copy_.default else user
    return copied if isinstance(copied, fx.Node) else user


def _too_few(owning: int, count: int) -> TensorOptError:
    return TensorOptError(
        f"{owning} calls take parameters that are trained, and there is no way to cut between them "
        f"into {count} stages of which each has some, and the whole of a buffer that forward "
        "changes; ask for fewer stages, or train more of the model (requires_grad)"
    )


def work_of(node: fx.Node) -> float:
    """About what a call costs: of a product its multiplications, else what it writes."""
    sizes = [float(max(tensor.numel(), 1)) for tensor in tensors_of(node)]
    if not is_heavy(node) or not sizes:
        return sum(sizes)
    operands = sorted((value_of(o).numel() for o in node.all_input_nodes), reverse=True)[:2]
    return max(sum(sizes), math.sqrt(sizes[0] * math.prod(operands)))


def crossing_bytes(roles: Roles) -> list[int]:
    """What would cross a cut before each call."""
    numbers = {node: n for n, node in enumerate(roles.calls)}
    found = [0] * (len(roles.calls) + 1)
    for node, number in numbers.items():
        value = node.meta.get("val")
        if node in roles.again or node in roles.before_batch:
            continue
        users = [numbers[user] for user in node.users if user in numbers]
        # What gives several tensors cannot be cut off from those who take them apart.
        size = value.nbytes if isinstance(value, torch.Tensor) else 2**62
        for place in range(number + 1, max(users, default=number) + 1):
            found[place] += size
    return found
