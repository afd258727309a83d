"""Bytes that processes send in an update, counted and calculated.

Shapes: W processes, P parameters, T decisions per row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass
class Traffic:
    """Bytes of the tensors in all-reduce, all-gather, reduce-scatter; a whole tensor counts once for any W."""

    reduced: float = 0.0
    gathered: float = 0.0
    scattered: float = 0.0

    def sent(self, world_size: int) -> float:
        """Return the bytes that each process sends on a ring.

        (W - 1) / W (2 reduced + gathered + scattered)
        """
        return (world_size - 1) / world_size * (2 * self.reduced + self.gathered + self.scattered)


def update_traffic(model: nn.Module, num_steps: int, *, strategy: str = "ddp") -> Traffic:
    """Calculate the traffic of an update with the paper's loss: gradients or shards, and the batch mean of returns.

        ddp:   reduced = 4 P + 8 T
        fsdp:  reduced = 8 T,  gathered = 2 x 4 P (forward, backward),  scattered = 4 P

    Metrics and rates add a few hundred bytes, and norms are gathered more often under ``fsdp``. The model, which is not
    sharded, may be on the meta device.
    """
    if strategy not in ("ddp", "fsdp"):
        raise ValueError(f"strategy must be 'ddp' or 'fsdp', got {strategy!r}")
    weights = float(sum(p.numel() * p.element_size() for p in model.parameters()))
    mean = 8.0 * num_steps  # a float32 sum and a count for every step of a row
    if strategy == "ddp":
        return Traffic(reduced=weights + mean)
    return Traffic(reduced=mean, gathered=2 * weights, scattered=weights)


_COLLECTIVES = {
    "allreduce_": ("reduced", 0),
    "allgather_": ("gathered", 0),
    "_allgather_base_": ("gathered", 0),
    "_reduce_scatter_base_": ("scattered", 1),
}
"""The kind of each collective, and the argument that is the whole tensor."""


class CountTraffic(TorchDispatchMode):
    """Counts the bytes of collectives in :attr:`traffic`; torch's ``CommDebugMode`` counts calls."""

    def __init__(self) -> None:
        super().__init__()
        self.traffic = Traffic()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Count a collective, and run it."""
        namespace, _, name = func.name().partition("::")
        name = name.partition(".")[0]
        if namespace == "c10d":
            if name not in _COLLECTIVES:
                raise NotImplementedError(f"collectives that are counted are {list(_COLLECTIVES)}, got {name!r}")
            kind, place = _COLLECTIVES[name]
            setattr(self.traffic, kind, getattr(self.traffic, kind) + _bytes(args[place]))
        return func(*args, **(kwargs or {}))


def _bytes(tensors: Any) -> int:
    return tensors.nbytes if isinstance(tensors, Tensor) else sum(_bytes(tensor) for tensor in tensors)
