"""Writes tensoropt_torch/_C.pyi: the types of what C++ gives to Python, as pybind11 knows them.

python .ci/write_stubs.py           # after a change of csrc/bindings
python .ci/write_stubs.py --check   # exits with 1 if it would write something else
"""

import difflib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
STUBS = ROOT / "tensoropt_torch" / "_C.pyi"
HEAD = "# Written by .ci/write_stubs.py.\n"

# What C++ takes for a number is wider than what the package gives it.
NARROWER = {
    "typing.SupportsInt | typing.SupportsIndex": "int",
    "typing.SupportsFloat | typing.SupportsIndex": "float",
}
# Kinds of numbers, of which pybind11-stubgen says only that they are some.
NEW_TYPE = re.compile(r"^(\w+): typing\.NewType\b.*$", re.MULTILINE)


def generated() -> str:
    """The stubs of the library that is built."""
    command = [sys.executable, "-m", "pybind11_stubgen", "tensoropt_torch._C", "--exit-code"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*command, "-o", folder], cwd=ROOT, check=True)
        text = (Path(folder) / "tensoropt_torch" / "_C.pyi").read_text()
    for wide, narrow in NARROWER.items():
        text = text.replace(wide, narrow)
    return HEAD + NEW_TYPE.sub(r'\1 = typing.NewType("\1", int)', text)


def main() -> int:
    """The exit status."""
    text = generated()
    if "--check" not in sys.argv[1:]:
        STUBS.write_text(text)
        return 0
    lines = difflib.unified_diff(
        STUBS.read_text().splitlines(), text.splitlines(), "_C.pyi", "what is built", lineterm=""
    )
    found = "\n".join(lines)
    if found:
        sys.stdout.write(f"{found}\nrun .ci/write_stubs.py\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
