"""What a ledger says of lives that are given by hand."""

from __future__ import annotations

from tensoropt_torch.simulate.ledger import Ledger, cuda_bytes


def step() -> Ledger:
    """A parameter of 100 bytes; forward makes a saved tensor of 30 and a temporary of
    20; backward a reshard buffer of 40 after the temporary is gone."""
    ledger = Ledger()
    ledger.allocations[ledger.allocate(100)].category = "parameters"
    ledger.enter("forward")
    ledger.operator = "mm"
    saved = ledger.allocate(30)
    ledger.operator = "relu"
    ledger.free(ledger.allocate(20))
    ledger.enter("backward")
    ledger.operator = "reshard"
    buffer = ledger.allocate(40)
    ledger.free(saved)
    ledger.free(buffer)
    return ledger


def test_peak_is_where_most_is_alive() -> None:
    profile = step().profile()
    assert profile.peak_bytes == 170
    assert (profile.phase, profile.operator) == ("backward", "reshard")
    assert profile.phase_peaks == {"forward": 150, "backward": 170}
    assert profile.curve == (130, 150, 130, 170, 140, 100)


def test_categories_follow_from_lives_and_sum_to_the_peak() -> None:
    profile = step().profile()
    counted = {name: size for name, size in profile.categories.items() if size}
    assert counted == {"parameters": 100, "activations": 30, "reshard buffers": 40}
    assert sum(usage.num_bytes for usage in profile.usages) == profile.peak_bytes


def test_sizes_that_are_known_late_count_all_the_time() -> None:
    ledger = step()
    ledger.allocations[1].num_bytes = 1030  # the saved tensor
    assert ledger.profile().peak_bytes == 1170


def test_the_start_is_no_part_of_the_step() -> None:
    ledger = Ledger()
    ledger.free(ledger.allocate(1000))
    ledger.enter("forward")
    ledger.free(ledger.allocate(1))
    profile = ledger.profile()
    assert profile.peak_bytes == 1
    assert profile.curve == (1, 0)


def test_cuda_takes_whole_blocks() -> None:
    assert [cuda_bytes(n) for n in (0, 1, 512, 513)] == [0, 512, 512, 1024]
