"""Operations and bytes moved by an update, per operator; both are the same on every machine.

    python -m rltok_rl.experiments.bench.operations books recall

Arguments are experiments of ``experiments/conf/experiment``; those without a language read Python's documentation.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from rltok_rl.experiments.bench.timing import BenchRow, in_new_process, row_of_pairs
from rltok_rl.experiments.commands.overrides import compose_config
from rltok_rl.experiments.reports.markdown import markdown
from rltok_rl.experiments.runs.build import make_trainer
from rltok_rl.experiments.texts import LANGUAGES
from torch import Tensor
from torch._inductor import metrics
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from rltok_rl.fused import launch
from rltok_rl.training import Trainer

FLIPS = ("estimator=local_flips", "baseline=none")
GIB = 2**30
SHOWN = 20
"""Operators in the table; the others share its last line."""


class CountOperations(TorchDispatchMode):
    """Counts operations and the bytes that each reads and writes, by the operator's name.

    Every tensor that goes in or comes out counts once, whether or not a cache holds it. Views, fresh memory
    (``empty``) and what has no tensors (``promote_types``) move nothing and are left out. A fused kernel is one
    operation: what it keeps inside moves nothing.
    """

    sees_kernels = True  # fused operations stay fused

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.moved: Counter[str] = Counter()
        self.written: Counter[str] = Counter()
        self.flops = 0  # of matrix products and attention

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation, and count it."""
        out = func(*args, **(kwargs or {}))
        if func.namespace in ("prim", "profiler"):
            return out
        read, returned = _tensors((args, kwargs)), _tensors(out)
        places = {_memory(x) for x in read}
        same_memory = bool(returned) and all(_memory(x) in places for x in returned)
        fresh = func.name().startswith(("aten::empty", "aten::new_empty"))
        if not (read or returned) or fresh or func.is_view or (same_memory and not func._schema.is_mutable):
            return out
        written = [x for x in returned if not any(x is y for y in read)]  # in-place results are among the inputs
        if func.overloadpacket in flop_registry:
            self.flops += flop_registry[func.overloadpacket](*args, **(kwargs or {}), out_val=out)
        arguments = zip(func._schema.arguments, args, strict=False)
        changed = _tensors([value for place, value in arguments if place.is_write])
        self._add(func.name(), read, written, changed)
        return out

    def __enter__(self) -> CountOperations:
        """Count from here on."""
        launch.observers.append(self._add)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        """Stop counting."""
        launch.observers.remove(self._add)
        super().__exit__(*error)

    def _add(
        self, name: str, read: Sequence[Tensor], written: Sequence[Tensor], changed: Sequence[Tensor] = ()
    ) -> None:
        self.calls[name] += 1
        self.moved[name] += sum(x.nbytes for x in (*read, *written))
        self.written[name] += sum(x.nbytes for x in (*written, *changed))


def _memory(x: Tensor) -> int:
    """Identify a tensor's memory, also if it has no values."""
    return int(getattr(x, "held", x).untyped_storage()._cdata)


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]


def count_update(trainer: Trainer) -> CountOperations:
    """Count one update of a trainer, after two that fill caches and make the optimizer's state."""
    for _ in range(2):
        trainer.update()
    with CountOperations() as counted:
        trainer.update()
    return counted


@contextmanager
def inductor_counts() -> Iterator[dict[str, int]]:
    """Count the kernels that inductor generates, and the bytes that they read and write in a call of each program.

    Both are inductor's own numbers. Programs from its cache bring theirs, without bytes if those were not counted.
    Layers of one kind share their programs.
    """
    logger, counts = logging.getLogger("torch._inductor.compile_fx.__inductor_metrics"), {"kernels": 0, "moved": 0}
    level, propagates, silent = logger.level, logger.propagate, logging.NullHandler()
    metrics.reset()
    logger.setLevel(logging.INFO)  # inductor counts bytes if it is to log them
    logger.propagate = False
    logger.addHandler(silent)
    try:
        yield counts
    finally:
        counts |= {"kernels": metrics.generated_kernel_count, "moved": metrics.num_bytes_accessed}
        logger.removeHandler(silent)
        logger.setLevel(level)
        logger.propagate = propagates


def experiment_trainer(name: str, *overrides: str) -> Trainer:
    """Return the trainer of an experiment on the CPU, without the metric of a language: its share of the optimum."""
    source = [] if name in LANGUAGES else ["data.source=python-docs"]
    trainer, _ = make_trainer(compose_config([f"experiment={name}", *source, *overrides]))
    trainer.model.train()
    trainer.language = None
    return trainer


def counts(device: str) -> list[BenchRow]:
    """Operations and bytes of an update of ``books`` on the CPU, and of a step at 147M on a GPU without values."""
    trainer = experiment_trainer("books")
    counted = count_update(trainer)
    rows = [
        _row("operations per update, books", counted.calls.total(), 500),
        _row("kB moved per byte of text, books", counted.moved.total() / trainer.bytes_per_update / 1e3, 130),
    ]
    if not hasattr(torch._C, "_acc"):
        print("  counts: skipped 147M, it needs torch 2.9 or newer", file=sys.stderr, flush=True)
        return rows
    for label, options in (("", ()), (", local flips", FLIPS)):
        step = in_new_process(f"large.print_counts(*{options})")
        rows.append(_row(f"launches, 147M, B=8, T=4096, eager{label}", step["calls"], 1500, reached=False))
        rows.append(_row(f"GiB written, 147M, B=8, T=4096, eager{label}", step["written"] / GIB, 80, reached=False))
    return rows


def _row(name: str, value: float, goal: float, *, reached: bool = True) -> BenchRow:
    """A count relative to its goal; the benchmark fails over goals that were ``reached`` before, not over the others.

    The goals at 147M are those of a compiled step; the counts are eager.
    """
    note = f"{value:,.{0 if value >= 200 else 1}f}, goal at most {goal:,}"
    return row_of_pairs("counts", name, [(value, goal)], goal=1.0 if reached else None, note=note, timed=False)


def operator_table(counted: CountOperations, num_bytes: int) -> str:
    """Return a Markdown table of the operators that move most bytes, per byte of text."""
    largest = [name for name, _ in counted.moved.most_common(SHOWN)]
    rest = [name for name in counted.calls if name not in largest]
    groups = [*((name, [name]) for name in largest), (f"{len(rest)} others", rest), ("all", list(counted.calls))]
    body = []
    for label, names in groups:
        moved = sum(counted.moved[name] for name in names) / num_bytes / 1e3
        body.append([label, f"{sum(counted.calls[name] for name in names):,}", f"{moved:.1f}"])
    return markdown(["operator", "operations per update", "kB moved per byte of text"], body)


def main(names: Sequence[str]) -> None:
    """Print the table of each experiment."""
    torch.set_num_threads(1)
    for name in names:
        trainer = experiment_trainer(name)
        print(f"{name}\n\n{operator_table(count_update(trainer), trainer.bytes_per_update)}\n")


if __name__ == "__main__":
    main(sys.argv[1:] or ("books", "recall"))
