"""What the project says of itself is true, and it speaks of no particular machine."""

from __future__ import annotations

import re

from .layout import ROOT, ROOTS

TEXTS = sorted(
    path
    for folder in (*ROOTS, "tests", "docs")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".md", ".yaml", ".csv", ".json", ".sh"}
)
TEXTS += [
    ROOT / name
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "Makefile", "pyproject.toml")
]
TEXTS += sorted((ROOT / ".ci").iterdir())
# A home folder with somebody's name in it.
MACHINE_PATH = re.compile(r"/(?:home|Users)/[a-z][\w.-]*/|/roo[t]/")  # spelt so that it does not match itself
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


def machine_paths(text: str) -> list[str]:
    return MACHINE_PATH.findall(text)


def test_no_file_names_a_machine():
    named = {str(path.relative_to(ROOT)): machine_paths(path.read_text()) for path in TEXTS}
    assert not {name: paths for name, paths in named.items() if paths}
    assert machine_paths("see " + "/home" + "/ada/runs")


def test_commands_exist():
    """Every ``make x`` that a reader is told to type is a target."""
    for name in ("README.md", "CONTRIBUTING.md"):
        commands = set(re.findall(r"(?:^ {4}|`)make ([a-z-]+)", (ROOT / name).read_text(), flags=re.MULTILINE))
        assert commands and commands <= TARGETS, name
