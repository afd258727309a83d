"""The loop: it learns, it goes on where it stopped, it notices when things go wrong."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from rltok_rl.envs import ByteBoundaryEnv
from tensordict import TensorDict

from rltok_rl.data import RepeatedSource, TextSource, local_prose
from rltok_rl.models import UNet, preset
from rltok_rl.models.flops import matrix_parameters
from rltok_rl.objectives import JointLoss
from rltok_rl.training import LoopOptions, Trainer
from rltok_rl.training.alarms import Alarms, TrainingFailed
from rltok_rl.training.loop import _rates_of
from rltok_rl.training.options import cosine_schedule, make_optimizer


def make(total_bytes=6 * 4 * 24, baseline="leave_one_out", micro_batches=1, seed=0, rate=None, **options):
    torch.manual_seed(seed)
    model = UNet(preset("tiny", width=16, window=6, num_lags=3))
    source = TextSource(local_prose(20_000))
    if baseline == "group_mean":
        source = RepeatedSource(source, 2)
    env = ByteBoundaryEnv(model, source, num_steps=24, batch_size=(4,), seed=seed)
    extra = {"num_steps": 24} if baseline == "running_mean" else {}
    loss = JointLoss.paper(target_rate=0.2, baseline=baseline, gamma=0.9, rate=rate, **extra)
    given = LoopOptions(total_bytes=total_bytes, micro_batches=micro_batches, **options)
    return Trainer(model, env, loss, given, seed=seed)


def losses(trainer, updates=None):
    found = []
    trainer.run(lambda figures: found.append(figures) or (updates is not None and len(found) >= updates))
    return found


CASES = {
    "plain": {},
    "warm-up": {"warm_up_bytes": 200},
    "micro-batches": {"micro_batches": 2, "total_bytes": 12 * 4 * 24},
    "siblings": {"baseline": "group_mean"},
    "what remembers": {"baseline": "running_mean", "rate": {"control": "pi"}},
    "bfloat16": {"precision": "bfloat16"},
}


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("stop", [1, 4])
def test_resumed_is_uninterrupted(name, stop):
    """Every figure of every update to the last bit, through a state that is copied as a file would be."""
    whole = losses(make(**CASES[name]))
    first = make(**CASES[name])
    before = losses(first, stop)
    state = copy.deepcopy(first.state_dict())
    losses(first, 1)  # what the first trainer does afterwards must not matter
    torch.manual_seed(99)
    second = make(**CASES[name], seed=5)
    second.load_state_dict(state)
    assert before + losses(second) == whole
    assert len(whole) == 6 and second.done


def test_equal_seeds_are_equal_runs():
    assert losses(make(), 3) == losses(make(), 3) != losses(make(seed=1), 3)


def test_it_learns():
    """A text of one sentence, over and over: from 8 bits per byte to less than 4 within 60 updates."""
    torch.manual_seed(0)
    model = UNet(preset("tiny"))
    env = ByteBoundaryEnv(
        model, b"the quick brown fox jumps over the lazy dog. " * 8, num_steps=64, batch_size=(8,), seed=0
    )
    trainer = Trainer(model, env, JointLoss.paper(target_rate=0.2), LoopOptions(total_bytes=60 * 512, lr=4e-3))
    found = losses(trainer)
    assert found[0]["bits_per_byte"] > 7 and found[-1]["bits_per_byte"] < 4


def test_the_schedule_is_walked_in_bytes():
    rates = [figures["lr"] for figures in losses(make(lr=1.0, warm_up_bytes=2 * 96, lr_floor=0.0))]
    assert rates[0] == pytest.approx(0.5) and rates[1] == pytest.approx(1.0)
    assert all(a > b for a, b in zip(rates[1:], rates[2:], strict=False)) and rates[-1] > 0


@pytest.mark.parametrize("done", [0, 3, 10, 55, 100, 200])
def test_the_schedule_by_hand(done):
    if done < 10:
        expected = done / 10
    else:
        way = min(1.0, (done - 10) / 90)
        expected = 0.2 + 0.8 * (0.5 + 0.5 * math.cos(math.pi * way))
    assert cosine_schedule(done, 100, warm_up=10, floor=0.2) == pytest.approx(expected)


def test_padding_is_counted_by_the_longest_row():
    """Four of eight bytes end tokens, three of them in one row: padded to its length, six would."""
    action = torch.tensor([[False, True, True, False], [False, False, False, False]])
    forced = torch.tensor([[True, False, False, False], [True, False, False, False]])
    rollout = TensorDict({"action": action, "forced": forced}, batch_size=[2, 4])
    assert _rates_of(rollout).tolist() == [2 / 8, 4 / 8, 3 / 4]


def test_flops_follow_the_rate():
    """Six for each entry of a matrix that a byte or a token passes; the rate is of the 23 bytes after the first."""
    trainer = make(micro_batches=2)
    found = losses(trainer, 3)
    parts = matrix_parameters(trainer.model)
    per_token = parts.pop("token_layers")
    spent = 0.0
    for figures in found:
        spent += 6 * 2 * 4 * (24 * sum(parts.values()) + per_token * (1 + 23 * figures["rate"]))
        assert figures["flops"] == pytest.approx(spent, rel=1e-6)
    assert trainer.flops_done == found[-1]["flops"]
    assert len({figures["rate"] for figures in found}) > 1


def test_a_trainer_hands_its_warnings_on_and_its_patience_to_who_resumes():
    trainer = make()
    trainer.alarms = Alarms(patience=3, least_entropy=9.0)
    heard = []
    trainer.run(lambda _: heard.append(trainer.warnings) or len(heard) == 2)
    resumed = make()
    resumed.alarms = Alarms(patience=3, least_entropy=9.0)
    resumed.load_state_dict(copy.deepcopy(trainer.state_dict()))
    resumed.run(lambda _: heard.append(resumed.warnings) and False)
    assert [len(texts) for texts in heard] == [0, 0, 1, 0, 0, 0] and "add an entropy bonus" in heard[2][0]


def test_weight_decay_spares_norms_and_the_embedding():
    model = UNet(preset("tiny"))
    groups = make_optimizer(model, LoopOptions(total_bytes=1)).param_groups
    names = {id(p): n for n, p in model.named_parameters()}
    spared = {names[id(p)] for p in groups[1]["params"]}
    assert "embedding.weight" in spared and groups[1]["weight_decay"] == 0
    assert all("norm" in name or name == "embedding.weight" for name in spared)
    assert len(groups[0]["params"]) + len(groups[1]["params"]) == len(names)


def test_a_gradient_that_is_no_number_stops_before_the_weights_change():
    trainer = make(total_bytes=10**6)
    losses(trainer, 1)
    trainer.model.final_head.projection.weight.register_hook(lambda gradient: gradient * float("nan"))
    before = [p.clone() for p in trainer.model.parameters()]
    with pytest.raises(TrainingFailed, match="at update 2: lower the learning rate"):
        trainer.update()
    for p, q in zip(trainer.model.parameters(), before, strict=True):
        torch.testing.assert_close(p, q, equal_nan=True)


def test_alarms_are_patient_and_say_what_to_try():
    alarms = Alarms(target_rate=0.2, patience=3)
    bad, good = {"rate": 0.9, "entropy": 1e-5}, {"rate": 0.2, "entropy": 0.3}
    assert alarms.check(bad, 1) == alarms.check(bad, 2) == []
    first = alarms.check(bad, 3)
    assert len(first) == 2 and "rate 0.900" in first[0] and "entropy bonus" in first[1]
    assert alarms.check(bad, 4) == []  # once is enough
    assert alarms.check(good, 5) == []
    assert [alarms.check({"rate": 0.01}, n) for n in (6, 7)] == [[], []]
    assert "vanished" in alarms.check({"rate": 0.01}, 8)[0]
    with pytest.raises(TrainingFailed, match="loss is nan at update 9"):
        alarms.check({"loss": math.nan}, 9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"total_bytes": 0}, "total_bytes must be an integer of at least 1, got 0"),
        ({"total_bytes": 9, "lr": 0.0}, "lr must be positive, got 0.0"),
        ({"total_bytes": 9, "precision": "half"}, r"precision must be one of \['float32', 'bfloat16'\], got 'half'"),
        ({"total_bytes": 9, "warm_up_bytes": 9}, r"warm_up_bytes must lie in \[0, total_bytes=9\), got 9"),
        ({"total_bytes": 9, "lr_floor": 2.0}, r"floor must lie in \[0, 1\], got 2.0"),
    ],
)
def test_options_that_cannot_be_run_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LoopOptions(**options)
