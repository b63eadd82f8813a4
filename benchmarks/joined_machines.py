"""Two machines that a link joins: two network namespaces of this one. Within each, processes talk
over a loopback of its own; between them, over the two ends of a link of a given rate.

    unshare --net python -m benchmarks.joined_machines 1gbit 2 benchmarks/stages.py --worker

runs the script on 2 processes of each, as torchrun would on two machines, and prints what the
first prints. Needs Linux and the right to make network namespaces.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

MACHINES = 2
LINK, PORT = "link0", 29500  # nobody else is in these namespaces
# Little more than one packet may be sent at once: what a larger burst allows after the link
# was idle would count as overlap where there is none.
LIMIT = "tc qdisc add dev {device} root tbf rate {rate} burst 70kb latency 1s"


def address(machine: int) -> str:
    """Of its end of the link."""
    return f"10.0.0.{machine + 1}"


def limit(device: str, rate: str) -> list[str]:
    """The command that lets a device send no faster than a rate, as tc writes it."""
    return LIMIT.format(device=device, rate=rate).split()


def start(within: Sequence[str], machine: int, ranks: int, script: Sequence[str]) -> list[str]:
    """The command that starts the processes of a machine."""
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={MACHINES}"]
    ranks_of = [f"--nproc-per-node={ranks}", f"--node-rank={machine}"]
    store = [f"--master-addr={address(0)}", f"--master-port={PORT}"]
    of_link = ["env", f"GLOO_SOCKET_IFNAME={LINK}"]
    return [*within, *of_link, *launcher, *ranks_of, *store, *script]


def main() -> None:
    """Join this namespace and a new one, run both machines, end what was started."""
    rate, ranks, *script = sys.argv[1:]
    other = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo; exec sleep infinity"], stdout=subprocess.PIPE
    )
    second = None
    try:
        assert other.stdout is not None
        other.stdout.readline()  # it has its namespace
        within = ["nsenter", f"--net=/proc/{other.pid}/ns/net"]
        _run([*["ip", "link", "add"], LINK, *["type", "veth", "peer", "name"], f"{LINK}b"])
        _run([*["ip", "link", "set"], f"{LINK}b", "netns", str(other.pid)])
        _run([*within, *["ip", "link", "set"], f"{LINK}b", "name", LINK])
        for machine, inside in enumerate([[], within]):
            _run([*inside, *["ip", "link", "set", "lo", "up"]])
            _run([*inside, *["ip", "addr", "add"], f"{address(machine)}/24", "dev", LINK])
            _run([*inside, *["ip", "link", "set"], LINK, "up"])
            _run([*inside, *limit(LINK, rate)])
        second = subprocess.Popen(start(within, 1, int(ranks), script), stdout=subprocess.DEVNULL)
        subprocess.run(start([], 0, int(ranks), script), check=True)
        second.wait(60)
    finally:
        for process in (second, other):
            if process is not None and process.poll() is None:
                process.terminate()
                process.wait()


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
