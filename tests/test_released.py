"""The released recipe, set by public options, makes the updates of its slow definition; every option of it matters."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import pytest
import torch
from rltok_rl.experiments.recipes import differences
from rltok_rl.experiments.runs.build import make_trainer
from rltok_rl.experiments.texts import Texts
from torch import Tensor

from rltok_rl.data import TextSource
from rltok_rl.fused import choice
from rltok_rl.training import Trainer

from .each import each
from .experiments.configured import composed, configured
from .released import Released, learning_rate, update

PEAK, STEPS, ROWS, DEVICE, PARTS = 3e-3, 12, 4, 2, 2
"""Learning rate; decisions per row; rows per micro-batch; rows of a device's micro-batch; micro-batches."""
WARM_UP, TOTAL = 1, 4  # updates
UPDATE = PARTS * ROWS * STEPS  # bytes
SIZES = {"width": 8, "num_heads": 2, "window": 4, "target_rate": 0.3, "num_special": 1}
MODEL = {
    **{"begin_of_text": "true", "head_bias": "true", "boundary_bias": "true", "encoder_norm": "false"},
    **{"num_lags": 7, "boundary_scale": 0.0625, "boundary_cap": 6.0, "attention_cap": 50.0, "final_cap": 30.0},
}
OPTIONS = {
    **{f"model.overrides.{name}": value for name, value in {**SIZES, **MODEL}.items()},
    **{"estimator.name": "discounted_return", "estimator.gamma": 0.99, "estimator.reward": "early_exit"},
    **{"baseline.name": "batch_mean", "loss.objective": "reinforce", "loss.average": "window"},
    **{"loss.rows_per_mean": DEVICE, "loss.language_model": 0.9, "loss.early_exit": 0.1, "loss.policy": 0.01},
    **{"rate.control": "logit_pressure", "rate.coefficient": 0.01, "rate.options": "{ends: window}"},
    **{"optim.lr": PEAK, "optim.beta1": 0.9, "optim.beta2": 0.999, "optim.weight_decay": 0.01, "optim.decayed": "all"},
    **{"optim.warm_up_bytes": WARM_UP * UPDATE, "optim.warm_up_start": 0.1, "optim.lr_floor": 0.0},
    **{"optim.lr_at": "start", "optim.clip_norm": 1.0, "optim.total_bytes": TOTAL * UPDATE},
    **{"data.num_steps": STEPS, "data.num_rows": ROWS, "compute.micro_batches": PARTS},
}
"""Every option of the recipe, as typed."""
OTHERS = {
    **{"model.overrides.begin_of_text": "false", "model.overrides.head_bias": "false"},
    **{"model.overrides.boundary_bias": "false", "model.overrides.encoder_norm": "true"},
    **{"model.overrides.num_lags": 8, "model.overrides.boundary_scale": 0.1, "model.overrides.boundary_cap": "null"},
    **{"model.overrides.attention_cap": "null", "model.overrides.final_cap": "null"},
    **{"estimator.gamma": 0.9, "estimator.reward": "log_likelihood", "baseline.name": "leave_one_out"},
    **{"loss.average": "all", "loss.rows_per_mean": "null", "loss.language_model": 1.0, "loss.early_exit": 0.2},
    **{"loss.policy": 0.02, "rate.control": "ratio", "rate.coefficient": 0.02, "rate.options": "{ends: excluded}"},
    **{"optim.beta1": 0.8, "optim.beta2": 0.95, "optim.weight_decay": 0.1, "optim.decayed": "matrices"},
    **{"optim.warm_up_start": 0.0, "optim.warm_up_bytes": 2 * UPDATE, "optim.lr_floor": 0.1, "optim.lr_at": "end"},
    **{"optim.clip_norm": 2.0},
}
"""Another value of each."""
MORE = [
    *[("loss.average", "free"), ("rate.options", "{}"), ("model.overrides.num_lags", 6)],
    *[("model.overrides.pooling", "mean"), ("model.overrides.upsampling", "deviation")],
]


UPDATES = 3  # a warm-up, the peak, and a step of the cosine


class Result(NamedTuple):
    """Metrics of an update, and by parameter its clipped gradient and its value after the update."""

    metrics: dict[str, float]
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]


def make(read=configured, **options) -> Trainer:
    """The trainer of the options, with weights at which everything matters."""
    texts = TextSource(" ".join(f"the {n} quick foxes jump over {n * n} lazy dogs" for n in range(40)))
    config = read("model=tiny", "compute=cpu", *(f"{name}={value}" for name, value in {**OPTIONS, **options}.items()))
    trainer, _ = make_trainer(config, texts=Texts(texts, texts, None, "", None))
    trainer.model.train()
    known = {} if not options else {name: p for name, p in make().model.named_parameters()}
    with torch.no_grad():
        for name, parameter in trainer.model.named_parameters():
            # The policy's weights are large, so that its cap and its lags matter.
            size, generator = 10.0 if "boundary" in name else 0.5, torch.Generator().manual_seed(sum(name.encode()))
            parameter.copy_(size * torch.randn(parameter.shape, generator=generator))
            if name in known:
                part = tuple(slice(0, min(a, b)) for a, b in zip(parameter.shape, known[name].shape, strict=True))
                parameter[part] = known[name][part]
    return trainer


def by_library(**options) -> Iterator[Result]:
    """Update after update of the library."""
    trainer = make(**options)
    while not trainer.done:
        metrics = trainer.update()
        parameters = dict(trainer.model.named_parameters())
        gradients = {name: p.grad.double() for name, p in parameters.items()}
        yield Result(metrics, gradients, {name: p.detach().double() for name, p in parameters.items()})


@cache
def by_definition() -> list[Result]:
    """The same updates, from the weights, texts and random numbers of the library's."""
    trainer, draws, results = make(), torch.Generator().manual_seed(0), []
    weights = {n: p.detach().double().requires_grad_() for n, p in trainer.model.named_parameters()}
    optimizer = torch.optim.AdamW([*weights.values()], PEAK)
    recipe = Released(num_heads=SIZES["num_heads"], window=SIZES["window"], target=SIZES["target_rate"])
    for number in range(UPDATES):
        devices: list[tuple[Tensor, Tensor]] = []
        for _ in range(PARTS):
            texts = trainer.env.draw_windows(ROWS).byte_ids[:, 1:]  # without the mark
            uniforms = torch.rand(STEPS, ROWS, generator=draws, dtype=torch.float32).T
            devices += zip(texts.split(DEVICE), uniforms.split(DEVICE), strict=True)
        rate = learning_rate(PEAK, number, WARM_UP, TOTAL)
        metrics = update(weights, optimizer, recipe, devices, learning_rate=rate)
        gradients = {name: weight.grad.clone() for name, weight in weights.items()}
        values = {name: weight.detach().clone() for name, weight in weights.items()}
        results.append(Result({**metrics, "lr": rate}, gradients, values))
    return results


def deviation(ours: Result, expected: Result, *, bound: float = 1e-6) -> str | None:
    """The first thing in which updates differ: metrics by ``bound``, gradients and weights by 1e-5 of the largest."""
    for name, value in expected.metrics.items():
        if ours.metrics[name] != pytest.approx(value, rel=bound, abs=1e-6):
            return f"{name}: {ours.metrics[name]} instead of {value}"
    for kind in ("gradients", "weights"):
        values, wanted = getattr(ours, kind), getattr(expected, kind)
        if set(values) != set(wanted):
            return f"parameters {sorted(set(values) ^ set(wanted))}"
        for name, value in wanted.items():
            if values[name].shape != value.shape:
                return f"shape of {name}"
            apart = float((values[name] - value).abs().max() / value.abs().max().clamp(min=1e-12))
            if not apart <= 1e-5:
                return f"{kind} of {name}: {apart:.1e} of the largest"
    return None


@pytest.fixture
def plain(monkeypatch):
    """Plain torch is as close as float32 allows; fused operations round otherwise."""
    monkeypatch.setattr(choice, "missing", lambda: "turned off")


def test_fused_updates_are_those_of_the_definition():
    ours = list(zip(by_library(read=composed), by_definition(), strict=False))
    assert len(ours) == UPDATES and not any(deviation(*pair, bound=3e-6) for pair in ours)


def test_updates_are_those_of_the_definition(plain):
    ours = list(zip(by_library(read=composed), by_definition(), strict=False))
    assert len(ours) == UPDATES
    for number, (result, expected) in enumerate(ours):
        assert deviation(result, expected) is None, f"update {number}"
        assert expected.metrics["grad_norm"] > 1 and expected.metrics["loss_policy"] != 0  # it is clipped


def test_the_recipe_in_one_word_has_these_options():
    """But for eight rows per mean, the ids of the authors' tokenizer, and sizes."""
    trainer = make()
    config = configured(*(f"{name}={value}" for name, value in OPTIONS.items()), "model=tiny")
    different = {one.option for one in differences(config, "released", trainer.model.config.to_dict())}
    assert different == {"loss.rows_per_mean", "model.overrides.num_special"}


def test_every_option_of_the_recipe_has_another_value():
    fixed = {f"model.overrides.{name}" for name in SIZES} | {"estimator.name", "loss.objective", "optim.lr"}
    fixed |= {"optim.total_bytes", "data.num_steps", "data.num_rows", "compute.micro_batches"}
    assert set(OTHERS) == set(OPTIONS) - fixed


@each(option=[*OTHERS.items(), *MORE])
def test_every_option_matters(option, plain):
    """Flipped alone, it makes an update that is not that of the definition."""
    name, value = option
    pairs = zip(by_library(**{name: value}), by_definition(), strict=False)
    found = next((found for found in (deviation(*pair) for pair in pairs) if found), None)
    print(f"{name}={value}: {found}")
    assert found is not None, f"{name}={value} makes no difference"
