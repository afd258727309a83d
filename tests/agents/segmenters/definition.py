"""All segmenters that must obey the laws, one line each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from rltok_rl.agents.segmenters import EntropyThreshold, Segmenter, calibrate, make_segmenter, train_bpe, train_unigram
from torch import Tensor

from rltok_rl.models import UNet, preset

TEXT = (
    "Größe: 3 m, not 12 cm. 日本語 and naïve cafés; to be, or not to be?\n\t"
    "The quick brown fox jumps over 7 lazy dogs. "
)
WORDS = (
    "singing singer sings song; walking walker walks walked; talking talker talks talked; boundary boundaries bound "
    "bounded; token tokens tokenize tokenization; наука науки научный; भाषा भाषाएँ; "
)
BPE = train_bpe([(WORDS + TEXT) * 3], vocabulary=340)
PIECES = train_unigram([(WORDS + TEXT) * 3], vocabulary=400)
STRIDE: dict[str, Any] = {"second_level": "stride", "num_token_layers": 2}
ROUTING: dict[str, Any] = {"second_level": "routing", "num_token_layers": 2}
TOKEN: dict[str, Any] = {"byte_scope": "token", "num_encoder_layers": 2, "num_decoder_layers": 2}
HNET: dict[str, Any] = {**ROUTING, "second_residual": "projection"}


@dataclass(frozen=True)
class Case:
    """A segmenter and its model."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    tolerance: float | None = None  # of the target rate over long texts; None if the text alone decides
    trained: bool = False  # reaches its rate only after training
    model: dict[str, Any] = field(default_factory=dict)  # fields of the U-Net's configuration


ROUND = {"evaluation": "round"}
RELEASED = {"fidelity": "released"}
GROUPED = {"block": 12, "group_size": 2, "detached": False, "advantage": "normalised"}
CASES: dict[str, Case] = {
    "learned": Case("learned", tolerance=0.06),
    "learned, no lags": Case("learned", tolerance=0.06, model={"num_lags": 0}),
    "learned, 1 lag": Case("learned", tolerance=0.06, model={"num_lags": 1}),
    "learned, 8 lags": Case("learned", tolerance=0.06, model={"num_lags": 8}),
    "uniform": Case("uniform", {"rate": 0.3}, 0.001),
    "random": Case("random", {"rate": 0.3, "block": 16}, 0.02),
    "bernoulli": Case("bernoulli", {"rate": 0.3}, 0.03),
    "stride": Case("stride", {"stride": 4}, 0.001),
    "whitespace": Case("whitespace"),
    "spacebyte": Case("spacebyte"),
    "spacebyte, once": Case("spacebyte", {"repeat": False}),
    "spacebyte, second letter": Case("spacebyte", {"offset": 2}),
    "bpe": Case("bpe", {"tokenizer": BPE}),
    "unigram": Case("unigram", {"tokenizer": PIECES}),
    "unigram, trained": Case("unigram", {"tokenizer": PIECES, "predictor": "trained", "hidden": 32}),
    "entropy-spike": Case("entropy-spike", {"hidden": 32}),
    "entropy-spike, early exit": Case("entropy-spike", {"predictor": "early_exit"}),
    "entropy-spike, own": Case("entropy-spike", {"predictor": "own", "lags": 3}),
    "entropy-threshold": Case("entropy-threshold", {"rate": 0.25}, 0.05),
    "entropy-threshold, early exit": Case("entropy-threshold", {"rate": 0.25, "predictor": "early_exit"}, 0.05),
    "entropy-threshold, combined": Case("entropy-threshold", {"rate": 0.2, "threshold_add": 1e-3}, 0.05),
    "entropy-threshold, released": Case("entropy-threshold", {"rate": 0.2, "threshold_add": 1e-3, **RELEASED}, 0.05),
    "entropy-monotonic": Case("entropy-monotonic", {"rate": 0.25}, 0.05),
    "gumbel": Case("gumbel", {"rate": 0.25, "hidden": 32}, 0.04, trained=True),
    "gumbel, baseline": Case("gumbel", {"rate": 0.25, "variant": "baseline", **ROUND}, 0.06, trained=True),
    "magnet": Case("magnet", {"hidden": 32}),
    "magnet, rounded": Case("magnet", {"hidden": 32, **ROUND, "rates": {"latin": 0.4}}),
    "grouped": Case("grouped", {"rate": 0.3, "block": 16, "group_size": 2}, 0.02),
    "grouped, through the encoder": Case("grouped", {"rate": 0.25, **GROUPED}, 0.001),
    "hnet": Case("hnet", {"rate": 0.25}, 0.06, trained=True),
    "hnet, baseline": Case("hnet", {"rate": 0.25, "variant": "baseline"}, 0.06, trained=True),
    "hnet, two stages": Case("hnet", {"stages": 2}, 0.06, trained=True, model=HNET),
    "hnet, two stages, baseline": Case("hnet", {"stages": 2, "variant": "baseline"}, model=ROUTING),
    "hnet, two stages, wide": Case("hnet", {"stages": 2}, model={**HNET, "token_width": 80, "second_width": 96}),
    "learned, two levels": Case("learned", model=ROUTING),
    "whitespace, two levels": Case("whitespace", model=STRIDE),
    "word-hierarchical": Case("whitespace", model=TOKEN),
    "spacebyte, own token": Case("spacebyte", model={**TOKEN, "window": 4}),
    "stride, own token": Case("stride", {"stride": 4}, 0.001, model=TOKEN),
    "random, own token": Case("random", {"rate": 0.3, "block": 16}, 0.02, model=TOKEN),
    "bpe, own token": Case("bpe", {"tokenizer": BPE}, model=TOKEN),
    "entropy-threshold, own token": Case("entropy-threshold", {"rate": 0.25}, 0.05, model=TOKEN),
    "whitespace, two levels, own token": Case("whitespace", model={**TOKEN, **STRIDE}),
    "gumbel, two levels": Case("gumbel", {"rate": 0.25, "hidden": 32}, model=HNET),
}
ORACLES = ("bpe", "unigram", "bpe, own token")
"""Cases that look ahead."""
CAUSAL = {name: case for name, case in CASES.items() if name not in ORACLES}


def of_width(width: int) -> Any:
    """A stand-in for a model of a width, for segmenters that read states alone."""
    config = SimpleNamespace(width=width, target_rate=0.2, norm_eps=1e-6)
    config.of_tokens = config.of_second = config
    return SimpleNamespace(config=config)


def texts(num_rows: int, length: int) -> Tensor:
    """[B, T] bytes at different places of one text in several scripts."""
    ids = torch.tensor(list((TEXT * (1 + (length + 40 * num_rows) // 100)).encode()))
    return torch.stack([ids[37 * row :][:length] for row in range(num_rows)])


def build(case: Case, **overrides: Any) -> tuple[UNet, Segmenter]:
    """A model and the segmenter in float64, with perturbed weights and calibrated thresholds."""
    torch.manual_seed(0)
    options = {"num_lags": 3, **case.model, **overrides}
    if options.get("byte_scope") == "token":
        options.pop("ngram_sizes", None)  # which would read bytes of earlier tokens
    model = UNet(preset("tiny", **options)).double()
    segmenter = make_segmenter(case.name, model, **case.options)
    with torch.no_grad():  # zero and identity starts hide mistakes
        for parameter in [*model.parameters(), *segmenter.parameters()]:
            parameter.add_(0.05 * torch.randn_like(parameter))
        for name, parameter in model.named_parameters():
            if "head" in name:  # predictions and decisions that differ from byte to byte
                parameter.mul_(4)
            if "second_level.routing.key" in name:  # fresh token states are too much alike for a boundary
                parameter.normal_(std=parameter.shape[1] ** -0.5)
    if isinstance(segmenter, EntropyThreshold):
        calibrate(segmenter, model, [texts(4, 60)])
    return model, segmenter


def assert_for_all(cases: dict[str, Case], check: Callable[[Case], None]) -> None:
    """Run a check for every case, and report every case that fails."""
    failures = {}
    for name, case in cases.items():
        torch.manual_seed(0)
        try:
            check(case)
        except AssertionError as error:
            failures[name] = str(error)[:300]
    assert not failures, failures
