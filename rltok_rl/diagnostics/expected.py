"""The expected gradient of an estimator, by enumeration: its bias without noise.

Shapes: M texts, R rows of one of them, T decisions, n = 2^(T - 1) boundary strings, P weights of the boundary head.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rltok_rl.diagnostics.enumeration import Texts, enumerate_rollouts
from rltok_rl.diagnostics.exact import exact_gradient
from rltok_rl.diagnostics.gradients import policy_gradient
from rltok_rl.diagnostics.memory import as_it_stands
from rltok_rl.functional.numbers import check_count
from rltok_rl.models.unet import UNet

MOST_BATCHES = 4096
"""Joint draws of all rows that are judged one by one."""


@torch.no_grad()
def expected_gradient(
    model: UNet,
    texts: Texts,
    estimator: Callable[[TensorDictBase], TensorDictBase],
    *,
    num_rows: int = 2,
    reward: str = "early_exit",
) -> Tensor:
    """Judge every batch of R rows that the policy could draw, and weigh the gradients by how likely each is.

        E g = sum over strings s_1 .. s_R of pi(s_1) ... pi(s_R) g(s_1, .., s_R),

    with ``g`` of :func:`~rltok_rl.diagnostics.gradients.policy_gradient`.

    Args:
        model: the U-Net; a model in float64 leaves no rounding worth a word.
        texts: M texts of T + 1 bytes, whose mean is taken; of each (2^(T - 1))^R batches are judged, at most
            :data:`MOST_BATCHES`.
        estimator: writes ``advantage`` into a rollout [R, T]. One that remembers judges every batch with the memory
            it comes with, and keeps that (:func:`~rltok_rl.diagnostics.memory.as_it_stands`). Judge it in training
            mode: what it makes of its own batch while it learns does not show in any other.
        num_rows: R, rows that are compared with each other.
        reward: a key of :data:`~rltok_rl.functional.rewards.REWARDS`.

    Returns:
        [P], to be held against :func:`exact_head_gradient`.
    """
    num_rows = check_count("num_rows", num_rows)
    rollouts = enumerate_rollouts(model, texts, reward=reward)  # [M, n, T]
    num_strings = rollouts.shape[1]
    if num_strings**num_rows > MOST_BATCHES:
        raise ValueError(
            f"texts and num_rows must make at most {MOST_BATCHES} batches, got {num_strings} boundary strings in "
            f"{num_rows} rows, {num_strings**num_rows}"
        )
    strings = torch.tensor(list(product(range(num_strings), repeat=num_rows)))  # [C, R]
    judge = as_it_stands(estimator, model)
    found = []
    for one in rollouts.unbind(0):
        batches = one[strings]  # [C, R, T]
        batches.names = [None, None, "time"]
        judged = [judge(batch.copy())["advantage"].squeeze(-1).detach() for batch in batches.unbind(0)]
        weights = batches["log_weight"][..., 0].sum(-1).exp()  # [C]
        found.append(weights @ policy_gradient(model, batches, torch.stack(judged)))
    return torch.stack(found).mean(0)


def exact_head_gradient(model: UNet, texts: Texts) -> Tensor:
    """The exact gradient of the expected loss with respect to the weights of the boundary head, [P] in float64.

    Args:
        model: the U-Net.
        texts: M texts of one length, whose mean loss it is the gradient of.
    """
    return exact_gradient(model, texts).policy["boundary_head.projection.weight"].flatten()
