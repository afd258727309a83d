"""Python code of installed packages, as one file to train on: text where boundaries at spaces are a weaker rule.

    python -m rltok_rl.experiments.studies.package_code out=texts/code.jsonl
    rltok train experiment=compare-seeds data.source=texts/code.jsonl data.split_by=package

Equal versions of the packages give equal files. The line that is printed names the versions.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from rltok_rl.experiments.studies.common import check_minimums, read_options, write_rows

PACKAGES = (
    *("datasets", "docutils", "fsspec", "gymnasium", "huggingface_hub", "jinja2", "joblib", "matplotlib", "mpmath"),
    *("mypy", "networkx", "nltk", "numba", "numpy", "pandas", "pip", "pydantic", "pygments", "rich", "scipy"),
    *("setuptools", "sphinx", "sympy", "tensordict", "torch", "torchrl", "transformers"),
)
"""Packages that the library's extras install, by the names that they are imported by, which pip knows too."""


@dataclass
class Options:
    """Options of the command."""

    out: str = "texts/code.jsonl"
    packages: list[str] = field(default_factory=lambda: list(PACKAGES))
    most_bytes: int = 8_000_000
    """Bytes of a package, so that none outweighs the others."""


def python_files(package: str, most_bytes: int) -> Iterator[tuple[str, str]]:
    """Yield paths and texts of a package's Python files, in the order of the paths' hashes, while they fit."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"packages must be installed packages, got {package!r}")
    root = Path(spec.submodule_search_locations[0])
    paths = {path.relative_to(root).as_posix(): path for path in root.rglob("*.py")}
    left = most_bytes
    for name in sorted(paths, key=lambda name: hashlib.sha256(name.encode()).digest()):
        text = paths[name].read_text(encoding="utf-8", errors="ignore")
        left -= len(text.encode())
        if left < 0:
            return
        yield name, text


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the file and print what it holds."""
    options = read_options(Options, sys.argv[1:] if arguments is None else arguments)
    check_minimums(options, {"most_bytes": 1})
    rows = [
        {"package": package, "path": path, "text": text}
        for package in options.packages
        for path, text in python_files(package, options.most_bytes)
    ]
    write_rows(options.out, rows)
    versions = ", ".join(f"{package} {version(package)}" for package in options.packages)
    print(f"{options.out}: {len(rows):,} files, {sum(len(row['text'].encode()) for row in rows):,} bytes of {versions}")


if __name__ == "__main__":
    main()
