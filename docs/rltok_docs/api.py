"""Pages of the reference: one per package, or per module of a package that exports nothing itself.

They are written before Sphinx reads its sources, and are not committed: autodoc fills them from the docstrings.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any, NamedTuple

from rltok_docs.docstrings import equations, mark_shapes, ready

PACKAGES = [
    "rltok_rl.functional",
    "rltok_rl.sampling",
    "rltok_rl.fused",
    "rltok_rl.models",
    "rltok_rl.data",
    "rltok_rl.data.languages",
    "rltok_rl.agents",
    "rltok_rl.agents.segmenters",
    "rltok_rl.envs",
    "rltok_rl.objectives",
    "rltok_rl.training",
    "rltok_rl.evaluation",
    "rltok_rl.diagnostics",
    "rltok_rl.viz",
    "rltok_rl.viz.viewer",
    "rltok_rl",
]
"""Packages in the order of the reference. A name that several of them export has its entry with the first."""
ALSO = [
    "rltok_rl.models.flops",
    "rltok_rl.models.generation",
    "rltok_rl.models.tokens",
    "rltok_rl.objectives.segmented",
    "rltok_rl.objectives.time_last",
    "rltok_rl.training.distributed",
    "rltok_rl.training.loggers",
    "rltok_rl.training.snapshots",
    "rltok_rl.experiments.bench.traffic",
    "rltok_rl.evaluation.tasks",
    "rltok_rl.evaluation.continuations",
    "rltok_rl.evaluation.detail",
    "rltok_rl.evaluation.lm_eval",
    "rltok_rl.viz.run_figures",
    "rltok_rl.viz.text_figures",
]
"""Modules that pages send readers to, though their packages export none of their names."""
OPTIONAL = {
    ("lm_eval.api.model", "LM"): type("LM", (), {"__module__": "lm_eval.api.model"}),
    ("lm_eval.api.registry", "register_model"): lambda *names: lambda model: model,
    ("stable_baselines3.common.monitor", "Monitor"): type("Monitor", (), {"__module__": "stable_baselines3"}),
    ("stable_baselines3.common.vec_env", "VecEnv"): type("VecEnv", (), {"__module__": "stable_baselines3"}),
}
"""Names of optional packages that the library builds on; Sphinx's mocks would lose signatures and decorated classes."""


class Name(NamedTuple):
    """A public name, the module that exports it, the one that defines it, and its full name in the reference."""

    module: str
    name: str
    value: Any
    home: str
    doc: str
    entry: str

    @property
    def directive(self) -> str:
        """The directive of autodoc; constants are described by the string that follows their assignment."""
        if inspect.isclass(self.value):
            kind = "exception" if issubclass(self.value, BaseException) else "class"
            return f".. auto{kind}:: {self.entry}\n   :members:\n   :show-inheritance:\n\n"
        if inspect.isroutine(self.value):
            return f".. autofunction:: {self.entry}\n\n"
        shown = repr(self.value)
        value = f"   :value: {shown}\n" if len(shown) <= 60 and " at 0x" not in shown else ""
        doc = "\n".join(f"   {line}".rstrip() for line in ready(self.doc.splitlines()))
        module, _, name = self.entry.rpartition(".")
        return f".. py:data:: {name}\n   :module: {module}\n{value}\n{doc}\n\n"


def replace_optional() -> None:
    """Replace optional packages, so that pages are the same with and without them; call it before the library loads."""
    for (path, name), value in OPTIONAL.items():
        parts = path.split(".")
        for place in range(len(parts)):
            outer = ".".join(parts[: place + 1])
            sys.modules.setdefault(outer, module_from_spec(ModuleSpec(outer, None)))
        setattr(sys.modules[path], name, value)


def reference_modules() -> list[str]:
    """Return the modules that have a page: packages that export names, and the modules of those that export none."""
    names: list[str] = []
    for package in PACKAGES:
        loaded = importlib.import_module(package)
        inner = [f"{package}.{module.name}" for module in pkgutil.iter_modules(loaded.__path__)]
        names += ALSO if package == "rltok_rl" else []
        names += [package] if hasattr(loaded, "__all__") else [name for name in inner if "._" not in name]
    return names


@cache
def public_names() -> tuple[Name, ...]:
    """Return all public names, package by package."""
    modules = reference_modules()
    exported = {module: _exported(importlib.import_module(module)) for module in modules}
    documented = _documented_constants()
    entries: dict[tuple[str, int], str] = {}
    names = []
    for module, values in exported.items():
        for name, value in values.items():
            if inspect.isclass(value) or inspect.isroutine(value):
                home, doc = value.__module__, inspect.cleandoc(value.__doc__ or "")
            else:
                home, doc = documented.get((name, id(value)), (module, ""))
            entry = entries.setdefault((name, id(value)), f"{home if home in modules else module}.{name}")
            names.append(Name(module, name, value, home, doc, entry))
    return tuple(names)


def _exported(module: Any) -> dict[str, Any]:
    """Return the names in ``__all__``, or else a module's functions, classes and documented constants."""
    if hasattr(module, "__all__"):
        return {name: getattr(module, name) for name in module.__all__}
    constants = constant_docs(module.__name__)
    members = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    defined = {name for name, value in members.items() if inspect.isclass(value) or inspect.isroutine(value)}
    defined = {name for name in defined if members[name].__module__ == module.__name__}
    return {name: value for name, value in members.items() if name in defined or name in constants}


@cache
def constant_docs(module: str) -> dict[str, str]:
    """Return the strings that follow the assignments of a module, by name."""
    body, docs = ast.parse(inspect.getsource(importlib.import_module(module))).body, {}
    for node, after in zip(body, body[1:], strict=False):
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(target, ast.Name):
                docs[target.id] = inspect.cleandoc(after.value.value)
    return docs


def _documented_constants() -> dict[tuple[str, int], tuple[str, str]]:
    """Home and text of every constant of the library that is loaded, by name and identity."""
    loaded = [(name, module) for name, module in sys.modules.items() if name.partition(".")[0] == "rltok_rl"]
    return {
        (name, id(getattr(module, name))): (path, doc)
        for path, module in loaded
        if getattr(module, "__file__", None) and module.__name__ == path  # else an old name of the module
        for name, doc in constant_docs(path).items()
    }


def write_pages(folder: Path) -> None:
    """Write the pages that changed, and remove those of names that are gone."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {folder / f"{name}.rst": text for name, text in pages()}
    for path in set(folder.glob("*.rst")) - set(written):
        path.unlink()
    for path, text in written.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def pages() -> Iterator[tuple[str, str]]:
    """Yield every page: its name and its text."""
    modules = reference_modules()
    for package in PACKAGES:
        inner = [name for name in modules if name.startswith(f"{package}.") and name not in PACKAGES]
        below = inner if package != "rltok_rl" else []
        yield package, page(package) + (_title("Modules", "-") + _contents(below) if below else "")
    yield from ((module, page(module)) for module in modules if module not in PACKAGES)
    yield "equations", equation_page()


def page(module: str) -> str:
    """Return the page of a module: its docstring, a table of its names, their entries."""
    names = [name for name in public_names() if name.module == module]
    text = _title(f"``{module}``") + f".. automodule:: {module}\n\n"
    text += _table((f":py:obj:`{name.name} <{name.entry}>`", name.doc) for name in names) if names else ""
    entries = _entries(module)
    homes = dict.fromkeys(name.home for name in entries)
    for home in homes:
        if len(homes) > 1:
            heading = home.rpartition(".")[2].replace("_", " ").capitalize()
            text += _title(heading, "-") + _first_sentence(_doc(home)) + "\n\n"
        text += "".join(name.directive for name in entries if name.home == home)
    return text


def _entries(module: str) -> list[Name]:
    """Names that have their entry on the page of a module."""
    return [name for name in public_names() if name.module == module and name.entry == f"{module}.{name.name}"]


def equation_page() -> str:
    """Return all equations of `rltok_rl.functional` on one page, each with the function that computes it."""
    text = _title("Equations") + (
        "What the functions of :py:mod:`rltok_rl.functional` compute, with the letters of\n"
        ":doc:`the notation </docs/notation>`. Each name leads to its arguments and examples; equations have the\n"
        "numbers of `2602.13940 <https://arxiv.org/abs/2602.13940>`__.\n\n"
    )
    for module in (name for name in reference_modules() if name.startswith("rltok_rl.functional.")):
        names = [name for name in _entries(module) if equations(name.doc)]
        if names:
            text += _title(f":py:mod:`{module.rpartition('.')[2]} <{module}>`", "-")
            text += f"{_first_sentence(_doc(module))}\n\n"
        for name in names:
            block = "\n\n".join(equations(name.doc)).replace("\n", "\n   ").replace("\n   \n", "\n\n")
            text += f":py:obj:`{name.name} <{name.entry}>`: {_first_sentence(name.doc)}\n\n"
            text += f".. code-block:: text\n   :class: equation\n\n   {block}\n\n"
    return text


def _table(rows: Iterable[tuple[str, str]]) -> str:
    text = ".. list-table::\n   :widths: auto\n   :class: names\n\n"
    return text + "".join(f"   * - {link}\n     - {_first_sentence(doc)}\n" for link, doc in rows) + "\n"


def _contents(modules: list[str]) -> str:
    listed = "".join(f"   {module.rpartition('.')[2]} <{module}>\n" for module in modules)
    return _table((f":py:mod:`{name}`", _doc(name)) for name in modules) + f".. toctree::\n   :hidden:\n\n{listed}\n"


def _title(text: str, line: str = "=") -> str:
    return f"{text}\n{line * len(text)}\n\n"


def _doc(module: str) -> str:
    return inspect.cleandoc(importlib.import_module(module).__doc__ or "")


def _first_sentence(doc: str) -> str:
    """The first paragraph of a docstring on one line."""
    return mark_shapes(" ".join(doc.split("\n\n")[0].split()).rstrip(":"))
