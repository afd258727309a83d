"""Two processes train as one does, and any number of processes resumes what another has saved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from rltok_rl.experiments.bench.traffic import CountTraffic, Traffic, update_traffic
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from rltok_rl.training.checkpoint import load_checkpoint, save_checkpoint
from rltok_rl.training.distributed import Processes
from rltok_rl.training.sharding import whole_model

from ..each import each
from ..states import same
from .processes import STEPS, UPDATE, make, metrics_of, spawn

CASES = {
    "leave one out": {},
    "batch mean, ratio, late metrics": {"baseline": "batch_mean", "control": "ratio", "figures_every": 2},
    "siblings, hinge, short texts": {"baseline": "group_mean", "control": "hinge", "short": True},
    "running mean": {"baseline": "running_mean", "control": "pi"},
    "micro-batches": {"baseline": "z_score", "control": "price", "micro_batches": 2},
    "flips, rates": {"estimator": "local_flips", "rates": (0.1, 0.6)},
    "flips on a budget": {"estimator": "budgeted_flips"},
    "predicted flips": {"estimator": "doubly_robust"},
    "antithetic rows": {"estimator": "antithetic"},
    "DisARM": {"estimator": "disarm"},
    "control variate, one rate": {"estimator": "control_variate", "rates": (0.2, 0.2)},
    "epochs": {"ppo": True, "policy_epochs": 3, "warm_start_bytes": UPDATE},
    "imitation, micro-batches": {
        "warm_start_rule": "spacebyte",
        "warm_start_bytes": 2 * UPDATE,
        "micro_batches": 2,
        "short": True,
    },
    "rates, micro-batches": {"rates": (0.1, 0.6), "short": True, "ppo": True, "policy_epochs": 2, "micro_batches": 2},
    "less memory": {"recompute": "layers", "chunk": 7, "micro_batches": 2},
    "wide tokens": {"token_width": 24},
    "rows per mean": {"baseline": "batch_mean", "rows_per_mean": 2, "micro_batches": 2},
    "critic": {"estimator": "critic_advantage", "policy_epochs": 2, "micro_batches": 2},
}
STRATEGIES = ["ddp", "fsdp"]
NOT_SHARDED = ("critic", "imitation, micro-batches")
RUNS = [(s, name) for s in STRATEGIES for name in CASES if s == "ddp" or name not in NOT_SHARDED]
UPDATES = 3
RESUMED = {"baseline": "running_mean", "control": "pi", "updates": 6}
WRAPPED = {"plain": {}, "warm start": {}, "critic": CASES["critic"]}


def train(processes: Processes, folder: Path) -> None:
    """Train every case, and resume the checkpoint of one process."""
    for strategy, name in RUNS:
        trainer = make(processes, strategy, **CASES[name], updates=UPDATES)
        assert isinstance(trainer.model.embedding.weight, DTensor) == (strategy == "fsdp")
        result = {"metrics": metrics_of(trainer), "state": trainer.state_dict()}
        result["weights"] = whole_model(trainer.model).state_dict()
        torch.save(result, folder / f"{strategy} {name} {processes.rank}.pt")
    for strategy in STRATEGIES:
        trainer = make(processes, strategy, **RESUMED, seed=5)
        # Rank 0 alone has the file.
        state = processes.broadcast(load_checkpoint(folder / "one")[1] if processes.main else None)
        trainer.load_state_dict(state)
        loaded = trainer.state_dict()
        assert all(same(loaded[part], state[part]) for part in ("model", "optimizer", "texts", "boundaries"))
        metrics = metrics_of(trainer, 2)
        state = trainer.state_dict()
        if processes.main:
            torch.save(metrics, folder / f"{strategy} resumed.pt")
            save_checkpoint(folder / strategy, trainer.updates, state)


def wrap_in_ddp(processes: Processes, folder: Path) -> None:
    """Run the step in torch's wrapper, as docs/distributed.md shows; then in a warm start, and with a critic."""
    for name, case in WRAPPED.items():
        trainer = make(processes, "ddp", **case)
        step = DistributedDataParallel(trainer.step)
        step(warm_start=name == "warm start")["loss"].backward()
        gradients = {key: p.grad for key, p in trainer.step.named_parameters()}
        torch.save(gradients, folder / f"step {name} {processes.rank}.pt")


def count_traffic(processes: Processes, folder: Path) -> None:
    for strategy in STRATEGIES:
        trainer = make(processes, strategy, baseline="batch_mean")
        trainer.model.train()
        trainer.update()
        with CountTraffic() as count:
            trainer.update()
        (folder / f"{strategy} {processes.rank}.json").write_text(json.dumps(vars(count.traffic)))


def agree(processes: Processes, folder: Path) -> None:
    """Flags of no rank, of either rank, and of both; the mean of different numbers."""
    flags = (), (0,), (1,), (0, 1)
    answers = [processes.any(processes.rank in set_in) for set_in in flags]
    mean = processes.mean({"loss": 1.0 + processes.rank, "rate": 0.25})
    (folder / f"agreed {processes.rank}.json").write_text(json.dumps([answers, mean]))


def make_mistakes(processes: Processes, folder: Path) -> None:
    """Use statistics of each process's rows; use options that cannot be; at last, fail in one process."""
    trainer = make(processes, "ddp")
    for term in trainer.loss.terms.values():
        for part in (term, getattr(term, "_value_estimator", None)):
            if part is not None:
                part.process_group = None
    torch.save(metrics_of(trainer), folder / f"apart {processes.rank}.pt")
    loss = make().loss  # spans one process
    parallel = {"processes": processes, "strategy": "ddp"}
    wrong = "process_group of LanguageModelLoss in term 'language_model' must be that of"
    for call, message in (
        (lambda: make(processes, "none"), "strategy must be 'ddp' or 'fsdp' with 2 processes, got 'none'"),
        (lambda: make(processes, "fsdp", **CASES["critic"]), "must be 'ddp' with a critic, which is not sharded"),
        (lambda: make(processes, "zero"), r"strategy must be one of \['none', 'ddp', 'fsdp'\], got 'zero'"),
        (lambda: processes.share(5), "rows of all processes and must be a multiple of their number, 2, got 5"),
        (lambda: type(trainer)(trainer.model, trainer.env, loss, trainer.options, **parallel), wrong),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    if processes.rank == 1:
        raise KeyError("only here")
    processes.any(True)  # waits for rank 1


def work(processes: Processes, folder: Path) -> None:
    for part in (train, wrap_in_ddp, count_traffic, agree, make_mistakes):
        part(processes, folder)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("processes")
    alone = make(**RESUMED)
    metrics_of(alone, 2)
    save_checkpoint(folder / "one", 2, alone.state_dict())
    with pytest.raises(torch.multiprocessing.ProcessRaisedException, match="KeyError: 'only here'"):
        spawn(work, folder)
    return folder


def assert_close(several: list[dict[str, float]], alone: list[dict[str, float]]) -> None:
    for one, two in zip(map(dict, several), map(dict, alone), strict=True):
        for name in ("padded_rate", "padded_flops"):  # rows are as long as the longest of their process
            assert one.pop(name) <= two.pop(name) * (1 + 1e-6), name
        assert one == pytest.approx(two, rel=1e-5, abs=1e-5)


@each(name=CASES)
def test_two_processes_are_one(trained, name):
    """Losses, metrics, parameters and states of all updates."""
    alone = make(**CASES[name], updates=UPDATES)
    expected = metrics_of(alone)
    for strategy in [strategy for strategy, other in RUNS if other == name]:
        first, second = (torch.load(trained / f"{strategy} {name} {rank}.pt") for rank in (0, 1))
        assert_close(first["metrics"], expected)
        assert same(first, second), strategy
        assert len(expected) == first["state"]["updates"] == UPDATES
        assert first["state"]["bytes_done"] == alone.bytes_done
        for key, value in alone.model.state_dict().items():
            torch.testing.assert_close(first["state"]["model"][key], value, rtol=1e-5, atol=1e-5, msg=key)
            assert torch.equal(first["weights"][key], first["state"]["model"][key])


def test_a_flag_of_one_rank_is_a_flag_of_all(trained):
    """A signal may reach one rank alone, and all have to stop."""
    for rank in (0, 1):
        answers, mean = json.loads((trained / f"agreed {rank}.json").read_text())
        assert answers == [False, True, True, True] and mean == {"loss": 1.5, "rate": 0.25}


@each(name=WRAPPED)
def test_step_in_torchs_wrapper_has_the_gradients_of_one_process(trained, name):
    step = make(**WRAPPED[name]).step
    step(warm_start=name == "warm start")["loss"].backward()
    for rank in (0, 1):
        several = torch.load(trained / f"step {name} {rank}.pt")
        for key, parameter in step.named_parameters():
            assert (several[key] is None) == (parameter.grad is None), key
            if parameter.grad is not None:
                assert (several[key] - parameter.grad).abs().max() <= 1e-6 * max(1.0, parameter.grad.abs().max()), key


def test_checkpoints_load_with_any_number_of_processes(trained):
    """One process, then two, then one again: the metrics of one all the way."""
    whole = metrics_of(make(**RESUMED))
    for strategy in STRATEGIES:
        assert_close(torch.load(trained / f"{strategy} resumed.pt"), whole[2:4])
        alone = make(**RESUMED, seed=5)
        update, state = load_checkpoint(trained / strategy)
        alone.load_state_dict(state)
        assert update == alone.updates == 4
        assert_close(metrics_of(alone), whole[4:])


def test_rows_of_one_process_are_not_the_batch(trained):
    """Without process groups the metrics differ, and the test of equality sees it."""
    with pytest.raises(AssertionError):
        assert_close(torch.load(trained / "apart 0.pt"), metrics_of(make()))


@each(strategy=STRATEGIES)
def test_counted_traffic_is_the_calculated_one(trained, strategy):
    model = make().model
    planned = update_traffic(model, STEPS, strategy=strategy)
    for rank in range(2):
        counted = Traffic(**json.loads((trained / f"{strategy} {rank}.json").read_text()))
        assert planned.reduced <= counted.reduced <= planned.reduced + 400  # bytes of metrics and rates
        if strategy == "ddp":
            assert counted.gathered == counted.scattered == 0
            continue
        # Shards are as large as the largest of them, and norms that two heads read are gathered for both.
        norms = 4 * 4 * model.config.width
        padding = 4 * sum(p.numel() // len(p) for p in model.parameters() if len(p) % 2)
        assert planned.gathered <= counted.gathered <= planned.gathered + 2 * padding + norms
        assert planned.scattered <= counted.scattered <= planned.scattered + padding


def test_traffic_is_calculated_for_a_ring_and_without_memory():
    assert [Traffic(**{kind: 8.0}).sent(4) for kind in ("reduced", "gathered", "scattered")] == [12.0, 6.0, 6.0]
    with torch.device("meta"):
        layer = nn.Linear(10, 10, bias=False)
    assert update_traffic(layer, 5) == Traffic(reduced=440.0)
    assert update_traffic(layer, 5, strategy="fsdp") == Traffic(reduced=40.0, gathered=800.0, scattered=400.0)
