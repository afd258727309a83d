"""The wheel, an editable installation and a bare checkout all give the same package."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from .layout import ROOT, ROOTS, modules, packages

PROBE = """
import importlib, json, sys
names = ["rltok_rl", "rltok_rl.envs", "rltok_rl.agents", "rltok_rl.experiments.demo", "rltok_rl.models.unet"]
files = {name: importlib.import_module(name).__file__ for name in names}
found = {name: importlib.util.find_spec(name) for name in ("envs", "agents", "experiments", "tests", "docs")}
seen = [str(place) for spec in found.values() if spec for place in spec.submodule_search_locations or [spec.origin]]
import rltok_rl
model = rltok_rl.UNet(rltok_rl.preset("tiny"))
text = rltok_rl.generate(model, "x", max_bytes=2).texts[0]
print(json.dumps({"files": files, "seen": seen, "version": rltok_rl.__version__, "written": len(text)}))
"""


def run(command: list[str | Path], **options) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built from a copy so that nothing stale in a build folder gets in."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in (*ROOTS, "pyproject.toml", "README.md", "LICENSE"):
        run(["cp", "-r", ROOT / name, source / name])
    (source / "experiments" / "conf").mkdir(exist_ok=True)
    (source / "experiments" / "conf" / "planted.yaml").write_text("planted: true\n")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", out, source]
    run(command)
    (built,) = out.glob("*.whl")
    return built


def test_wheel_holds_every_module_and_nothing_at_top_level(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    shipped = {name for name in names if name.endswith(".py")}
    expected = {
        f"{name.replace('.', '/')}/__init__.py" if path.name == "__init__.py" else f"{name.replace('.', '/')}.py"
        for name, path in modules()
    }
    missing = sorted(expected - shipped)
    assert not missing, f"{missing} are not in the wheel; list their packages under [tool.setuptools] in pyproject.toml"
    assert shipped == expected
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"rltok_rl"}
    assert "rltok_rl/py.typed" in names
    assert "rltok_rl/experiments/conf/planted.yaml" in names, "configurations are not shipped"
    assets = {f"rltok_rl/assets/{name}" for name in ("novel/text.txt", "lexicon-world/model.safetensors")}
    assert assets <= set(names), "packaged texts and models are not shipped"
    parts = {f"rltok_rl/viz/viewer/{path.name}" for path in (ROOT / "rltok_rl" / "viz" / "viewer").glob("*.[hcj]*s*")}
    parts.add("rltok_rl/viz/viewer/page.html")
    assert len(parts) >= 7 and parts <= set(names), "parts of the viewer's page are not shipped"


def test_wheel_works_in_a_clean_environment(wheel, tmp_path):
    """Installed where neither the checkout nor an editable installation can be seen, and used from another folder."""
    home, elsewhere = tmp_path / "venv", tmp_path / "elsewhere"
    elsewhere.mkdir()
    run([sys.executable, "-m", "venv", "--without-pip", home])
    python = home / "bin" / "python"
    # The pip of here installs there, and leaves what is installed here alone.
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--ignore-installed"]
    run([*install, "--no-deps", "--no-index", "--prefix", home, wheel])
    site = Path(run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip())
    # torch and its like come from here. A path in a .pth file is searched, but the .pth files inside it, the hook of an
    # editable installation among them, are not read.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    told = json.loads(run([python, "-c", PROBE], cwd=elsewhere, env=_environment()))
    assert all(Path(file).is_relative_to(site) for file in told["files"].values()), told["files"]
    # Packages of others may bring a folder of such a name along; the checkout's own are what must not be seen.
    leaked = [place for place in told["seen"] if Path(place).parent in (ROOT, site)]
    assert leaked == []
    assert told["written"] == 2
    assert told["version"] in wheel.name


def test_checkout_works_without_installation_and_shows_no_more_than_a_wheel(tmp_path):
    environment = {**_environment(), "PYTHONPATH": str(ROOT)}
    # -S would hide torch; an editable installation, where there is one, points to the same files.
    code = PROBE.replace('("envs", "agents", "experiments", "tests", "docs")', "()")  # the checkout itself is searched
    files = json.loads(run([sys.executable, "-c", code], cwd=tmp_path, env=environment))["files"]
    assert Path(files["rltok_rl.envs"]) == ROOT / "envs" / "__init__.py"
    assert Path(files["rltok_rl.experiments.demo"]) == ROOT / "experiments" / "demo" / "__init__.py"
    code = "import importlib.util, rltok_rl, sys; print(*(importlib.util.find_spec(name) for name in sys.argv[1:]))"
    names = ["rltok_rl.tests", "rltok_rl.docs", "rltok_rl.rltok_rl"]
    assert run([sys.executable, "-c", code, *names], cwd=tmp_path, env=environment).split() == ["None"] * 3


def test_every_folder_with_modules_is_a_package():
    """A folder without ``__init__.py`` would be left out of the wheel in silence."""
    folders = {name.rpartition(".")[0] for name, path in modules() if path.name != "__init__.py"}
    assert folders <= packages(), f"add an __init__.py to {sorted(folders - packages())}"


def test_metadata_admits_what_it_should(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith("METADATA")]
        metadata = archive.read(name).decode().splitlines()
    assert "Requires-Python: <3.14,>=3.10" in metadata
    requires = [line.removeprefix("Requires-Dist: ") for line in metadata if line.startswith("Requires-Dist")]
    core = {r for r in requires if "extra ==" not in r}
    assert "torchrl<0.15,>=0.14.1" in core
    assert "torch>=2.7" in core  # a range without an upper end: newer releases and GPU builds are welcome
    extras = {line.removeprefix("Provides-Extra: ") for line in metadata if line.startswith("Provides-Extra")}
    assert {"test", "docs", "bench", "fast", "dev"} <= extras


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no tomllib; locks are for Python 3.11")
@pytest.mark.parametrize("extra", ["docs", "dev", "test"])
def test_lock_has_versions_and_hashes_of_what_the_extra_requires_now(extra):
    script = runpy.run_path(str(ROOT / ".ci" / "lock.py"))
    normal = script["normal"]
    assert extra in script["EXTRAS"]
    requirements = script["requirements"](extra)
    header = script["HEADER"].format(extra=extra) + "".join(f"# {line}\n" for line in requirements)
    text = (ROOT / ".ci" / f"lock-{extra}.txt").read_text()
    assert text.startswith(header), "pyproject.toml requires something else now: make lock"
    locked = {}
    for line in text.removeprefix(header).splitlines():  # neither a host nor a path has a place in it
        parts = re.fullmatch(r"([a-z0-9-]+)==([\w.!+]+) --hash=sha256:[0-9a-f]{64}", line)
        assert parts and parts[1] not in locked, line
        locked[parts[1]] = parts[2]
    pins = re.findall(r"^([\w.-]+)==([\w.!]+)", (ROOT / "constraints-cpu.txt").read_text(), flags=re.M)
    assert locked["torch"].endswith("+cpu")
    other = {name: pin for name, pin in pins if locked.get(normal(name), pin).removesuffix("+cpu") != pin}
    assert len(pins) > 20 and not other, "constraints-cpu.txt pins another version: make lock"
    # What torch requires is required of the lock as well: pip would fetch it with torch, unhashed.
    there = {"extra": "", "python_version": "3.11", "sys_platform": "linux", "platform_system": "Linux"}
    direct = [Requirement(line) for line in (*requirements, *requires("torch"))]
    needed = {normal(r.name) for r in direct if r.marker is None or r.marker.evaluate(there)} | {"setuptools"}
    assert sorted(name for name in needed - set(locked) if not script["OF_CUDA"].fullmatch(name)) == []


def _environment() -> dict[str, str]:
    """The environment without what would lead Python back to the checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
