"""Machines that can be rented in any number, by the name of their GPU: as many of them as a number
of devices takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tensoropt_torch.config.cluster import Cluster, device_counts
from tensoropt_torch.config.preset_names import FAMILIES, PresetName
from tensoropt_torch.config.presets import load_cluster
from tensoropt_torch.errors import TensorOptError, close_match

MACHINE_KINDS: Sequence[str] = tuple(FAMILIES)


def cluster_for(kind: str | Path | Cluster, num_devices: int) -> Cluster:
    """The cluster with so many devices, at least, of a kind of machine such as ``h100``; a preset
    of one size, a file or a description stays what it is.

    Raises:
        TensorOptError: no cluster is called so, or it cannot lay out so many devices.
    """
    if isinstance(kind, Cluster):
        return _checked(kind, num_devices)
    if kind not in FAMILIES:
        return _checked(_loaded(kind), num_devices)
    per_machine = load_cluster(FAMILIES[str(kind)].preset).levels[-1].count
    devices = min(num_devices, per_machine)
    machines, rest = divmod(num_devices, devices)
    if rest:
        raise TensorOptError(
            f"{num_devices} devices are no whole number of machines of '{kind}', which have "
            f"{per_machine} each; give a multiple of {per_machine}, or at most {per_machine}"
        )
    return load_cluster(str(PresetName(str(kind), machines, devices)))


def _loaded(name: str | Path) -> Cluster:
    try:
        return load_cluster(name)
    except TensorOptError as error:
        hint = close_match(str(name), MACHINE_KINDS)
        kinds = ", ".join(MACHINE_KINDS)
        raise TensorOptError(
            f"'{name}' is no kind of machine; {hint}kinds: {kinds}; or {error}"
        ) from error


def _checked(cluster: Cluster, num_devices: int) -> Cluster:
    allowed = device_counts(cluster)
    if num_devices not in allowed:
        raise TensorOptError(
            f"cluster '{cluster.name}' cannot lay out {num_devices} devices: it has "
            f"{cluster.num_devices}; give fewer, or a kind of machine that there is in any number "
            f"({', '.join(MACHINE_KINDS)})"
        )
    return cluster
