"""Add seeds and systems to an earlier page of a comparison, whose runs are elsewhere or gone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rltok_rl.experiments.reports.policy_options import (
    MODEL_FIELD,
    Options,
    default_options,
    split_options,
    unlike,
    whole_options,
)
from rltok_rl.experiments.reports.seed_table import preferred_reference

from rltok_rl.foreign import MOST_STATE, read_json

EQUAL_IN_SYSTEM = ("estimator", "target_rate", "target_rates", "oracle", "parameters", "rows_per_text")
"""Columns that all seeds of a system share."""
EQUAL_IN_ALL = ("counts", "split_by", "predicted")
"""Columns that all rows share: the held-out text."""
MERGED = ("commands", "machines", "revisions")
"""Lists that are merged without duplicates."""
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

    New rows replace earlier ones of the same seed; new systems come after the earlier ones. A page of an earlier
    version lacks the options that its policies share. A policy of both pages, which is required then, has them.
    """
    earlier = read_earlier(path)
    known = {system["name"]: system for system in earlier["systems"]}
    new = {system["name"]: system["rows"] for system in content["systems"]}
    systems = [*earlier["systems"], *(system for system in content["systems"] if system["name"] not in known)]
    reference = preferred_reference({*known, *new})
    systems.sort(key=lambda system: system["name"] == reference)  # the reference comes last
    shared, of_policies = _merged_options(earlier, content, path)
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
    of_page = {"model": model, **merged, "systems": merged_systems, "shared_options": shared, "has_curves": False}
    return {**content, **of_page}


def _merged_options(
    earlier: Mapping[str, Any], content: Mapping[str, Any], path: Path
) -> tuple[Options | None, dict[str, Options]]:
    """Return the options that both pages' learned policies share, None if they are unknown, and those of each."""
    new, shared = whole_options(content, content["shared_options"]), earlier.get("shared_options")
    names = [system["name"] for system in earlier["systems"] if system.get("options") is not None]
    both = [name for name in new if name in names]
    lacking = bool(names) and shared is None
    if lacking and new and not both:
        raise ValueError(
            f"systems must include a learned policy of {path}, which lacks the options that all of them share: "
            f"{', '.join(names)}; got {', '.join(new)}"
        )
    if shared is None:
        of_earlier = whole_options(earlier, new[both[0]] if both else {})
    else:
        of_earlier = whole_options(earlier, default_options() | shared)
    for name in both:
        for option, (mine, theirs) in unlike(new[name], of_earlier[name]).items():
            _require_equal(f"{option} of {name!r}", mine, theirs, path)
    of_all, own = split_options(of_earlier | new)  # equal where both have a policy
    return (None if lacking and not new else of_all), own


def _require_equal(name: str, value: Any, other: Any, path: Path) -> None:
    """Require equal values, so that seeds can be compared."""
    if value != other:
        shown = " and ".join(f"{str(x)[:60]}" for x in (value, other))
        raise ValueError(f"{name} must be equal in {path} and in all runs, got {shown}")
