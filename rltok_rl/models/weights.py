"""Weights in safetensors: written all or none, and read only into models that they can fill."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rltok_rl.foreign import check_sizes
from rltok_rl.models.config import UNetConfig

try:
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import save_file
except ImportError:  # a GPU machine with torch alone
    pass

WEIGHTS, CONFIG = "model.safetensors", "config.json"
_MOST_CACHED = 1 << 28  # numbers in the caches of one text, of models with few weights
_MOST_SHOWN = 2000  # characters of a list of weights that do not fit


@contextmanager
def replaced_files(folder: Path) -> Iterator[Path]:
    """Yield an empty folder, whose files then replace those of the same names in ``folder``; on an error, none does."""
    partial = folder / ".partial"
    try:
        shutil.rmtree(partial, ignore_errors=True)  # of a killed process
        partial.mkdir(parents=True)
        yield partial
        for file in sorted(partial.iterdir(), reverse=True):  # weights before the file that names them
            file.replace(folder / file.name)
    except (SafetensorError, OSError) as error:
        raise OSError(f"{folder} could not be written: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # frees a full disk


def write_weights(model: nn.Module, path: Path) -> None:
    """Write all weights, tied ones under their first name; equal weights give equal files."""
    first: dict[int, str] = {}
    named = model.named_parameters(remove_duplicate=False)
    tied = {name: first[id(p)] for name, p in named if first.setdefault(id(p), name) != name}
    # Copies: safetensors needs contiguous tensors that share no memory.
    weights = {name: weight for name, weight in model.state_dict().items() if name not in tied}
    tensors = {name: weight.to("cpu", copy=True).contiguous() for name, weight in weights.items()}
    # One entry: safetensors writes several in a random order.
    save_file(tensors, path, metadata={"tied": json.dumps(tied)} if tied else {"format": "pt"})


def check_caches(config: UNetConfig, where: str, *, num_bytes: int) -> None:
    """Require caches of a text that are no larger than the weights, or than 268 million numbers."""
    byte_layers = config.num_encoder_layers + config.num_decoder_layers
    units = max(config.window * byte_layers, config.tokens_read, 1 / config.second_rate)
    cached = {"width x window, tokens_read or 1 / second_rate": config.of_second.width * units}
    check_sizes(where, cached, max(num_bytes, _MOST_CACHED), f"as its weights have {num_bytes:,} bytes")


def build_empty(cls: Any, config: UNetConfig, where: str, *, num_tensors: int, num_bytes: int) -> Any:
    """Build a U-Net without memory and random numbers, on the meta device, if saved weights can have its sizes.

    A configuration of a few bytes can name any size, so it is compared with the number of saved tensors and their bytes
    before anything is built; ``where`` names it in errors.
    """
    byte_layers = config.num_encoder_layers + config.num_decoder_layers
    layers = byte_layers + config.num_token_layers + len(config.ngram_sizes)
    layers += config.num_second_layers if config.second_level is not None else 0
    check_sizes(where, {"layers": layers}, num_tensors, f"as its weights have {num_tensors:,} tensors")
    check_caches(config, where, num_bytes=num_bytes)
    of = f"as its weights have {num_bytes:,} bytes"
    with torch.device("meta"):
        model = cls(config)
    parameters = sum(p.numel() for p in model.parameters())
    check_sizes(where, {"parameters": parameters}, num_bytes, of)
    return model


def read_model(cls: Any, config: UNetConfig, where: str, path: Path, device: torch.device) -> Any:
    """Build a U-Net with the weights of :func:`write_weights`, in their dtypes, and tie parameters again."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; save_pretrained writes it beside config.json")
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            tied = json.loads((file.metadata() or {}).get("tied", "{}"))
            names = list(file.keys())
            model = build_empty(cls, config, where, num_tensors=len(names), num_bytes=path.stat().st_size)
            # Copies: on unaligned memory of the file, sums are rounded in another order.
            tensors = {name: file.get_tensor(name).clone() for name in names}
    except (SafetensorError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} must be a whole safetensors file, got one that cannot be read: {error}") from error
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    if not isinstance(tied, dict) or not {*tied, *map(str, tied.values())} <= parameters:
        raise ValueError(f"{path} must tie parameters by name, got {tied!r}")
    tensors |= {name: tensors[first] for name, first in tied.items() if first in tensors}
    fill(model, tensors, path, CONFIG)
    for name, first in tied.items():
        place, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(place), leaf, model.get_parameter(first))
    return model


def check_finite(tensors: Mapping[str, Tensor], where: str) -> None:
    """Require saved tensors without NaN and infinity; a model that has some would answer with NaN."""
    for name, x in tensors.items():
        if not x.isfinite().all():
            raise ValueError(f'{where} must hold finite numbers, got others in "{name}"')


def check_one_dtype(model: nn.Module, name: str) -> None:
    """Require weights of one dtype: others load and train under autocast, but give no predictions without it."""
    if len(dtypes := sorted({str(p.dtype).removeprefix("torch.") for p in model.parameters()})) > 1:
        raise ValueError(f"{name} must hold weights of one dtype, got {', '.join(dtypes)}")


def fill(model: nn.Module, tensors: Mapping[str, Tensor], path: Path, config_name: str, *, assign: bool = True) -> None:
    """Load weights from the file at ``path``, which must fit; with ``assign``, in their dtypes."""
    for name, x in tensors.items():
        if not x.is_floating_point() or x.itemsize < 2:
            raise ValueError(f'{path} must hold floating-point weights of 16 bits or more, got {x.dtype} in "{name}"')
    check_finite(tensors, str(path))
    try:
        model.load_state_dict(tensors, assign=assign)  # copying converts to the dtype of the model
    except RuntimeError as error:
        _, *problems = (line.strip(" \t.") for line in str(error).splitlines())
        shown = "; ".join(problems)[:_MOST_SHOWN]
        raise ValueError(f"{path} must hold the weights of its {config_name}, got: {shown}") from None
