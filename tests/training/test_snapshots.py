"""Snapshots: when, on the same text each time, and without an effect on the training."""

from __future__ import annotations

import json
import math
from statistics import fmean, stdev

import pytest
import torch
from rltok_rl.agents import LearnedBoundaryActor, RandomActor, UniformActor, WhitespaceActor
from rltok_rl.agents.segmenters import SegmenterActor, make_segmenter, read_window
from rltok_rl.envs import ByteBoundaryEnv

from rltok_rl.data import TextSource, local_prose
from rltok_rl.data.languages import Recall
from rltok_rl.models import UNet, preset
from rltok_rl.training.snapshots import Snapshots, sample_parts, snapshot_updates

from ..each import each
from .processes import make, metrics_of


def snapshots(**options) -> Snapshots:
    held = TextSource(local_prose(20_000)[10_000:])
    return Snapshots(**{"held": held, "num_rows": 4, "num_steps": 24, "batches": 2, "num_bytes": 50, **options})


def test_last_update_always_has_a_snapshot():
    for total, count in ((1, 1), (1, 8), (7, 8), (97, 8), (1000, 3), (100_000, 12)):
        for spacing in ("log", "linear"):
            updates = snapshot_updates(total, count, spacing=spacing)
            assert updates[-1] == total and updates[0] >= 1 and updates == sorted(set(updates))
            assert len(updates) == count if total > 2**count else len(updates) <= count
            if spacing == "linear":
                assert set(updates) == {max(1, round(total * n / count)) for n in range(1, count + 1)}
            else:
                assert set(updates) == {max(1, round(total / 2**n)) for n in range(count)}
    for wrong, message in (
        ({"total": 0}, "total must be an integer of at least 1, got 0"),
        ({"count": 0}, "count must be an integer of at least 1, got 0"),
        ({"spacing": "sqrt"}, r"spacing must be one of \['log', 'linear'\], got 'sqrt'"),
    ):
        with pytest.raises(ValueError, match=message):
            snapshot_updates(**{"total": 8, "count": 8, **wrong})


def test_snapshots_do_not_change_the_training():
    """Every metric of every update to the last bit."""
    undisturbed, watched, trainer = metrics_of(make()), [], make()
    trainer.run(lambda metrics: watched.append(metrics) or snapshots().take(trainer.model) is None)
    assert watched == undisturbed


def test_text_and_metrics_are_the_same_each_time():
    model = UNet(preset("tiny", width=16))
    first = snapshots().take(model)
    torch.manual_seed(9)
    assert snapshots().take(model) == first
    with torch.no_grad():
        model.boundary_head.projection.weight.add_(1.0)
    later = snapshots().take(model)
    assert later["text"] == first["text"] and later["probabilities"] != first["probabilities"]
    assert json.loads(json.dumps(first)) == first
    text, boundaries, probabilities = sample_parts(first)
    assert len(text) == len(boundaries) == len(probabilities) == 50 and boundaries[0]
    assert text in local_prose(20_000)[10_000:]
    assert all(round(p, 4) == p and 0 <= p <= 1 for p in probabilities)
    random = snapshots(actor=RandomActor(0.3))
    assert random.take(model) == random.take(model)


def modes(*modules: torch.nn.Module) -> list[bool]:
    return [part.training for module in modules for part in module.modules()]


def test_a_snapshot_is_in_evaluation_mode_and_leaves_the_modes_before_it(monkeypatch):
    """Also where model and segmenter differ, and after an error."""
    model, seen = UNet(preset("tiny", width=16)), []
    segmenter = make_segmenter("gumbel", model, hidden=8)
    sample = Snapshots.sample

    def watched(self, model):
        seen.append(modes(model, segmenter))
        return sample(self, model)

    def failing(self, model):
        raise KeyError

    snapshot = snapshots(actor=SegmenterActor(segmenter), num_rows=2, batches=1, num_steps=8)
    for of_model in (True, False):
        for of_segmenter in (True, False):
            model.train(of_model), segmenter.train(of_segmenter)
            before = modes(model, segmenter)
            with monkeypatch.context() as patch:
                patch.setattr(Snapshots, "sample", watched)
                snapshot.take(model)
                patch.setattr(Snapshots, "sample", failing)
                with pytest.raises(KeyError):
                    snapshot.take(model)
            assert modes(model, segmenter) == before and not any(seen.pop())


@each(begin_of_text=[False, True])
def test_the_sample_shows_what_the_actor_draws(begin_of_text):
    """Byte by byte, without the mark; probabilities are a segmenter's, or certain."""
    marks = int(begin_of_text)
    model = UNet(preset("tiny", width=16, begin_of_text=begin_of_text, num_special=marks)).eval()
    snapshot = snapshots()
    text, boundaries, probabilities = sample_parts(snapshot.take(model))
    drawn = model(model.mark(torch.tensor([[*text]])), generator=torch.Generator().manual_seed(snapshot.seed + 1))
    assert boundaries == drawn.boundaries[0, marks:].tolist()
    assert probabilities == pytest.approx(drawn.boundary_logits[0, marks:].sigmoid().tolist(), abs=1e-4)
    gumbel = make_segmenter("gumbel", model, hidden=8).eval()
    for actor, segmenter in (
        (UniformActor(0.3), make_segmenter("uniform", model, rate=0.3)),
        (WhitespaceActor(), make_segmenter("whitespace", model)),
        (SegmenterActor(gumbel), gumbel),
        (RandomActor(0.3), None),
    ):
        text, boundaries, probabilities = sample_parts(snapshots(actor=actor).take(model))
        assert len(boundaries) == len(probabilities) == len(text) == 49  # the last byte is predicted only
        if segmenter is None:
            assert probabilities == boundaries and 0 < sum(boundaries) < len(boundaries)
            continue
        read = read_window(model, segmenter, torch.tensor([[256] * marks + [*text]])).segments
        if segmenter is gumbel:
            expected = read.logits[0, marks:].sigmoid().tolist()
            assert probabilities == pytest.approx(expected, abs=1e-3)
        else:
            assert boundaries == read.boundaries[0, marks:].tolist() and probabilities == boundaries


def test_systems_that_read_more_than_boundaries_have_no_relative_return():
    token = {"byte_scope": "token", "num_encoder_layers": 2, "num_decoder_layers": 2}
    for fields, actor, relative in (
        ({}, lambda model: None, True),
        ({}, lambda model: UniformActor(0.3), True),
        ({}, lambda model: SegmenterActor(make_segmenter("uniform", model)), False),
        (token, lambda model: SegmenterActor(make_segmenter("whitespace", model)), False),
    ):
        model = UNet(preset("tiny", width=16, **fields))
        metrics = snapshots(actor=actor(model), batches=1, num_steps=8).evaluate(model)
        assert ("held_out_relative_return" in metrics) == relative and "held_out_episode_return" in metrics


def test_held_out_metrics_are_means_over_all_bytes(monkeypatch):
    """Two batches are the mean of what each has alone; the error is that of two numbers."""
    model, seen, read = UNet(preset("tiny", width=16)), [], TextSource.read

    def counted(self, places, length):
        seen.append(len(places.offset) * (length - 1))
        return read(self, places, length)

    with monkeypatch.context() as patch:
        patch.setattr(TextSource, "read", counted)
        both = snapshots().evaluate(model)
    default = Snapshots(held=snapshots().held, num_rows=1, num_steps=2)
    assert (default.reward, default.price) == ("early_exit", 0.0)
    assert default.batches == 8 and len(default.sample(model)["text"]) == 240
    assert sum(seen) == 2 * 4 * 24  # once for policy and reference
    one = snapshots(batches=1).evaluate(model)
    assert "held_out_standard_error" not in one
    other = 2 * both["held_out_bits_per_byte"] - one["held_out_bits_per_byte"]
    spread = abs(one["held_out_bits_per_byte"] - other) / math.sqrt(2)
    assert both["held_out_standard_error"] == pytest.approx(spread / math.sqrt(2), rel=1e-6)


@each(marks=[0, 1])
def test_held_out_metrics_are_their_definitions(marks):
    """Means over batches, and standard errors of these means, of rollouts that are drawn again."""
    model = UNet(preset("tiny", width=16, begin_of_text=bool(marks), num_special=marks)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    language = Recall()
    snapshot = snapshots(held=language, language=language, batches=3)
    metrics = snapshot.evaluate(model)
    env = ByteBoundaryEnv(model, language, num_steps=24, batch_size=(4,), seed=snapshot.seed)
    actor, generator = LearnedBoundaryActor(model), torch.Generator().manual_seed(snapshot.seed)
    columns: dict[str, list[float]] = {"bits_per_byte": [], "early_bits_per_byte": [], "rate": [], "share": []}
    for _ in range(3):
        rollout = env.parallel_rollout(actor, generator=generator)
        byte_ids = torch.cat((rollout["byte"], rollout["next", "byte"][:, -1:]), 1)[:, marks:]
        log_prob = rollout["next", "final_log_prob"].squeeze(-1)
        columns["bits_per_byte"].append(-log_prob.mean().item() / math.log(2))
        columns["early_bits_per_byte"].append(-rollout["next", "early_log_prob"].mean().item() / math.log(2))
        columns["rate"].append(rollout["action"].float().mean().item())
        columns["share"].append(language.share_captured(byte_ids, log_prob[:, marks:]))
    for name, values in columns.items():
        assert metrics[f"held_out_{name}"] == pytest.approx(fmean(values), rel=1e-4), name
    for name, end in (("bits_per_byte", "standard_error"), ("share", "share_standard_error")):
        error = stdev(columns[name]) / math.sqrt(3)
        assert metrics[f"held_out_{end}"] == pytest.approx(error, rel=1e-2), name


def test_short_document_is_sampled_without_padding():
    documents = ["to be or not to be", "that is the question"]
    held, model = TextSource(documents, short_documents="whole"), UNet(preset("tiny", width=16))
    for actor in (None, UniformActor(0.2)):
        text, boundaries, probabilities = sample_parts(snapshots(held=held, num_steps=8, actor=actor).take(model))
        assert any(text.decode() in whole for whole in documents) and len(text) > 15
        assert len(text) == len(boundaries) == len(probabilities)


def test_language_is_not_evaluated_on_its_training_text():
    """It has one endless text per seed: with equal seeds, held-out text would be that of the first updates."""
    language = Recall()
    seeds = (snapshots(held=language).seed, 0, 1, 2)
    texts = [language.draw(4, 33, torch.Generator().manual_seed(seed)).byte_ids for seed in seeds]
    assert not any(torch.equal(texts[0], text) for text in texts[1:])
