"""Write ``.ci/lock-EXTRA.txt``: version and sha256 of every package that an environment of continuous integration has.

    make lock

Each file is what pip chooses for ``.[EXTRA]`` under ``constraints-cpu.txt``, on Python 3.11 and Linux x86_64.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("docs", "dev", "test")
OF_CUDA = re.compile(r"triton|(nvidia|cuda)-.*")
"""Packages that CUDA builds of torch require."""
HEADER = """\
# Written by `make lock` for Python 3.11 on Linux x86_64; LOCKED=1 installs from it, torch as PyTorch's CPU build.
# [{extra}] requires:
"""


def normal(name: str) -> str:
    """A package's name in the spelling that is the same for all its spellings: ``Farama_Foo`` is ``farama-foo``."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(extra: str) -> list[str]:
    """What ``rltok_rl[extra]`` requires directly, with the extras that this extra names, in alphabetical order."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found, extras = set(project["dependencies"]), [extra]
    for name in extras:  # grows
        for line in project["optional-dependencies"][name]:
            itself = re.fullmatch(r"rltok_rl\[(.*)\]", line)
            found |= set() if itself else {line}
            extras += [other for other in re.split(r",\s*", itself[1]) if other not in extras] if itself else []
    return sorted(found, key=str.lower)


def resolve(extra: str) -> dict[str, tuple[str, str]]:
    """Version and sha256 of everything that pip would install for an extra, by normalized name."""
    # setuptools builds the package and the dependencies that have no wheel.
    wanted = ["-c", "constraints-cpu.txt", "setuptools", f".[{extra}]"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    report = subprocess.run([*command, *wanted], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    packages = {}
    for item in json.loads(report)["install"]:
        name = normal(item["metadata"]["name"])
        if OF_CUDA.fullmatch(name) or (name == "torch" and not item["metadata"]["version"].endswith("+cpu")):
            sys.exit(f"locks hold the CPU build of torch, got {name}; pip must find that build before others")
        if name != "rltok-rl":
            packages[name] = (item["metadata"]["version"], item["download_info"]["archive_info"]["hashes"]["sha256"])
    return packages


def main() -> None:
    """Write one file per extra."""
    here = (*sys.version_info[:2], sys.platform, platform.machine())
    if here != (3, 11, "linux", "x86_64"):
        sys.exit(f"locks are written by Python 3.11 on Linux x86_64, got {here}; name one: make lock PYTHON=python3.11")
    for extra in EXTRAS:
        packages = resolve(extra)
        lines = [f"# {line}\n" for line in requirements(extra)]
        lines += [f"{name}=={version} --hash=sha256:{digest}\n" for name, (version, digest) in sorted(packages.items())]
        path = ROOT / ".ci" / f"lock-{extra}.txt"
        path.write_text(HEADER.format(extra=extra) + "".join(lines))
        print(f"{path.relative_to(ROOT)}: {len(packages)} packages")


if __name__ == "__main__":
    main()
