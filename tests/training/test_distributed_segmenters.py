"""Two processes train as one does: with segmenters whose losses are means over rows or groups, with rates of texts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rltok_rl.experiments.runs.build import make_trainer

from rltok_rl.training.distributed import Processes

from ..experiments.configured import QUICK, configured
from ..states import same
from .processes import spawn

SMALL = [
    *QUICK[:-1],
    "data=recall",
    "model.overrides.target_rate=0.25",
    "model.overrides.width=16",
    "optim.total_bytes=384",  # 3 updates
]
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
IN_PIECES = ("learned, packed",)
# The threshold of several processes is the mean of what each of them finds, not that of all rows. Scores of pieces that
# are trained twice differ in their last digits.
NOT_OF_ONE = ("entropy-threshold", "unigram-trained")


def trained(word: str, processes: Processes, strategy: str) -> dict:
    options = [f"segmenter={word.partition(',')[0]}", *CASES[word], f"compute.strategy={strategy}"]
    config = configured(*SMALL, *options)
    trainer, _ = make_trainer(config, processes)
    figures: list[dict[str, float]] = []
    trainer.run(figures.append)
    state = trainer.state_dict()
    return {"figures": figures, "model": state["model"], "own": state["segmenter"] or {}}


def train_all(processes: Processes, folder: Path) -> None:
    for word in CASES:
        strategy = "fsdp" if word in IN_PIECES else "ddp"
        torch.save(trained(word, processes, strategy), folder / f"{word} {processes.rank}.pt")


@pytest.fixture(scope="module")
def together(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("segmenters")
    spawn(train_all, folder)
    return folder


@pytest.mark.parametrize("word", list(CASES))
def test_two_processes_are_one(together, word):
    first, second = (torch.load(together / f"{word} {rank}.pt") for rank in (0, 1))
    assert same(first, second)  # the main process alone has trained the tokenizer
    assert ("tokenizer" in first["own"]) == (word in ("bpe", "unigram-trained"))
    if word in NOT_OF_ONE:
        return
    alone = trained(word, Processes(), "none")
    assert len(alone["figures"]) == len(first["figures"]) == 3
    for one, two in zip(alone["figures"], first["figures"], strict=True):
        # Rows of tokens are as long as the longest of their process: two pad no more than one.
        for name in ("padded_rate", "padded_flops"):
            more = two.pop(name) / one.pop(name)
            assert more <= 1 + 1e-6 or "compute.tokens=packed" in CASES[word]  # two round up more often
        assert two == pytest.approx(one, rel=1e-4, abs=1e-5)
    for part in ("model", "own"):
        assert alone[part].keys() == first[part].keys()
        for name, value in alone[part].items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(first[part][name], value, rtol=1e-4, atol=1e-5)
            else:
                assert first[part][name] == value
