"""The code blocks of README.md and docs/*.md do what is written around them.

Of each document blocks of Python that begin with ``# name.py`` are files in one folder;
the others run there as scripts, and so do the lines of a block of shell commands, one after
another since they use what those before have written.
What is not run is listed below with its reason, or found word for word in a source file.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tensoropt_torch import load_cluster
from tests.documents import BLOCKS, DOCUMENTS, FILES, ROOT, Block, blocks_of

# Commands by how they begin: not run here, and why.
NOT_RUN = {
    "make demo": "CI runs it",
    "make docs": "tests/test_site.py builds the same",
    "make test": "the tests are what runs now",
    "make core-test": "CI runs it",
    "make wheels": "takes minutes for each release of PyTorch",
    "make lint": "CI runs it",
    "make gpu-check": "needs a GPU; tests/benchmarks/test_gpu_check.py runs its steps",
    "make paper": "takes an hour",
    "python -m tensoropt_torch.elastic": "tests/elastic runs the like of it",
    "pip install --no-build-isolation .": "make wheel-test installs into an environment of its own",
    "pip install --no-build-isolation -e .": "built before the tests",
    "pip install 'tensoropt-torch==": "make wheel-test installs into an environment of its own",
    "pip install --no-build-isolation '.[report]'": "requirements-dev.txt has what it installs",
    "torchrun --nproc-per-node 8 -m torchtitan.train": (
        "needs GPUs; tests/integrations/test_torchtitan.py runs its trainer"
    ),
    "torchrun --nnodes 2": "tests/distributed/runtime/test_several_machines.py runs the like of it",
    "python -m pytest tests/rules": "the tests are what runs now",
    "python -m benchmarks.coverage": "takes an hour; tests/benchmarks has its parts",
    "python -m benchmarks.published": "takes minutes; tests/benchmarks has its parts",
    "python -m benchmarks.paper --draw": "needs all studies; tests/benchmarks has its parts",
}
# Commands by how they begin, and the package they need that no extra installs.
NEEDS = {"python on_ray.py": "ray"}
BEGINNING = "docs/first-model.md"  # whose jobs of several processes are not slow tests
# What commands that measure are given in addition, and how many ranks there are.
SHORTER = {
    "profile-hardware": "profile-hardware --budget 2 --max-bytes 4096",
    "validate": "validate --strategies 2 --steps 2 --passes 1",
    "--nproc-per-node 4": "--nproc-per-node 2",
}
# Blocks by their first line: excerpts of a file of this project.
EXCERPTS = {
    "x, weight, bias = real(12, 24, 2), real(24), real(24)": "tests/rules/convolution_cases.py",
    "// [n, c, ...] normalised over groups of channels; whole groups can be split.": (
        "csrc/rules/normalization.cc"
    ),
    'constexpr int kGroupFactor = 1;  // "g" above': "csrc/rules/normalization.cc",
    'registry.add("aten.group_norm.default", {group_norm_rule, group_norm_local});': (
        "csrc/rules/normalization.cc"
    ),
}
# Blocks by their first line: what the text around them has defined.
GIVEN = {
    "device = tensoropt_torch.init()  # joins the job; NCCL with GPUs, else Gloo": """
import torch
import tensoropt_torch

model, batch = torch.nn.Linear(64, 64), (torch.rand(8, 64),)
""",
    "import tensoropt_torch.tf_style as to": """
import torch

batch = 8
batches = [(torch.rand(batch, 784), torch.randint(10, (batch,)))]
""",
}


SCRIPTS = [
    block
    for block in BLOCKS
    if block.language == "python" and not block.file and block.first not in EXCERPTS
]
COMMANDS = [
    (block, line.partition(" #")[0].strip())
    for block in BLOCKS
    if block.language == "sh"
    for line in block.body.splitlines()
]


def reason_not_to_run(command: str) -> str | None:
    return next((why for begin, why in NOT_RUN.items() if command.startswith(begin)), None)


def is_slow(block: Block, command: str) -> bool:
    words = command.split()
    job = "torchrun" in words or command.startswith(tuple(NEEDS))
    return "profile-hardware" in words or (job and block.document != BEGINNING)


# What a command reads, and the script that writes it, by its first line: either may run alone.
WRITTEN_BEFORE = {"from_pretrained.py": "from transformers import GPT2Config, GPT2LMHeadModel"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the files of the documents, and the commands of this environment."""
    made = tmp_path_factory.mktemp("documents")
    for name, block in FILES.items():
        (made / name).write_text(block.body)
    (made / "examples").symlink_to(ROOT / "examples")
    for name, words in {
        "tensoropt": "-m tensoropt_torch.cli",
        "torchrun": "-m torch.distributed.run --standalone",
        "python": "",
    }.items():
        script = made / "bin" / name
        script.parent.mkdir(exist_ok=True)
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        script.chmod(0o755)
    return made


def run(folder: Path, *command: str) -> str:
    """What the command prints."""
    environment = {
        **os.environ,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "TENSOROPT_HOME": str(folder / "home"),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.parametrize("block", SCRIPTS, ids=str)
def test_script_runs(folder: Path, block: Block) -> None:
    script = folder / f"line{block.line}.py"
    script.write_text(GIVEN.get(block.first, "") + block.body)
    run(folder, sys.executable, script.name)


def jobs(slow: bool) -> list[object]:
    """The commands of each block that are slow, or those that are not."""
    by_block: dict[Block, list[str]] = {}
    for block, command in COMMANDS:
        if not reason_not_to_run(command) and is_slow(block, command) == slow:
            by_block.setdefault(block, []).append(command)
    marks = [pytest.mark.slow] if slow else []
    return [
        pytest.param(commands, id=f"{block}: {commands[0]}", marks=marks)
        for block, commands in by_block.items()
    ]


@pytest.mark.parametrize("commands", [*jobs(slow=False), *jobs(slow=True)])
def test_commands_run(folder: Path, commands: list[str]) -> None:
    for command in commands:
        for begin, package in NEEDS.items():
            if command.startswith(begin) and importlib.util.find_spec(package) is None:
                pytest.skip(f"{package} is not installed")
        for given, shorter in SHORTER.items():
            command = re.sub(rf"(?<=\s){re.escape(given)}(?=\s|$)", shorter, command)
        for reader, first in WRITTEN_BEFORE.items():
            if reader in command:
                (writer,) = (block for block in SCRIPTS if block.first == first)
                test_script_runs(folder, writer)
        run(folder, "bash", "-c", command)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.first in EXCERPTS], ids=str)
def test_excerpt_is_in_its_file(block: Block) -> None:
    lines = [line.strip() for line in (ROOT / EXCERPTS[block.first]).read_text().splitlines()]
    excerpt = [line.strip() for line in block.body.splitlines()]
    starts = range(len(lines) - len(excerpt) + 1)
    assert any(lines[i : i + len(excerpt)] == excerpt for i in starts)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "toml"], ids=str)
def test_cluster_file_is_read(tmp_path: Path, block: Block) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(block.body)
    assert load_cluster(path).device.memory_bytes > 0


def test_every_block_is_checked() -> None:
    # diffs: tests/distributed/programs/test_examples.py; text: tests/planner/test_why.py
    checked = ("python", "sh", "toml", "diff", "text")
    fences = sum(len(re.findall("^ *```", p.read_text(), re.MULTILINE)) for p in DOCUMENTS)
    assert fences == 2 * len(BLOCKS)
    for block in BLOCKS:
        drawing = not block.language and "<-" in block.body
        assert block.language in checked or block.first in EXCERPTS or drawing, str(block)


def test_what_is_listed_here_is_in_the_documents() -> None:
    for begin in (*NOT_RUN, *NEEDS):
        assert any(command.startswith(begin) for _, command in COMMANDS), begin
    for given in SHORTER:
        assert any(given in command for _, command in COMMANDS), given
    firsts = [block.first for block in BLOCKS]
    for first in (*EXCERPTS, *GIVEN):
        assert firsts.count(first) == 1, first


def test_commands_that_are_not_run_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for block, command in COMMANDS:
        words = command.split()
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), f"{block}: {command}"
        if words[:2] == ["python", "-m"] and words[2] != "pytest":
            assert (ROOT / words[2].replace(".", "/")).is_dir(), f"{block}: {command}"


def test_the_readme_prints_a_curve(folder: Path) -> None:
    """What stands below its example is printed by it, and is no single point."""
    blocks = [block for block in BLOCKS if block.document == "README.md"]
    index = next(i for i, block in enumerate(blocks) if block.language == "text")
    example, printed = blocks[index - 1], blocks[index]
    script = folder / "readme.py"
    script.write_text(example.body)
    out = run(folder, sys.executable, script.name)
    assert out == printed.body
    found = re.fullmatch(
        r"Frontier\((\d+) points .* from ([\d.]+) MiB per device, ([\d.]+) ms a step "
        r"to ([\d.]+) MiB per device, ([\d.]+) ms a step; .*\)\n",
        out,
    )
    assert found is not None, out
    points, least, slowest, most, fastest = map(float, found.groups())
    assert points >= 10
    assert most > 1.5 * least
    assert slowest > 1.1 * fastest


def test_the_first_model_prints_a_curve(folder: Path) -> None:
    blocks = [block for block in BLOCKS if block.document == BEGINNING]
    index = next(i for i, block in enumerate(blocks) if block.language == "text")
    script = folder / "first.py"
    script.write_text(blocks[index - 1].body)
    out = run(folder, sys.executable, script.name)
    assert out == blocks[index].body
    points = [float(line.split()[0]) for line in out.splitlines() if "GiB" in line]
    assert len(points) > 4
    assert max(points) > 1.5 * min(points)


def test_the_readme_says_how_many_points_its_picture_has() -> None:
    picture = (ROOT / "docs" / "frontier.svg").read_text()
    (points,) = re.findall(r"frontier, (\d+) strategies", picture)
    for document in ("README.md", "docs/index.rst"):
        assert f"*{points} strategies for Llama 3 8B" in (ROOT / document).read_text(), document


def test_the_readme_names_the_command_that_passes_the_tests() -> None:
    start = (ROOT / "README.md").read_text().partition("## Start")[2].partition("## ")[0]
    assert "make demo" in start
    assert "make test" in start


# Columns of the README's table, by those of docs/step-times.md.
STEP_TIMES = {
    "GPT-2 small": "gpt2",
    "BERT base": "bert_base",
    "wide layers": "wide",
    "LSTM": "lstm",
    "experts": "experts",
    "small GPT": "gpt",
    "ResNet": "resnet",
}


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def test_ratios_of_the_readme_are_those_of_the_step_times() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("| processes |"))
    times = (ROOT / "docs" / "step-times.md").read_text()
    for row, table in ((head + 2, "2_processes_loopback"), (head + 3, "4_processes_loopback")):
        measured = times.partition(f"<!-- table: {table} -->")[2].partition("<!-- end -->")[0]
        names = cells_of(next(line for line in measured.splitlines() if line.startswith("|")))
        ours = next(line for line in measured.splitlines() if "as `find_strategy` picks" in line)
        ratios = {n: cell.split()[0] for n, cell in zip(names[1:], cells_of(ours)[1:], strict=True)}
        shown = dict(zip(cells_of(lines[head])[1:], cells_of(lines[row])[1:], strict=True))
        assert shown == {name: ratios[STEP_TIMES[name]] for name in STEP_TIMES}


def test_a_block_that_fails_is_found(folder: Path, tmp_path: Path) -> None:
    text = "Text.\n\n```python\nimport nothing_of_this_name\n```\n"
    (block,) = blocks_of(text, "a.md")
    assert (block.line, block.language, block.file) == (3, "python", None)
    with pytest.raises(AssertionError, match="ModuleNotFoundError"):
        run(folder, sys.executable, "-c", block.body)
    with pytest.raises(AssertionError, match="invalid choice"):
        run(folder, "bash", "-c", "tensoropt nothing_of_this_name")
    assert shutil.which("torchrun", path=str(folder / "bin"))
