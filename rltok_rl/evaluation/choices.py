"""Questions with choices: how many bits a model pays for the right one, and how often it finds that the likeliest.

Bits per byte here are a mean over examples, each of which weighs the same, whatever its length. What is measured of a
single choice is whether a model that takes the likeliest byte, one by one, writes it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rltok_rl.evaluation.continuations import Continuations, continuation_log_likelihood
from rltok_rl.functional.numbers import check_count
from rltok_rl.models import UNet


@dataclass(frozen=True)
class Example:
    """One question."""

    context: bytes
    choices: tuple[bytes, ...]
    """What may follow the context, each with its delimiter, a space as a rule."""
    gold: int
    """Which of them is right, from 0."""

    def __post_init__(self) -> None:
        if not isinstance(self.context, bytes):
            raise TypeError(f"context must be bytes, got {type(self.context).__name__}")
        if not self.choices:
            raise ValueError(f"choices must hold at least one, got none after {self.context[-40:]!r}")
        for number, choice in enumerate(self.choices):
            if not isinstance(choice, bytes):
                raise TypeError(f"choices must be bytes, got {type(choice).__name__} as number {number}")
            if not choice:
                raise ValueError(f"choices must have at least 1 byte each, got an empty one as number {number}")
        if check_count("gold", self.gold, minimum=0) >= len(self.choices):
            raise ValueError(f"gold must lie in 0..{len(self.choices) - 1}, got {self.gold}")


def mean_and_error(values: Sequence[float] | Tensor) -> tuple[float, float | None]:
    """The mean of n values and its standard error, None for one value.

        SE = s / sqrt(n),        s^2 = sum_i (v_i - mean)^2 / (n - 1)

    Args:
        values: [n], at least one.

    Example:
        >>> mean_and_error([1.0, 0.0, 1.0, 0.0, 1.0])
        (0.6, 0.24494897427831783)
    """
    numbers = [float(value) for value in values]
    if not numbers:
        raise ValueError("values must hold at least one, got none")
    mean = math.fsum(numbers) / len(numbers)
    if len(numbers) == 1:
        return mean, None
    spread = math.fsum((number - mean) ** 2 for number in numbers) / (len(numbers) - 1)
    return mean, math.sqrt(spread / len(numbers))


def score_examples(model: UNet, examples: Sequence[Example], **how: Any) -> Continuations:
    """Log-likelihoods of all choices of all examples, one after the other.

    Args:
        model: the U-Net, in the mode it should run in.
        examples: at least one.
        **how: as :func:`~rltok_rl.evaluation.continuations.continuation_log_likelihood` takes it: ``context_bytes``,
            ``samples``, ``greedy``, ``seed``, ``segmenter``, ``target_rate``, ``batch_rows``, ``progress``.
    """
    contexts = [example.context for example in examples for _ in example.choices]
    choices = [choice for example in examples for choice in example.choices]
    return continuation_log_likelihood(model, contexts, choices, **how)


def choice_figures(examples: Sequence[Example], scores: Continuations) -> dict[str, Any]:
    """Bits per byte of the right answers, and accuracies.

        bits_i = -log p(y_gold | c) / (ln 2 * bytes of y_gold),    its delimiter among them

    Args:
        examples: at least one.
        scores: of all their choices, as :func:`score_examples` gives them.

    Returns:
        ``examples``; ``choices`` in all; ``cut``, examples of which some context was cut; ``chance``, the accuracy of
        guessing. Each of the following with a standard error over examples, ``<name>_error`` (None for one example):
        ``bits_per_byte``, the mean of bits_i; ``one_draw_bits_per_byte``, the same of single draws of the boundaries;
        ``accuracy``, how often the right choice has the largest log-likelihood; ``accuracy_per_byte``, how often it has
        the largest log-likelihood per byte; ``likeliest``, how often each of its bytes is the likeliest. Where no
        example has two choices, ``chance`` and the accuracies are None. The first of equal choices counts.

    Example:
        >>> examples = [Example(b"2 + 2 =", (b" 4", b" 22"), gold=0)]
        >>> bits = torch.tensor([4.0, 3.0], dtype=torch.float64)
        >>> yes = torch.tensor([True, False])
        >>> scores = Continuations(-bits * math.log(2), -bits * math.log(2), torch.tensor([2, 3]), yes, ~yes)
        >>> figures = choice_figures(examples, scores)
        >>> figures["bits_per_byte"], figures["accuracy"], figures["accuracy_per_byte"], figures["likeliest"]
        (2.0, 0.0, 0.0, 1.0)
    """
    if not examples:
        raise ValueError("examples must hold at least one, got none")
    counts = [len(example.choices) for example in examples]
    if sum(counts) != len(scores.log_likelihood):
        raise ValueError(
            f"scores must be of all choices of all examples, {sum(counts)}, got {len(scores.log_likelihood)}"
        )
    per_byte = scores.log_likelihood / scores.num_bytes
    gold = torch.tensor([example.gold for example in examples])
    at = gold + torch.tensor([0, *counts[:-1]]).cumsum(0)  # places of the right choices
    figures: dict[str, Any] = {
        "examples": len(examples),
        "choices": sum(counts),
        "cut": sum(bool(part.any()) for part in scores.cut.split(counts)),
    }
    measured: dict[str, Tensor | None] = {
        "bits_per_byte": -per_byte[at] / math.log(2),
        "one_draw_bits_per_byte": -(scores.one_draw / scores.num_bytes)[at] / math.log(2),
        "accuracy": _found(scores.log_likelihood, counts) == gold,
        "accuracy_per_byte": _found(per_byte, counts) == gold,
        "likeliest": scores.likeliest[at],
    }
    several = max(counts) > 1
    if not several:
        measured["accuracy"] = measured["accuracy_per_byte"] = None
    figures["chance"] = mean_and_error([1 / count for count in counts])[0] if several else None
    for name, values in measured.items():
        figures[name], figures[f"{name}_error"] = (None, None) if values is None else mean_and_error(values)
    return figures


def _found(scores: Tensor, counts: list[int]) -> Tensor:
    """The best choice of each example, the first of equal ones."""
    return torch.tensor([int((part == part.max()).nonzero()[0]) for part in scores.split(counts)])
