"""Add seeds and systems to an earlier page of a comparison, whose runs are elsewhere or gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rltok_rl.experiments.reports.seed_table import preferred_reference

from rltok_rl.foreign import MOST_STATE, read_json

EQUAL_IN_SYSTEM = ("estimator", "target_rate", "target_rates", "oracle", "parameters", "rows_per_text")
"""Columns that all seeds of a system share."""
EQUAL_IN_ALL = ("counts", "split_by", "predicted")
"""Columns that all rows share: the held-out text."""
MERGED = ("commands", "machines", "revisions")
"""Lists that are merged without duplicates."""
MODEL_FIELD = "model.overrides."
"""Start of the options that are fields of the model."""
NEEDED = {"data", "model", "systems", *MERGED}


def read_earlier(path: Path) -> dict[str, Any]:
    """Read the ``compare-seeds.json`` of an earlier page."""
    content = read_json(path, MOST_STATE)
    systems = content.get("systems") if isinstance(content, dict) and set(content) >= NEEDED else None
    if not isinstance(systems, list) or not all(isinstance(x, dict) and {"name", "rows"} <= set(x) for x in systems):
        raise ValueError(f"{path} must be the compare-seeds.json of a comparison over seeds; it has other entries")
    return content


def with_earlier(content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the content of a page with the rows of the earlier page in ``path``.

    New rows replace earlier ones of the same seed; new systems come after the earlier ones. Options of a new learned
    policy are known relative to a learned policy of both pages, which is required then.
    """
    earlier = read_earlier(path)
    known = {system["name"]: system for system in earlier["systems"]}
    new = {system["name"]: system["rows"] for system in content["systems"]}
    systems = [*earlier["systems"], *(system for system in content["systems"] if system["name"] not in known)]
    reference = preferred_reference({*known, *new})
    systems.sort(key=lambda system: system["name"] == reference)  # the reference comes last
    of_policies = _merged_options(earlier["systems"], content["systems"], path)
    varying = {option.removeprefix(MODEL_FIELD) for changed in of_policies.values() for option in changed}
    in_both = content["model"].keys() & earlier["model"].keys()  # fewer systems share more fields of the model
    for name, names in (("data", content["data"].keys() | earlier["data"].keys()), ("model", in_both - varying)):
        for field in sorted(names):
            _require_equal(f"{name}.{field}", content[name].get(field), earlier[name].get(field), path)
    merged_systems = []
    for system in systems:
        name = system["name"]
        of_earlier = known.get(name, {}).get("rows", {})
        rows = {int(seed): row for some in (of_earlier, new.get(name, {})) for seed, row in some.items()}
        options = of_policies.get(name, system.get("options"))
        merged_systems.append({**system, "rows": dict(sorted(rows.items())), "options": options})
    first = merged_systems[0]["rows"][min(merged_systems[0]["rows"])]
    for system in merged_systems:
        of_system = next(iter(system["rows"].values()))
        for seed, row in system["rows"].items():
            of_row = f"of {system['name']!r} in seed {seed}"
            for columns, other in ((EQUAL_IN_ALL, first), (EQUAL_IN_SYSTEM, of_system)):
                for column in columns:
                    _require_equal(f"{column} {of_row}", row.get(column), other.get(column), path)
    merged = {name: sorted({*content[name], *earlier[name]}) for name in MERGED}
    model = {field: value for field, value in earlier["model"].items() if field not in varying}
    return {**content, "model": model, **merged, "systems": merged_systems, "has_curves": False}


def _merged_options(
    earlier: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]], path: Path
) -> dict[str, dict[str, Any]]:
    """Return the options of both pages' learned policies: all of the first, what differs of others."""
    of_earlier, of_new = _whole_options(earlier), _whole_options(new)
    shared = next((name for name in of_new if name in of_earlier), None)
    if of_earlier and of_new and shared is None:
        raise ValueError(
            f"systems must include a learned policy of {path}, to which options of others are relative: "
            f"{', '.join(of_earlier)}; got {', '.join(of_new)}"
        )
    of_shared: tuple[dict[str, Any], ...] = (of_earlier[shared], of_new[shared]) if shared else ({}, {})
    for name in [name for name in of_new if name in of_earlier]:
        for option in sorted(of_new[name].keys() & of_earlier[name].keys()):
            _require_equal(f"{option} of {name!r}", of_new[name][option], of_earlier[name][option], path)
    # An option that does not vary in a page has one value in all its systems: that of the shared one.
    whole = {name: of_shared[1] | options for name, options in of_earlier.items()}
    whole |= {name: of_shared[0] | options for name, options in of_new.items() if name not in of_earlier}
    first = next(iter(whole), "")
    return {
        name: {o: v for o, v in sorted(options.items()) if name == first or v != whole[first][o]}
        for name, options in whole.items()
    }


def _whole_options(systems: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return all options that vary among a page's learned policies, where the page has what differs from the first."""
    listed = {system["name"]: system["options"] for system in systems if system.get("options") is not None}
    first: Mapping[str, Any] = next(iter(listed.values()), {})
    return {name: {**first, **options} for name, options in listed.items()}


def _require_equal(name: str, value: Any, other: Any, path: Path) -> None:
    """Require equal values, so that seeds can be compared."""
    if value != other:
        shown = " and ".join(f"{str(x)[:60]}" for x in (value, other))
        raise ValueError(f"{name} must be equal in {path} and in all runs, got {shown}")
