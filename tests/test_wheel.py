"""The wheel installs and runs in an environment that has what it depends on, no more, and no
compiler; the source distribution builds the same wheel."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tensoropt_torch import _C, __version__
from tests.documents import FILES, ROOT

pytestmark = pytest.mark.slow

RELEASE = _C.torch_release()  # of PyTorch, which the version of a wheel names
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, as setuptools makes it from the checkout."""
    folder = tmp_path_factory.mktemp("sdist")
    made = f"from setuptools.build_meta import build_sdist; print(build_sdist({str(folder)!r}))"
    name = run(ROOT, sys.executable, "-c", made).splitlines()[-1]
    run(folder, "tar", "-xf", name)  # tarfile's filters came with Python 3.11.4
    return folder / name.removesuffix(".tar.gz")


def build_wheel(source: Path, folder: Path) -> Path:
    options = ("--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", str(folder))
    run(source, *PIP, "wheel", *options, ".")
    (made,) = folder.glob("*.whl")
    return made


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as content:
        return {name for name in content.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment with the wheel and, from this environment, all that it requires."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    found = folder / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    with zipfile.ZipFile(wheel) as content:
        (name,) = (name for name in content.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = content.read(name).decode()
    required = re.findall(r"^Requires-Dist: ([^;\n]*)$", metadata, re.MULTILINE)
    for distribution in closure(required):
        link(distribution, site)
    run(folder, *PIP, f"--python={found}", "install", "--no-index", str(wheel))
    return found


def closure(requirements: list[str]) -> list[str]:
    """What is required, and what that requires, in this environment; without extras."""
    names: list[str] = []
    waiting = list(requirements)
    while waiting:
        name = re.split(r"[^\w.-]", waiting.pop().strip())[0].lower().replace("_", "-")
        if name in names:
            continue
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # for another system or version of Python, or pip will say so
        names.append(name)
        waiting += [need for need in needs if "extra ==" not in need]
    return names


def link(name: str, site: Path) -> None:
    """Makes an installed distribution visible in another environment."""
    distribution = importlib.metadata.distribution(name)
    tops = {file.parts[0] for file in distribution.files or [] if file.parts[0] != ".."}
    for top in tops - {"__pycache__"}:
        if not (site / top).exists():
            (site / top).symlink_to(Path(str(distribution.locate_file(top))).resolve())


def run(folder: Path, *command: str, **environment: str) -> str:
    """What a command prints that sees nothing of this environment or checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command,
        cwd=folder,
        env=kept | {"OMP_NUM_THREADS": "1", "TENSOROPT_HOME": str(folder / "home")} | environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def test_wheel_holds_the_package(wheel: Path) -> None:
    inside = names_in(wheel)
    package = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tensoropt_torch").rglob("*.*")
        if path.suffix in (".py", ".pyi", ".toml", ".typed", ".so", ".jinja", ".css", ".js")
    }
    assert inside == package | {"tensoropt_torch/py.typed"}
    assert any(name.startswith("tensoropt_torch/_C.") and name.endswith(".so") for name in inside)


def test_wheel_says_which_release_of_torch_it_is_for(wheel: Path) -> None:
    assert wheel.name.startswith(f"tensoropt_torch-{__version__}+torch{RELEASE}-")
    with zipfile.ZipFile(wheel) as content:
        (name,) = (name for name in content.namelist() if name.endswith(".dist-info/METADATA"))
        lines = content.read(name).decode().splitlines()
    assert [line for line in lines if line.startswith("Requires-Dist: torch=")] == [
        f"Requires-Dist: torch=={RELEASE}.*"
    ]
    assert not [line for line in lines if line.startswith("Requires-Dist: torch>")]


def test_source_distribution_has_no_build(unpacked: Path) -> None:
    assert unpacked.name == f"tensoropt_torch-{__version__}"
    assert "Requires-Dist: torch>=" in (unpacked / "PKG-INFO").read_text()
    assert not list(unpacked.rglob("*.so"))
    assert not (unpacked / "build").exists()


def test_source_distribution_builds_the_same_wheel(
    unpacked: Path, wheel: Path, tmp_path: Path
) -> None:
    made = build_wheel(unpacked, tmp_path / "wheel")
    assert made.name == wheel.name
    assert names_in(made) == names_in(wheel)
    with zipfile.ZipFile(made) as content:
        content.extractall(tmp_path / "site")
    code = "import tensoropt_torch as t; print(t.__file__, t.load_cluster('h100-8').num_devices)"
    environment = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); "
    file, devices = run(tmp_path, sys.executable, "-c", environment + code).split()
    assert file.startswith(str(tmp_path / "site")) and devices == "8"


def test_versions_agree(python: Path) -> None:
    code = "import importlib.metadata as m; print(m.version('tensoropt-torch'))"
    assert run(python.parent, str(python), "-c", code).strip() == f"{__version__}+torch{RELEASE}"
    for command in ((str(python), "-m", "tensoropt_torch"), (str(python.parent / "tensoropt"),)):
        assert run(python.parent, *command, "--version").split() == ["tensoropt-torch", __version__]


def test_doctor_finds_what_is_missing_in_it(python: Path) -> None:
    text = run(python.parent, str(python.parent / "tensoropt"), "doctor", "--json")
    found = {row["name"]: row for row in json.loads(text)["findings"]}
    assert found["TensorOpt"]["found"].startswith(__version__)
    assert found["PyTorch"]["serves"]
    assert not found["transformers"]["serves"]
    assert found["transformers"]["advice"].startswith("pip install 'transformers>=")


def test_environment_has_nothing_else(python: Path) -> None:
    for name in ("pytest", "transformers", "setuptools_scm"):
        code = f"import importlib.util; print(importlib.util.find_spec({name!r}))"
        assert run(python.parent, str(python), "-c", code).strip() == "None"
    code = "import tensoropt_torch; print(tensoropt_torch.__file__)"
    assert run(python.parent, str(python), "-c", code).startswith(str(python.parents[1]))


def test_plans_and_trains(python: Path, tmp_path: Path) -> None:
    for name in ("mlp.py", "train.py"):
        (tmp_path / name).write_text(FILES[name].body)
    plan = str(python.parent / "tensoropt")
    text = run(tmp_path, plan, "plan", "mlp.py:example", "--cluster", "h100-8")
    assert "ms" in text
    job = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py")
    assert re.search(r"loss \d", run(tmp_path, str(python), *job))


def test_demo_runs_where_there_is_no_compiler(python: Path, tmp_path: Path) -> None:
    """The example of ``make demo``, with nothing on PATH but the environment."""
    path = str(python.parent)
    for name in ("cmake", "c++", "g++", "gcc", "clang++", "ninja"):
        assert shutil.which(name, path=path) is None
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    example = str(ROOT / "examples" / "train_gpt.py")
    said = run(tmp_path, str(python), *launch, example, "--steps", "20", PATH=path)
    assert "Cost frontier on 2 devices" in said, said
    assert re.search(r"loss \d", said), said
