"""Cluster descriptions: presets, the file format, and the layout of devices."""

import copy
import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoropt_torch import _C
from tensoropt_torch.config import Cluster, list_presets, load_cluster, mesh_axes
from tensoropt_torch.config.cluster import Exposed, parse_cluster
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.space.search_space import core_cluster

PRESETS = [
    "a100-40gb-8",
    "a100-80gb-8",
    "b200-8",
    "cpu",
    "h100-2x8",
    "h100-8",
    "h200-2x8",
    "h200-8",
    "l40s-8",
    "paper-2x8-v100",
    "rtx4090-4",
]


@pytest.fixture
def data() -> dict[str, Any]:
    return load_cluster("h100-2x8").to_dict()


def of_counts(*counts: int) -> Cluster:
    """A cluster whose levels join that many units, outermost first."""
    data = load_cluster("h100-8").to_dict()
    level = data["levels"][0]
    data["levels"] = [{**level, "count": count} for count in counts]
    return parse_cluster(data, "test")


def message(data: dict[str, Any]) -> str:
    """The error that this content gives."""
    with pytest.raises(TensorOptError) as error:
        parse_cluster(data, "cluster file 'my.toml'")
    assert "cluster file 'my.toml'" in str(error.value)
    return str(error.value)


def test_presets_are_listed() -> None:
    assert list_presets() == PRESETS


@pytest.mark.parametrize("name", PRESETS)
def test_preset_carries_its_own_name_and_sources(name: str) -> None:
    cluster = load_cluster(name)
    assert cluster.name == name
    assert all(level.source for level in cluster.levels)
    assert "float32" in cluster.device.flops_per_s


def test_machine_link_is_the_sum_of_its_devices_links() -> None:
    network, nvlink = load_cluster("h200-2x8").levels
    assert network.bandwidth_bytes_per_s == 8 * 50e9
    assert nvlink.bandwidth_bytes_per_s == 450e9


def test_num_devices_is_the_product_of_counts() -> None:
    assert load_cluster("paper-2x8-v100").num_devices == 16


@pytest.mark.parametrize("name", PRESETS)
def test_to_dict_survives_json_and_gives_the_same_cluster(name: str) -> None:
    cluster = load_cluster(name)
    data = json.loads(json.dumps(cluster.to_dict()))
    assert parse_cluster(data, "copy") == cluster


def test_cluster_is_hashable_and_pickles() -> None:
    cluster = load_cluster("cpu")
    assert pickle.loads(pickle.dumps(cluster)) == cluster
    assert hash(cluster) == hash(load_cluster("cpu"))


def test_loads_a_file(tmp_path: Path) -> None:
    preset = Path(__file__).parents[2] / "tensoropt_torch" / "clusters" / "cpu.toml"
    file = tmp_path / "mine.toml"
    file.write_text(preset.read_text())
    assert load_cluster(file) == load_cluster(str(file)) == load_cluster("cpu")


def test_efficiency_may_be_absent(data: dict[str, Any]) -> None:
    del data["device"]["efficiency"]
    assert parse_cluster(data, "test").device.efficiency.matmul == 1.0


ALL_TO_ALL = {"bandwidth_bytes_per_s": 100e9, "latency_s": 20e-6, "source": "measured"}


def test_collectives_may_have_figures_of_their_own(data: dict[str, Any], tmp_path: Path) -> None:
    data["levels"][0]["collectives"] = {"all_to_all": ALL_TO_ALL}
    cluster = parse_cluster(data, "test")
    assert parse_cluster(json.loads(json.dumps(cluster.to_dict())), "copy") == cluster
    file = tmp_path / "mine.toml"
    preset = Path(__file__).parents[2] / "tensoropt_torch" / "clusters" / "h100-2x8.toml"
    network, nvlink = preset.read_text().split("[[levels]] # 8 devices")
    file.write_text(
        f"{network}[levels.collectives.all_to_all]\nbandwidth_bytes_per_s = 100e9\n"
        f'latency_s = 20e-6\nsource = "measured"\n[[levels]] # 8 devices{nvlink}'
    )
    assert load_cluster(file) == cluster
    mesh = [(2, 0), (2, 1), (2, 1), (2, 1)]
    core = core_cluster(cluster, tuple(mesh))
    model = _C.AnalyticCollectives(core, _C.Mesh(mesh))
    # Both machines send half of what their 8 devices have through their link.
    found = model.time_s(_C.Collective.ALL_TO_ALL, 1, 4e6)
    assert found == pytest.approx(8 * 2e6 / 100e9 + 20e-6)
    found = model.time_s(_C.Collective.ALL_GATHER, 1, 4e6)
    assert found == pytest.approx(8 * 2e6 / 400e9 + 10e-6)


def test_unknown_collective_names_the_allowed_ones(data: dict[str, Any]) -> None:
    data["levels"][0]["collectives"] = {"alltoall": ALL_TO_ALL}
    text = message(data)
    assert "'levels[0].collectives.alltoall' is unknown; did you mean 'all_to_all'?" in text
    assert "allowed: all_gather, all_reduce, all_to_all, broadcast, reduce_scatter" in text


@pytest.mark.parametrize("key", ALL_TO_ALL)
def test_figures_of_a_collective_are_complete(data: dict[str, Any], key: str) -> None:
    given = {name: value for name, value in ALL_TO_ALL.items() if name != key}
    data["levels"][1]["collectives"] = {"all_to_all": given}
    assert f"'levels[1].collectives.all_to_all.{key}' is missing" in message(data)
    given[key] = -1
    assert f"levels[1].collectives.all_to_all.{key} = -1" in message(data)


@pytest.mark.parametrize("name", PRESETS)
def test_prices_of_presets_say_where_they_are_from(name: str) -> None:
    device = load_cluster(name).device
    assert (device.price_per_hour is None) == (device.price_source is None)


def test_unknown_name_suggests_a_preset() -> None:
    with pytest.raises(TensorOptError, match=r"did you mean 'h100-8'\?.*presets: a100-40gb-8"):
        load_cluster("h100_8")


def test_invalid_toml_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "broken.toml"
    file.write_text("name = ")
    with pytest.raises(TensorOptError, match=r"broken\.toml' is not valid TOML"):
        load_cluster(file)


def test_missing_key_is_named(data: dict[str, Any]) -> None:
    del data["levels"][1]["latency_s"]
    assert "'levels[1].latency_s' is missing" in message(data)


def test_unknown_key_is_named_with_the_allowed_ones(data: dict[str, Any]) -> None:
    data["device"]["memory_byte"] = 1
    text = message(data)
    assert "'device.memory_byte' is unknown; did you mean 'memory_bytes'?" in text
    assert "allowed: efficiency, flops_per_s" in text


def test_unknown_dtype_names_the_allowed_ones(data: dict[str, Any]) -> None:
    data["device"]["flops_per_s"]["fp32"] = 1e12
    assert "bfloat16, float16, float32, float64" in message(data)


def test_some_dtype_is_needed(data: dict[str, Any]) -> None:
    data["device"]["flops_per_s"] = {}
    assert "table [device.flops_per_s] is empty" in message(data)


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("device", "name", " "),
        ("device", "type", "tpu"),
        ("device", "memory_bytes", 0),
        ("device", "memory_bytes", 1.5),
        ("device", "memory_bytes", True),
        ("device", "memory_bandwidth_bytes_per_s", -1.0),
        ("device", "memory_bandwidth_bytes_per_s", "fast"),
        ("device", "launch_overhead_s", math.nan),
        ("device", "flops_per_s", 5),
        ("levels", "count", 0),
        ("levels", "bandwidth_bytes_per_s", math.inf),
        ("levels", "latency_s", -1e-6),
        ("levels", "latency_s", False),
    ],
)
def test_wrong_value_is_named(data: dict[str, Any], table: str, key: str, value: object) -> None:
    changed = copy.deepcopy(data)
    target = changed["levels"][0] if table == "levels" else changed[table]
    target[key] = value
    name = "levels[0]" if table == "levels" else table
    assert f"{name}.{key} = {value!r} is not allowed; it must be" in message(changed)


@pytest.mark.parametrize("share", [0, 1.01, -0.5])
def test_efficiency_is_a_share(data: dict[str, Any], share: float) -> None:
    data["device"]["efficiency"]["matmul"] = share
    assert "above 0 and at most 1" in message(data)


@pytest.mark.parametrize("levels", [[], {}])
def test_levels_are_tables(data: dict[str, Any], levels: object) -> None:
    data["levels"] = levels
    assert f"levels = {levels!r} is not allowed; it must be one table or more" in message(data)


def test_each_level_is_a_table(data: dict[str, Any]) -> None:
    data["levels"][1] = "nvlink"
    assert "levels[1] = 'nvlink' is not allowed; it must be a table [[levels]]" in message(data)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("name", "give a text that is not empty"),
        ("device", "add a table [device]"),
        ("levels", "add a table [[levels]]"),
    ],
)
def test_missing_keys_say_what_to_give(data: dict[str, Any], key: str, hint: str) -> None:
    del data[key]
    assert message(data) == f"cluster file 'my.toml': key '{key}' is missing; {hint}"


def test_hints_say_what_to_try(data: dict[str, Any]) -> None:
    data["levels"][1]["latency_s"] = -1
    assert message(data) == (
        "cluster file 'my.toml': levels[1].latency_s = -1 is not allowed; it must be a finite "
        "number, 0 or above; give seconds, such as 5e-6"
    )
    del data["levels"][1]["latency_s"]
    assert message(data).endswith("'levels[1].latency_s' is missing; give seconds, such as 5e-6")


def test_everything_that_is_wrong_is_named_at_once(data: dict[str, Any]) -> None:
    data["device"]["type"] = "tpu"
    data["levels"][0]["latency"] = data["levels"][0].pop("latency_s")
    lines = message(data).splitlines()
    assert len(lines) == 3
    assert all(line.startswith("cluster file 'my.toml': ") for line in lines)
    text = "\n".join(lines)
    assert "device.type = 'tpu' is not allowed; it must be one of cpu, cuda" in text
    assert "key 'levels[0].latency_s' is missing" in text
    assert "key 'levels[0].latency' is unknown; did you mean 'latency_s'?" in text


@pytest.mark.parametrize(
    ("table", "key"),
    [("efficiency", "matmul"), ("efficiency", "source"), ("runtime", "reshard_s")],
)
def test_tables_that_are_given_are_complete(data: dict[str, Any], table: str, key: str) -> None:
    assert data["device"][table].pop(key) is not None
    assert f"key 'device.{table}.{key}' is missing" in message(data)
    del data["device"][table]
    assert parse_cluster(data, "test").device.name == "H100 SXM 80 GB"


@pytest.mark.parametrize(
    ("num_devices", "axes"),
    [
        (1, []),
        (2, [(2, 1)]),
        (3, [(3, 1)]),
        (4, [(2, 1), (2, 1)]),
        (6, [(2, 1), (3, 1)]),
        (8, [(2, 1), (2, 1), (2, 1)]),
        (16, [(2, 0), (2, 1), (2, 1), (2, 1)]),
    ],
)
def test_devices_fill_the_innermost_level_first(
    num_devices: int, axes: list[tuple[int, int]]
) -> None:
    assert mesh_axes(load_cluster("h100-2x8"), num_devices) == axes


def test_three_levels() -> None:
    assert mesh_axes(of_counts(4, 2, 2), 12) == [(3, 0), (2, 1), (2, 2)]


@pytest.mark.parametrize("num_devices", [-1, 0, 9, 12, 17, 32])
def test_impossible_count_names_the_possible_ones(num_devices: int) -> None:
    with pytest.raises(TensorOptError, match=rf" {num_devices} dev.* 1 to 8, 16 "):
        mesh_axes(load_cluster("h100-2x8"), num_devices)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 200))
def test_axes_multiply_to_the_count_and_go_inwards(counts: list[int], num_devices: int) -> None:
    cluster = of_counts(*counts)
    try:
        axes = mesh_axes(cluster, num_devices)
    except TensorOptError:
        return
    assert math.prod(size for size, _ in axes) == num_devices
    assert [level for _, level in axes] == sorted(level for _, level in axes)
    for index, level in enumerate(cluster.levels):
        used = math.prod(size for size, at in axes if at == index)
        outer = math.prod(size for size, at in axes if at < index)
        assert used <= level.count
        assert outer == 1 or used == level.count


def test_what_is_exposed_is_read_back(data: dict[str, Any]) -> None:
    assert parse_cluster(data, "test").device.runtime.exposed is None
    data["device"]["runtime"]["exposed"] = {"parameters": 0.25, "gradients": 0}
    cluster = parse_cluster(data, "test")
    assert cluster.device.runtime.exposed == Exposed(0.25, 0.0)
    assert parse_cluster(cluster.to_dict(), "test") == cluster
    data["device"]["runtime"]["exposed"]["gradients"] = 1.5
    assert "device.runtime.exposed.gradients" in message(data)


def test_attention_may_have_a_share_of_its_own(data: dict[str, Any]) -> None:
    del data["device"]["efficiency"]["attention"]
    assert parse_cluster(data, "test").device.efficiency.attention is None
    data["device"]["efficiency"]["attention"] = 0.2
    cluster = parse_cluster(data, "test")
    assert cluster.device.efficiency.attention == 0.2
    assert parse_cluster(json.loads(json.dumps(cluster.to_dict())), "copy") == cluster
    data["device"]["efficiency"]["attention"] = 0.0
    assert "device.efficiency.attention" in message(data)
