"""The worked example of docs/adding-an-operator.md runs as it stands."""

import re
from pathlib import Path

from tensoropt_torch import _C, cli

DOCS = Path(__file__).parents[2] / "docs" / "adding-an-operator.md"


def test_the_example_of_the_docs_is_right(tmp_path: Path) -> None:
    code = re.search(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert code is not None
    file = tmp_path / "mylib.py"
    file.write_text(code[1])
    try:
        assert cli.main(["check-rule", f"{file}:example"]) == 0
    finally:
        _C.withdraw_rule("mylib.scaled_add.default")
