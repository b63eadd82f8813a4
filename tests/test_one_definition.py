"""A name of the C++ code means one thing: the one definition rule, checked on the text.

Two types of one name in one namespace compile and link, and whichever destructor the
linker keeps is wrong for the other. So every type, alias, inline function and template
outside of anonymous namespaces is defined at one place in all of the C++ code.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("csrc", "tests/csrc", "benchmarks/csrc")

# A match is what is no code, or one token.
TOKENS = re.compile(
    r"""(?: //[^\n]* | /\*.*?\*/ | ^[ \t]*\#(?:\\\n|[^\n])* | \s+ )
      | (?P<word> R"(?P<mark>[^(]*)\(.*?\)(?P=mark)" | "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*'
                | [A-Za-z_]\w* | [0-9][\w.']* | . )""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
BRACKETS = {"template": "<>", "[": "[]", "alignas": "()"}
TYPES = ("struct", "class", "union", "enum")

Scope = tuple[str, str]  # what it is: a namespace, a type, or a body; and its name
ANONYMOUS: Scope = ("namespace", "")


def end_of_brackets(words: list[str], pair: str) -> int:
    """The index after the bracket that closes the first one."""
    depth = 0
    for index, word in enumerate(words):
        depth += (word == pair[0]) - (word == pair[1])
        if depth == 0 and word == pair[1]:
            return index + 1
    return len(words)


def without_prefixes(words: list[str]) -> list[str]:
    """A declaration without ``template <...>``, attributes and alignment."""
    while words and words[0] in BRACKETS:
        words = words[end_of_brackets(words, BRACKETS[words[0]]) :]
    return words


def scope_of(words: list[str]) -> Scope:
    """What ``words {`` begins."""
    words = without_prefixes(words)
    if "namespace" in words[:2]:
        return "namespace", "".join(words[words.index("namespace") + 1 :])
    if not words or words[0] not in TYPES:
        return "body", ""
    name = without_prefixes([word for word in words[1:] if word not in (*TYPES, "final")])
    bases = [i for i, word in enumerate(name) if word == ":" and ":" not in name[i - 1 : i + 2 : 2]]
    return "type", "".join(name[: bases[0]] if bases else name)


def shared_name(words: list[str], end: str) -> str:
    """What ``words {`` or ``words ;`` defines, if several files might; else nothing."""
    declaration = without_prefixes(words)
    if end == ";":
        return declaration[1] if declaration[:1] == ["using"] and "=" in declaration else ""
    what, name = scope_of(words)
    if what != "body":
        return name if what == "type" else ""
    if ")" not in declaration or not (words[0] == "template" or "inline" in words):
        return ""
    return " ".join(declaration[: len(declaration) - declaration[::-1].index(")")])


def definitions(text: str) -> Iterator[tuple[str, int]]:
    """What a file defines that others could define as well, with its line."""
    scopes: list[Scope] = []
    words: list[str] = []
    for match in TOKENS.finditer(text):
        word = match["word"]
        if word is None:
            continue
        if word not in "{};":
            words.append(word)
            continue
        private = ANONYMOUS in scopes or any(what == "body" for what, _ in scopes)
        if word != "}" and not private and (name := shared_name(words, word)):
            path = "::".join([scope for _, scope in scopes] + [name])
            yield path, text.count("\n", 0, match.start()) + 1
        if word == "{":
            scopes.append(scope_of(words))
        elif word == "}":
            scopes.pop()
        words = []


def sources(root: Path) -> list[Path]:
    return [
        path
        for folder in FOLDERS
        for path in sorted((root / folder).rglob("*"))
        if path.suffix in (".h", ".cc")
    ]


def repeated(root: Path) -> list[str]:
    """What has several definitions, and where they are."""
    places = defaultdict(list)
    for path in sources(root):
        for name, line in definitions(path.read_text()):
            places[name].append(f"{path.relative_to(root)}:{line}")
    return [f"{name}: {', '.join(found)}" for name, found in places.items() if len(found) > 1]


def test_every_name_has_one_definition() -> None:
    assert not repeated(ROOT)


def test_all_that_headers_define_is_read() -> None:
    found = {name for path in sources(ROOT) for name, _ in definitions(path.read_text())}
    for path in (ROOT / "csrc").rglob("*.h"):
        for name in re.findall(
            r"^(?:struct|class) (\w+)(?: final)?(?: : [^;{]*)? \{", path.read_text(), re.MULTILINE
        ):
            assert f"tensoropt::{name}" in found, path


CALL = "namespace tensoropt {{\n// One's text \"{{\n{}\n}}  // namespace tensoropt\n"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("struct Call { int a; };", "struct Call { std::string b; };"),
        ("struct Call { int a; };", "class Call final : public base::Call { };"),
        ("enum class Call : int { kA };", "struct [[nodiscard]] Call { };"),
        ("struct Call { };", "using Call = std::vector<int>;"),
        ("template <class T> struct Call { };", "struct alignas(8) Call { };"),
        ("struct A { struct Call { int a; }; };", "struct A::Call { char b; };"),
        ("inline int call(int a) { return a; }", "inline int call(int a) { return 2 * a; }"),
        (
            "template <typename T>\nT call(const T& a) { return a; }",
            "template <class A, class B = Of<A>> T call(const T& a) { return b; }",
        ),
        ("void f() { if (a) { } }\nstruct Call { };", 'const char* s = R"({)";\nstruct Call { };'),
    ],
)
def test_second_definition_is_found(tmp_path: Path, one: str, other: str) -> None:
    write(tmp_path, one, other)
    (found,) = repeated(tmp_path)
    assert "Call" in found or "call" in found
    assert "csrc/rules/a.h:" in found
    assert "csrc/cost/b.cc:" in found


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("struct Call { };", "struct Call;"),
        ("struct Call { };", "namespace {\nstruct Call { };\n}  // namespace"),
        ("struct Call { };", "namespace other { struct Call { }; }"),
        ("struct A { struct Call { }; };", "struct B { struct Call { }; };"),
        ("struct Call { };", "void f() { struct Call { }; }"),
        ("template <class T> struct Call { };", "template <> struct Call<int> { };"),
        ("struct Call { };", '// struct Call { };\nconst char* text = "struct Call { };";'),
        ("inline int call(int a) { return a; }", "inline int call(double a) { return a; }"),
    ],
)
def test_other_names_are_none(tmp_path: Path, one: str, other: str) -> None:
    write(tmp_path, one, other)
    assert not repeated(tmp_path)


def write(root: Path, one: str, other: str) -> None:
    for file, body in {"rules/a.h": one, "cost/b.cc": other}.items():
        path = root / "csrc" / file
        path.parent.mkdir(parents=True)
        path.write_text(CALL.format(body))
