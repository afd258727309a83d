"""What processes send each other in an update: counted where collectives are called, and calculated beforehand.

Shapes: W processes, P parameters, T decisions of a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass
class Traffic:
    """Bytes of tensors that went through collectives; each tensor in one piece counts once, whatever W is."""

    reduced: float = 0.0
    """Summed over all, the sum for everyone."""
    gathered: float = 0.0
    """Put together from pieces, for everyone."""
    scattered: float = 0.0
    """Summed over all, a piece of the sum for each."""

    def sent(self, world_size: int) -> float:
        """Bytes that leave each process on a ring of them.

            (W - 1) / W (2 reduced + gathered + scattered)

        Args:
            world_size: W.

        Example:
            >>> Traffic(reduced=100.0).sent(2), Traffic(reduced=100.0).sent(1)
            (100.0, 0.0)
        """
        return (world_size - 1) / world_size * (2 * self.reduced + self.gathered + self.scattered)


def update_traffic(model: nn.Module, num_steps: int, *, strategy: str = "ddp") -> Traffic:
    """What an update of the paper's loss sends: gradients or pieces, and the batch's mean of returns.

        ddp:   reduced = 4 P + 8 T
        fsdp:  reduced = 8 T,  gathered = 2 x 4 P (forward, backward),  scattered = 4 P

    A few hundred bytes of figures and rates come besides, and under ``fsdp`` norms that are gathered more often.

    Args:
        model: whole; on the meta device as well.
        num_steps: T.
        strategy: ``"ddp"`` or ``"fsdp"``.
    """
    if strategy not in ("ddp", "fsdp"):
        raise ValueError(f"strategy must be 'ddp' or 'fsdp', got {strategy!r}")
    weights = float(sum(p.numel() * p.element_size() for p in model.parameters()))
    mean = 8.0 * num_steps  # a sum and a count, float32 each, for every place of a row
    if strategy == "ddp":
        return Traffic(reduced=weights + mean)
    return Traffic(reduced=mean, gathered=2 * weights, scattered=weights)


class CountTraffic(TorchDispatchMode):
    """Within the block, collectives are counted in :attr:`traffic`; everything else runs as it does, more slowly.

    Example:
        >>> with CountTraffic() as count:  # of one process, which talks to nobody
        ...     _ = nn.Linear(2, 2).weight.sum()
        >>> count.traffic.sent(1)
        0.0
    """

    def __init__(self) -> None:
        super().__init__()
        self.traffic = Traffic()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Count a collective, and run it."""
        namespace, _, name = func.name().partition("::")
        if namespace == "c10d":
            self._count(name.partition(".")[0], args)
        return func(*args, **(kwargs or {}))

    def _count(self, name: str, args: Sequence[Any]) -> None:
        kinds = {
            "allreduce_": ("reduced", 0),
            "allgather_": ("gathered", 0),
            "_allgather_base_": ("gathered", 0),
            "_reduce_scatter_base_": ("scattered", 1),  # its input
        }
        if name not in kinds:
            raise NotImplementedError(f"collectives that are counted are {list(kinds)}, got {name!r}")
        kind, place = kinds[name]
        setattr(self.traffic, kind, getattr(self.traffic, kind) + _bytes(args[place]))


def _bytes(tensors: Any) -> int:
    return tensors.nbytes if isinstance(tensors, Tensor) else sum(_bytes(one) for one in tensors)
