"""Packed and padded tokens train equally, with every segmenter."""

from __future__ import annotations

import math

import pytest
import torch
from omegaconf import OmegaConf
from rltok_rl.experiments.commands.schema import choices
from rltok_rl.experiments.runs.build import make_trainer
from rltok_rl.experiments.runs.resume import check_same_run
from rltok_rl.experiments.runs.segmenters import make_layout

from rltok_rl.models.tokens import Packing

from .configured import QUICK, configured

SMALL = [*QUICK, "model.overrides.width=16", "model.overrides.target_rate=0.3", "optim.total_bytes=128"]  # 1 update
HIDDEN, PIECES = "segmenter.options.hidden=16", ["segmenter.options.vocabulary=280", "segmenter.options.num_bytes=5000"]
MORE = {
    "bpe": PIECES,
    "unigram": PIECES,
    "unigram-trained": [*PIECES, HIDDEN],
    "entropy-spike": ["compute.fused=off"],  # rounding decides between equal entropies, its targets
    "grouped": ["segmenter.options.group_size=2"],
    **dict.fromkeys(("gumbel", "gumbel-baseline", "magnet"), [HIDDEN]),
}
VARIANTS = ("gumbel-round", "learned-w0", "learned-w1")
VARIANTS += ("entropy-combined", "entropy-combined-released", "entropy-monotonic", "entropy-spike-released")
SYSTEMS = {word: [f"segmenter={word}", *MORE.get(word, [])] for word in choices("segmenter") if word not in VARIANTS}
LEVEL = ["model.overrides.num_token_layers=2", "model.overrides.second_level=routing"]
STRIDE = [*LEVEL[:1], "model.overrides.second_level=stride"]
OPTIONS = {
    "second level, stride": STRIDE,
    "second level, routing": LEVEL,
    "two updates": ["optim.total_bytes=256"],
    "micro-batches": ["compute.micro_batches=2"],
    "local flips": ["estimator=local_flips", "baseline=none"],
    "token gains": ["estimator=token_gain", "baseline=none"],
    "disarm": ["estimator=disarm"],
    "ppo": ["loss=ppo", "loss.policy_epochs=2"],
    "warm start": ["actor.warm_start_bytes=128", "optim.total_bytes=256"],
    "short documents": ["data=recall", "data.num_steps=400"],
    "rates": ["model.overrides.rate_embedding=true", "actor.rates=[0.1,0.4]", "rate=logit_pressure"],
    "capped": ["model.overrides.attention_cap=5.0", "model.overrides.pooling=mean"],
}
PADDING = ("padded_rate", "padded_flops", "padded_second_rate")


def trained(*options: str) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    """Metrics of all updates, and the gradients of the first."""
    trainer, _ = make_trainer(configured(*SMALL, *options))
    updates: list[dict[str, float]] = []
    gradients: dict[str, torch.Tensor] = {}

    def record(metrics: dict[str, float]) -> None:
        updates.append(metrics)
        if not gradients:
            gradients.update({n: p.grad.clone() for n, p in trainer.step.named_parameters() if p.grad is not None})

    trainer.run(record)
    assert isinstance(trainer.env.layout, Packing) == ("compute.tokens=packed" in options)
    return updates, gradients


def check_equal(name: str, *packing: str) -> list[tuple[dict[str, float], dict[str, float]]]:
    """Compare losses and gradients of packed tokens with those of padded ones; return the metrics of updates."""
    options = {**SYSTEMS, **OPTIONS}[name]
    padded, expected = trained(*options)
    packed, gradients = trained(*options, "compute.tokens=packed", *packing)
    assert len(padded) == len(packed) >= 1
    for one, two in zip(padded, packed, strict=True):
        shared = {k: v for k, v in one.items() if k not in PADDING}
        assert {k: two[k] for k in shared} == pytest.approx(shared, rel=1e-4, abs=1e-5)
    assert gradients.keys() == expected.keys() and gradients
    for key, gradient in expected.items():
        torch.testing.assert_close(gradients[key], gradient, rtol=1e-3, atol=1e-5, msg=lambda m, k=key: f"{k}: {m}")
    return list(zip(padded, packed, strict=True))


@pytest.mark.parametrize("name", [*SYSTEMS, *OPTIONS])
def test_losses_and_gradients_are_equal(name):
    check_equal(name)


@pytest.mark.parametrize("name", ["hnet", "two updates", "second level, routing", "local flips"])
def test_room_changes_nothing(name):
    metrics = check_equal(name, "compute.token_room=2.0")
    for padded, roomy in metrics:
        assert roomy["padded_rate"] == metrics[0][1]["padded_rate"] > padded["padded_rate"]  # the same in every batch


def test_padded_rate_is_the_room_of_tokens():
    """Per byte: 4 rows of 32 bytes have 32 tokens, two buckets of 16; with a half more, 48 and one for each row."""
    packed = ("actor=uniform", "actor.rate=0.25", "compute.tokens=packed")
    for room, places in (([], 32), (["compute.token_room=0.5"], 64)):
        assert trained(*packed, *room)[0][0]["padded_rate"] == pytest.approx(places / 128)


def test_room_for_too_many_tokens_grows():
    """In an update of a trainer; a rollout of one's own is an error. tests/training/test_token_room.py has the rest."""
    trainer, _ = make_trainer(configured(*SMALL, "compute.tokens=packed", "compute.token_room=0.5"))
    trainer.update()
    trainer.env.layout = Packing(tokens=0.05)
    with pytest.raises(ValueError, match=r"compute.token_room.*128 places .* room for 16"):
        trainer.step()
    trainer.update()
    (warning,) = trainer.warnings
    assert "times the tokens that compute.token_room plans with" in warning and trainer.env.layout.tokens > 0.25


@pytest.mark.parametrize(
    ("options", "grows"), [([], False), (["actor=whitespace", "model.overrides.target_rate=0.05"], True)]
)
def test_options_of_a_gpu_make_an_update_on_a_cpu(options, grows):
    """With room for half more tokens than the rate, of which texts have more words."""
    on_cpu = ["compute=gpu", "compute.device=cpu", "compute.compile=false"]
    trainer, _ = make_trainer(configured(*SMALL, *on_cpu, *options))
    metrics = trainer.update()
    assert trainer.updates == 1 and bool(trainer.warnings) == grows
    assert all(math.isfinite(value) for value in metrics.values())


def test_run_resumes_with_another_room(tmp_path):
    path = tmp_path / "config.yaml"
    OmegaConf.save(OmegaConf.structured(configured(*SMALL, "compute.tokens=packed", "compute.token_room=0.5")), path)
    check_same_run(configured(*SMALL, "compute.tokens=packed", "compute.token_room=1.0"), path)
    check_same_run(configured(*SMALL), path)
    with pytest.raises(ValueError, match="of a run with another configuration"):
        check_same_run(configured(*SMALL, "compute.micro_batches=2"), path)


def test_wrong_options_are_refused():
    for options, why in (
        (["compute.tokens=ragged"], r"compute.tokens must be one of \['padded', 'packed'\], got 'ragged'"),
        (["compute.token_room=0.5"], "compute.token_room belongs to compute.tokens='packed', got 0.5"),
    ):
        with pytest.raises(ValueError, match=why):
            make_trainer(configured(*SMALL, *options))


def test_room_depends_on_the_target_rate():
    room = ["compute.tokens=packed", "compute.token_room=0.25"]
    for options, rate in (
        ([], 0.3),
        (["actor=random", "actor.rate=0.1"], 0.1),
        (["actor=uniform"], 0.3),
        (["segmenter=spacebyte"], 0.3),  # without a target; it grows
        (["actor=whitespace"], 0.3),
        (["model.overrides.rate_embedding=true", "actor.rates=[0.1,0.4]"], 0.4),
    ):
        trainer, _ = make_trainer(configured(*SMALL, *room, *options))
        assert trainer.env.layout == Packing(tokens=1.25 * rate)
    config = configured(*SMALL, *room, *STRIDE)
    trainer, _ = make_trainer(config)
    assert trainer.env.layout == make_layout(config, trainer.model) == Packing(tokens=0.375, second=1.25 * (1 / 3))
