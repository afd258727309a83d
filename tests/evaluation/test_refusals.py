"""Invalid arguments are errors that name the argument, the allowed values, and the value."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.agents.segmenters import make_segmenter

from rltok_rl import evaluation as e
from rltok_rl.evaluation.continuations import continuation_log_likelihood as score
from rltok_rl.evaluation.detail import read_detail
from rltok_rl.evaluation.lm_eval import RltokLM
from rltok_rl.evaluation.streamed import Stepper
from rltok_rl.evaluation.tasks import Example, choice_metrics, score_examples
from rltok_rl.evaluation.windowed import SegmentedModel, lay_windows
from rltok_rl.models import Segmentation
from rltok_rl.text import text_to_ids

from .conftest import small_model

ONES, NONE, AB = torch.ones, torch.zeros(0), text_to_ids("ab")
ONE_BYTE = Segmentation(b"x", torch.tensor([True]), torch.ones(1))
TWO_BYTES = Segmentation(b"to", torch.tensor([True, False]), torch.ones(2))
NOTHING, OWN = "counted must hold at least one byte, got none", "belongs to the model's own policy, got it with"


def refuse(*calls) -> None:
    """Try all calls, and report all that are not refused with the words."""
    wrong = []
    for call, words in calls:
        try:
            with pytest.raises((ValueError, TypeError), match=words):
                call()
        except (AssertionError, pytest.fail.Exception) as error:
            wrong.append(f"{words}: {error}")
    assert not wrong, "\n".join(wrong)


def at_least(name: str, least: int, value: object) -> str:
    return f"{name} must be an integer of at least {least}, got {value!r}"


def test_boundary_metrics():
    unlike = r"must be of one text, got shapes \[2\] and \[3\]"
    shape = "counted must have the shape of"
    refuse(
        *((lambda m=m: m(ONES(2), ONES(3)), unlike) for m in (e.cohen_kappa, e.jaccard, e.boundary_match)),
        *((lambda m=m: m(ONES(2), ONES(2), torch.zeros(2)), NOTHING) for m in (e.cohen_kappa, e.jaccard)),
        (lambda: e.boundary_correlation(ONES(2), ONES(3)), f"probabilities {unlike}"),
        (lambda: e.boundary_match(ONES(3), ONES(3), ONES(4)), rf"{shape} boundaries, \[3\], got \[4\]"),
        (lambda: e.boundary_match(NONE, NONE), NOTHING),
        (lambda: e.boundary_match(ONES(3), ONES(3), tolerance=-1), at_least("tolerance", 0, -1)),
        (lambda: e.boundary_match(ONES(3), ONES(3), tolerance=1, draws=0), at_least("draws", 1, 0)),
        (lambda: e.agreement_matrix([AB], [], e.jaccard), "strings and again must be as many, got 1 and 0"),
        (lambda: e.place_share(ONES(2), ONES(3)), r"boundaries must have the shape of byte_ids, \[2\], got \[3\]"),
        (lambda: e.word_edge_share(AB, ONES(2), ONES(1)), rf"{shape} byte_ids, \[2\], got \[1\]"),
        (lambda: e.word_edge_share(AB, ONES(2), torch.zeros(2)), NOTHING),
        *((lambda s=s: s(NONE.long(), NONE), NOTHING) for s in (e.white_space_share, e.word_position_share)),
        (lambda: e.token_lengths(ONES(4), ONES(3)), rf"{shape} boundaries, \[4\], got \[3\]"),
        (lambda: e.join_texts([TWO_BYTES], gap=0), at_least("gap", 1, 0)),
        (lambda: e.policy_entropy(torch.tensor([0.5, 1.5])), r"probabilities must lie in \[0, 1\], got 1.5"),
        (lambda: e.policy_entropy(torch.tensor([torch.nan])), r"probabilities must lie in \[0, 1\], got nan"),
        (lambda: e.policy_entropy(ONES(1), ONES(1) < 0), NOTHING),
        (lambda: e.policy_entropy(ONES(1), ONES(2)), rf"{shape} probabilities, \[1\], got \[2\]"),
        *((lambda t=t: e.join_texts(t), "drawn must hold a text of at least 2 bytes") for t in ([], [ONE_BYTE])),
    )


def test_costs():
    costs = (NONE, NONE), (torch.tensor([3, 0]), ONES(2)), (torch.tensor([3]), ONES(2)), (ONES(2, 2), ONES(2, 2))
    means = e.corpus_bits_per_byte, e.corpus_standard_error, e.document_bits_per_byte, e.document_standard_error
    refuse(
        *((lambda m=m, c=c: m(*c), "counts and nats must be") for m in means for c in costs),
        (lambda: e.mean_and_error([]), "values must hold at least one, got none"),
        (lambda: lay_windows([(0, 20)], 4, 5), "stride must be at most the context, 4, .* got 5"),
        (lambda: lay_windows([(0, 20)], 4, 0), at_least("stride", 1, 0)),
    )


def test_readings(model):
    names = "spacebyte", "gumbel", "random", "spacebyte", "random"
    rule, gumbel, random, oracle, ahead = (make_segmenter(name, model) for name in names)
    gumbel.evaluation, oracle.looks_ahead, ahead.looks_ahead = "round", True, True

    def read(text="abc", context=4, **options):
        return e.read_text(model, text, context=context, **options)

    def samples(count=2, **options):
        return e.read_samples(model, "abc", samples=count, context=4, **options)

    def particles(count=2, **options):
        return e.particle_nats(model, "abc", particles=count, context=4, **options)

    short = "text must have at least 2 bytes .*, got"
    stepper = Stepper(SegmentedModel(model, rule), 2)
    stepper.reader.state["seen"] = [b"a", b"b"]
    improbable = "greedy needs boundaries that have a probability each, got ExactRandom"
    refuse(
        (lambda: read("a"), f"{short} 1"),
        (lambda: read(["abc", ""]), f"{short} 0 in text 1"),
        (lambda: read([]), "text must hold at least one text, got none"),
        (lambda: e.group_documents(read(["ab", "cd"]), torch.zeros(1)), "one entry per text, got 1 for 2 texts"),
        (lambda: read(context=0), at_least("context", 1, 0)),
        (lambda: read(most=0), at_least("most", 1, 0)),
        (lambda: read(segmenter=random, greedy=True), improbable),
        (lambda: e.read_streamed(model, "abc", segmenter=random, greedy=True), improbable),
        (lambda: e.read_streamed(model, "a"), f"{short} 1"),
        (lambda: e.read_streamed(model, "abc", segmenter=rule, target_rate=0.2), f"target_rate {OWN} SpaceByte"),
        (lambda: e.read_streamed(model, "abc", segmenter=oracle), "segmenter must not look ahead to be streamed, got"),
        (lambda: stepper.take(torch.arange(2)), r"keep tensors to branch, got SpaceByte with \['seen'\]"),
        (lambda: samples(0), at_least("samples", 1, 0)),
        (lambda: samples(greedy=True), "greedy must be left out"),
        (lambda: samples(segmenter=gumbel.eval()), "samples belong to boundaries that are drawn at random, got Gumbel"),
        (lambda: particles(0), at_least("particles", 1, 0)),
        (lambda: particles(segmenter=rule), "particles belong to boundaries .* at random, .* got SpaceByte"),
        (lambda: particles(segmenter=ahead), "particles belong to boundaries .* byte by byte, got ExactRandom"),
    )


def test_details(model):
    rule, bernoulli = make_segmenter("spacebyte", model), make_segmenter("bernoulli", model)

    def read(text="abc", gamma=0.9, **options):
        return read_detail(model, text, context=16, gamma=gamma, **options)

    refuse(
        (lambda: read(baseline="flips"), r"baseline must be one of \['none', .*got 'flips'"),
        (lambda: read(reward="fame"), "reward must be one of .*got 'fame'"),
        (lambda: read(draws=1), at_least("draws", 2, 1)),
        (lambda: read(gamma=2), r"gamma must lie in \[0, 1\], got 2"),
        (lambda: read(target_rate=0.2, segmenter=rule), f"target_rate {OWN}"),
        (lambda: read(greedy=True, segmenter=bernoulli), f"greedy {OWN}"),
        (lambda: read("a"), "text must have at least 2 bytes .*, got 1"),
    )


def test_continuations_and_tasks(model):
    rule, random = make_segmenter("uniform", model), make_segmenter("random", model)
    questions = [Example(b"Water is", (b" wet", b" dry"), 0)]

    def ask(contexts=("a",), answers=("x",), **options):
        return score(model, contexts, answers, **options)

    refuse(
        (lambda: ask("ab", ["x", ""]), "contexts must be a list of texts, got one str"),
        (lambda: ask(["a", "b"], ["x", ""]), "continuations must have at least 1 byte each, .* empty one as number 1"),
        (lambda: ask(["a"], ["x", "y"]), "as many, got 1 and 2"),
        (lambda: ask(["a"], [5]), "continuations must hold texts, got number 0: text must be str or bytes, got int"),
        (lambda: ask(["a\ud800"]), "contexts must hold texts, got number 0: .* surrogates not allowed at character 1"),
        (lambda: ask(samples=0), at_least("samples", 1, 0)),
        (lambda: ask(samples=2, greedy=True), "samples must be 1 if nothing is drawn .*, got 2 with greedy boundaries"),
        (lambda: ask(samples=2, segmenter=rule), "got 2 with ActorSegmenter"),
        (lambda: ask(context_bytes=0), at_least("context_bytes", 1, 0)),
        (lambda: ask(batch_rows=0), at_least("batch_rows", 1, 0)),
        (lambda: ask(target_rate=0.2), "target_rate must be left out"),
        (lambda: ask(target_rate=0.2, segmenter=rule), f"target_rate {OWN} ActorSegmenter"),
        (lambda: ask(greedy=True, segmenter=random), f"greedy {OWN} ExactRandom"),
        (lambda: choice_metrics([], ask([], [])), "examples must hold at least one, got none"),
        (lambda: choice_metrics(questions * 2, score_examples(model, questions)), "scores must be of all .*, 4, got 2"),
        (lambda: Example(b"a", (), 0), "choices must hold at least one, got none after b'a'"),
        (lambda: Example(b"a", (b"x", b""), 0), "choices must have at least 1 byte each, got an empty one as number 1"),
        (lambda: Example(b"a", (b"x", b"y"), 2), "gold must lie in 0..1, got 2"),
        *((lambda g=g: Example(b"a", (b"x", b"y"), g), at_least("gold", 0, g)) for g in (-1, "1")),
    )


def test_the_harness(model, tmp_path):
    lm, rule, mixed = RltokLM(model), make_segmenter("uniform", model), small_model()
    mixed.final_head.double()
    mixed.save_pretrained(tmp_path / "mixed")
    numbers = {"context": (2, 1), "samples": (1, 0), "batch_size": (1, 0), "max_batch_size": (1, 0), "seed": (0, -1)}
    refuse(
        (lambda: lm.write(["a"], {"num_beams": 3}), r"options of generation must be of \['do_sample', .*, got \['num"),
        (lambda: lm.write(["a"], {"max_gen_toks": -1}), at_least("max_gen_toks", 0, -1)),
        (lambda: lm.write([""], {}), "context must have at least 1 byte to write on from, got an empty one"),
        (lambda: lm.write(["a"], {"do_sample": True}), "temperature must be above 0 if do_sample is true, got 0"),
        *((lambda n=n, v=v: RltokLM(model, **{n: v}), at_least(n, least, v)) for n, (least, v) in numbers.items()),
        (lambda: RltokLM(model, max_batch_size=2.5), at_least("max_batch_size", 1, 2.5)),
        (lambda: RltokLM(model, batch_size="0"), at_least("batch_size", 1, 0)),
        *(
            (lambda t=t: RltokLM(model, batch_size=t), f"batch_size must be an integer .*, or 'auto', got '{t}'")
            for t in ("abc", "-1", "2.5")
        ),
        (lambda: RltokLM(model, rate=0.2, segmenter=rule), f"target_rate {OWN}"),
        (lambda: RltokLM(str(tmp_path), segmenter=rule), "segmenter must be left out if pretrained is a name"),
        (lambda: RltokLM(str(tmp_path / "mixed")), "mixed must hold weights of one dtype, got float32, float64"),
    )
    with pytest.raises(FileNotFoundError, match="no such folder"):
        RltokLM(str(tmp_path / "nowhere"))
