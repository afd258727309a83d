"""The loop: it learns, resumes, counts FLOPs, and warns."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from rltok_rl.envs import ByteBoundaryEnv
from tensordict import TensorDict

from rltok_rl.data import CachedSource, OrderedSource, RepeatedSource, TextSource, local_prose, write_cache
from rltok_rl.models import UNet, preset
from rltok_rl.models.flops import matrix_parameters
from rltok_rl.objectives import JointLoss, SecondLevelLoss
from rltok_rl.training import Alarms, LoopOptions, Trainer, TrainingFailed
from rltok_rl.training.checkpoint import load_checkpoint, save_checkpoint
from rltok_rl.training.options import cosine_schedule, make_optimizer
from rltok_rl.training.training_step import rollout_rates

from .processes import metrics_of

UPDATE = 4 * 24  # bytes


def make(
    total_bytes=6 * UPDATE,
    *,
    baseline="leave_one_out",
    micro_batches=1,
    seed=0,
    rate=None,
    source=None,
    second_level=False,
    **options,
) -> Trainer:
    torch.manual_seed(seed)
    levels: dict[str, Any] = {"num_token_layers": 2, "second_level": "routing"} if second_level else {}
    model = UNet(preset("tiny", width=16, window=6, num_lags=3, **levels))
    if source is None:
        source = TextSource(local_prose(20_000))
    if baseline == "group_mean":
        source = RepeatedSource(source, 2)
    env = ByteBoundaryEnv(model, source, num_steps=24, batch_size=(4,), seed=seed)
    extra = {"running_mean": {"num_steps": 24}, "group_mean": {"group_size": 2}}.get(baseline, {})
    loss = JointLoss.paper(target_rate=0.2, baseline=baseline, gamma=0.9, rate=rate, **extra)
    if second_level:
        with torch.no_grad():
            model.second_level.routing.key.weight.normal_(std=0.25)
        terms = {**loss.terms, "second_level": SecondLevelLoss(1 / 3)}
        loss = JointLoss(terms, {"policy": 0.01, "rate": 0.01, "early_exit": 0.1, "second_level": 0.03})
    return Trainer(model, env, loss, LoopOptions(total_bytes=total_bytes, micro_batches=micro_batches, **options))


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "micro-batches, warm-up": {"micro_batches": 2, "total_bytes": 12 * UPDATE, "warm_up_bytes": 200},
    "siblings": {"baseline": "group_mean"},
    "running mean, rate control": {"baseline": "running_mean", "rate": {"control": "pi"}},
    "bfloat16": {"precision": "bfloat16"},
}


@pytest.mark.parametrize("name", CASES)
def test_resumed_is_uninterrupted(name):
    """Every metric of every update to the last bit, through a copied state."""
    case = CASES[name]
    whole = metrics_of(make(**case))
    for stop in (1, 4):
        first = make(**case)
        before = metrics_of(first, stop)
        state = copy.deepcopy(first.state_dict())
        metrics_of(first, 1)  # updates after the state do not change it
        torch.manual_seed(99)
        second = make(**case, seed=5)
        second.load_state_dict(state)
        assert before + metrics_of(second) == whole
        assert len(whole) == 6 and second.done


def test_resumed_is_uninterrupted_over_an_epoch_order_on_disk(tmp_path):
    prose = local_prose(1000)
    write_cache([prose[at : at + 49] for at in range(0, 600, 100)], tmp_path / "cache")

    def fresh(seed: int = 0) -> Trainer:  # 12 windows, 3 updates an epoch
        return make(7 * UPDATE, source=OrderedSource(CachedSource(tmp_path / "cache"), length=25, seed=3), seed=seed)

    whole, first, second = metrics_of(fresh()), fresh(), fresh(5)
    before = metrics_of(first, 2)
    save_checkpoint(tmp_path / "checkpoints", 2, first.state_dict())
    second.load_state_dict(load_checkpoint(tmp_path / "checkpoints")[1])
    assert second.env.source.drawn == 8
    assert before + metrics_of(second) == whole and len(whole) == 7


def test_equal_seeds_are_equal_runs():
    assert metrics_of(make(), 3) == metrics_of(make(), 3) != metrics_of(make(seed=1), 3)


def test_it_learns():
    """One sentence, again and again: from 8 bits per byte to less than 4 within 60 updates."""
    torch.manual_seed(0)
    model, text = UNet(preset("tiny")), b"the quick brown fox jumps over the lazy dog. " * 8
    env = ByteBoundaryEnv(model, text, num_steps=64, batch_size=(8,), seed=0)
    options = LoopOptions(total_bytes=60 * 512, lr=4e-3)
    first, *_, last = metrics_of(Trainer(model, env, JointLoss.paper(target_rate=0.2), options))
    assert first["bits_per_byte"] > 7 and last["bits_per_byte"] < 4


def test_the_schedule_counts_bytes():
    rates = [metrics["lr"] for metrics in metrics_of(make(lr=1.0, warm_up_bytes=2 * UPDATE, lr_floor=0.0))]
    assert rates[0] == pytest.approx(0.5) and rates[1] == pytest.approx(1.0)
    assert all(a > b for a, b in zip(rates[1:], rates[2:], strict=False)) and rates[-1] > 0
    for done in (0, 3, 10, 55, 100, 200):
        cosine = 0.2 + 0.8 * (0.5 + 0.5 * math.cos(math.pi * min(1.0, (done - 10) / 90)))
        expected = done / 10 if done < 10 else cosine
        assert cosine_schedule(done, 100, warm_up=10, floor=0.2) == pytest.approx(expected)


def test_padding_is_counted_by_the_longest_row():
    """Four of eight bytes end tokens, three of them in one row: padded to its length, six would."""
    action = torch.tensor([[False, True, True, False], [False, False, False, False]])
    forced = torch.tensor([[True, False, False, False], [True, False, False, False]])
    rollout = TensorDict({"action": action, "forced": forced}, batch_size=[2, 4])
    assert rollout_rates(rollout).tolist() == [2 / 8, 4 / 8, 3 / 4]


@pytest.mark.parametrize(("second_level", "micro_batches"), [(False, 2), (True, 1), (True, 2)])
def test_flops_follow_the_rates(second_level, micro_batches):
    """Six for each entry of a matrix that a byte, a token or a token of tokens passes.

    The rate is of the 23 bytes after the first, which always ends a token.
    """
    trainer = make(18 * UPDATE, micro_batches=micro_batches, second_level=second_level)
    parts = matrix_parameters(trainer.model)
    routing = parts.pop("second_level.routing", 0)
    per_token, per_second = parts.pop("token_layers") + routing, parts.pop("second_level.layers", 0)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters() if "routing" in name}
    spent = 0.0
    metrics = metrics_of(trainer, 3)
    for update in metrics:
        tokens = (1 + 23 * update["rate"]) / 24
        second = update["second_rate"] if second_level else 0.0
        assert not second_level or (update["loss_second_level"] > 0 and 0 < second < 1)
        spent += 6 * micro_batches * UPDATE * (sum(parts.values()) + tokens * (per_token + per_second * second))
        assert update["flops"] == pytest.approx(spent, rel=1e-6)
    assert trainer.flops_done == metrics[-1]["flops"] and len({update["rate"] for update in metrics}) > 1
    after = dict(trainer.model.named_parameters())
    assert all(not torch.equal(after[name], old) for name, old in before.items())


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_the_second_levels_loss_trains_only_below_it(micro_batches):
    """With its term alone, next-byte heads and the policy get no gradient."""
    trainer = make(micro_batches=micro_batches, second_level=True)
    trainer.step.loss = JointLoss({"second_level": SecondLevelLoss(1 / 3)})
    trainer.update()
    reached = {n.split(".")[0] for n, p in trainer.model.named_parameters() if p.grad is not None and p.grad.any()}
    assert reached == {"embedding", "encoder", "token_layers", "second_level"}


def test_warnings_and_their_patience_survive_a_resumption():
    def fresh() -> Trainer:
        trainer = make()
        trainer.alarms = Alarms(patience=3, least_entropy=9.0)
        return trainer

    trainer, resumed, warnings = fresh(), fresh(), []
    trainer.run(lambda _: warnings.append(trainer.warnings) or len(warnings) == 2)
    resumed.load_state_dict(copy.deepcopy(trainer.state_dict()))
    resumed.run(lambda _: warnings.append(resumed.warnings))
    assert [len(texts) for texts in warnings] == [0, 0, 1, 0, 0, 0] and "add an entropy bonus" in warnings[2][0]


def test_alarms_are_patient_and_say_what_to_try():
    alarms = Alarms(target_rate=0.2, patience=3)
    bad, good = {"rate": 0.9, "entropy": 1e-5}, {"rate": 0.2, "entropy": 0.3}
    assert alarms.check(bad, 1) == alarms.check(bad, 2) == []
    first = alarms.check(bad, 3)
    assert len(first) == 2 and "rate 0.900" in first[0] and "entropy bonus" in first[1]
    assert alarms.check(bad, 4) == alarms.check(good, 5) == []  # once is enough
    assert [alarms.check({"rate": 0.01}, n) for n in (6, 7)] == [[], []]
    assert "vanished" in alarms.check({"rate": 0.01}, 8)[0]
    with pytest.raises(TrainingFailed, match="loss is nan at update 9"):
        alarms.check({"loss": math.nan}, 9)


def test_weight_decay_spares_norms_and_the_embedding():
    model = UNet(preset("tiny"))
    decayed, spared = make_optimizer(model, LoopOptions(total_bytes=1)).param_groups
    names = {id(p): n for n, p in model.named_parameters()}
    spared_names = {names[id(p)] for p in spared["params"]}
    assert "embedding.weight" in spared_names and spared["weight_decay"] == 0
    assert all("norm" in name or name == "embedding.weight" for name in spared_names)
    assert len(decayed["params"]) + len(spared["params"]) == len(names)


REFUSALS = [
    (lambda: LoopOptions(total_bytes=0), "total_bytes must be an integer of at least 1, got 0"),
    (lambda: LoopOptions(total_bytes=9, lr=0.0), "lr must be positive, got 0.0"),
    (lambda: LoopOptions(total_bytes=9, precision="half"), r"one of \['float32', 'bfloat16'\], got 'half'"),
    (lambda: LoopOptions(total_bytes=9, warm_up_bytes=9), r"warm_up_bytes must lie in \[0, total_bytes=9\), got 9"),
    (lambda: LoopOptions(total_bytes=9, lr_floor=2.0), r"floor must lie in \[0, 1\], got 2.0"),
    (lambda: LoopOptions(total_bytes=9, stage_factors=(1.0,)), "stage_factors must be two or three positive numbers"),
    (lambda: make(policy_epochs=2), "policy_epochs=2 needs a term 'policy' that weighs decisions"),
    (lambda: make().step.accumulate(0), "micro_batches must be at least 1, got 0"),
]


def test_options_that_cannot_be_run_are_refused():
    for call, message in REFUSALS:
        with pytest.raises(ValueError, match=message):
            call()
