"""Runs of jobs by a server, watched: how and when each process ends, and what it says."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import TCPStore

HOST = "127.0.0.1"
WITHIN_S = 60.0  # of the first process that ended, or of the fault, all have to end
START_S = 100.0  # until then one has to have ended
ROOT = Path(__file__).parents[3]


@dataclass
class Process:
    """One rank. ``status`` is None where it had to be ended."""

    rank: int
    output: str = ""
    status: int | None = None
    was_ended: bool = False
    ended_s: float = 0.0
    pid: int = 0
    is_open: bool = True
    says: list[dict[str, Any]] = field(default_factory=list)

    def take(self, text: str) -> None:
        """Some more of its output."""
        self.output += text
        self.says = [
            json.loads(line)
            for line in self.output.splitlines()
            if line.startswith("{") and line.endswith("}")
        ]

    def last(self, name: str, otherwise: Any = None) -> Any:
        """What it has said last of something."""
        return next((event[name] for event in reversed(self.says) if name in event), otherwise)

    def losses(self) -> dict[int, float]:
        return {event["step"]: event["loss"] for event in self.says if "step" in event}

    @property
    def message(self) -> str:
        """The error that it ended with, from its first line on; empty if it ended well."""
        prefix = f"[rank{self.rank}]: "  # of PyTorch
        lines = [line.removeprefix(prefix) for line in self.output.splitlines()]
        lines = [line for line in lines if not line.startswith("{")]
        at = [n for n, line in enumerate(lines) if line.startswith("Traceback (most recent")]
        if not at:
            return ""
        rest = lines[at[-1] + 1 :]
        begin = next((n for n, line in enumerate(rest) if not line.startswith(" ")), len(rest))
        return " ".join(rest[begin:])


@dataclass(frozen=True)
class Job:
    """What is started: for each rank what ``job.py`` takes, and variables that all have.

    ``delay_s``: how long after the others that are started with it.
    """

    ranks: Sequence[Mapping[str, Any]]
    environment: Mapping[str, str]
    delay_s: float = 0.0


class Server:
    """Started processes, as a context."""

    def __enter__(self) -> Server:
        self._folder = tempfile.TemporaryDirectory(prefix="tensoropt-faults-")
        self._errors = open(Path(self._folder.name) / "errors", "w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.distributed.faults.server"],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        assert self._process.stdout is not None
        self._told = ""
        if self._process.stdout.readline() != b"ready\n":
            self._errors.seek(0)
            raise RuntimeError(f"the server did not start: {self._errors.read()}")
        os.set_blocking(self._process.stdout.fileno(), False)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._errors.close()
        self._folder.cleanup()

    def run(self, *jobs: Job) -> list[list[Process]]:
        """Jobs beside each other; the processes of each, all of which have ended."""
        return _Watch(self, jobs).run()

    def start(self, name: str, output: str, environment: Mapping[str, str], job: Any) -> None:
        request = {"id": name, "output": output, "environment": dict(environment), "job": job}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()

    def told(self) -> list[list[str]]:
        """What the server has written since, by words."""
        assert self._process.stdout is not None
        self._told += (self._process.stdout.read() or b"").decode()
        *lines, self._told = self._told.split("\n")
        return [line.split() for line in lines]

    def pipe(self) -> str:
        """The path of a new named pipe."""
        path = f"{self._folder.name}/{uuid.uuid4().hex}"
        os.mkfifo(path)
        return path


class _Watch:
    """Some jobs that run."""

    def __init__(self, server: Server, jobs: Sequence[Job]) -> None:
        self._server = server
        self._jobs = jobs
        self._stores = [
            TCPStore(HOST, 0, is_master=True, wait_for_workers=False) for _ in self._jobs
        ]
        self._found = [[Process(rank) for rank in range(len(job.ranks))] for job in jobs]
        self._by_name: dict[str, Process] = {}
        self._pipes = selectors.DefaultSelector()
        self._waiting = list(range(len(jobs)))

    def run(self) -> list[list[Process]]:
        begin_s = time.monotonic()
        try:
            while self._waiting or any(p.is_open or not p.ended_s for p in self._all()):
                now_s = time.monotonic()
                for index in [*self._waiting]:
                    if now_s - begin_s >= self._jobs[index].delay_s:
                        self._waiting.remove(index)
                        self._start(index)
                self._look()
                if now_s > self._until_s(begin_s) or self._only_stopped():
                    self._end()
        finally:
            self._pipes.close()
        return self._found

    def _all(self) -> list[Process]:
        return [process for found in self._found for process in found]

    def _start(self, index: int) -> None:
        job, size = self._jobs[index], len(self._jobs[index].ranks)
        for process, own in zip(self._found[index], job.ranks, strict=True):
            environment = {
                **job.environment,
                "RANK": str(process.rank),
                "LOCAL_RANK": str(process.rank),
                "WORLD_SIZE": str(size),
                "LOCAL_WORLD_SIZE": str(size),
                "MASTER_ADDR": HOST,
                "MASTER_PORT": str(self._stores[index].port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "TORCHELASTIC_RESTART_COUNT": "0",
            }
            own = json.loads(json.dumps(own))
            if own.get("fault"):
                own["fault"]["port"] = self._stores[index].port
            path, name = self._server.pipe(), uuid.uuid4().hex
            pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            self._pipes.register(pipe, selectors.EVENT_READ, process)
            self._by_name[name] = process
            self._server.start(name, path, environment, own)

    def _look(self) -> None:
        for key, _ in self._pipes.select(0.02):
            data = os.read(key.fd, 65536)
            process: Process = key.data
            if data:
                process.take(data.decode(errors="replace"))
            elif process.ended_s:  # before it has opened the pipe there is no data either
                process.is_open = False
                self._pipes.unregister(key.fd)
                os.close(key.fd)
        for name, what, number in self._server.told():
            process = self._by_name[name]
            if what == "began":
                process.pid = int(number)
            else:
                process.ended_s = time.monotonic()
                process.status = None if process.was_ended else int(number)

    def _until_s(self, begin_s: float) -> float:
        first = [process.ended_s for process in self._all() if process.ended_s]
        first += [event["at"] for p in self._all() for event in p.says if "fault" in event]
        return min(first) + WITHIN_S if first else begin_s + START_S

    def _only_stopped(self) -> bool:
        """Whether those that run have said that they stop."""
        running = [process for process in self._all() if not process.ended_s]
        return bool(running) and all(p.last("fault") == "stop" for p in running)

    def _end(self) -> None:
        for process in self._all():
            if process.pid and not process.ended_s and not process.was_ended:
                process.was_ended = True
                os.kill(process.pid, signal.SIGKILL)
