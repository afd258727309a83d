"""Findings of the demo, measured on held-out text with equal texts and random numbers for both runs of a part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rltok_rl.experiments.reports.paired import paired_over_documents
from rltok_rl.experiments.reports.table import estimator_name
from rltok_rl.experiments.runs.build import make_model
from rltok_rl.experiments.runs.folder import load_checkpointed, read_run
from rltok_rl.experiments.runs.saved_options import read_options
from rltok_rl.experiments.runs.segmenters import actor_segmenter
from rltok_rl.experiments.texts import Texts, read_texts

from rltok_rl.data import DocumentSource
from rltok_rl.data.languages import Recall
from rltok_rl.evaluation import read_text, summarise
from rltok_rl.evaluation.marginal import window_nats
from rltok_rl.models import UNet, segment
from rltok_rl.models.generation import generate
from rltok_rl.text import ids_to_bytes
from rltok_rl.training.checkpoint import list_checkpoints
from rltok_rl.training.metrics import read_lines

EQUAL_RATES = 0.02
"""Rates that differ by at most this share count as equal; more tokens would explain a better prediction."""
SHOWN_BYTES = 276
"""Bytes of held-out text in the picture and the report."""
NUM_WINDOWS = 256
"""Held-out windows of the comparison."""


def _generator() -> torch.Generator:
    """Random numbers of held-out texts, boundaries and continuations."""
    return torch.Generator().manual_seed(7)


def read_model(folder: Path) -> UNet:
    """Load the model of a run, finished or stopped, in evaluation mode."""
    if (folder / "summary.json").exists():  # written after the model
        return UNet.from_pretrained(folder).eval()
    checkpoints = list_checkpoints(folder / "checkpoints")
    if not checkpoints:
        raise FileNotFoundError(f"{folder} must hold a model or a checkpoint; its run was ended before it saved one")
    return load_checkpointed(checkpoints[-1], torch.device("cpu"))[0]


def part_findings(folders: Mapping[str, Path], *, paired: bool, num_bytes: int) -> dict[str, Any]:
    """Return the findings of a part as JSON values.

    They are the last held-out metrics and the learning curve of each run, the paired comparison, and the learned
    policy's boundaries in a text before and after training; word edges are counted in ``num_bytes`` held-out bytes.
    """
    lines = {name: read_lines(folder / "samples.jsonl") for name, folder in folders.items()}
    findings: dict[str, Any] = {name: held_out_metrics(snapshots[-1]) for name, snapshots in lines.items()}
    findings["curves"] = {name: learning_curve(snapshots) for name, snapshots in lines.items()}
    if paired:
        findings["paired"] = paired_windows(folders)
    config, model = read_options(folders["learned"] / "config.yaml"), read_model(folders["learned"])
    texts = read_texts(config.data, seed=config.seed)
    text = held_out_text(texts, SHOWN_BYTES)
    untrained = make_model(config, torch.device("cpu")).eval()
    findings |= {"before": drawn_boundaries(untrained, text), "after": drawn_boundaries(model, text)}
    findings["parameters"] = sum(p.numel() for p in model.parameters())
    if isinstance(texts.language, Recall):
        return findings | {"places": value_boundaries(model, texts.language)}
    document = held_out_text(texts, num_bytes)
    reading = read_text(model, document, context=config.data.num_steps, generator=_generator())
    return findings | {"edges": summarise(reading)["word_edges"], "continuation": continuation(model, text[:48])}


def held_out_text(texts: Texts, num_bytes: int) -> bytes:
    """Return the beginning of a held-out window; of English, from its first sentence or word."""
    text = ids_to_bytes(texts.held_out.draw(1, num_bytes + 64, _generator()).byte_ids[0])
    start = 0
    if texts.language is None:
        start = text.find(b". ", 0, 64) + 2 if b". " in text[:64] else text.find(b" ", 0, 64) + 1
    return text[start : start + num_bytes]


def drawn_boundaries(model: UNet, text: bytes) -> dict[str, Any]:
    """Return a text with the boundaries that a policy draws in it, as JSON values."""
    drawn = segment(model, text, generator=_generator())
    return {
        "text": text.decode("latin-1"),
        "boundaries": _as_digits(drawn.boundaries),
        "probabilities": [round(p, 4) for p in drawn.probabilities.tolist()],
    }


def held_out_metrics(snapshot: Mapping[str, Any]) -> dict[str, float]:
    """Return bits per byte, rate, and for a language the share of the optimum, from a line of ``samples.jsonl``."""
    prefix = "held_out_"
    return {name.removeprefix(prefix): value for name, value in snapshot.items() if name.startswith(prefix)}


def learning_curve(snapshots: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the held-out metrics during training, and the megabytes read."""
    metrics = [held_out_metrics(snapshot) for snapshot in snapshots]
    curves = {name: [values[name] for values in metrics] for name in metrics[0]}
    return {"megabytes": [snapshot["bytes"] / 1e6 for snapshot in snapshots], **curves}


def paired_windows(folders: Mapping[str, Path]) -> dict[str, Any]:
    """Compare the learned and the evenly spaced run on the same held-out windows, at equal rates.

    A policy that is not sure yet draws more boundaries on some texts than on others, and more tokens predict better.
    Its boundary logits are therefore shifted until both runs draw equally many boundaries.

    Returns:
        ``difference`` (bits per byte, learned minus evenly spaced), ``half_width`` of its 95 % interval over windows,
        ``windows``, ``rates`` by run, ``equal_rates``, ``shift`` of the logits, ``estimator`` of the learned run and
        ``total_flops`` by run.
    """
    runs = {name: read_run(folder) for name, folder in folders.items()}
    config = read_options(folders["uniform"] / "config.yaml")
    held, length = read_texts(config.data, seed=config.seed).held_out, config.data.num_steps
    assert isinstance(held, DocumentSource)
    texts = list(held.documents())

    def read(model: UNet, segmenter: Any = None) -> tuple[float, dict[str, Any]]:
        options: Any = {"context": length, "most": NUM_WINDOWS, "generator": _generator(), "segmenter": segmenter}
        reading = read_text(model, texts, **options)
        nats = {"counts": reading.window_sizes.tolist(), "nats": window_nats(reading).tolist()}
        return float(reading.boundaries.double().mean()), nats

    uniform = read_model(folders["uniform"])
    uniform_rate, uniform_nats = read(uniform, actor_segmenter(config.actor.name, config.actor.rate, uniform)[0])
    learned = read_model(folders["learned"])
    drawn_rate = (uniform_rate - 1 / length) / (1 - 1 / length)  # the first boundary of a window is forced
    shift = shift_to_rate(learned, texts, drawn_rate)
    learned_rate, learned_nats = read(learned)
    difference = paired_over_documents(learned_nats, uniform_nats)
    assert difference is not None
    return {
        "difference": difference.mean,
        "half_width": difference.half_width,
        "windows": difference.pairs,
        "rates": {"uniform": uniform_rate, "learned": learned_rate},
        "equal_rates": abs(learned_rate - uniform_rate) <= EQUAL_RATES * uniform_rate,
        "shift": shift,
        "estimator": estimator_name(runs["learned"]),
        "total_flops": {name: run.last_value("total_flops") for name, run in runs.items()},
    }


def shift_to_rate(model: UNet, texts: Sequence[bytes], rate: float) -> float:
    """Shift the boundary logits of a model, in place, until it draws boundaries at a rate; return the shift.

    It is found in twelve bisections of the interval from -8 to 8: a policy that is sure needs a large one.
    """
    offset, low, high = model.boundary_head.offset, -8.0, 8.0
    for _ in range(12):
        shift = (low + high) / 2
        model.boundary_head.offset = offset + shift
        drawn = torch.cat([segment(model, text, generator=_generator()).boundaries for text in texts])
        low, high = (low, shift) if float(drawn.double().mean()) > rate else (shift, high)
    model.boundary_head.offset = offset + (low + high) / 2
    return (low + high) / 2


def value_boundaries(model: UNet, language: Recall) -> dict[str, float]:
    """Return the mean probability of a boundary after a value, where it earns a reward, and elsewhere."""
    byte_ids = language.draw(32, 128, _generator()).byte_ids  # [B, T]
    probs = torch.stack([segment(model, ids_to_bytes(row)).probabilities for row in byte_ids])[:, 1:]  # [B, T - 1]
    best = language.optimal_boundaries(byte_ids)[:, 1:]  # the first byte's boundary is forced
    return {"after_value": float(probs[best].mean()), "elsewhere": float(probs[~best].mean())}


def continuation(model: UNet, prompt: bytes) -> dict[str, str]:
    """Continue a prompt by 150 bytes; return it, the text and the boundaries as JSON values."""
    generated = generate(model, prompt, max_bytes=150, temperature=0.7, generator=_generator())
    text, boundaries = generated.texts[0].decode("latin-1"), _as_digits(generated.boundaries[0])
    return {"prompt": prompt.decode("latin-1"), "text": text, "boundaries": boundaries}


def _as_digits(boundaries: torch.Tensor) -> str:
    return "".join(str(int(b)) for b in boundaries.tolist())
