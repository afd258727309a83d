"""Two processes train as one does: losses, figures, parameters; and what one saves, any number goes on from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed.tensor import DTensor

from rltok_rl.training.checkpoint import load_checkpoint, same, save_checkpoint
from rltok_rl.training.parallel import Processes, whole_model

from .processes import ROWS, STEPS, figures, make, spawn

CASES = {
    "leave one out": {},
    "batch mean, ratio": {"baseline": "batch_mean", "control": "ratio"},
    "siblings, hinge": {"baseline": "group_mean", "control": "hinge"},
    "what remembers": {"baseline": "running_mean", "control": "pi"},
    "micro-batches": {"baseline": "z_score", "control": "price", "micro_batches": 2},
    "flips": {"estimator": "local_flips"},
    "control variate": {"estimator": "control_variate"},
    "texts that end": {"short": True},
    "epochs": {"policy_epochs": 3, "warm_start_bytes": ROWS * STEPS},
    "one rate, told": {"rates": (0.2, 0.2)},  # one mean over the texts of all processes
    "rates of texts that end": {"rates": (0.1, 0.6), "short": True},
    "rates, flips": {"rates": (0.1, 0.6), "estimator": "local_flips"},
    "rates, micro-batches, epochs": {"rates": (0.1, 0.6), "micro_batches": 2, "policy_epochs": 2},
    "less memory, late figures": {"recompute": "layers", "chunk": 7, "figures_every": 3, "micro_batches": 2},
    "a critic": {"estimator": "critic_advantage", "policy_epochs": 2, "micro_batches": 2},
}
STRATEGIES = ["ddp", "fsdp"]
RUNS = [(s, name) for s in STRATEGIES for name in CASES if (s, name) != ("fsdp", "a critic")]
RESUMED = {"baseline": "running_mean", "control": "pi", "updates": 6}


def train(processes: Processes, folder: Path) -> None:
    """Every case, and a run that goes on from the checkpoint of one process."""
    for strategy, name in RUNS:
        trainer = make(processes, strategy, **CASES[name])
        assert isinstance(trainer.model.embedding.weight, DTensor) == (strategy == "fsdp")
        found = {"figures": figures(trainer), "state": trainer.state_dict()}
        found["weights"] = whole_model(trainer.model).state_dict()
        torch.save(found, folder / f"{strategy} {name} {processes.rank}.pt")
    for strategy in STRATEGIES:
        trainer = make(processes, strategy, **RESUMED, seed=5)  # of another seed until it is loaded
        # The main process alone has the file.
        state = processes.broadcast(load_checkpoint(folder / "one")[1] if processes.main else None)
        trainer.load_state_dict(state)
        loaded = trainer.state_dict()
        assert all(same(loaded[part], state[part]) for part in ("model", "optimizer", "texts", "boundaries"))
        found = figures(trainer, 2)
        state = trainer.state_dict()
        if processes.main:
            torch.save(found, folder / f"{strategy} resumed.pt")
            save_checkpoint(folder / strategy, trainer.updates, state)


def mistakes(processes: Processes, folder: Path) -> None:
    """Statistics of each process's own rows; options that cannot be; at last, a process that fails."""
    trainer = make(processes, "ddp")
    for term in trainer.loss.terms.values():
        term.process_group = None
        if getattr(term, "_value_estimator", None) is not None:
            term._value_estimator.process_group = None
    torch.save(figures(trainer), folder / f"apart {processes.rank}.pt")
    for options, message in (
        ({"strategy": "none"}, "strategy must be 'ddp' or 'fsdp' with 2 processes, got 'none'"),
        (
            {"strategy": "fsdp", "estimator": "critic_advantage"},
            "strategy must be 'ddp' with a critic, which is not cut",
        ),
        ({"strategy": "zero"}, r"strategy must be one of \['none', 'ddp', 'fsdp'\], got 'zero'"),
    ):
        with pytest.raises(ValueError, match=message):
            make(processes, **options)
    with pytest.raises(ValueError, match="rows of all processes and must be a multiple of their number, 2, got 5"):
        processes.share(5)
    loss = make().loss  # spans one process
    with pytest.raises(ValueError, match="process_group of LanguageModelLoss in term 'language_model' must be that of"):
        type(trainer)(trainer.model, trainer.env, loss, trainer.options, processes=processes, strategy="ddp")
    if processes.rank == 1:
        raise KeyError("only here")
    processes.any(True)  # waits for one that does not come


def train_and_fail(processes: Processes, folder: Path) -> None:
    train(processes, folder)
    mistakes(processes, folder)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("processes")
    alone = make(**RESUMED)
    figures(alone, 2)
    save_checkpoint(folder / "one", 2, alone.state_dict())
    with pytest.raises(torch.multiprocessing.ProcessExitedException):
        spawn(train_and_fail, folder)
    return folder


PADDED = ("padded_rate", "padded_flops")


def assert_close(found: list[dict[str, float]], expected: list[dict[str, float]]) -> None:
    assert len(found) == len(expected)
    for one, two in zip(found, expected, strict=True):
        # Rows of tokens are as long as the longest of their process: more processes pad no more.
        for name in PADDED:
            assert one[name] == pytest.approx(two[name]) or one[name] < two[name], name
        several, alone = ({k: v for k, v in figures.items() if k not in PADDED} for figures in (one, two))
        assert several == pytest.approx(alone, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(("strategy", "name"), RUNS)
def test_two_processes_are_one(trained, strategy, name):
    alone = make(**CASES[name])
    expected = figures(alone)
    first, second = (torch.load(trained / f"{strategy} {name} {rank}.pt") for rank in (0, 1))
    assert first["figures"] == second["figures"]
    assert_close(first["figures"], expected)
    assert same(first, second)
    assert len(expected) == first["state"]["updates"] == 4 and first["state"]["bytes_done"] == alone.bytes_done
    for key, value in alone.model.state_dict().items():
        torch.testing.assert_close(first["state"]["model"][key], value, rtol=1e-5, atol=1e-5)
        assert torch.equal(first["weights"][key], first["state"]["model"][key])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_checkpoints_belong_to_no_number_of_processes(trained, strategy):
    """One process, then two, then one again: the figures of one all the way."""
    whole = figures(make(**RESUMED))
    assert_close(torch.load(trained / f"{strategy} resumed.pt"), whole[2:4])
    alone = make(**RESUMED, seed=5)
    update, state = load_checkpoint(trained / strategy)
    alone.load_state_dict(state)
    assert update == alone.updates == 4
    assert_close(figures(alone), whole[4:])


def test_rows_of_one_process_are_not_the_batch(trained):
    """Without process groups the figures are others, and the test of equality sees it."""
    with pytest.raises(AssertionError):
        assert_close(torch.load(trained / "apart 0.pt"), figures(make()))


def test_a_failure_is_said_once(trained):
    said = "".join((trained / f"said {rank}").read_text() for rank in (0, 1))
    assert said.count("process 1 of 2 failed and all end with it: KeyError: 'only here'") == 1
    assert said.count("Traceback") == 1 and "Warning" not in said
