"""Presets by the pattern of their names: any number of machines of a known GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import tensoropt_torch
from tensoropt_torch import TensorOptError, cli
from tensoropt_torch.config import load_cluster, mesh_axes
from tensoropt_torch.config.preset_names import FAMILIES


@pytest.mark.parametrize(
    ("name", "counts", "link"),
    [
        ("h100-128x8", (128, 8), 8 * 50e9),
        ("h100-4x4", (4, 4), 4 * 50e9),
        ("a100-80gb-4x8", (4, 8), 8 * 25e9),
        ("l40s-2x8", (2, 8), 25e9),
        ("rtx4090-2x4", (2, 4), 25e9),
        ("v100-2x8", (2, 8), 12.5e9),
    ],
)
def test_machines_are_joined_by_what_their_gpu_is_sold_with(
    name: str, counts: tuple[int, int], link: float
) -> None:
    cluster = load_cluster(name)
    network, inside = cluster.levels
    assert cluster.name == name
    assert (network.count, inside.count) == counts
    assert network.bandwidth_bytes_per_s == link
    assert network.source
    assert str(counts[0]) in cluster.description


@pytest.mark.parametrize("gpu", FAMILIES)
def test_every_gpu_has_the_device_of_its_preset(gpu: str) -> None:
    preset = load_cluster(FAMILIES[gpu].preset)
    for name in (f"{gpu}-4", f"{gpu}-1x4", f"{gpu}-3x2"):
        cluster = load_cluster(name)
        assert cluster.device == preset.device
        assert replace(cluster.levels[-1], count=1) == replace(preset.levels[-1], count=1)
    assert load_cluster(f"{gpu}-4").num_devices == 4
    assert len(load_cluster(f"{gpu}-1x4").levels) == 1


@pytest.mark.parametrize(
    ("file", "pattern"),
    [("h100-2x8", "h100-3x8"), ("h200-2x8", "h200-3x8"), ("paper-2x8-v100", "v100-3x8")],
)
def test_the_pattern_continues_the_files_of_two_machines(file: str, pattern: str) -> None:
    two, three = load_cluster(file), load_cluster(pattern)
    assert replace(three.levels[0], count=2, source="") == replace(two.levels[0], source="")
    assert replace(three.levels[1], source="") == replace(two.levels[1], source="")


def test_unknown_names_say_what_is_allowed() -> None:
    allowed = r"<gpu>-<machines>x<devices of one>, such as h100-128x8.*1 to 8.*a100-40gb.*rtx4090"
    with pytest.raises(TensorOptError, match=f"'h300-2x8' is neither.*'h[12]00-2x8'.*{allowed}"):
        load_cluster("h300-2x8")
    with pytest.raises(TensorOptError, match=f"machines: 2, devices in each: 16; .*{allowed}"):
        load_cluster("h100-2x16")
    with pytest.raises(TensorOptError, match=f"machines: 0, .*{allowed}"):
        load_cluster("h100-0x8")


def test_a_file_of_the_name_of_a_pattern_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preset = Path(tensoropt_torch.__file__).parent / "clusters" / "cpu.toml"
    monkeypatch.chdir(tmp_path)
    Path("h100-4x8").write_text(preset.read_text())
    assert load_cluster("h100-4x8") == load_cluster("cpu")


def test_devices_that_a_preset_does_not_have_name_the_preset_that_has_them() -> None:
    with pytest.raises(TensorOptError, match=r"64 devices: .*such as cluster='h100-8x8'"):
        mesh_axes(load_cluster("h100-2x8"), 64)
    with pytest.raises(TensorOptError, match=r"32 devices: .*such as cluster='rtx4090-8x4'"):
        mesh_axes(load_cluster("rtx4090-4"), 32)
    for name, count in (("h100-8", 12), ("cpu", 128)):
        with pytest.raises(TensorOptError, match="describe another cluster"):
            mesh_axes(load_cluster(name), count)
    own = replace(load_cluster("cpu"), name="h100-99")
    with pytest.raises(TensorOptError, match="describe another cluster"):
        mesh_axes(own, 1000)


def test_a_number_of_devices_is_checked_before_the_model_is_captured() -> None:
    class Never(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise AssertionError("it is captured")

    model, args = Never(), (torch.zeros(8),)
    for call in (
        lambda: tensoropt_torch.find_frontier(model, args, cluster="h100-8", num_devices=64),
        lambda: tensoropt_torch.find_strategy(model, args, cluster="h100-8", num_devices=64),
        lambda: tensoropt_torch.explain(model, args, cluster="h100-8", num_devices=64),
        lambda: tensoropt_torch.compare(model, args, cluster="h100-8", num_devices=64),
        lambda: tensoropt_torch.profile(model, args, cluster="h100-8", device_counts=[8, 64]),
        lambda: tensoropt_torch.find_tradeoffs(model, args, cluster="h100-8", device_counts=[64]),
    ):
        with pytest.raises(TensorOptError, match=r"cannot lay out 64 devices.*h100-8x8"):
            call()


MODEL = """
import torch
class Model(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x).square().mean()
def build():
    with torch.device("meta"):
        return Model(64, 64), (torch.zeros(2048, 64),)
"""


@pytest.mark.parametrize("name", ["h100-128x8", "a100-80gb-4x8", "l40s-2x8", "rtx4090-2x4"])
def test_the_command_plans_for_them(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    cluster = load_cluster(name)
    assert cli.main(["plan", f"{file}:build", "--cluster", name]) == 0
    assert f"{cluster.num_devices} devices" in capsys.readouterr().out
    page = tmp_path / "page.html"
    asked = ("--cluster", name, "--devices", "4", "--output", str(page))
    assert cli.main(["report", f"{file}:build", *asked]) == 0
    assert name in page.read_text()


def test_the_list_of_presets_names_the_pattern(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["clusters"]) == 0
    assert "<gpu>-<machines>x<devices of one>, such as h100-128x8" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_plan_of_many_machines_says_which() -> None:
    with torch.device("meta"):
        model, args = nn.Linear(64, 64), (torch.zeros(2048, 64),)
    frontier = tensoropt_torch.find_frontier(
        model, args, loss_fn=torch.mean, cluster="a100-80gb-4x8"
    )
    assert "32 devices of 'a100-80gb-4x8'" in repr(frontier)
