"""Pages of the reference: one per package, or per module of a package that exports nothing itself.

They are written before Sphinx reads its sources, and are not committed: what they say stands in the docstrings.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path

from rltok_docs.docstrings import equations, mark_shapes, ready
from rltok_docs.names import PACKAGES, Name, public_names, reference_modules

LONGEST_VALUE = 60  # of a constant that is shown


def write_pages(folder: Path) -> list[Path]:
    """Write all pages, and leave those alone that say the same already; pages of names that are gone are removed.

    Args:
        folder: of the pages.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = {folder / f"{name}.rst": text for name, text in pages()}
    for path in set(folder.glob("*.rst")) - set(made):
        path.unlink()
    for path, text in made.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    return sorted(made)


def pages() -> Iterator[tuple[str, str]]:
    """Every page, its name and its text."""
    modules = reference_modules()
    for package in PACKAGES:
        below = [name for name in modules if name.startswith(f"{package}.") and name not in PACKAGES]
        below = [name for name in below if package != "rltok_rl"]
        if package not in modules:
            yield package, _heading(package) + _module(package) + _contents(below)
            continue
        yield package, page(package) + (_title("Modules", "-") + _contents(below) if below else "")
    yield from ((module, page(module)) for module in modules if module not in PACKAGES)
    yield "equations", equation_page()


def page(module: str) -> str:
    """The page of a module: what it is, a table of its names, their entries.

    Args:
        module: that has one.
    """
    names = [one for one in public_names() if one.module == module]
    own = [one for one in names if one.entry == one.full]
    text = _heading(module) + _module(module) + _table(names)
    homes = list(dict.fromkeys(one.home for one in own))
    for home in homes:
        here = [one for one in own if one.home == home]
        if len(homes) > 1:
            text += _part(home)
        text += "".join(_entry(one) for one in here)
    return text


def equation_page() -> str:
    """All equations of `rltok_rl.functional` on one page, each with the function that computes it."""
    text = _title("Equations") + (
        "What the functions of :py:mod:`rltok_rl.functional` compute, with the letters of\n"
        ":doc:`the notation </docs/notation>`. Each name leads to its arguments and examples; equations have the\n"
        "numbers of `2602.13940 <https://arxiv.org/abs/2602.13940>`__.\n\n"
    )
    for module in reference_modules():
        known = [(one, equations(one.doc)) for one in public_names() if one.module == module and one.entry == one.full]
        known = [(one, found) for one, found in known if found]
        if not module.startswith("rltok_rl.functional.") or not known:
            continue
        text += (
            _title(f":py:mod:`{module.rpartition('.')[2]} <{module}>`", "-") + _first_sentence(_doc(module)) + "\n\n"
        )
        for one, found in known:
            text += f":py:obj:`{one.name} <{one.entry}>`: {_first_sentence(one.doc)}\n\n"
            text += _equation("\n\n".join(found))
    return text


def _table(names: Iterable[Name]) -> str:
    rows = [(f":py:obj:`{one.name} <{one.entry}>`", _first_sentence(one.doc)) for one in names]
    text = ".. list-table::\n   :widths: auto\n   :class: names\n\n"
    return text + "".join(f"   * - {link}\n     - {said}\n" for link, said in rows) + "\n"


def _entry(one: Name) -> str:
    if one.kind == "data":
        shown = repr(one.value)
        value = f"   :value: {shown}\n" if len(shown) <= LONGEST_VALUE and " at 0x" not in shown else ""
        doc = "\n".join(f"   {line}".rstrip() for line in ready(one.doc.splitlines()))
        module, _, name = one.entry.rpartition(".")
        return f".. py:data:: {name}\n   :module: {module}\n{value}\n{doc}\n\n"
    members = "   :members:\n   :show-inheritance:\n" if one.kind in ("class", "exception") else ""
    return f".. auto{one.kind}:: {one.entry}\n{members}\n"


def _contents(modules: Iterable[str]) -> str:
    rows = [(f":py:mod:`{module}`", _first_sentence(_doc(module))) for module in modules]
    table = ".. list-table::\n   :widths: auto\n   :class: names\n\n"
    table += "".join(f"   * - {link}\n     - {said}\n" for link, said in rows)
    listed = "".join(f"   {module.rpartition('.')[2]} <{module}>\n" for module in modules)
    return f"{table}\n.. toctree::\n   :hidden:\n\n{listed}\n"


def _part(home: str) -> str:
    """The heading of the names that one module of a package defines."""
    name = home.rpartition(".")[2]
    return _title(name.replace("_", " ").capitalize(), "-") + _first_sentence(_doc(home)) + "\n\n"


def _module(module: str) -> str:
    return f".. automodule:: {module}\n\n"


def _heading(module: str) -> str:
    return _title(f"``{module}``")


def _title(text: str, line: str = "=") -> str:
    return f"{text}\n{line * len(text)}\n\n"


def _equation(text: str) -> str:
    block = "\n".join(f"   {line}".rstrip() for line in text.splitlines())
    return f".. code-block:: text\n   :class: equation\n\n{block}\n\n"


def _doc(module: str) -> str:
    return inspect.cleandoc(importlib.import_module(module).__doc__ or "")


def _first_sentence(doc: str) -> str:
    """The first paragraph of a docstring, on one line; the house style has one sentence there."""
    return mark_shapes([" ".join(doc.split("\n\n")[0].split()).rstrip(":")])[0] if doc else ""
