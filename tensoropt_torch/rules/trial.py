"""Whether a call of Python works row by row or element by element, tried on random numbers.

The call is run whole and in parts, forward and backward, for tensors and incoming gradients of
several sizes, so that what depends on a norm or on a threshold shows. Parts have to give the
parts of what the whole gives; an operand that all parts have, the sum of its gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import fx

from tensoropt_torch.frontend.python_calls import Proof, binding_of_node
from tensoropt_torch.rules.bench import gradients

ROWS = 24  # a multiple of 12
MAX_ELEMENTS = 2**17  # of a tensor in a trial with the sizes that the model has
PARTS = (2, 3, 4)
SEEDS = (0, 1, 2)
# What numbers of operands and of incoming gradients are multiplied with.
SCALES = ((1.0, 1.0), (1.0, 1e-4), (1.0, 1e4), (1.0, 1e8), (1e-3, 1.0), (1e3, 1.0))
TOLERANCES = {
    torch.float64: 1e-10,
    torch.float32: 1e-5,
    torch.float16: 1e-2,
    torch.bfloat16: 1e-2,
}

Sizes = tuple[int, ...]
Grads = list[torch.Tensor | None]


class PartsDifferError(Exception):
    """What parts give is not what the whole gives."""


@dataclass(frozen=True)
class _Candidate:
    """A rule, by its words for the dims of operands and outputs, and sizes of operands."""

    words: tuple[tuple[str, ...], ...]
    outputs: tuple[tuple[str, ...], ...]
    sizes: tuple[Sizes, ...]
    what: str

    @property
    def rule(self) -> str:
        return f"{_terms(self.words)} -> {_terms(self.outputs)}"

    @property
    def factors(self) -> list[str]:
        names = dict.fromkeys(word for term in self.words for word in term)
        return [name for name in names if name != "_"]


@dataclass
class _Results:
    outputs: list[torch.Tensor]
    gradients: Grads


def tried(node: fx.Node) -> Proof:
    """What trials say of a call, whose values have shapes and dtypes that count."""
    binding = binding_of_node(node)
    if binding.why_whole:
        return Proof("", binding.why_whole)
    reasons = []
    for candidate in _candidates(node):
        trial = _Trial(node, candidate)
        try:
            trial.run()
        except PartsDifferError as difference:
            reasons.append(f"it does not work {candidate.what}: {difference}")
            continue
        except Exception as error:  # whatever the user's code raises
            text = str(error).partition("\n")[0]
            reasons.append(f"a trial {candidate.what} cannot run ({type(error).__name__}: {text})")
            continue
        return Proof(candidate.rule, f"found by trials to work {candidate.what}", trial.linear)
    linear = _is_linear(node)
    return Proof("", reasons[-1] if reasons else "its tensors have no dim in common", linear)


def _is_linear(node: fx.Node) -> bool:
    """Of a call that runs whole, with the sizes that it has."""
    operands = tuple(tuple(t.shape) for t in _operands(node))
    words = tuple(("_",) * len(size) for size in operands)
    if max((math.prod(size) for size in operands), default=0) > MAX_ELEMENTS * 8:
        return False
    trial = _Trial(node, _Candidate(words, (), operands, "whole"))
    try:
        trial.run()
    except Exception:  # whatever the user's code raises
        return False
    return trial.linear


def _terms(terms: Sequence[Sequence[str]]) -> str:
    return ", ".join(" ".join(term) or "()" for term in terms)


def _operands(node: fx.Node) -> list[torch.Tensor]:
    return [operand.meta["val"] for operand in node.args]  # type: ignore[union-attr]


def _outputs(node: fx.Node) -> list[torch.Tensor]:
    value = node.meta["val"]
    return list(value) if isinstance(value, (tuple, list)) else [value]


# --- Which rules are tried -------------------------------------------------------------------


def _candidates(node: fx.Node) -> Iterator[_Candidate]:
    operands = [tuple(t.shape) for t in _operands(node)]
    outputs = [tuple(t.shape) for t in _outputs(node)]
    shapes = {shape for shape in (*operands, *outputs) if shape}
    first = next((shape for shape in operands if shape), ())
    if not first or any(not output for output in outputs):
        return
    if len(shapes) == 1:
        yield _by_element(operands, outputs, len(first))
    if all(output[0] == first[0] for output in outputs):
        small = all(math.prod(s[1:]) * ROWS <= MAX_ELEMENTS for s in operands)
        yield _by_row(operands, outputs, first[0], keep=small)
        if small:
            yield _by_row(operands, outputs, first[0], keep=False)


def _by_element(operands: Sequence[Sizes], outputs: Sequence[Sizes], rank: int) -> _Candidate:
    names = tuple(f"d{i}" for i in range(rank))
    sizes = tuple(12 * (1 + i % 2) for i in range(rank))
    return _Candidate(
        tuple(names if shape else () for shape in operands),
        tuple(names for _ in outputs),
        tuple(sizes if shape else () for shape in operands),
        "element by element",
    )


def _by_row(
    operands: Sequence[Sizes], outputs: Sequence[Sizes], rows: int, *, keep: bool
) -> _Candidate:
    """With the sizes that the model has, but for the rows, or with small ones."""
    small: dict[int, int] = {1: 1}

    def size(given: int) -> int:
        return given if keep else small.setdefault(given, 12 * len(small))

    def term(shape: Sizes) -> tuple[str, ...]:
        has_rows = bool(shape) and shape[0] == rows
        return tuple("n" if i == 0 and has_rows else "_" for i in range(len(shape)))

    def sizes(shape: Sizes) -> Sizes:
        words = term(shape)
        return tuple(ROWS if word == "n" else size(s) for word, s in zip(words, shape, strict=True))

    return _Candidate(
        tuple(map(term, operands)),
        tuple(map(term, outputs)),
        tuple(map(sizes, operands)),
        "row by row",
    )


# --- Trying one ------------------------------------------------------------------------------


@dataclass
class _Trial:
    """Runs a call whole and in parts."""

    node: fx.Node
    candidate: _Candidate
    linear: bool = True
    _alive: dict[str, bool] = field(default_factory=dict)

    def run(self) -> None:
        """Raises PartsDifferError, or whatever the call raises."""
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            for seed in SEEDS:
                for scales in SCALES:
                    self._try(torch.Generator().manual_seed(seed), *scales)
        dead = [name for name, alive in self._alive.items() if not alive]
        if dead and self.candidate.factors:
            raise PartsDifferError(
                f"{dead[0]} was zero or not finite in all trials, which shows nothing"
            )

    def _try(self, random: torch.Generator, scale: float, gradient_scale: float) -> None:
        error: Exception | None = None
        for bound in self._bounds():
            operands = self._made(random, scale, bound)
            try:
                outputs = self._call(operands)
            except IndexError as caught:
                error = caught
                continue
            break
        else:
            assert error is not None
            raise error
        incoming = [gradient_scale * _normal(o, random) for o in outputs]
        whole = _Results(outputs, _gradients(operands, outputs, incoming))
        self._look_at(whole)
        self._check_linear(operands, outputs, incoming, whole.gradients, random)
        for factor in self.candidate.factors:
            for parts in PARTS:
                self._compare(operands, incoming, whole, factor, parts)

    def _bounds(self) -> list[int]:
        """Of integers, which may be positions."""
        sizes = {s for size in self.candidate.sizes for s in size if s > 1}
        return [*sorted(sizes), 2] if sizes else [2]

    def _made(self, random: torch.Generator, scale: float, bound: int) -> list[torch.Tensor]:
        made = []
        wanted = binding_of_node(self.node).differentiable
        likes = zip(_operands(self.node), self.candidate.sizes, wanted, strict=True)
        for like, size, requires_grad in likes:
            device = "cpu" if like.is_meta else like.device
            if like.is_floating_point() or like.is_complex():
                drawn = torch.randn(size, generator=random, dtype=torch.float64) * scale
                tensor = drawn.to(like.dtype)
            elif like.dtype == torch.bool:
                tensor = torch.randint(2, size, generator=random).bool()
            else:
                tensor = torch.randint(bound, size, generator=random).to(like.dtype)
            made.append(tensor.to(device).requires_grad_(requires_grad))
        return made

    def _call(self, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        assert callable(self.node.target)
        result = self.node.target(*operands, **self.node.kwargs)
        return list(result) if isinstance(result, (tuple, list)) else [result]

    def _look_at(self, whole: _Results) -> None:
        found = {f"output {i}": o for i, o in enumerate(whole.outputs)}
        found |= {
            f"the gradient of tensor {i}": g for i, g in enumerate(whole.gradients) if g is not None
        }
        for name, tensor in found.items():
            alive = bool(tensor.isfinite().all()) and bool((tensor != 0).any())
            self._alive[name] = self._alive.get(name, False) or alive

    def _check_linear(
        self,
        operands: list[torch.Tensor],
        outputs: list[torch.Tensor],
        incoming: list[torch.Tensor],
        gradients: Grads,
        random: torch.Generator,
    ) -> None:
        other = [_normal(o, random) for o in outputs]
        others = _gradients(operands, outputs, other)
        both = [2 * a - 3 * b for a, b in zip(incoming, other, strict=True)]
        together = _gradients(operands, outputs, both)
        for a, b, got in zip(gradients, others, together, strict=True):
            if a is None or b is None or got is None:
                self.linear = self.linear and a is None and b is None and got is None
            else:
                self.linear = self.linear and _difference(got, 2 * a - 3 * b) == ""

    def _compare(
        self,
        operands: list[torch.Tensor],
        incoming: list[torch.Tensor],
        whole: _Results,
        factor: str,
        parts: int,
    ) -> None:
        words = self.candidate.words
        runs = []
        for number in range(parts):
            mine = [
                _part(t, term, factor, parts, number)
                .detach()
                .clone()
                .requires_grad_(t.requires_grad)
                for t, term in zip(operands, words, strict=True)
            ]
            outputs = self._call(mine)
            given = [
                _part(g, term, factor, parts, number)
                for g, term in zip(incoming, self.candidate.outputs, strict=True)
            ]
            for output, gradient in zip(outputs, given, strict=True):
                if output.shape != gradient.shape:
                    raise PartsDifferError(f"a part has an output of shape {tuple(output.shape)}")
            runs.append(_Results(outputs, _gradients(mine, outputs, given)))
        for i, term in enumerate(self.candidate.outputs):
            joined = torch.cat([run.outputs[i] for run in runs], term.index(factor))
            _check(f"output {i}", joined, whole.outputs[i])
        for i, term in enumerate(words):
            _check_gradient(i, term, factor, [run.gradients[i] for run in runs], whole.gradients[i])


def _check_gradient(
    number: int, term: Sequence[str], factor: str, parts: Grads, whole: torch.Tensor | None
) -> None:
    found = [part for part in parts if part is not None]
    if whole is None or len(found) < len(parts):
        if whole is not None or found:
            raise PartsDifferError(f"tensor {number} has a gradient in some parts only")
        return
    joined = torch.cat(found, term.index(factor)) if factor in term else sum(found)
    assert isinstance(joined, torch.Tensor)
    _check(f"the gradient of tensor {number}", joined, whole)


def _part(
    tensor: torch.Tensor, term: Sequence[str], factor: str, parts: int, number: int
) -> torch.Tensor:
    return tensor.chunk(parts, term.index(factor))[number] if factor in term else tensor


def _check(what: str, got: torch.Tensor, whole: torch.Tensor) -> None:
    difference = _difference(got.detach(), whole.detach())
    if difference:
        raise PartsDifferError(f"of parts {what} is another ({difference})")


def _difference(got: torch.Tensor, whole: torch.Tensor) -> str:
    """In words; empty: they are equal up to rounding, not numbers at the same places."""
    if got.shape != whole.shape or got.dtype != whole.dtype:
        return f"{tuple(got.shape)}, {got.dtype} instead of {tuple(whole.shape)}, {whole.dtype}"
    if not whole.is_floating_point():
        return "" if torch.equal(got, whole) else "other numbers"
    a, b = got.double(), whole.double()
    finite = b.isfinite()
    if not torch.equal(a.isfinite(), finite):
        return "not finite at other places"
    if not bool(finite.any()):
        return ""
    largest = float(b[finite].abs().max())
    error = float((a - b)[finite].abs().max())
    return "" if error <= TOLERANCES[whole.dtype] * largest else f"off by {error:.1e}"


def _gradients(
    operands: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    incoming: Sequence[torch.Tensor],
) -> Grads:
    if not any(t.requires_grad for t in operands) or not any(o.requires_grad for o in outputs):
        return [None] * len(operands)
    return gradients(list(operands), list(outputs), list(incoming))


def _normal(like: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    dtype = like.dtype if like.is_floating_point() else torch.float64
    return torch.randn(like.shape, generator=random, dtype=torch.float64).to(like.device, dtype)
