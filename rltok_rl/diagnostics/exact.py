"""Exact gradients by enumeration, rollouts to compare them with, and frozen memories of estimators."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.data import RepeatedSource, WindowSource
from rltok_rl.diagnostics.enumeration import Texts, enumerate_rollouts
from rltok_rl.diagnostics.gradient_quality import policy_gradient
from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.models.unet import UNet
from rltok_rl.renamed import renamed_names
from rltok_rl.utils import check_count

Estimate = Callable[[TensorDictBase], TensorDictBase]
"""Writes ``advantage`` into a rollout: a value estimator, or a function."""


def freeze_estimator(estimator: Estimate, *shared: Any) -> Estimate:
    """Freeze an estimator: each call uses a fresh copy of its current state.

    Its memory (a running mean, say) therefore never changes. Random numbers continue. Models that the estimator uses
    but does not own are shared, as are ``shared`` objects. State that a function keeps outside itself is not copied.
    """
    memo = {id(x): x for x in (*shared, *_shared(estimator))}

    def judge(rollout: TensorDictBase) -> TensorDictBase:
        try:
            copied = copy.deepcopy(estimator, dict(memo))
        except (TypeError, RuntimeError) as error:
            kind = type(estimator).__name__
            raise TypeError(
                f"estimator must be copyable to be judged with a fixed memory, got {kind}: {error}"
            ) from error
        return copied(rollout)

    return judge


def remembers(estimator: Estimate) -> bool:
    """Whether an estimator may have memory: it has buffers, or is a function, which cannot be inspected."""
    return not isinstance(estimator, nn.Module) or any(True for _ in estimator.buffers())


def _shared(estimator: Estimate) -> Iterator[Any]:
    """Generators, process groups and models that an estimator uses but does not own."""
    for module in estimator.modules() if isinstance(estimator, nn.Module) else ():
        for value in vars(module).values():
            if isinstance(value, (torch.Generator, ProcessGroup, nn.Module)):
                yield value


class TextRollouts:
    """Rollouts [B, T] of fresh windows of text, each read by several rows, with boundaries of the model's policy."""

    def __init__(self, model: UNet, source: WindowSource, *, num_rows: int, num_steps: int, seed: int) -> None:
        self.model, self.source, self.num_rows, self.num_steps = model, source, num_rows, num_steps
        self.seed, self.actor = seed, LearnedBoundaryActor(model)
        self.generator = torch.Generator(model.embedding.weight.device).manual_seed(seed)
        self._envs: dict[int, ByteBoundaryEnv] = {}

    @torch.no_grad()
    def __call__(self, rows_per_text: int) -> TensorDictBase:
        """Draw a rollout with so many rows per text."""
        if rows_per_text not in self._envs:
            self._envs[rows_per_text] = ByteBoundaryEnv(
                self.model,
                RepeatedSource(self.source, rows_per_text),
                num_steps=self.num_steps,
                batch_size=(self.num_rows,),
                seed=self.seed + rows_per_text,
                observe_entropy=True,
            )
        return self._envs[rows_per_text].parallel_rollout(self.actor, generator=self.generator)


class EnumeratedRollouts:
    """Rollouts [B, T] drawn from the enumeration of a few short texts: cheap, and with an exact gradient."""

    def __init__(self, model: UNet, texts: Texts, *, num_rows: int, seed: int) -> None:
        with torch.no_grad():
            self.table = enumerate_rollouts(model, texts)  # [M, n, T]
        self.weights = self.table["log_weight"][..., 0].exp()  # [M, n]
        self.num_rows = num_rows
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, rows_per_text: int) -> TensorDictBase:
        """Draw a rollout with so many rows per text."""
        if self.num_rows % rows_per_text:
            raise ValueError(f"rows_per_text must divide the {self.num_rows} rows, got {rows_per_text}")
        count = self.num_rows // rows_per_text
        text = torch.randint(len(self.weights), (count,), generator=self.generator)
        string = torch.multinomial(self.weights[text], rows_per_text, replacement=True, generator=self.generator)
        rollout = self.table[text.repeat_interleave(rows_per_text), string.flatten()]
        rollout.names = [None, "time"]
        return rollout


MOST_BATCHES = 4096
"""Most joint draws of all rows that are judged one by one."""


@torch.no_grad()
def expected_gradient(
    model: UNet,
    texts: Texts,
    estimator: Estimate,
    *,
    num_rows: int = 2,
) -> Tensor:
    """Compute an estimator's expected gradient [P] over all batches of R = ``num_rows`` rows, averaged over texts.

        E g = sum over strings s_1 .. s_R of pi(s_1) ... pi(s_R) g(s_1, .., s_R),

    with ``g`` of :func:`~rltok_rl.diagnostics.gradient_quality.policy_gradient`. Compare it with
    :func:`exact_head_gradient`. Of each text of T + 1 bytes, (2^(T - 1))^R batches are judged, at most
    :data:`MOST_BATCHES`. An estimator with memory keeps its current memory for all of them
    (:func:`freeze_estimator`). Use float64 and training mode.
    """
    num_rows = check_count("num_rows", num_rows)
    rollouts = enumerate_rollouts(model, texts)  # [M, n, T]
    num_strings = rollouts.shape[1]
    if num_strings**num_rows > MOST_BATCHES:
        counts = f"{num_strings} boundary strings in {num_rows} rows, {num_strings**num_rows}"
        raise ValueError(f"texts and num_rows must make at most {MOST_BATCHES} batches, got {counts}")
    strings = torch.tensor(list(product(range(num_strings), repeat=num_rows)))  # [C, R]
    judge = freeze_estimator(estimator, model)
    gradients = []
    for of_text in rollouts.unbind(0):
        batches = of_text[strings]  # [C, R, T]
        batches.names = [None, None, "time"]
        judged = [judge(batch.copy())["advantage"].squeeze(-1).detach() for batch in batches.unbind(0)]
        weights = batches["log_weight"][..., 0].sum(-1).exp()  # [C]
        gradients.append(weights @ policy_gradient(model, batches, torch.stack(judged)))
    return torch.stack(gradients).mean(0)


def exact_head_gradient(model: UNet, texts: Texts) -> Tensor:
    """Compute the exact gradient of the expected loss for the weights of the boundary head, [P] in float64."""
    return exact_gradient(model, texts).policy["boundary_head.projection.weight"].flatten()


@dataclass(frozen=True)
class ExactGradient:
    """The expected loss of some texts and its gradient, in float64."""

    loss: Tensor  # [] nats per byte, averaged over boundary strings and texts
    policy: dict[str, Tensor]  # gradient through the policy, by parameter
    likelihood: dict[str, Tensor]  # gradient through the log-likelihoods, by parameter

    @property
    def total(self) -> dict[str, Tensor]:
        """The gradient of the expected loss, by parameter."""
        return {name: self.policy[name] + self.likelihood[name] for name in self.policy}


def exact_gradient(model: UNet, texts: Texts, *, price: float = 0.0) -> ExactGradient:
    """Differentiate the expected loss over all boundary strings, in a float64 copy of the model.

    Texts have one length of at most 17 bytes; 13 bytes (2,048 strings) take seconds with a tiny model. A boundary costs
    ``price`` nats.
    """
    model = copy.deepcopy(model).double().requires_grad_()
    model.zero_grad(set_to_none=True)
    with torch.enable_grad():
        weights, losses = _per_string(model, texts, price)
        through_policy = (weights * losses.detach()).sum(-1).mean()
        through_likelihood = (weights.detach() * losses).sum(-1).mean()
    parameters = dict(model.named_parameters())
    halves = []
    for half in (through_policy, through_likelihood):
        gradients = torch.autograd.grad(half, list(parameters.values()), retain_graph=True, materialize_grads=True)
        halves.append(dict(zip(parameters, gradients, strict=True)))
    return ExactGradient(through_policy.detach(), policy=halves[0], likelihood=halves[1])


def _per_string(model: UNet, texts: Texts, price: float) -> tuple[Tensor, Tensor]:
    """Probabilities [M, n] of all strings and their losses [M, n] in nats per byte."""
    rollouts = enumerate_rollouts(model, texts, price=price)
    charged = price * rollouts["action"].to(rollouts["logits"].dtype)
    losses = (charged - rollouts["next", "final_log_prob"].squeeze(-1)).mean(-1)
    return rollouts["log_weight"][..., 0].exp(), losses


__getattr__ = renamed_names(globals(), {"as_it_stands": "freeze_estimator"})
