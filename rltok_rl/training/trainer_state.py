"""Check a saved trainer's state, for ``rltok check`` and for resuming."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rltok_rl.ranges import check_number
from rltok_rl.training.alarms import Alarms
from rltok_rl.training.checkpoint import as_state, part_of
from rltok_rl.training.sharding import check_moments
from rltok_rl.utils import check_count


def check_state(state: Mapping[str, Any], check_model: Callable[[Mapping[str, Any]], None]) -> None:
    """Require every part of a trainer's state in its form; an error names the part.

    ``check_model`` checks the weights. Only the trainer knows whether loss, segmenter and texts are its own.
    """
    for name, check in {"model": check_model, **_PARTS}.items():
        with part_of(state, name) as part:
            check(part)
    with part_of(state, "optimizer") as part:
        if state["updates"] and not part["state"]:
            raise ValueError(f"no parameter has moments after {state['updates']} updates")


def _loss(part: Mapping[str, Any]) -> None:
    if not part:
        raise ValueError("it is empty")
    dict(part)


def _generator(part: Any) -> None:
    if not as_state(part).numel():
        raise ValueError("the state of a generator is empty")


def _texts(part: Any) -> None:
    if not isinstance(part, Tensor):
        dict(part["source"])
        part = part["generator"]
    _generator(part)


def _random(part: Mapping[str, Any]) -> None:
    torch.Generator().set_state(as_state(part["torch"]))
    random.Random().setstate(part["python"])
    name, keys, *rest = part["numpy"]
    np.random.RandomState().set_state((name, keys.cpu().numpy().astype(np.uint32), *rest))


def _flops_beside(part: Mapping[str, Any]) -> None:
    for name in ("padded", "tried"):
        check_number(name, part[name], "[0, inf)")


def _segmenter(part: Mapping[str, Any] | None) -> None:
    dict(part or {})


def _token_room(part: Mapping[str, Any]) -> None:
    for factor in part["grown"]:
        check_number("grown", factor, "(0, inf)")
    [*part["notes"]]


_PARTS: dict[str, Callable[[Any], object]] = {
    "optimizer": check_moments,
    "loss": _loss,
    "texts": _texts,
    "boundaries": _generator,
    "random": _random,
    "updates": lambda part: check_count("updates", part, minimum=0),
    "bytes_done": lambda part: check_count("bytes_done", part, minimum=0),
    "alarms": lambda part: Alarms().load_state_dict(part),
    "flops_done": lambda part: check_number("flops_done", part, "[0, inf)"),
    "flops_beside": _flops_beside,
    "segmenter": _segmenter,
    "token_room": _token_room,
}
"""Other parts by name."""
