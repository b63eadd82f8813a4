"""Speeds, hours and money of a row, by hand; and which rows are marked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tensoropt_torch.advising.advice import Advice, marked
from tensoropt_torch.advising.rows import OURS, AdviceRow, Price
from tensoropt_torch.advising.table import COLUMNS, cells_of
from tensoropt_torch.advising.work import Work
from tensoropt_torch.telling.chosen import Chosen, split_in_words
from tensoropt_torch.telling.work import WorkShare

ROW = AdviceRow(
    model="m",
    machine="h100",
    cluster="h100-8",
    num_devices=8,
    strategy=OURS,
    chosen=Chosen("data 8, FSDP", 0.25, 4),
    time_s=2.0,
    memory_bytes=30 * 2**30,
    is_peak=True,
    memory_limit=72e9,
    rows=16,
    tokens=65536,
    steps=43200,
    peak_s=6.4,
    price=Price(2.5, "USD", "a list"),
)
MISSING = replace(ROW, chosen=None, time_s=None, memory_bytes=72e9 + 2**30, is_peak=False)


def test_figures_of_a_row() -> None:
    assert ROW.tokens_per_s == 32768 and ROW.samples_per_s == 8
    assert ROW.mfu == pytest.approx(0.4)  # 6.4 s of one device, of 8 for 2 s
    assert ROW.hours == 24 and ROW.days == 1
    assert ROW.money == pytest.approx(24 * 8 * 2.5)
    assert ROW.fits and ROW.missing_bytes == 0


def test_what_does_not_fit_says_by_how_much() -> None:
    assert not MISSING.fits and MISSING.missing_bytes == 2**30
    assert MISSING.hours is None and MISSING.money is None and MISSING.mfu is None
    cells = dict(zip(COLUMNS, cells_of(MISSING, ""), strict=True))
    assert cells["step"] == "does not fit"
    assert cells["memory"] == "needs 68.06 GiB, 1.00 GiB too much"


def test_a_row_in_texts() -> None:
    cells = dict(zip(COLUMNS, cells_of(ROW, "cheapest"), strict=True))
    assert cells == {
        "model, batch": "m",
        "machines": "h100",
        "devices": "8",
        "strategy": OURS,
        "step": "2.000 s",
        "tokens/s": "32,768",
        "each": "4,096",
        "MFU": "40.0%",
        "days": "1",
        "price": "480 USD",
        "memory": "30.00 GiB",
        "what it does": "data 8, FSDP; 25% again; 4 micro-batches",
        "": "cheapest",
    }


def on(num_devices: int, time_s: float) -> AdviceRow:
    return replace(ROW, num_devices=num_devices, time_s=time_s)


def test_cheapest_fastest_and_knee() -> None:
    # Device-seconds of a step: 16, 17, 40; so the second is nearly as cheap, and twice as fast.
    rows = [on(8, 2.0), on(16, 17 / 16), on(40, 1.0), replace(on(80, 0.1), strategy="DDP"), MISSING]
    found = marked(rows, "m")
    assert found == {"cheapest": rows[0], "knee": rows[1], "fastest": rows[2]}
    advice = Advice(Work(1, "steps"), tuple(rows), ())
    assert list(advice.marks.values()) == ["cheapest", "fastest", "knee"]
    assert repr(advice).startswith("Advice(3 of 4 choices fit for 1 steps: cheapest: m on 8 of")
    assert advice.to_markdown().count("\n") == 6


def test_without_prices_or_in_two_currencies_nothing_is_cheapest() -> None:
    free = replace(ROW, price=None)
    assert marked([free], "m") == {"fastest": free}
    others = [ROW, replace(ROW, price=Price(1.0, "EUR", "another list"))]
    assert "cheapest" not in marked(others, "m")


@pytest.mark.parametrize(
    ("shares", "held", "text"),
    [
        ([WorkShare({"batch": 8}, 1.0)], 1.0, "data 8, parameters whole"),
        ([WorkShare({"batch": 8}, 1.0)], 1 / 8, "data 8, FSDP"),
        (
            [WorkShare({"batch": 4, "features": 2}, 1.0)],
            1 / 2,
            "data 4 x tensor 2, parameters in 2 parts",
        ),
        (
            [WorkShare({"batch": 8}, 0.7), WorkShare({}, 0.25), WorkShare({"features": 8}, 0.05)],
            1 / 8,
            "70% data 8 + 25% not split, FSDP",
        ),
    ],
)
def test_strategies_have_names(shares: list[WorkShare], held: float, text: str) -> None:
    assert split_in_words(shares, held, 8) == text
    assert split_in_words(shares, held, 1) == "one device"
