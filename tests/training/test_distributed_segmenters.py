"""Two processes train segmenters as one does: losses are means over rows or groups, tokenizers are trained once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rltok_rl.experiments.runs.build import make_trainer

from rltok_rl.training.distributed import Processes

from ..each import each
from ..experiments.configured import QUICK, configured
from ..states import same
from .processes import metrics_of, spawn

SMALL = [*QUICK[1:-1], "data=recall", "model.overrides.target_rate=0.25", "model.overrides.width=16"]
SMALL += ["optim.total_bytes=384"]  # 3 updates
TRAINED_TOKENIZER = ["segmenter.options.vocabulary=280", "segmenter.options.num_bytes=5000"]
CASES = {
    "spacebyte": [],
    "bpe": TRAINED_TOKENIZER,
    "unigram-trained": [*TRAINED_TOKENIZER, "segmenter.options.hidden=16"],
    "gumbel": ["segmenter.options.hidden=16"],
    "grouped": ["segmenter.options.group_size=2"],
    "entropy-threshold": [],
    "learned": ["model.overrides.rate_embedding=true", "actor.rates=[0.1,0.6]"],
    "learned, packed": ["compute.tokens=packed"],
    "learned, room": ["compute.tokens=packed", "compute.token_room=1.0"],
}
# The threshold of several processes is the mean of theirs, not that of all rows. Scores of a tokenizer that is trained
# twice differ in their last digits.
DIFFERENT = ("entropy-threshold", "unigram-trained")


def trained(name: str, processes: Processes, strategy: str) -> dict:
    config = configured(*SMALL, f"segmenter={name.partition(',')[0]}", *CASES[name], f"compute.strategy={strategy}")
    trainer, _ = make_trainer(config, processes)
    metrics, state = metrics_of(trainer), trainer.state_dict()
    return {"metrics": metrics, "model": state["model"], "segmenter": state["segmenter"] or {}}


def train_all(processes: Processes, folder: Path) -> None:
    for name in CASES:
        strategy = "fsdp" if name == "learned, packed" else "ddp"
        torch.save(trained(name, processes, strategy), folder / f"{name} {processes.rank}.pt")


@pytest.fixture(scope="module")
def together(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("segmenters")
    spawn(train_all, folder)
    return folder


@each(name=CASES)
def test_two_processes_are_one(together, name):
    first, second = (torch.load(together / f"{name} {rank}.pt") for rank in (0, 1))
    assert same(first, second)  # rank 0 alone has trained the tokenizer
    assert ("tokenizer" in first["segmenter"]) == (name in ("bpe", "unigram-trained"))
    if name in DIFFERENT:
        return
    alone = trained(name, Processes(), "none")
    assert len(alone["metrics"]) == 3
    for one, two in zip(alone["metrics"], first["metrics"], strict=True):
        for padded in ("padded_rate", "padded_flops"):  # rows are as long as the longest of their process
            more = two.pop(padded) / one.pop(padded)
            assert more <= 1 + 1e-6 or "compute.tokens=packed" in CASES[name]  # two round up more often
        assert two == pytest.approx(one, rel=1e-4, abs=1e-5)
    for part in ("model", "segmenter"):
        assert alone[part].keys() == first[part].keys()
        for key, value in alone[part].items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(first[part][key], value, rtol=1e-4, atol=1e-5, msg=key)
            else:
                assert first[part][key] == value
