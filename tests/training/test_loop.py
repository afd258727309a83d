"""The loop: it learns, resumes, counts FLOPs, and warns."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from rltok_rl.agents.segmenters import SegmenterActor, make_segmenter
from rltok_rl.envs import ByteBoundaryEnv
from tensordict import TensorDict
from torch import nn

from rltok_rl.data import CachedSource, OrderedSource, RepeatedSource, TextSource, local_prose, write_cache
from rltok_rl.data.languages import Recall
from rltok_rl.models import UNet, preset
from rltok_rl.models.flops import matrix_parameters
from rltok_rl.models.tokens import Packing
from rltok_rl.objectives import JointLoss, LanguageModelLoss, SecondLevelLoss
from rltok_rl.training import Alarms, LoopOptions, Trainer, TrainingFailed, loop
from rltok_rl.training.checkpoint import load_checkpoint, part_of, save_checkpoint
from rltok_rl.training.distributed import Processes
from rltok_rl.training.options import cosine_schedule, make_optimizer
from rltok_rl.training.sharding import full_state, load_moments, whole_model
from rltok_rl.training.training_step import rollout_rates

from ..each import each
from ..states import same
from .processes import PROSE, ROWS, STEPS, UPDATE, make, metrics_of

CRITIC = {"estimator": "critic_advantage"}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "micro-batches, warm-up": {"micro_batches": 2, "warm_up_bytes": 300},
    "siblings": {"baseline": "group_mean"},
    "running mean, rate control": {"baseline": "running_mean", "control": "pi"},
    "bfloat16": {"precision": "bfloat16"},
    "predicted flips": {"estimator": "doubly_robust"},
    "critic, epochs": {**CRITIC, "policy_epochs": 3},
    "critic, warm start": {**CRITIC, "warm_start_bytes": 2 * UPDATE},
    "a rule to imitate": {"warm_start_rule": "spacebyte", "warm_start_bytes": 2 * UPDATE},
    "critic, micro-batches, epochs": {**CRITIC, "policy_epochs": 2, "micro_batches": 2},
}


@each(name=CASES)
def test_resumed_is_uninterrupted(name):
    """Every metric, warning and weight to the last bit, through a copied state."""

    def fresh(seed: int = 0) -> Trainer:
        trainer = make(**CASES[name], seed=seed)
        trainer.alarms = Alarms(patience=2, least_entropy=9.0)
        return trainer

    def updates_of(trainer: Trainer, count: int | None = None) -> list[tuple[dict[str, float], list[str]]]:
        seen: list[tuple[dict[str, float], list[str]]] = []
        trainer.run(lambda metrics: seen.append((metrics, trainer.warnings)) or len(seen) == count)
        return seen

    whole = fresh()
    expected = updates_of(whole)
    first_two = [0, 0] if "warm_start_rule" in CASES[name] else [0, 1]  # a rule's updates have no entropy to warn of
    assert [len(warnings) for _, warnings in expected] == [*first_two, 0, 1 - sum(first_two)]
    for stop in (1, 3):
        first = fresh()
        before = updates_of(first, stop)
        state = copy.deepcopy(first.state_dict())
        updates_of(first, 1)  # updates after the state do not change it
        torch.manual_seed(99)
        second = fresh(seed=5)
        second.load_state_dict(state)
        assert before + updates_of(second) == expected and second.done
        weights = zip(second.model.parameters(), whole.model.parameters(), strict=True)
        assert all(torch.equal(p, q) for p, q in weights)


def test_resumed_is_uninterrupted_over_an_epoch_order_on_disk(tmp_path):
    prose = local_prose(1000)
    write_cache([prose[at : at + 2 * STEPS + 1] for at in range(0, 600, 100)], tmp_path / "cache")

    def fresh(seed: int = 0) -> Trainer:  # 12 windows, 3 updates in two epochs
        return make(source=OrderedSource(CachedSource(tmp_path / "cache"), length=STEPS + 1, seed=3), seed=seed)

    whole, first, second = metrics_of(fresh()), fresh(), fresh(5)
    before = metrics_of(first, 2)
    save_checkpoint(tmp_path / "checkpoints", 2, first.state_dict())
    state = load_checkpoint(tmp_path / "checkpoints")[1]
    with pytest.raises(ValueError, match="must be that of a trainer of this version, got one without 'flops_beside'"):
        second.load_state_dict({name: value for name, value in state.items() if name != "flops_beside"})
    second.load_state_dict(state)
    assert second.env.source.drawn == 2 * ROWS
    assert before + metrics_of(second) == whole and len(whole) == 4


def test_it_learns():
    """One sentence, again and again: from 8 bits per byte to less than 4 within 60 updates."""
    model, text = UNet(preset("tiny")), b"the quick brown fox jumps over the lazy dog. " * 8
    env = ByteBoundaryEnv(model, text, num_steps=64, batch_size=(8,), seed=0)
    options = LoopOptions(total_bytes=60 * 512, lr=4e-3)
    first, *_, last = metrics_of(Trainer(model, env, JointLoss.paper(target_rate=0.2), options))
    assert first["bits_per_byte"] > 7 and last["bits_per_byte"] < 4


def test_learning_rate_rises_and_falls():
    updates = metrics_of(make(updates=6, lr=1.0, warm_up_bytes=2 * UPDATE, lr_floor=0.0))
    rates = [update["lr"] for update in updates]
    assert rates[0] == pytest.approx(0.5) and rates[1] == pytest.approx(1.0)
    assert rates[1:] == sorted(rates[1:], reverse=True) and rates[-1] > 0
    for done in (0, 3, 10, 55, 100, 200):
        cosine = 0.2 + 0.8 * (0.5 + 0.5 * math.cos(math.pi * min(1.0, (done - 10) / 90)))
        expected = done / 10 if done < 10 else cosine
        assert cosine_schedule(done, 100, warm_up=10, floor=0.2) == pytest.approx(expected)
        expected = 0.1 + 0.9 * done / 10 if done < 10 else cosine
        assert cosine_schedule(done, 100, warm_up=10, floor=0.2, start=0.1) == pytest.approx(expected)


def test_schedule_read_at_the_start_of_updates_is_that_of_torch():
    """Warm-up of two updates from a tenth, then a cosine over four, whose end would be a seventh update's."""
    options = {"warm_up_bytes": 2 * UPDATE, "warm_up_start": 0.1, "lr_floor": 0.0, "lr_at": "start"}
    rates = [update["lr"] for update in metrics_of(make(updates=6, lr=1.0, **options))]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=1.0)
    rise = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=2)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [rise, fall], milestones=[2])
    expected = []
    for _ in range(6):
        expected.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx(expected) and rates[0] == pytest.approx(0.1)


def test_padding_is_counted_by_the_longest_row_or_the_room():
    """Four of eight bytes end tokens, three of them in one row: padded to its length, six would; packed, four."""
    action = torch.tensor([[False, True, True, False], [False, False, False, False]])
    forced = torch.tensor([[True, False, False, False], [True, False, False, False]])
    rollout = TensorDict({"action": action, "forced": forced}, batch_size=[2, 4])
    rates = {"rate": 2 / 8, "token_rate": 4 / 8, "padded_rate": 3 / 4}
    assert rollout_rates(rollout) == rates
    rollout["next", "second_boundary"] = torch.tensor([[True, True, False, False], [True, False, False, False]])
    second = {"second_rate": 3 / 4, "padded_second_rate": 2 / 3}  # per token, padded to two of three
    assert rollout_rates(rollout) == pytest.approx({**rates, **second})
    room = Packing(bucketed=False, tokens=0.6, second=0.4)  # 4.8 and 2.8 places, rounded up, and one for each row
    for layout, padded, padded_second in (("packed", 4 / 8, 3 / 4), (room, 7 / 8, 5 / 7)):
        packed = {"padded_rate": padded, "padded_second_rate": padded_second}
        assert rollout_rates(rollout, layout) == pytest.approx({**rates, **second, **packed})
    action = torch.arange(22)[None] < 13  # in float32, 22 times 13 / 22 is less than 13
    rollout = TensorDict({"action": action, "forced": action}, batch_size=[1, 22])
    assert rollout_rates(rollout, "packed")["padded_rate"] == pytest.approx(13 / 22)


@pytest.mark.parametrize(("second_level", "micro_batches"), [(False, 2), (True, 1), (True, 2)])
def test_flops_follow_the_rates(second_level, micro_batches):
    """Six for each entry of a matrix that a byte, a token or a token of tokens passes; first bytes end tokens."""
    trainer = make(micro_batches=micro_batches, second_level=second_level)
    parts = matrix_parameters(trainer.model)
    routing = parts.pop("second_level.routing", 0)
    per_token, per_second = parts.pop("token_layers") + routing, parts.pop("second_level.layers", 0)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters() if "routing" in name}
    spent, metrics = 0.0, metrics_of(trainer, 3)
    for update in metrics:
        tokens = (1 + (STEPS - 1) * update["rate"]) / STEPS
        second = update["second_rate"] if second_level else 0.0
        assert not second_level or (update["loss_second_level"] > 0 and 0 < second < 1)
        spent += 6 * micro_batches * UPDATE * (sum(parts.values()) + tokens * (per_token + per_second * second))
        assert update["flops"] == pytest.approx(spent, rel=1e-6)
    assert trainer.padded_flops_done == metrics[-1]["padded_flops"] > trainer.flops_done
    assert trainer.flops_done == metrics[-1]["flops"] and len({update["rate"] for update in metrics}) > 1
    after = dict(trainer.model.named_parameters())
    assert all(not torch.equal(after[name], old) for name, old in before.items())


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_second_levels_loss_trains_only_below_it(micro_batches):
    trainer = make(micro_batches=micro_batches, second_level=True)
    trainer.step.loss = JointLoss({"second_level": SecondLevelLoss(1 / 3)})
    trainer.update()
    reached = {n.split(".")[0] for n, p in trainer.model.named_parameters() if p.grad is not None and p.grad.any()}
    assert reached == {"embedding", "encoder", "token_layers", "second_level"}


def test_alarms_go_off_once_until_recovery():
    alarms = Alarms(target_rate=0.2, patience=3)
    bad, good = {"rate": 0.9, "entropy": 1e-5}, {"rate": 0.2, "entropy": 0.3}
    assert alarms.check(bad, 1) == alarms.check(bad, 2) == []
    first = alarms.check(bad, 3)
    assert len(first) == 2 and "rate 0.900" in first[0] and "entropy bonus" in first[1]
    assert alarms.check(bad, 4) == alarms.check(good, 5) == []
    assert [alarms.check({"rate": 0.01}, n) for n in (6, 7)] == [[], []]
    assert "vanished" in alarms.check({"rate": 0.01}, 8)[0]
    with pytest.raises(TrainingFailed, match="loss is nan at update 1: look at the reward, the estimator and the base"):
        alarms.check({"loss": math.nan}, 1)  # no step could have spoilt the weights
    with pytest.raises(TrainingFailed, match="loss is nan at update 9"):
        alarms.check({"loss": math.nan}, 9)
    for values in [bad, bad, good] * 2:  # counts begin anew with every recovery
        assert alarms.check(values, 10) == []
    assert [len(alarms.check(bad, n)) for n in range(11, 16)] == [0, 0, 2, 0, 0]
    state = alarms.state_dict()
    alarms.check(good, 16)
    assert set(state.values()) == {0, 5}, "a state does not change with its alarms"


def test_alarms_begin_beyond_their_bounds():
    """On the bound nothing is wrong; without a target only rates near 0 and 1 are."""
    bounds = ((None, 0.01, 0.95), (0.2, 0.05, 0.6), (0.1, 0.025, 0.3), (0.02, 0.005, 0.06), (0.4, 0.1, 0.95))
    for target, low, high in bounds:
        for rate, words in (
            (low * 0.99, "nearly vanished"),
            (low * 1.01, None),
            (high * 0.99, None),
            (high * 1.01, "nearly every byte"),
        ):
            warnings = Alarms(target_rate=target, patience=1).check({"rate": rate, "entropy": 1.0}, 1)
            assert len(warnings) == (words is not None) and (words is None or words in warnings[0]), (target, rate)
    for least, entropy, wrong in ((1e-3, 9e-4, 1), (1e-3, 1.1e-3, 0), (0.5, 0.4, 1), (0.5, 0.5, 0)):
        warnings = Alarms(patience=1, least_entropy=least).check({"entropy": entropy}, 1)
        assert len(warnings) == wrong
    for target, rate in ((None, 0.01), (None, 0.95), (0.4, 0.1), (0.4, 0.95), (0.2, 0.05), (0.95, 1.0), (1.0, 1.0)):
        assert Alarms(target_rate=target, patience=1).check({"rate": rate}, 1) == []
    default, values = Alarms(), {"rate": 0.5, "entropy": 9e-4}
    assert [n for n in range(1, 120) if default.check(values, n)] == [50]
    assert [n for n in range(1, 60) if Alarms(patience=1).check({**values, "entropy": 1.1e-3}, n)] == []
    first, second = Alarms(patience=3), Alarms(patience=3)
    assert [len(first.check({"rate": 0.99}, n)) for n in (1, 2)] == [0, 0]
    second.load_state_dict(first.state_dict())
    assert [len(alarms.check({"rate": 0.99}, 3)) for alarms in (first, second)] == [1, 1]


def test_a_failed_trainer_continues_from_an_earlier_state():
    """It forgets the failure and its flag on the device, with metrics equal to those of an undisturbed one."""
    whole, trainer = metrics_of(make()), make()
    trainer.update()
    state = copy.deepcopy(trainer.state_dict())
    hook = trainer.model.final_head.projection.weight.register_hook(lambda gradient: gradient * math.nan)
    for _ in range(2):
        with pytest.raises(TrainingFailed):
            trainer.update()
    hook.remove()
    trainer.load_state_dict(state)
    assert metrics_of(trainer) == whole[1:]


@each(case=[{"estimator": "local_flips"}, {"estimator": "critic_advantage", "micro_batches": 2}])
def test_a_loaded_state_is_the_state(case):
    """Every entry, in a trainer that was made with another seed and has gone another way."""
    first, second = make(**case, updates=3), make(**case, updates=3, seed=5)
    metrics_of(first, 2)
    assert (first.generator.initial_seed(), second.generator.initial_seed()) == (0, 5)
    metrics_of(second, 1)
    first.room.warnings = ["noted"]
    state = copy.deepcopy(first.state_dict())
    assert len({*state["flops_beside"].values(), state["flops_done"]}) == 3 or "critic" in case["estimator"]
    second.load_state_dict(copy.deepcopy(state))
    assert same(second.state_dict(), state)
    assert (second.updates, second.bytes_done, second.last_update) == (first.updates, first.bytes_done, None)


def put(part: str | None = None, **entries: Any) -> Callable[[dict[str, Any]], Any]:
    """Replace entries of a state, or of a part of it."""
    return lambda state: (state if part is None else state[part]).update(entries)


WEIGHT, OTHER = "embedding.weight", torch.zeros(3)
MISFITS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {  # what is changed, the error
    "no weight": (
        lambda state: state["model"].pop(WEIGHT),
        rf"model of the state .* got another \({WEIGHT} is missing\)",
    ),
    "no weights": (put(model={}), f"model .*{WEIGHT} is missing; .*final_head.projection.weight is missing"),
    "weight of another name": (
        lambda state: state["model"].update(mine=state["model"].pop(WEIGHT)),
        f"model .*{WEIGHT} is missing; mine is unknown",
    ),
    "weight of another shape": (
        put("model", **{WEIGHT: OTHER}),
        rf"{WEIGHT} must be .* shape \[256, 16\], got .* \[3\]",
    ),
    "integers": (put("model", **{WEIGHT: torch.zeros(256, 16, dtype=torch.int64)}), f"{WEIGHT} must be floating-point"),
    "weight of None": (put("model", **{WEIGHT: None}), f"{WEIGHT} must be .*, got NoneType"),
    "weights of a list": (put(model=[1]), "model of the state must be that of"),
    "no coefficient": (lambda state: state["loss"].pop("coeff_policy"), 'loss .*Missing key.*"coeff_policy"'),
    "no moment": (
        lambda state: state["optimizer"]["state"][0].pop("exp_avg"),
        "optimizer .*parameter 0 has the moments",
    ),
    "moment of another shape": (
        lambda state: state["optimizer"]["state"][0].update(exp_avg=OTHER),
        "exp_avg of parameter 0",
    ),
    "no moments": (lambda state: state["optimizer"]["state"].clear(), r"optimizer .*parameters \[0, 1, .* moments"),
    "no moments of a parameter": (
        lambda state: state["optimizer"]["state"].pop(3),
        r"optimizer .*parameters \[3\] have lost their moments",
    ),
    "another moment": (
        lambda state: state["optimizer"]["state"][0].update(max_exp_avg_sq=OTHER),
        "optimizer .*parameter 0 has the moments",
    ),
    "steps of every weight": (
        lambda state: state["optimizer"]["state"][0].update(step=OTHER),
        r"step of parameter 0 must be .* shape \[\], got .* \[3\]",
    ),
    "moments of no parameter": (lambda state: state["optimizer"]["state"].update({999: {}}), "parameter 999 has"),
    "no betas": (lambda state: state["optimizer"]["param_groups"][0].pop("betas"), "optimizer .*has no betas"),
    "fewer groups": (lambda state: state["optimizer"]["param_groups"].pop(), "optimizer .*groups"),
    "boundaries of None": (put(boundaries=None), "boundaries .*must be a tensor, got NoneType"),
    "other boundaries": (put(boundaries=OTHER), "boundaries .*"),
    "other texts": (put(texts=OTHER), "texts of the state must be"),
    "other random numbers": (put(random=OTHER), "random of the state must be"),
    "no random numbers of Python": (lambda state: state["random"].pop("python"), "random .*KeyError: 'python'"),
    "negative count": (put(updates=-1), "updates must be an integer of at least 0, got -1"),
    "word for a count": (put(bytes_done="x"), "bytes_done must be an integer of at least 0, got 'x'"),
    "FLOPs of NaN": (put(flops_done=math.nan), "flops_done must be at least 0 and finite"),
    "word for an alarm": (put(alarms={"low": "x"}), "alarms .*low must be an integer"),
    "number for the room": (put(token_room=3), "token_room of the state must be"),
    "nothing random": (lambda state: state.pop("random"), "trainer of this version, got one without 'random'"),
}


@pytest.fixture(scope="module")
def trained_once() -> Trainer:
    trainer = make()
    trainer.update()
    return trainer


@each(name=MISFITS)
def test_a_part_that_does_not_fit_is_named_in_one_sentence(name, trained_once):
    change, words = MISFITS[name]
    state = copy.deepcopy(trained_once.state_dict())
    change(state)
    with pytest.raises(ValueError, match=words) as refused:
        trained_once.load_state_dict(state)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 2200


def test_groups_of_a_state_have_all_options():
    """Otherwise torch would keep going with its defaults, or the schedule without the factor."""
    model = UNet(preset("tiny", width=16))
    optimizer = make_optimizer(model, LoopOptions(total_bytes=9, stage_factors=(2.0, 1.0)), model=model)
    for name in ("betas", "eps", "weight_decay", "lr_factor"):
        state = copy.deepcopy(full_state(model, optimizer)["optimizer"])
        del state["param_groups"][1][name]
        with pytest.raises(ValueError, match=f"a group of parameters has no {name}"):
            load_moments(optimizer, state)


def test_lack_of_memory_is_no_misfit():
    """A caller may free some and load again."""
    with pytest.raises(torch.OutOfMemoryError), part_of({"model": {}}, "model"):
        raise torch.OutOfMemoryError


def test_the_gradient_is_clipped_to_its_largest_norm():
    for clip in (0.05, 0.5, math.inf):
        trainer = make(clip_norm=clip)
        norm = trainer.update()["grad_norm"]
        gradients = [p.grad for p in trainer.step.parameters() if p.grad is not None]
        assert norm > 0.5  # before clipping
        assert float(nn.utils.get_total_norm(gradients)) == pytest.approx(min(norm, clip), rel=1e-4)


def test_every_option_reaches_the_optimizer():
    model = UNet(preset("tiny", width=16, **{"second_level": "routing", "num_token_layers": 2}))
    inner = {id(p) for p in (*model.token_layers.parameters(), *model.second_level.parameters())}
    for factors in (None, (2.0, 0.5), (2.0, 0.5, 0.25)):
        for decayed in ("matrices", "all"):
            options = LoopOptions(
                total_bytes=9, lr=0.3, betas=(0.8, 0.9), weight_decay=0.7, decayed=decayed, stage_factors=factors
            )
            optimizer = make_optimizer(model, options, model=model)
            decays = {}
            for group in optimizer.param_groups:
                assert (group["lr"], group["betas"]) == (0.3, (0.8, 0.9))
                for p in group["params"]:
                    assert id(p) not in decays
                    decays[id(p)] = group["weight_decay"]
                    factor = group.get("lr_factor")
                    assert (factor == 2.0) == (factors is not None and id(p) not in inner)
            for name, p in model.named_parameters():
                spared = decayed == "matrices" and (p.dim() < 2 or name == "embedding.weight")
                assert decays[id(p)] == (0.0 if spared else 0.7), name


def test_stages_learn_at_their_own_rate():
    """Their factors last beyond the first update, whose rate the optimizer was made with."""
    trainer = make(lr=0.3, lr_floor=0.0, stage_factors=(2.0, 0.5))
    for lr in [update["lr"] for update in metrics_of(trainer, 1)] + [trainer.update()["lr"]]:
        assert 0 < lr <= 0.3
    groups = trainer.optimizer.param_groups
    assert [group["lr"] / lr for group in groups] == pytest.approx([2.0, 0.5, 2.0, 0.5]) and lr < 0.3


def test_defaults_are_the_stated_ones():
    options, model = LoopOptions(total_bytes=9), UNet(preset("tiny", width=16))
    assert (options.lr, options.lr_floor, options.betas, options.weight_decay) == (2e-3, 0.1, (0.9, 0.95), 0.1)
    assert (options.decayed, options.lr_at, options.precision, options.clip_norm) == ("matrices", "end", "float32", 1.0)
    assert (options.warm_up_bytes, options.warm_up_start, options.warm_start_bytes) == (0, 0, 0)
    assert options.total_flops is None
    assert (options.micro_batches, options.policy_epochs, options.figures_every) == (1, 1, 1)
    env = ByteBoundaryEnv(model, PROSE, num_steps=6, batch_size=(2,), seed=0)
    trainer = Trainer(model, env, JointLoss.paper(target_rate=0.2), options)
    trainer.update()
    assert trainer.generator.initial_seed() == 0 and trainer.step.batch == [] and trainer.alarms.target_rate is None
    assert whole_model(model) is model and trainer.processes == Processes()


def test_the_length_of_a_run_is_foreseen():
    trainer = make(updates=4)
    assert trainer.expected_bytes == 4 * UPDATE and trainer.fraction_done == 0
    trainer.update()
    assert trainer.expected_bytes == 4 * UPDATE and trainer.fraction_done == 0.25
    cost = trainer.flops_done
    for share in (2.0, 0.5):  # of the FLOPs of an update
        limited = make(updates=9, total_flops=share * cost)
        assert limited.expected_bytes == 9 * UPDATE
        limited.update()
        fraction = limited.total_flops_done / (share * cost)
        assert limited.fraction_done == pytest.approx(fraction) and limited.done == (share < 1)
        assert limited.expected_bytes == max(UPDATE, round(UPDATE / fraction))
    limited = make(updates=9, total_flops=3 * cost, lr=1.0, lr_floor=0.0)
    limited.update()
    expected = cosine_schedule(limited.fraction_done * 9 + 1, 10, warm_up=0)  # by FLOPs, at the end of the update
    assert limited.update()["lr"] == pytest.approx(expected) and 0.3 < expected < 0.9
    limited, seen = make(updates=9, total_flops=3 * cost, figures_every=5), []
    limited.advance()
    assert limited.fraction_done > 0.2, "the next update's learning rate depends on it"
    limited.run(lambda metrics: seen.append(limited.updates))
    assert seen[:3] == [2, 2, 3], "metrics are fetched after each update"


def test_language_of_repeated_texts_is_known():
    for source, language in (
        (Recall(), True),
        (RepeatedSource(Recall(), 2), True),
        (RepeatedSource(TextSource(PROSE), 2), False),
    ):
        trainer = make(source=source)
        assert (trainer.language is not None) == ("share" in trainer.update()) == language


def test_thresholds_follow_the_model_after_few_updates_often_and_at_the_end(monkeypatch):
    """Every time on the text of the update; the segmenter is in training mode, whatever it was before."""
    torch.manual_seed(0)
    model, calls = UNet(preset("tiny", width=16)), []
    segmenter = make_segmenter("entropy-threshold", model, predictor="early_exit", rate=0.3).eval()
    env = ByteBoundaryEnv(model, PROSE, num_steps=6, batch_size=(2,), seed=0)
    loss = JointLoss({"language_model": LanguageModelLoss()})
    trainer = Trainer(model.eval(), env, loss, LoopOptions(total_bytes=35 * 12), actor=SegmenterActor(segmenter))

    def calibrated(one, model, windows):
        (byte_ids,) = windows
        assert one is segmenter and torch.equal(byte_ids, trainer.step.byte_ids)
        assert segmenter.training and model.training
        calls.append(trainer.updates)
        return float(len(calls))

    monkeypatch.setattr(loop, "calibrate", calibrated)
    trainer.run()
    assert calls == [1, 2, 4, 8, 16, 32, 35] and float(segmenter.threshold) == 7.0


def test_weights_that_are_not_finite_are_in_no_state():
    """An update with a finite loss may leave them, also in a critic; the error names the parameter."""
    trainer = make(**CRITIC)
    trainer.update()
    critic = next(trainer.loss.terms["policy"].critic_network.parameters())
    for weight, name in ((trainer.model.embedding.weight, "embedding.weight"), (critic, "critic_network")):
        before = weight.detach().clone()
        weight.data.view(-1)[7] = math.inf
        with pytest.raises(TrainingFailed, match=rf"weights must be finite, .*{name}.* after update 1: lower the"):
            trainer.state_dict()
        weight.data.copy_(before)
    trainer.state_dict()


def test_logits_that_overflow_end_training_with_a_remedy():
    trainer = make()
    trainer.model.boundary_head.projection.weight.data.fill_(math.nan)
    with pytest.raises(TrainingFailed, match=r"logits of the policy are not finite at update 1: lower the learning .*"):
        trainer.advance()


def test_weight_decay_spares_norms_and_the_embedding():
    model = UNet(preset("tiny"))
    decayed, spared = make_optimizer(model, LoopOptions(total_bytes=1)).param_groups
    names = {id(p): n for n, p in model.named_parameters()}
    spared_names = {names[id(p)] for p in spared["params"]}
    assert "embedding.weight" in spared_names and spared["weight_decay"] == 0
    assert all("norm" in name or name == "embedding.weight" for name in spared_names)
    assert len(decayed["params"]) + len(spared["params"]) == len(names)


def test_weight_decay_of_all_parameters_is_plain_adamw():
    """Three steps that clip nothing; biases and the embedding shrink too."""
    models = [UNet(preset("tiny", head_bias=True)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    options = LoopOptions(total_bytes=9, lr=1e-2, weight_decay=0.01, decayed="all", betas=(0.9, 0.999))
    optimizers = [make_optimizer(models[0], options), torch.optim.AdamW(models[1].parameters(), 1e-2)]
    for number in range(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            for p in model.parameters():
                p.grad = torch.full_like(p, 0.1 * number)
            optimizer.step()
    for ours, plain in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(ours, plain)


REFUSALS = [
    (lambda: LoopOptions(total_bytes=0), "total_bytes must be an integer of at least 1, got 0"),
    (
        lambda: make_optimizer(UNet(preset("tiny")), LoopOptions(total_bytes=9, stage_factors=(1.0, 1.0))),
        "model must be given with stage_factors, got None",
    ),
    (lambda: LoopOptions(total_bytes=9, betas=(0.9, 1.0)), r"betas must lie in \[0, 1\), got 1.0"),
    (lambda: Processes().share(0), "num_rows counts the rows of all processes and must be a multiple .* got 0"),
    (lambda: Processes(world_size=4).share(6, name="env.num_rows"), "env.num_rows counts the rows .* number, 4, got 6"),
    (lambda: LoopOptions(total_bytes=9, lr=0.0), r"lr must lie in \(0, 10\], got 0.0"),
    (lambda: LoopOptions(total_bytes=9, precision="half"), r"one of \['float32', 'bfloat16'\], got 'half'"),
    (lambda: LoopOptions(total_bytes=9, warm_up_bytes=9), r"warm_up_bytes must lie in \[0, total_bytes=9\), got 9"),
    (lambda: LoopOptions(total_bytes=9, lr_floor=2.0), r"lr_floor must lie in \[0, 1\], got 2.0"),
    (lambda: LoopOptions(total_bytes=9, warm_up_start=-1), r"warm_up_start must lie in \[0, 1\], got -1"),
    (lambda: LoopOptions(total_bytes=9, decayed="some"), r"decayed must be one of \['matrices', 'all'\], got 'some'"),
    (lambda: LoopOptions(total_bytes=9, lr_at="mid"), r"lr_at must be one of \['end', 'start'\], got 'mid'"),
    (lambda: LoopOptions(total_bytes=9, stage_factors=(1.0,)), "stage_factors must be two or three positive numbers"),
    *(
        (lambda f=f: LoopOptions(total_bytes=9, stage_factors=f), f"stage_factors must be positive and finite, got {w}")
        for f, w in (((1.0, 0.0), 0.0), ((1.0, math.nan), "nan"), ((math.inf, 1.0), "inf"))
    ),
    *(
        (lambda b=b: LoopOptions(total_bytes=9, betas=b), "betas must be two numbers, got")
        for b in ((0.9,), (0.9, 0.95, 0.99))
    ),
    (lambda: LoopOptions(total_bytes=9, stage_factors=(1.0,) * 4), "stage_factors must be two or three positive"),
    (lambda: LoopOptions(total_bytes=9, betas=(-0.1, 0.9)), r"betas must lie in \[0, 1\), got -0.1"),
    (lambda: make(policy_epochs=2), "policy_epochs=2 needs a term 'policy' that weighs decisions"),
    (lambda: make().step.accumulate(0), "micro_batches must be an integer of at least 1, got 0"),
]


def test_wrong_options_are_refused():
    for call, message in REFUSALS:
        with pytest.raises(ValueError, match=message):
            call()
