"""Snapshots: when, on the same text each time, and without an effect on the training."""

from __future__ import annotations

import math

import pytest
import torch
from rltok_rl.agents import RandomActor, UniformActor

from rltok_rl.data import TextSource, local_prose
from rltok_rl.data.languages import Recall
from rltok_rl.models import UNet, preset
from rltok_rl.training.snapshots import Snapshots, sample_parts, snapshot_updates

from .processes import metrics_of
from .test_loop import make


def snapshots(**options) -> Snapshots:
    held = TextSource(local_prose(20_000)[10_000:])
    return Snapshots(**{"held": held, "num_rows": 4, "num_steps": 24, "batches": 2, "num_bytes": 50, **options})


@pytest.mark.parametrize("spacing", ["log", "linear"])
@pytest.mark.parametrize(("total", "count"), [(1, 1), (1, 8), (7, 8), (97, 8), (1000, 3), (100_000, 12)])
def test_the_last_update_always_has_a_snapshot(total, count, spacing):
    found = snapshot_updates(total, count, spacing=spacing)
    assert found[-1] == total and found[0] >= 1
    assert len(set(found)) == len(found) <= count and found == sorted(found)
    if total > 2**count:
        assert len(found) == count


def test_a_schedule_that_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="total must be at least 1, got 0"):
        snapshot_updates(0, 8)
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        snapshot_updates(8, 0)
    with pytest.raises(ValueError, match=r"spacing must be one of \['log', 'linear'\], got 'sqrt'"):
        snapshot_updates(8, 8, spacing="sqrt")


def test_snapshots_do_not_change_the_training():
    """Every figure of every update to the last bit."""
    undisturbed, watched = metrics_of(make()), []
    trainer = make()
    trainer.run(lambda figures: watched.append(figures) or bool(snapshots().take(trainer.model) is None))
    assert watched == undisturbed


def test_the_same_text_and_metrics_each_time():
    model = UNet(preset("tiny", width=16))
    first = snapshots().take(model)
    torch.manual_seed(9)
    assert snapshots().take(model) == first
    with torch.no_grad():
        model.boundary_head.projection.weight.add_(1.0)
    later = snapshots().take(model)
    assert later["text"] == first["text"] and later["probabilities"] != first["probabilities"]
    text, boundaries, probabilities = sample_parts(first)
    assert len(text) == len(boundaries) == len(probabilities) == 50 and boundaries[0]
    assert text in local_prose(20_000)[10_000:]
    assert all(round(p, 4) == p and 0 <= p <= 1 for p in probabilities)
    random = snapshots(actor=RandomActor(0.3))
    assert random.take(model) == random.take(model)


def test_held_out_metrics_are_means_over_all_bytes():
    """Two batches are the mean of what each has alone; the error is that of two numbers."""
    model = UNet(preset("tiny", width=16))
    both, seen = snapshots().evaluate(model), []

    class Counted(TextSource):
        def __init__(self, source):
            self.__dict__.update(source.__dict__)

        def read(self, places, length):
            seen.append(len(places.offset) * (length - 1))
            return super().read(places, length)

    options = Snapshots(held=Counted(snapshots().held), num_rows=4, num_steps=24, batches=2)
    assert options.evaluate(model) == both
    assert sum(seen) == options.bytes_predicted == 2 * 4 * 24
    one = snapshots(batches=1).evaluate(model)
    assert "held_out_standard_error" not in one  # one batch tells nothing of how batches differ
    other = 2 * both["held_out_bits_per_byte"] - one["held_out_bits_per_byte"]
    spread = abs(one["held_out_bits_per_byte"] - other) / math.sqrt(2)
    assert both["held_out_standard_error"] == pytest.approx(spread / math.sqrt(2), rel=1e-6)


def test_a_short_document_is_sampled_without_what_lies_beyond_it():
    """Zeros fill a window that its document does not; they are no text."""
    held = TextSource(["to be or not to be", "that is the question"], short_documents="whole")
    model = UNet(preset("tiny", width=16))
    for actor in (None, UniformActor(0.2)):
        found = snapshots(held=held, num_steps=8, actor=actor).take(model)
        text, boundaries, probabilities = sample_parts(found)
        assert (
            any(text in whole for whole in (b"to be or not to be", b"that is the question"))
            and len(text) > 15
            and 0 not in text
        )
        assert len(text) == len(boundaries) == len(probabilities)


def test_a_language_is_not_evaluated_on_its_training_text():
    """It has one endless text per seed: with equal seeds, held-out text would be that of the first updates."""
    language = Recall()
    held = snapshots(held=language, num_rows=4, num_steps=32).seed
    texts = [language.draw(4, 33, torch.Generator().manual_seed(n)).byte_ids for n in (held, 0, 1, 2)]
    assert not any(torch.equal(texts[0], text) for text in texts[1:])
