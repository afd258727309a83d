"""What two trainings found, measured on text that neither has seen, the same text and random numbers for both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rltok_rl.experiments.commands.arguments import complete_config
from rltok_rl.experiments.config import TrainConfig
from rltok_rl.experiments.reports.paired import paired_over_documents
from rltok_rl.experiments.reports.table import estimator_name
from rltok_rl.experiments.runs.build import make_actor, make_model
from rltok_rl.experiments.runs.folder import read_run
from rltok_rl.experiments.runs.segmenters import actor_segmenter
from rltok_rl.experiments.texts import Texts, read_texts

from rltok_rl.data import DocumentSource
from rltok_rl.data.languages import Recall
from rltok_rl.evaluation import read_text, word_edge_share
from rltok_rl.models import UNet, segment
from rltok_rl.models.generation import generate
from rltok_rl.models.incremental import step
from rltok_rl.text import ids_to_bytes
from rltok_rl.training.checkpoint import list_checkpoints, load_checkpoint
from rltok_rl.training.metrics import read_lines
from rltok_rl.training.snapshots import Snapshots
from rltok_rl.utils import read_config_file

EQUAL_RATES = 0.02
"""Rates that differ by at most this share count as equal: more tokens would explain a better prediction."""
SHOWN_BYTES = 276
"""Of held-out text that is shown with its boundaries."""
_SEED = 7  # of held-out texts, boundaries and continuations


def read_config(folder: Path) -> TrainConfig:
    """The configuration of a run.

    Args:
        folder: of the run.
    """
    return complete_config(read_config_file(folder / "config.yaml"))


def read_model(folder: Path) -> UNet:
    """The model of a run, finished or stopped, as it reads text.

    Args:
        folder: of the run.
    """
    if (folder / "summary.json").exists():  # written after the model
        return UNet.from_pretrained(folder).eval()
    if not list_checkpoints(folder / "checkpoints"):
        raise FileNotFoundError(f"{folder} must hold model or a checkpoint; its training was ended before it saved one")
    model = make_model(read_config(folder), torch.device("cpu"))
    model.load_state_dict(load_checkpoint(folder / "checkpoints")[1]["model"])
    return model.eval()


def judge(folder: Path) -> dict[str, Any]:
    """Bits per byte, rate, and for a language the share of what tokens can earn, on the text of the run's own looks.

    Args:
        folder: of the run.
    """
    config = read_config(folder)
    texts = read_texts(config.data, seed=config.seed)
    model = read_model(folder)
    looks = Snapshots(
        held=texts.held_out,
        actor=make_actor(config, model),
        language=texts.language,
        num_rows=config.data.num_rows,
        num_steps=config.data.num_steps,
        batches=config.snapshots.batches,
    )
    return {name.removeprefix("held_out_"): value for name, value in looks.evaluate(model).items()}


def paired_windows(folders: Mapping[str, Path], *, num_windows: int = 256) -> dict[str, Any]:
    """Compare the learned and the evenly spaced run on the same held-out windows, at equal rates.

    A policy that is not sure yet draws more boundaries on some texts than on others, and more tokens predict better. So
    its boundary logits are shifted until it draws as many on this text as the evenly spaced run.

    Args:
        folders: of both runs, by the names ``learned`` and ``uniform``.
        num_windows: windows at most, evenly spread over the held-out text.

    Returns:
        ``difference`` (bits per byte, learned minus evenly spaced), ``half_width`` of its 95 % interval over windows,
        ``windows``, ``rates`` by run, ``equal_rates``, ``shift`` of the logits, ``estimator`` of the learned run and
        ``total_flops`` by run.
    """
    runs = {name: read_run(folder) for name, folder in folders.items()}
    rows: dict[str, dict[str, Any]] = {}
    rates: dict[str, float] = {}
    shift = 0.0
    for name in ("uniform", "learned"):
        config, model = read_config(folders[name]), read_model(folders[name])
        segmenter = None
        held = read_texts(config.data, seed=config.seed).held_out
        assert isinstance(held, DocumentSource)
        texts, length = list(held.documents()), config.data.num_steps
        if name == "uniform":
            segmenter, _, _ = actor_segmenter(config.actor.name, config.actor.rate, model)
        else:
            decided = (rates["uniform"] - 1 / length) / (1 - 1 / length)  # a window's first boundary is no decision
            shift = shift_to_rate(model, texts, decided)
        reading = read_text(
            model,
            texts,
            context=length,
            most=num_windows,
            generator=torch.Generator().manual_seed(_SEED),
            segmenter=segmenter,
        )
        assert reading.window_sizes is not None
        window = torch.repeat_interleave(torch.arange(reading.num_windows), reading.window_sizes)
        nats = torch.zeros(reading.num_windows, dtype=torch.float64).index_add(0, window, reading.final_nats)
        rows[name] = {"counts": reading.window_sizes.tolist(), "nats": nats.tolist()}
        rates[name] = float(reading.boundaries.double().mean())
    apart = paired_over_documents(rows["learned"], rows["uniform"])
    assert apart is not None
    return {
        "difference": apart.mean,
        "half_width": apart.half_width,
        "windows": apart.pairs,
        "rates": rates,
        "equal_rates": abs(rates["learned"] - rates["uniform"]) <= EQUAL_RATES * rates["uniform"],
        "shift": shift,
        "estimator": estimator_name(runs["learned"]),
        "total_flops": {name: run.last_value("total_flops") for name, run in runs.items()},
    }


def shift_to_rate(model: UNet, texts: Sequence[bytes], rate: float, *, steps: int = 10) -> float:
    """Shift the boundary logits of a model, in place, until it draws boundaries at a rate; return the shift.

    Args:
        model: in evaluation mode.
        texts: that the rate is measured on.
        rate: boundaries per byte.
        steps: bisections of the interval from -2 to 2.
    """
    offset, low, high = model.boundary_head.offset, -2.0, 2.0
    for _ in range(steps):
        shift = (low + high) / 2
        model.boundary_head.offset = offset + shift
        drawn = [segment(model, text, generator=torch.Generator().manual_seed(_SEED)).boundaries for text in texts]
        low, high = (low, shift) if float(torch.cat(drawn).double().mean()) > rate else (shift, high)
    model.boundary_head.offset = offset + (low + high) / 2
    return (low + high) / 2


def held_out_text(texts: Texts, num_bytes: int) -> bytes:
    """The beginning of a held-out window, from its first whole word on.

    Args:
        texts: of the run.
        num_bytes: length.
    """
    window = texts.held_out.draw(1, num_bytes + 64, torch.Generator().manual_seed(_SEED)).byte_ids[0]
    text = ids_to_bytes(window)
    start = 0
    if texts.language is None:
        start = text.find(b". ", 0, 64) + 2 if b". " in text[:64] else text.find(b" ", 0, 64) + 1
    return text[start : start + num_bytes]


def drawn(model: UNet, text: bytes) -> dict[str, Any]:
    """A text with the boundaries that a policy draws in it, ready for JSON.

    Args:
        model: in evaluation mode.
        text: at least one byte.
    """
    found = segment(model, text, generator=torch.Generator().manual_seed(_SEED))
    return {
        "text": text.decode("latin-1"),
        "boundaries": "".join(str(int(b)) for b in found.boundaries.tolist()),
        "probabilities": [round(p, 4) for p in found.probabilities.tolist()],
    }


def value_boundaries(model: UNet, language: Recall, *, num_texts: int = 32, length: int = 128) -> dict[str, float]:
    """How likely a boundary is right after a value, where it is worth something, and elsewhere.

    Args:
        model: in evaluation mode.
        language: that it was trained on.
        num_texts: to average over.
        length: of each.
    """
    byte_ids = language.draw(num_texts, length, torch.Generator().manual_seed(_SEED)).byte_ids  # [B, T]
    probs = torch.stack([segment(model, ids_to_bytes(row)).probabilities for row in byte_ids])  # [B, T]
    best = language.optimal_boundaries(byte_ids)
    best[:, 0] = False  # of a text's first byte nobody decides
    others = ~best
    others[:, 0] = False
    return {"after_value": float(probs[best].mean()), "elsewhere": float(probs[others].mean())}


def word_edges(model: UNet, text: bytes, *, context: int) -> dict[str, dict[str, float]]:
    """The share of boundaries at word edges, beside what chance would do.

    Args:
        model: in evaluation mode.
        text: held out.
        context: bytes of a window.
    """
    reading = read_text(model, text, context=context, generator=torch.Generator().manual_seed(_SEED))
    boundaries, counted = (torch.zeros(len(reading.byte_ids), dtype=torch.bool) for _ in range(2))
    boundaries[reading.at], counted[reading.at] = reading.boundaries, ~reading.forced
    edges = word_edge_share(reading.byte_ids, boundaries, counted)
    return {name: {"share": edge.share, "chance": edge.chance, "lift": edge.lift} for name, edge in edges.items()}


def continuation(model: UNet, prompt: bytes, *, num_bytes: int) -> dict[str, Any]:
    """What a model writes after a prompt, with its boundaries, ready for JSON.

    Args:
        model: in evaluation mode.
        prompt: at least one byte.
        num_bytes: to write.
    """
    written = generate(
        model, prompt, max_bytes=num_bytes, temperature=0.7, generator=torch.Generator().manual_seed(_SEED)
    )
    boundaries = "".join(str(int(b)) for b in written.boundaries[0].tolist())
    return {
        "prompt": prompt.decode("latin-1"),
        "text": written.texts[0].decode("latin-1"),
        "boundaries": boundaries,
    }


@torch.no_grad()
def stepping_gap(model: UNet, text: bytes) -> float:
    """The largest difference in log-probability between one forward pass and reading byte by byte, in nats.

    Args:
        model: in evaluation mode.
        text: at least one byte.
    """
    byte_ids = torch.tensor([list(text)])  # [1, T]
    out = model(byte_ids, generator=torch.Generator().manual_seed(_SEED))
    cache = model.new_cache(1)
    said = [step(model, cache, byte_ids[:, t], out.boundaries[:, t])[1].final_logits for t in range(len(text))]
    full = out.final_logits.log_softmax(-1)
    return float((torch.stack(said, 1).log_softmax(-1) - full).abs().max())


def curve(folder: Path) -> dict[str, list[float]]:
    """Looks at held-out text while training: megabytes read, bits per byte, and the share for a language.

    Args:
        folder: of the run.
    """
    looks = read_lines(folder / "samples.jsonl")
    found = {"megabytes": [look["bytes"] / 1e6 for look in looks]}
    for name in ("bits_per_byte", "share"):
        if looks and f"held_out_{name}" in looks[0]:
            found[name] = [look[f"held_out_{name}"] for look in looks]
    return found


def details(folder: Path, *, text_bytes: int) -> dict[str, Any]:
    """What the learned boundaries look like: text before and after training, where they lie, a continuation.

    Args:
        folder: of the run that learned them.
        text_bytes: of held-out text to count word edges in.
    """
    config = read_config(folder)
    texts = read_texts(config.data, seed=config.seed)
    model, fresh = read_model(folder), make_model(config, torch.device("cpu")).eval()
    text = held_out_text(texts, SHOWN_BYTES)
    found: dict[str, Any] = {
        "before": drawn(fresh, text),
        "after": drawn(model, text),
        "stepping_gap": stepping_gap(model, text[:128]),
        "target_rate": model.config.target_rate,
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    if isinstance(texts.language, Recall):
        return found | {"places": value_boundaries(model, texts.language)}
    return found | {
        "edges": word_edges(model, held_out_text(texts, text_bytes), context=config.data.num_steps),
        "continuation": continuation(model, text[:48], num_bytes=150),
    }
