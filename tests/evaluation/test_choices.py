"""Questions with choices: figures by hand, and what a question must be."""

from __future__ import annotations

import math

import pytest
import torch

from rltok_rl.evaluation.continuations import Continuations, continuation_log_likelihood
from rltok_rl.evaluation.tasks import Example, choice_figures, mean_and_error, score_examples
from rltok_rl.models import UNet, preset

EXAMPLES = [
    Example(b"Two and two is", (b" four", b" fivefive"), 0),
    Example(b"Water is", (b" wet", b" dry", b" a metal"), 2),
    Example(b"", (" é".encode(), b" e"), 1),
]


@pytest.fixture(scope="module")
def model() -> UNet:
    torch.manual_seed(0)
    return UNet(preset("tiny", boundary_scale=1.0, target_rate=0.3)).eval()


def made(bits: list[float], num_bytes: list[int], likeliest: list[int], cut: list[int]) -> Continuations:
    nats = -math.log(2) * torch.tensor(bits, dtype=torch.float64)
    return Continuations(
        nats, 2 * nats, torch.tensor(num_bytes), torch.tensor(likeliest).bool(), torch.tensor(cut).bool()
    )


def test_figures_by_hand():
    """Bits of the choices: 10 of 5 bytes, 9 of 9; 4 of 4, 8 of 4, 27 of 9; 3 of 3, 4 of 2. The right ones: 0, 2, 1."""
    scores = made([10, 9, 4, 8, 27, 3, 4], [5, 9, 4, 4, 9, 3, 2], [1, 0, 0, 0, 1, 0, 0], [0, 0, 0, 1, 1, 0, 0])
    figures = choice_figures(EXAMPLES, scores)
    assert (figures["examples"], figures["choices"], figures["cut"]) == (3, 7, 1)
    assert figures["chance"] == pytest.approx((1 / 2 + 1 / 3 + 1 / 2) / 3)
    # Bits per byte of the right ones: 2, 3, 2; deviations -1/3, 2/3, -1/3; variance (6/9)/2 = 1/3; error sqrt(1/9).
    assert figures["bits_per_byte"] == pytest.approx(7 / 3)
    assert figures["bits_per_byte_error"] == pytest.approx(1 / 3)
    assert figures["one_draw_bits_per_byte"] == pytest.approx(14 / 3)
    # The fewest bits: 9 (wrong), 4 (wrong), 3 (wrong). Per byte: 1 (wrong), 1 (wrong), 1 (wrong).
    assert (figures["accuracy"], figures["accuracy_error"]) == (0.0, 0.0)
    assert figures["accuracy_per_byte"] == 0.0
    # One of three: sqrt(2/3 * 1/3 * 3/2 / 3) = 1/3.
    assert figures["likeliest"] == pytest.approx(2 / 3)
    assert figures["likeliest_error"] == pytest.approx(1 / 3)
    other = made([8, 9, 28, 28, 27, 4, 3], [5, 9, 4, 4, 9, 4, 2], [0] * 7, [0] * 7)
    figures = choice_figures(EXAMPLES, other)
    # The fewest bits: 8, 27, 3, all right. Per byte: 1.6 against 1 (wrong), 3 against 7 (right), 1.5 against 1 (wrong).
    assert figures["accuracy"] == 1.0 and figures["accuracy_per_byte"] == pytest.approx(1 / 3)


def test_the_first_of_equal_choices_counts():
    scores = made([1.0] * 7, [2] * 7, [0] * 7, [0] * 7)
    assert choice_figures(EXAMPLES, scores)["accuracy"] == pytest.approx(1 / 3)  # the first is right in the first alone


def test_a_single_choice_has_no_accuracy():
    figures = choice_figures([Example(b"a", (b" b",), 0)], made([6.0], [2], [1], [0]))
    assert figures["bits_per_byte"] == pytest.approx(3.0) and figures["bits_per_byte_error"] is None
    assert figures["accuracy"] is figures["accuracy_error"] is figures["accuracy_per_byte"] is figures["chance"] is None
    assert figures["likeliest"] == 1.0


def test_standard_errors_are_those_of_a_sample():
    values = torch.tensor([1.0, 2.0, 4.0, 9.0], dtype=torch.float64)
    mean, error = mean_and_error(values)
    assert mean == pytest.approx(4.0) and error == pytest.approx(float(values.std(correction=1)) / 2)
    assert mean_and_error([3.0]) == (3.0, None)
    with pytest.raises(ValueError, match="values must hold at least one, got none"):
        mean_and_error([])


def test_examples_are_scored_choice_by_choice(model):
    scores = score_examples(model, EXAMPLES, samples=2, seed=3, context_bytes=10)
    pairs = [(example.context, choice) for example in EXAMPLES for choice in example.choices]
    for place, (context, choice) in enumerate(pairs):
        alone = continuation_log_likelihood(model, [context], [choice], samples=2, seed=3, context_bytes=10)
        torch.testing.assert_close(scores.log_likelihood[place], alone.log_likelihood[0], atol=1e-5, rtol=0)
    assert choice_figures(EXAMPLES, scores)["cut"] == 2
    with pytest.raises(ValueError, match="scores must be of all choices of all examples, 5, got 7"):
        choice_figures(EXAMPLES[:2], scores)


def test_an_indifferent_model_pays_eight_bits_and_guesses():
    model = UNet(preset("tiny")).eval()
    torch.nn.init.zeros_(model.final_head.projection.weight)
    figures = choice_figures(EXAMPLES, score_examples(model, EXAMPLES))
    assert figures["bits_per_byte"] == pytest.approx(8.0)
    assert figures["bits_per_byte_error"] == pytest.approx(0.0, abs=1e-6)
    assert figures["accuracy"] == pytest.approx(2 / 3)  # the shortest choice, wherever there is one


def test_what_is_no_question_is_refused():
    def refused(message, *given, error=ValueError):
        with pytest.raises(error, match=message):
            Example(*given)

    refused("choices must hold at least one, got none after b'a'", b"a", (), 0)
    refused("choices must have at least 1 byte each, got an empty one as number 1", b"a", (b"x", b""), 0)
    refused("gold must lie in 0..1, got 2", b"a", (b"x", b"y"), 2)
    refused("gold must be an integer of at least 0, got -1", b"a", (b"x", b"y"), -1)
    refused("gold must be an integer of at least 0, got '1'", b"a", (b"x", b"y"), "1")
    refused("context must be bytes, got str", "a", (b"x",), 0, error=TypeError)
    refused("choices must be bytes, got str as number 0", b"a", ("x",), 0, error=TypeError)
    with pytest.raises(ValueError, match="examples must hold at least one, got none"):
        choice_figures([], made([], [], [], []))
