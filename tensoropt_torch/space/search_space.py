"""The search space of a captured model under given settings, in C++."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from tensoropt_torch import _C
from tensoropt_torch.config import parse_cluster
from tensoropt_torch.config.cluster import Cluster
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.frontend.lowering import Lowering
from tensoropt_torch.space.allowed import allowed_configs
from tensoropt_torch.space.op_records import sample_of
from tensoropt_torch.space.options import handed_to_core
from tensoropt_torch.space.rows import loss_output
from tensoropt_torch.space.settings import MeasuredCurve, Settings

# Dtypes of operands that may need a gradient.
_TRAINED = ("float64", "float32", "bfloat16", "float16", "complex64", "complex128")

GOLDEN_RATIO = (math.sqrt(5) - 1) / 2  # whose multiples lie evenly modulo 1


def make_space(
    captured: CapturedModel, settings: Settings, storage: Mapping[str, str] | None = None
) -> _C.SearchSpace:
    """The strategies of ``captured`` on the mesh of ``settings``; if ``storage`` is given,
    with the parameters that it names stored in its layouts, such as ``"S0,R"``, instead of
    with the constraints of ``settings``, which are met by these layouts.

    Raises:
        TensorOptError: a constraint cannot be met.
    """
    cluster = parse_cluster(settings.cluster, "settings")
    setup = _C.SpaceSetup(
        cluster=core_cluster(cluster, settings.mesh_axes),
        mesh=_C.Mesh(list(settings.mesh_axes)),
        space=_space_options(captured, settings, storage or {}),
        collectives=measured_table(settings.measured),
        operators=[sample_of(record) for record in settings.operators],
        overheads=_overheads(cluster, settings),
        micro_batches=settings.micro_batches,
        in_flight=settings.in_flight,
    )
    space = _C.SearchSpace(captured.graph, captured.lowering.rules, setup)
    if settings.constraints and storage is None:
        space.restrict_to(allowed_configs(space, captured, settings, settings.constraints))
    return space


def unpriced_space(
    lowering: Lowering,
    sizes: Sequence[int],
    *,
    split_spatial: bool = False,
    idle_configs: bool = False,
) -> _C.SearchSpace:
    """Every config of the operators of a graph on a mesh with axes of these sizes, for those who
    ask what the configs are and not what they cost."""
    mesh = _C.Mesh([(size, 0) for size in sizes])
    level = _C.Level(
        name="level", count=mesh.num_devices, bandwidth_bytes_per_s=1e9, latency_s=1e-6
    )
    options = _C.SpaceOptions(
        space="full",
        optimizer_state_bytes=dict.fromkeys(_TRAINED, 0.0),
        sharded_inputs=False,
        max_configs=10**9,
        split_spatial=split_spatial,
        reduce_dtype="parameter",
        idle_configs=idle_configs,
    )
    cluster = _C.Cluster("cluster", _C.Device(), [level])
    setup = _C.SpaceSetup(cluster=cluster, mesh=mesh, space=options)
    return _C.SearchSpace(lowering.graph, lowering.rules, setup)


def measured_table(
    curves: Iterable[MeasuredCurve],
) -> dict[tuple[_C.Collective, int], list[_C.CollectiveSample]]:
    """The measured curves of collectives, by collective and axis set."""
    return {
        (_C.Collective.__members__[name.upper()], axes): [_C.CollectiveSample(*at) for at in curve]
        for name, axes, curve in curves
    }


def collective_times(settings: Settings) -> _C.MeasuredCollectives:
    """Seconds of collectives by themselves: as measured, else by the description of the cluster."""
    cluster = parse_cluster(settings.cluster, "settings")
    mesh = _C.Mesh(list(settings.mesh_axes))
    analytic = _C.AnalyticCollectives(core_cluster(cluster, settings.mesh_axes), mesh)
    return _C.MeasuredCollectives(mesh, measured_table(settings.measured), analytic)


def step_time_s(space: _C.SearchSpace, strategy: _C.Strategy) -> float:
    """Predicted seconds of a step of a strategy: what the device takes for computing and for the
    network, or what the host takes to call all operators, if that is more."""
    device_s = space.compute_time(strategy) + space.network_time(strategy)
    return float(max(device_s, space.host_time(strategy)))


def varied_strategy(space: _C.SearchSpace, seed: int) -> _C.Strategy:
    """A random strategy that takes some of its configs for their speed; what share of them
    depends on the seed, and is spread evenly over seeds that follow each other.

    Strategies whose configs are all random are much alike, since they have many: none is
    near the fast ones, which are those that plans are made of.
    """
    return space.random_strategy(seed, seed * GOLDEN_RATIO % 1)


def _space_options(
    captured: CapturedModel, settings: Settings, storage: Mapping[str, str]
) -> _C.SpaceOptions:
    assert captured.micro_batches == settings.micro_batches
    totals = {source.names[0] for source in captured.totals}
    return _C.SpaceOptions(
        **handed_to_core(settings),
        optimizer_state_bytes=dict(settings.optimizer_state_bytes),
        sharded_inputs=settings.inputs == "sharded",
        whole_inputs={*settings.whole_inputs, *totals},
        input_dims=dict(settings.input_dims),
        row_axes=settings.row_axes,
        loss_output=loss_output(captured),
        storage=dict(storage),
        max_configs=settings.max_configs,
        bucket_bytes=settings.bucket_bytes,
        shard_bytes=settings.shard_bytes,
        recompute=settings.recompute,
    )


def _overheads(cluster: Cluster, settings: Settings) -> _C.RuntimeOverheads:
    """What is not known costs nothing; without overlap all is exposed."""
    runtime = cluster.device.runtime
    figures = {"reshard_s": runtime.reshard_s, "collective_s": runtime.collective_s}
    # Updates were measured on parameters in float32.
    update = runtime.update(settings.optimizer_state_bytes["float32"] / 4)
    if update is not None:
        moved = 3 + 2 * update.state_factor  # bytes for each byte of the parameter
        figures["parameter_s"] = update.parameter_s
        figures["update_s_per_byte"] = update.s_per_byte / moved
    if settings.overlap and runtime.exposed is not None:
        exposed = runtime.exposed
        figures["exposed_parameters"] = exposed.parameters
        figures["exposed_gradients"] = exposed.gradients
    return _C.RuntimeOverheads(**figures)


def core_cluster(cluster: Cluster, mesh_axes: tuple[tuple[int, int], ...]) -> _C.Cluster:
    """The part of a cluster that a mesh covers, for the C++ core."""
    device = cluster.device
    core_device = _C.Device(
        name=device.name,
        memory_bytes=float(device.memory_bytes),
        memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s,
        launch_overhead_s=device.launch_overhead_s,
        host_launch_s=device.host_launch_s,
        peak_flops_per_s={str(dtype): rate for dtype, rate in device.flops_per_s.items()},
        matmul_efficiency=device.efficiency.matmul,
        memory_efficiency=device.efficiency.memory,
        attention_efficiency=device.efficiency.attention,
    )
    levels = [
        _C.Level(
            name=level.name,
            count=math.prod(size for size, at in mesh_axes if at == index),
            bandwidth_bytes_per_s=level.bandwidth_bytes_per_s,
            latency_s=level.latency_s,
            collectives={
                _C.Collective.__members__[name.upper()]: _C.LinkSpeed(
                    speed.bandwidth_bytes_per_s, speed.latency_s
                )
                for name, speed in level.collectives.items()
            },
        )
        for index, level in enumerate(cluster.levels)
    ]
    return _C.Cluster(name=cluster.name, device=core_device, levels=levels)
