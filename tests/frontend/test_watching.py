"""What forward does beside calling operators is noted, and left as it was."""

from __future__ import annotations

import itertools
import random
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import capture
from tensoropt_torch.frontend.comparison import differences
from tensoropt_torch.frontend.watching import Place, image_of

OUTSIDE: dict[str, torch.Tensor] = {}


class Layer(nn.Module):
    """Does one thing that is no call of an operator."""

    def __init__(self, what: str, probability: float = 0.0) -> None:
        super().__init__()
        self.linear, self.drop = nn.Linear(4, 4), nn.Dropout(0.5)
        self.what, self.probability = what, probability
        self.mask: torch.Tensor | None = None
        self.state: Any = None
        self.seen: list[int] = []
        self.generator = np.random.default_rng(3)
        self.register_buffer("table", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h: torch.Tensor = self.drop(self.linear(x)) * self.table
        action = getattr(self, self.what, None)
        return (h if action is None else action(h)).square().mean()

    def draws_python(self, h: torch.Tensor) -> torch.Tensor:
        return h * 2 if random.random() < self.probability else h

    def draws_numpy(self, h: torch.Tensor) -> torch.Tensor:
        return h * 2 if np.random.rand() < self.probability else h

    def draws_own(self, h: torch.Tensor) -> torch.Tensor:
        return h * float(self.generator.random())

    def makes_mask(self, h: torch.Tensor) -> torch.Tensor:
        if self.mask is None:
            self.mask = torch.arange(4.0)
        return h * self.mask

    def keeps_state(self, h: torch.Tensor) -> torch.Tensor:
        if self.state is not None:
            h = h + self.state
        self.state = h.detach()
        return h

    def counts(self, h: torch.Tensor) -> torch.Tensor:
        self.seen.append(len(h))
        return h * len(self.seen)

    def flips(self, h: torch.Tensor) -> torch.Tensor:
        """Changes nothing more the second time, which computes something else."""
        if self.state is None:
            self.state = "warm"
            return h * 3
        return h

    def puts_outside(self, h: torch.Tensor) -> torch.Tensor:
        OUTSIDE["last"] = h.detach()
        return h

    def writes(self, h: torch.Tensor) -> torch.Tensor:
        self.loss, self.note = h.mean(), "text"
        return h


def attributes(module: nn.Module) -> dict[str, Any]:
    return {name: image_of(value) for name, value in vars(module).items() if name[0] != "_"}


def test_reads_are_those_of_forward() -> None:
    reads = capture(Layer(""), (torch.ones(3, 4),)).attributes.reads
    assert Place("drop", "p") in reads and Place("", "what") in reads
    assert not {place.name for place in reads} & {"probability", "table", "training", "seen"}


class Config:
    """One entry has two names, as in configurations of Hugging Face; one is a property."""

    attribute_map: ClassVar = {"width": "n_embd"}

    def __init__(self) -> None:
        self.n_embd, self.scale, self.version = 4, 2.0, "1"

    def __getattribute__(self, name: str) -> Any:
        own = object.__getattribute__(self, "attribute_map")
        return object.__getattribute__(self, own.get(name, name))

    @property
    def doubled(self) -> float:
        return 2 * self.scale


class Configured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.config = nn.Linear(4, 4), Config()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h: torch.Tensor = self.linear(x) * self.config.doubled
        return h.sum() / self.config.width  # type: ignore[attr-defined]


def test_of_a_configuration_counts_what_forward_reads() -> None:
    before = vars(Config)["__getattribute__"]
    (names,) = capture(Configured(), (torch.ones(3, 4),)).attributes.fields.values()
    assert names == {"doubled", "scale", "width", "n_embd"}
    assert vars(Config)["__getattribute__"] is before


def test_of_a_configuration_that_is_read_as_a_whole_all_counts() -> None:
    class Whole(Configured):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h: torch.Tensor = self.linear(x) * len(vars(self.config))
            return h.sum()

    assert not capture(Whole(), (torch.ones(3, 4),)).attributes.fields


@pytest.mark.parametrize("what", ["draws_python", "draws_numpy"])
def test_draws_that_do_not_count_are_no_error(what: str) -> None:
    before = random.getstate(), np.random.get_state()[1].copy()  # type: ignore[union-attr, index]
    captured = capture(Layer(what), (torch.ones(3, 4),))
    assert captured.fingerprint == capture(Layer(""), (torch.ones(3, 4),)).fingerprint
    assert random.getstate() == before[0]
    assert (np.random.get_state()[1] == before[1]).all()  # type: ignore[index]


@pytest.mark.parametrize(
    ("what", "source"),
    [("draws_python", "random"), ("draws_numpy", "numpy.random"), ("draws_own", "'generator'")],
)
def test_draws_that_count_are_refused(what: str, source: str) -> None:
    with pytest.raises(TensorOptError, match=f"draws random numbers from {source}"):
        capture(Layer(what, 0.5), (torch.ones(3, 4),))


def test_an_iterator_is_refused() -> None:
    class Counted(Layer):
        def __init__(self) -> None:
            super().__init__("counts_on")
            self.numbers = itertools.count(1)

        def counts_on(self, h: torch.Tensor) -> torch.Tensor:
            return h * next(self.numbers)

    with pytest.raises(TensorOptError, match="attribute 'numbers', a count"):
        capture(Counted(), (torch.ones(3, 4),))


def test_containers_of_a_model_stay_the_same_objects() -> None:
    shared: dict[str, float] = {"scale": 2.0}
    model = nn.Sequential(Layer(""), Layer(""))
    model[0].table_of, model[1].table_of = shared, shared
    model[0].several = [shared]
    capture(model[0], (torch.ones(3, 4),))
    assert model[0].table_of is shared is model[1].table_of
    assert model[0].several[0] is shared


def test_cache_is_left_alone() -> None:
    model = Layer("makes_mask")
    captured = capture(model, (torch.ones(3, 4),))
    assert captured.attributes.written is None and model.mask is None


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("keeps_state", "'state'"),
        ("counts", "'seen'"),
        ("flips", "'state'"),
        ("puts_outside", f"'OUTSIDE' of {__name__}|'OUTSIDE'|'last'"),
    ],
)
def test_what_is_carried_from_call_to_call_is_refused(what: str, words: str) -> None:
    OUTSIDE.clear()
    model = Layer(what)
    before = attributes(model)
    with pytest.raises(TensorOptError, match=words):
        capture(model, (torch.ones(3, 4),))
    assert attributes(model) == before
    OUTSIDE.clear()


class Fills(nn.Module):
    """Its first call puts something into a buffer that is None, or makes the buffer."""

    def __init__(self, what: str, persistent: bool = False) -> None:
        super().__init__()
        self.linear, self.what = nn.Linear(4, 4), what
        self.register_buffer("table", None, persistent=persistent)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h: torch.Tensor = self.linear(x)
        if self.what == "makes" and "made" not in self._buffers:
            self.register_buffer("made", x.detach().mean(0), persistent=False)
        if self.table is None:
            self.table = torch.rand(4) if self.what == "drawn" else torch.arange(4.0)
            if self.what == "of the input":
                self.table = x.detach().mean(0)
        if self.what == "changes":
            self.table.add_(1)
        made: torch.Tensor = self._buffers.get("made", self.table)
        return (h * self.table * made).square().mean()


@pytest.mark.parametrize("what", ["drawn", "of the input", "changes", "makes"])
def test_buffers_that_the_first_call_fills_with_something_else_are_refused(what: str) -> None:
    model, x = Fills(what), torch.randn(3, 4)
    name = "made" if what == "makes" else "table"
    with pytest.raises(
        TensorOptError, match=rf"fills .*'{name}', which held nothing before.* Call the model once"
    ):
        capture(model, (x,))
    assert dict(model._buffers) == {"table": None}
    assert model._non_persistent_buffers_set == {"table"}
    model(x)
    capture(model, (x,))


def test_buffers_that_are_filled_with_what_is_always_the_same_are_left_alone() -> None:
    model, x = Fills("constant"), torch.randn(3, 4)
    captured = capture(model, (x,))
    assert dict(model._buffers) == {"table": None}
    assert differences(model, captured, (x,)) == []
    assert dict(model._buffers) == {"table": None}


def test_filled_buffers_that_a_state_dict_has_are_refused() -> None:
    model, x = Fills("constant", persistent=True), torch.randn(3, 4)
    with pytest.raises(TensorOptError, match=r"fills .table., .*state dict .*persistent=False"):
        capture(model, (x,))
    assert dict(model._buffers) == {"table": None}
    model(x)
    captured = capture(model, (x,))
    assert "table" in captured.constants


class Omits(Fills):
    """Leaves the buffer out of its state dict by a method, its own or that of saving, or a hook."""

    def __init__(self, how: str) -> None:
        super().__init__("constant", persistent=True)
        self.how = how
        if how == "hook":
            self.register_state_dict_post_hook(self.without_table)

    @staticmethod
    def without_table(_: nn.Module, state: dict[str, Any], prefix: str, __: Any) -> None:
        state.pop(f"{prefix}table", None)
        for name, value in state.items():  # as hooks do that move what is saved
            state[name] = value.detach() * 1

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        state = super().state_dict(*args, **kwargs)
        if self.how == "state_dict":
            state.pop(f"{kwargs.get('prefix', '')}table", None)
        return state

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.how == "saving":
            destination.pop(f"{prefix}table", None)


@pytest.mark.parametrize("is_within", [False, True])
@pytest.mark.parametrize("how", ["state_dict", "saving", "hook"])
def test_filled_buffers_that_a_state_dict_leaves_out_are_captured(
    how: str, is_within: bool
) -> None:
    model, x = Omits(how), torch.randn(3, 4)
    whole = nn.Sequential(model) if is_within else model
    captured = capture(whole, (x,))
    assert dict(model._buffers) == {"table": None}
    assert differences(whole, captured, (x,)) == []
    usual = capture(Fills("constant"), (x,))
    assert captured.num_calls == usual.num_calls


def test_a_state_dict_that_renames_a_filled_buffer_has_it() -> None:
    class Renames(Fills):
        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            state = super().state_dict(*args, **kwargs)
            return {f"own.{name}": value.clone() for name, value in state.items()}

    with pytest.raises(TensorOptError, match=r"fills .table., .*state dict"):
        capture(Renames("constant", persistent=True), (torch.randn(3, 4),))


def test_a_table_of_random_numbers_that_is_made_once_is_refused() -> None:
    class Draws(Layer):
        def makes_mask(self, h: torch.Tensor) -> torch.Tensor:
            if self.mask is None:
                self.mask = torch.rand(4)
            return h * self.mask

    with pytest.raises(TensorOptError, match="reads and changes attribute 'mask'"):
        capture(Draws("makes_mask"), (torch.ones(3, 4),))


def test_writes_are_outputs_and_the_model_is_as_before() -> None:
    model = Layer("writes")
    before = attributes(model)
    written = capture(model, (torch.ones(3, 4),)).attributes.written
    assert written is not None
    assert dict(zip(written.places, written.is_tensor, strict=True)) == {
        Place("", "loss"): True,
        Place("", "note"): False,
    }
    assert attributes(model) == before and not hasattr(model, "loss")


class HooksItself(nn.Module):
    """Sets a hook in its first forward, as models of Hugging Face do that give hidden states."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, 4) to a number."""
        if not getattr(self, "_output_capturing_hooks_installed", False):
            self.layer.register_forward_hook(lambda *_: None)
            self._output_capturing_hooks_installed = True
        return self.layer(x).sum()


def test_hooks_that_forward_sets_are_taken_away_again() -> None:
    model, example = HooksItself(), torch.randn(2, 4)
    captured = capture(model, (example,))
    assert not model.layer._forward_hooks
    assert not captured.hooks  # so that a plan is one of other instances
