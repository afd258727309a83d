"""Invalid arguments are errors that name the argument, the allowed values, and the value."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.agents.segmenters import make_segmenter

from rltok_rl.evaluation import (
    boundary_correlation,
    boundary_match,
    cohen_kappa,
    corpus_bits_per_byte,
    corpus_standard_error,
    cut_windows,
    document_bits_per_byte,
    document_standard_error,
    jaccard,
    join_texts,
    mean_and_error,
    particle_nats,
    place_share,
    policy_entropy,
    read_samples,
    read_streamed,
    read_text,
    summarise_lengths,
    token_lengths,
    white_space_share,
    word_edge_share,
    word_position_share,
)
from rltok_rl.evaluation.agreement import agreement_matrix
from rltok_rl.evaluation.continuations import continuation_log_likelihood as score
from rltok_rl.evaluation.detail import read_detail
from rltok_rl.evaluation.lm_eval import RltokLM
from rltok_rl.evaluation.tasks import Example, choice_metrics, score_examples
from rltok_rl.models import Segmentation
from rltok_rl.text import text_to_ids

ONES, NONE = torch.ones, torch.zeros(0)
ONE_BYTE = Segmentation(b"x", torch.tensor([True]), torch.ones(1))


def refuse(calls) -> None:
    """Try all calls, and report all that are not refused with the words."""
    wrong = []
    for call, words in calls:
        try:
            with pytest.raises((ValueError, TypeError), match=words):
                call()
        except (AssertionError, pytest.fail.Exception) as error:
            wrong.append(f"{words}: {error}")
    assert not wrong, "\n".join(wrong)


def test_boundary_metrics():
    ab = text_to_ids("ab")
    one_text = r"boundaries must be of one text, got shapes \[2\] and \[3\]"
    nothing = "counted must hold at least one byte, got none"
    refuse(
        [
            *((lambda m=m: m(ONES(2), ONES(3)), one_text) for m in (cohen_kappa, jaccard, boundary_match)),
            *((lambda m=m: m(ONES(2), ONES(2), torch.zeros(2)), nothing) for m in (cohen_kappa, jaccard)),
            (
                lambda: boundary_correlation(ONES(2), ONES(3)),
                r"probabilities must be of one text, got shapes \[2\] and",
            ),
            (
                lambda: boundary_match(ONES(3), ONES(3), ONES(4)),
                r"counted must have the shape of boundaries, \[3\], got",
            ),
            (lambda: boundary_match(NONE, NONE), nothing),
            (
                lambda: boundary_match(ONES(3), ONES(3), tolerance=-1),
                "tolerance must be an integer of at least 0, got -1",
            ),
            (lambda: agreement_matrix([ab], [], jaccard), "strings and again must be as many, got 1 and 0"),
            (lambda: place_share(ONES(2), ONES(3)), r"boundaries must have the shape of byte_ids, \[2\], got \[3\]"),
            (
                lambda: word_edge_share(ab, ONES(2), ONES(1)),
                r"counted must have the shape of byte_ids, \[2\], got \[1\]",
            ),
            (lambda: word_edge_share(ab, ONES(2), torch.zeros(2)), nothing),
            *((lambda s=s: s(text_to_ids(""), NONE), nothing) for s in (white_space_share, word_position_share)),
            (lambda: word_position_share(ab, ONES(2), most=0), "most must be an integer of at least 1, got 0"),
            (lambda: summarise_lengths(ONES(1), quantiles=(0.0,)), r"quantiles must lie in \(0, 1\], got 0.0"),
            (lambda: summarise_lengths(torch.tensor([1, 0])), "lengths must be at least 1, got 0"),
            (lambda: token_lengths(ONES(4), ONES(3)), r"counted must have the shape of boundaries, \[4\], got \[3\]"),
            (lambda: policy_entropy(torch.tensor([0.5, 1.5])), r"probabilities must lie in \[0, 1\], got 1.5"),
            (lambda: policy_entropy(torch.tensor([torch.nan])), r"probabilities must lie in \[0, 1\], got nan"),
            (lambda: policy_entropy(ONES(1), ONES(1) < 0), nothing),
            (
                lambda: policy_entropy(ONES(1), ONES(2)),
                r"counted must have the shape of probabilities, \[1\], got \[2\]",
            ),
            *((lambda t=t: join_texts(t), "drawn must hold a text of at least 2 bytes") for t in ([], [ONE_BYTE])),
        ]
    )


def test_costs():
    empty, unequal = (torch.tensor([3, 0]), ONES(2)), (torch.tensor([3]), ONES(2))
    means = (corpus_bits_per_byte, corpus_standard_error, document_bits_per_byte, document_standard_error)
    every = [(mean, costs) for mean in means for costs in ((NONE, NONE), empty, unequal)]
    refuse(
        [
            *((lambda m=m, c=c: m(*c), "counts and nats must be") for m, c in every),
            (lambda: mean_and_error([]), "values must hold at least one, got none"),
            (lambda: cut_windows(20, 4, 5), "stride must be at most the context, 4, .* got 5"),
            (lambda: cut_windows(20, 4, 0), "stride must be an integer of at least 1, got 0"),
            (lambda: cut_windows(1, 4), "num_bytes must be an integer of at least 2, got 1"),
        ]
    )


def test_readings(model):
    rule, gumbel, random = (make_segmenter(name, model).eval() for name in ("spacebyte", "gumbel", "random"))
    gumbel.evaluation = "round"
    oracle = make_segmenter("spacebyte", model)
    oracle.looks_ahead = True
    own_rate = "target_rate belongs to the model's own policy, got it with SpaceByte"
    refuse(
        [
            (lambda: read_text(model, "a", context=4), "text must have at least 2 bytes .*, got 1"),
            (lambda: read_text(model, ["abc", ""], context=2), "text must have at least 2 bytes .*, got 0 in text 1"),
            (lambda: read_text(model, [], context=2), "text must hold at least one text, got none"),
            (lambda: read_text(model, "abc", context=0), "context must be an integer of at least 1, got 0"),
            (lambda: read_text(model, "abcde", context=2, most=0), "most must be an integer of at least 1, got 0"),
            (
                lambda: read_text(model, "abc", context=4, segmenter=random, greedy=True),
                "greedy needs boundaries that have a probability each, got ExactRandom",
            ),
            (lambda: read_streamed(model, "a"), "text must have at least 2 bytes .*, got 1"),
            (lambda: read_streamed(model, "abc", segmenter=rule, target_rate=0.2), own_rate),
            (
                lambda: read_streamed(model, "abc", segmenter=oracle),
                "segmenter must not look ahead to be streamed, got",
            ),
            (
                lambda: read_samples(model, "abc", samples=0, context=4),
                "samples must be an integer of at least 1, got 0",
            ),
            (lambda: read_samples(model, "abc", samples=2, context=4, greedy=True), "greedy must be left out"),
            (
                lambda: read_samples(model, "abc", samples=2, context=4, segmenter=gumbel),
                "samples belong to boundaries that are drawn at random, got",
            ),
            (
                lambda: particle_nats(model, "ab", particles=0, context=4),
                "particles must be an integer of at least 1, ",
            ),
            (
                lambda: particle_nats(model, "abc", particles=2, context=4, segmenter=rule),
                "particles belong to boundaries that are drawn at random, .* got SpaceByte",
            ),
        ]
    )


def test_details(model):
    rule, bernoulli = make_segmenter("spacebyte", model), make_segmenter("bernoulli", model)

    def read(text="abc", gamma=0.9, **options):
        return read_detail(model, text, context=16, gamma=gamma, **options)

    own = "belongs to the model's own policy, got it with"
    refuse(
        [
            (lambda: read(baseline="flips"), r"baseline must be one of \['none', .*got 'flips'"),
            (lambda: read(reward="fame"), "reward must be one of .*got 'fame'"),
            (lambda: read(draws=1), "draws must be .*2, got 1"),
            (lambda: read(gamma=2), r"gamma must lie in \[0, 1\], got 2"),
            (lambda: read(target_rate=0.2, segmenter=rule), f"target_rate {own}"),
            (lambda: read(greedy=True, segmenter=bernoulli), f"greedy {own}"),
            (lambda: read("a"), "num_bytes must be .*2, got 1"),
        ]
    )


def test_continuations_and_tasks(model):
    rule, random = make_segmenter("uniform", model), make_segmenter("random", model)
    a, x = ["a"], ["x"]
    questions = [Example(b"Water is", (b" wet", b" dry"), 0)]
    refuse(
        [
            (
                lambda: score(model, ["a", "b"], ["x", ""]),
                "continuations must have at least 1 byte each, got an empty one",
            ),
            (lambda: score(model, a, ["x", "y"]), "as many, got 1 and 2"),
            (lambda: score(model, "a", x), "contexts must be a list of texts, got one str"),
            (lambda: score(model, a, [5]), "continuations must hold str or bytes, got int as number 0"),
            (
                lambda: score(model, ["a\ud800"], x),
                "contexts must be UTF-8, got surrogates .* at character 1 of number 0",
            ),
            (lambda: score(model, a, x, samples=0), "samples must be an integer of at least 1, got 0"),
            (
                lambda: score(model, a, x, samples=2, greedy=True),
                "samples must be 1 if nothing is drawn .*, got 2 with g",
            ),
            (lambda: score(model, a, x, samples=2, segmenter=rule), "got 2 with ActorSegmenter"),
            (lambda: score(model, a, x, context_bytes=0), "context_bytes must be an integer of at least 1, got 0"),
            (lambda: score(model, a, x, batch_rows=0), "batch_rows must be an integer of at least 1, got 0"),
            (lambda: score(model, a, x, target_rate=0.2), "target_rate must be left out where the model has one rate"),
            (
                lambda: score(model, a, x, target_rate=0.2, segmenter=rule),
                "target_rate belongs to the model's own policy",
            ),
            (
                lambda: score(model, a, x, greedy=True, segmenter=random),
                "greedy belongs to .*, got it with ExactRandom",
            ),
            (lambda: choice_metrics([], score(model, [], [])), "examples must hold at least one, got none"),
            (
                lambda: choice_metrics(questions * 2, score_examples(model, questions)),
                "scores must be of all choices of all examples, 4, got 2",
            ),
            (lambda: Example(b"a", (), 0), "choices must hold at least one, got none after b'a'"),
            (
                lambda: Example(b"a", (b"x", b""), 0),
                "choices must have at least 1 byte each, got an empty one as number 1",
            ),
            (lambda: Example(b"a", (b"x", b"y"), 2), "gold must lie in 0..1, got 2"),
            (lambda: Example(b"a", (b"x", b"y"), -1), "gold must be an integer of at least 0, got -1"),
            (lambda: Example(b"a", (b"x", b"y"), "1"), "gold must be an integer of at least 0, got '1'"),
            (lambda: Example("a", (b"x",), 0), "context must be bytes, got str"),
            (lambda: Example(b"a", ("x",), 0), "choices must be bytes, got str as number 0"),
        ]
    )


def test_the_harness(model, tmp_path):
    lm, rule = RltokLM(model), make_segmenter("uniform", model)
    refuse(
        [
            (
                lambda: lm.write(["a"], {"num_beams": 3}),
                r"options of generation must be of \['do_sample', .*, got \['num",
            ),
            (lambda: lm.write(["a"], {"max_gen_toks": -1}), "max_gen_toks must be an integer of at least 0, got -1"),
            (lambda: lm.write([""], {}), "context must have at least 1 byte to write on from, got an empty one"),
            (lambda: lm.write(["a"], {"do_sample": True}), "temperature must be above 0 if do_sample is true, got 0"),
            (lambda: RltokLM(model, context=1), "context must be an integer of at least 2, got 1"),
            (lambda: RltokLM(model, samples=0), "samples must be an integer of at least 1, got 0"),
            (lambda: RltokLM(model, batch_size=0), "batch_size must be an integer of at least 1, got 0"),
            (lambda: RltokLM(model, seed=-1), "seed must be an integer of at least 0, got -1"),
            (
                lambda: RltokLM(model, rate=0.2, segmenter=rule),
                "target_rate belongs to the model's own policy, got it wi",
            ),
            (lambda: RltokLM(str(tmp_path), segmenter=rule), "segmenter must be left out if pretrained is a name"),
        ]
    )
    with pytest.raises(FileNotFoundError, match="no such folder"):
        RltokLM(str(tmp_path / "nowhere"))
