"""Laws of all segmenters: causal, equal in windows and steps, at their rate, rows separate, for any text."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import is_dataclass, replace
from typing import Any

import pytest
import torch
from rltok_rl.agents.segmenters import (
    SEGMENTERS,
    ActorSegmenter,
    BPESegmenter,
    Segmenter,
    SegmenterActor,
    Segments,
    SpaceByte,
    draw_from_bytes,
    encode_and_draw,
    make_segmenter,
    read_byte,
    read_window,
    segment_text,
    segment_text_parts,
    segmenter_maker,
    start_reading,
    write_on,
)
from rltok_rl.agents.segmenters.entropy import (
    EntropyCombined,
    EntropySpike,
    EntropyThreshold,
    Predictor,
    entropy_threshold,
)
from rltok_rl.agents.segmenters.grouped import GroupedSegmenter
from rltok_rl.agents.segmenters.gumbel import GumbelSegmenter, TrainedSpike
from rltok_rl.agents.segmenters.hnet import HNetSegmenter
from rltok_rl.agents.segmenters.magnet import MagnetSegmenter
from rltok_rl.agents.segmenters.tokenizers import split_rows
from torchrl.envs import ExplorationType
from torchrl.envs.utils import set_exploration_type

import rltok_rl.models.mixing
from rltok_rl.diagnostics.segmenter_laws import SEGMENTER_LAWS, fixed_uniforms, read_streamed
from rltok_rl.functional.boundary_rules import spacebyte
from rltok_rl.models import UNet, preset
from rltok_rl.models.segmentation import join_parts

from .definition import (
    BPE,
    CASES,
    CAUSAL,
    HNET,
    ORACLES,
    PIECES,
    TEXT,
    WORDS,
    Case,
    assert_for_all,
    build,
    of_width,
    texts,
)

APPENDIX_C = {
    "pooling": "attention",
    "upsampling": "attention",
    "smoothing": "straight_through",
    "ngram_sizes": (2, 5),
    "ngram_buckets": 40,
    "window": 4,
}
STRANGE = {
    "equal": torch.full((2, 12), 101),
    "spaces": torch.full((2, 12), 32),
    "random": torch.randint(256, (1, 12), generator=torch.Generator().manual_seed(3)).repeat(2, 1),
    "characters": torch.tensor(list("日本語とひらがな".encode()))[None, :12].repeat(2, 1),
}


def test_every_name_is_tested():
    assert {case.name for case in CASES.values()} == set(SEGMENTERS)


@pytest.mark.parametrize("law", [law for law in SEGMENTER_LAWS if law != "steps"])
def test_law(law):
    """Steps are compared with longer windows, below."""

    def check(case: Case) -> None:
        SEGMENTER_LAWS[law](*build(case), texts(2, 11 if law == "rows" else 8))

    assert_for_all(CAUSAL if law == "prefixes" else CASES, check)


def test_law_for_models_with_the_options_of_appendix_c():
    def check(case: Case) -> None:
        model, segmenter = build(case, **APPENDIX_C)
        SEGMENTER_LAWS["steps"](model, segmenter, texts(2, 13))
        SEGMENTER_LAWS["prefixes"](model, segmenter, texts(2, 6))
        if case in (CASES["learned"], CASES["spacebyte, once"], CASES["gumbel"], CASES["hnet"]):
            SEGMENTER_LAWS["gradients"](model, segmenter, texts(2, 7))

    assert_for_all(CAUSAL, check)


def test_windows_of_any_length_and_layout_equal_steps():
    def check(case: Case) -> None:
        for overrides, length in (({}, 1), ({}, 2), ({}, 19), (APPENDIX_C, 19)):
            model, segmenter = build(case, **overrides)
            byte_ids = texts(2, length)
            uniforms = fixed_uniforms(byte_ids)
            with torch.no_grad():
                padded, packed = (
                    read_window(model, segmenter, byte_ids, uniforms=uniforms, layout=layout)
                    for layout in ("padded", "packed")
                )
            boundaries = padded.segments.boundaries
            assert boundaries.dtype == torch.bool and bool(boundaries[:, 0].all())
            torch.testing.assert_close(padded.final_logits, packed.final_logits, rtol=0, atol=1e-9)
            if not (segmenter.looks_ahead or overrides):
                streamed, logits = read_streamed(model, segmenter, byte_ids, uniforms)
                assert torch.equal(streamed, boundaries)
                torch.testing.assert_close(logits, padded.final_logits, rtol=0, atol=1e-9)

    assert_for_all(CASES, check)


def test_strange_texts():
    """Equal bytes, bytes that are not UTF-8, characters of three bytes: finite gradients, and steps equal windows."""

    def check(case: Case) -> None:
        model, segmenter = build(case)
        boundaries, uniforms = [], fixed_uniforms(STRANGE["equal"])
        for byte_ids in STRANGE.values():
            whole = read_window(model, segmenter, byte_ids, uniforms=uniforms)
            boundaries.append(whole.segments.boundaries)
            losses = segmenter.losses(whole.segments, byte_ids, whole.final_logits)
            assert set(losses) <= set(segmenter.coefficients)
            (whole.final_logits.logsumexp(-1).mean() + sum(losses.values())).backward()
            for name, parameter in [*model.named_parameters(), *segmenter.named_parameters()]:
                assert parameter.grad is None or parameter.grad.isfinite().all(), name
        if not segmenter.looks_ahead:  # all texts at once: groups of rows and their random numbers stay together
            every = torch.cat([*STRANGE.values()])
            streamed, _ = read_streamed(model, segmenter, every, uniforms.repeat(len(STRANGE), 1))
            assert torch.equal(streamed, torch.cat(boundaries))

    assert_for_all(CASES, check)


def test_windows_of_one_and_two_bytes_have_finite_losses():
    """A single byte holds no decision that a loss could judge."""

    def check(case: Case) -> None:
        model, segmenter = build(case)
        for length in (1, 2):
            byte_ids = texts(1, length).repeat(2, 1)
            states, segments = encode_and_draw(model, segmenter, byte_ids, uniforms=fixed_uniforms(byte_ids))
            losses = segmenter.losses(segments, byte_ids, model.final_logits(states))
            for name, value in losses.items():
                assert value.dim() == 0 and bool(value.isfinite()), name
                assert length == 2 or name != "binomial" or float(value.detach()) == 0

    assert_for_all(CASES, check)


def test_target_rates_are_reached():
    """Segmenters that learn are trained on their rate loss alone."""

    def check(case: Case) -> None:
        model, segmenter = build(case)
        if case.name == "learned":  # starts at its rate, and is not trained by a loss of its own
            torch.manual_seed(0)
            model = UNet(preset("tiny", **case.model)).double()
            segmenter = make_segmenter(case.name, model)
        byte_ids = texts(4, 240)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            states = encode_and_draw(model, segmenter, byte_ids, generator=generator)[0]
        if case.trained:
            optimizer = torch.optim.Adam(segmenter.parameters(), lr=0.01)
            for _ in range(60):
                segments = segmenter(states, byte_ids, generator=generator)
                optimizer.zero_grad()
                sum(segmenter.losses(segments, byte_ids, states).values()).backward()
                optimizer.step()
        with torch.no_grad():
            rates = [segmenter(states, byte_ids, generator=generator).boundaries.double().mean() for _ in range(5)]
        assert float(torch.stack(rates).mean()) == pytest.approx(segmenter.target_rate, abs=case.tolerance)

    assert_for_all({name: case for name, case in CASES.items() if case.tolerance is not None}, check)


def test_exact_counts():
    """There are k = ceil(r n) in each block of n bytes, in every row, for any weights and random numbers."""
    for name, options, expected in [
        ("uniform", {"rate": 0.25}, 24),
        ("uniform", {"rate": 0.3}, 29),
        ("random", {"rate": 0.25, "block": 96}, 24),
        ("random", {"rate": 0.3, "block": 24}, 4 * 8),
        ("stride", {"stride": 7}, 14),
        ("grouped", {"rate": 0.25, "block": 96}, 24),
        ("grouped", {"rate": 0.3, "block": 24}, 4 * 8),
    ]:
        model, segmenter = build(Case(name, options))
        byte_ids = texts(6, 96)
        for uniforms in (fixed_uniforms(byte_ids), torch.zeros(6, 96), torch.full((6, 96), 1 - 2**-24)):
            counts = segmenter(model.encode(byte_ids), byte_ids, uniforms=uniforms).boundaries.sum(1)
            assert counts.tolist() == [expected] * 6, (name, options)


def test_smoothing_uses_the_segmenters_probabilities():
    """Boundaries of a rule are certain and are not smoothed; those of the learned policy are, by its logits."""
    for name, changes in (("uniform", False), ("whitespace", False), ("learned", True), ("hnet", False)):
        predicted = []
        for smoothing in ("none", "detached"):
            model, segmenter = build(CAUSAL[name], smoothing=smoothing)
            byte_ids = texts(2, 19)
            with torch.no_grad():
                out = read_window(model, segmenter, byte_ids, uniforms=fixed_uniforms(byte_ids))
            predicted.append(out.final_logits)
        assert torch.equal(*predicted) != changes, name


def test_rounding_needs_no_random_numbers():
    for name in ("gumbel", "magnet", "grouped"):
        model, segmenter = build(Case(name, {"evaluation": "round"}))
        byte_ids = texts(2, 20)
        assert segmenter.draws_at_random and not segmenter.eval().draws_at_random
        segments = segmenter(model.encode(byte_ids), byte_ids)
        assert torch.equal(segments.boundaries[:, 1:], segments.logits[:, 1:] > 0), name


@torch.no_grad()
def test_actors_take_the_likelier_decision_when_exploration_is_off():
    """In windows and in steps, whatever the random numbers are."""
    for name in ("learned", "bernoulli"):
        model, segmenter = build(CASES[name])
        byte_ids = texts(2, 19)
        assert segmenter.draws_at_random and SegmenterActor(segmenter).draws_at_random
        with set_exploration_type(ExplorationType.DETERMINISTIC):
            assert not segmenter.draws_at_random and not SegmenterActor(segmenter).draws_at_random
            segments = segmenter(model.encode(byte_ids), byte_ids)
            streamed, _ = read_streamed(model, segmenter, byte_ids, fixed_uniforms(byte_ids))
        assert torch.equal(segments.boundaries[:, 1:], segments.logits[:, 1:] > 0), name
        assert torch.equal(streamed, segments.boundaries), name


@torch.no_grad()
def test_logits_are_computed_in_single_precision_at_least():
    """A narrow logit would round probabilities; so would a narrow score an entropy's threshold."""
    model, byte_ids = UNet(preset("tiny", width=16)).bfloat16(), texts(2, 9)
    for name, options in (
        *((name, {"hidden": 8}) for name in ("gumbel", "magnet", "grouped", "entropy-spike")),
        ("unigram", {"tokenizer": PIECES, "predictor": "trained", "hidden": 8}),
        *((f"entropy-{rule}", {}) for rule in ("threshold", "monotonic")),
        ("hnet", {}),
    ):
        segmenter = make_segmenter(name, model, **options)
        assert {parameter.dtype for parameter in segmenter.parameters()} == {torch.bfloat16}
        whole = read_window(model, segmenter, byte_ids).segments
        step, _ = segmenter.step(model.encode(byte_ids)[:, 0], byte_ids[:, 0], segmenter.start(2))
        for segments in (whole, step):
            number = segments.scores if segments.logits is None else segments.logits
            assert number.dtype == torch.float32, name


OWN = {"predictor": "own"}
TRAINED = {"tokenizer": PIECES, "predictor": "trained", "hidden": 8}
# For each segmenter: options that all its cases share, and another value of every other option.
OPTIONS: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "learned": [({}, {})],
    "uniform": [({}, {"rate": 0.3})],
    "random": [({}, {"rate": 0.3, "block": 16})],
    "bernoulli": [({}, {"rate": 0.3})],
    "stride": [({}, {"stride": 4})],
    "whitespace": [({}, {})],
    "spacebyte": [({}, {"repeat": False, "offset": 2})],
    "bpe": [({"tokenizer": PIECES}, {"tokenizer": BPE})],
    "unigram": [
        ({"tokenizer": PIECES}, {"tokenizer": BPE, "predictor": "trained"}),
        (TRAINED, {"tokenizer": BPE, "hidden": 9, "fidelity": "released"}),
    ],
    "entropy-spike": [
        ({"hidden": 8}, {"predictor": "early_exit", "lags": 3, "hidden": 9, "fidelity": "released"}),
        (OWN, {"lags": 3, "window": 5, "num_layers": 2}),
    ],
    "entropy-threshold": [
        (OWN, {"rate": 0.3, "predictor": "early_exit", "threshold": 0.7, "threshold_add": 0.1, "window": 5}),
        (OWN, {"num_layers": 2, "rule": "monotonic"}),
        ({"threshold_add": 0.1}, {"rate": 0.3, "threshold": 0.7, "threshold_add": 0.2, "fidelity": "released"}),
    ],
    "entropy-monotonic": [
        (OWN, {"rate": 0.3, "threshold": 0.7, "rule": "global", "window": 5, "num_layers": 2}),
        ({"rule": "global", "threshold_add": 0.1}, {"threshold_add": 0.2, "fidelity": "released"}),
    ],
    "gumbel": [({"hidden": 8}, {"rate": 0.3, "variant": "baseline", "evaluation": "round", "hidden": 9})],
    "magnet": [({"hidden": 8}, {"rate": 0.3, "rates": {"latin": 0.4}, "evaluation": "round", "hidden": 9})],
    "grouped": [
        ({}, {"rate": 0.3, "block": 16, "group_size": 2, "advantage": "normalised", "detached": False}),
        ({}, {"evaluation": "round", "hidden": 9}),
    ],
    "hnet": [
        ({}, {"rate": 0.3, "variant": "baseline", "ratio_weight": 0.3}),
        ({"stages": 2}, {"rate": 0.3, "second_rate": 0.4}),
    ],
}


def settings(value: Any, seen: frozenset[int] = frozenset()) -> Any:
    """Everything that a segmenter was made with: numbers, words, sizes and kinds, through its parts."""
    if isinstance(value, torch.Tensor):
        return (*value.shape, float(value) if value.dim() == 0 else None)
    if is_dataclass(value):
        value = vars(value)
    if isinstance(value, dict):
        return {str(key): settings(part, seen) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [settings(part, seen) for part in value]
    if isinstance(value, torch.nn.Module) and id(value) not in seen:
        return type(value).__name__, settings({**vars(value)}, seen | {id(value)})
    if type(value).__name__ == "partial":
        return settings([value.func.__name__, value.keywords], seen)
    return value if isinstance(value, (bool, int, float, str, type(None))) else f"{type(value).__name__} {id(value)}"


def attributes(segmenter: Segmenter) -> str:
    """Settings without the addresses of hooks and functions, which differ between equal segmenters."""
    return re.sub(r"'(?!TokenizerSplit|WordSplit)\w+ \d{9,}'", "''", repr(settings(segmenter)))


def test_every_option_reaches_its_segmenter():
    """With another value of one option, something is made otherwise; equal options make equal segmenters."""
    for name, groups in OPTIONS.items():
        listed = {option for given, others in groups for option in (*given, *others)}
        assert listed == set(list(inspect.signature(segmenter_maker(name)).parameters)[1:]), name
        for given, others in groups:
            model = UNet(preset("tiny", width=16, **(HNET if "stages" in given else {})))
            before = attributes(make_segmenter(name, model, **given))
            assert before == attributes(make_segmenter(name, model, **given))
            for option, value in others.items():
                changed = make_segmenter(name, model, **{**given, option: value})
                assert attributes(changed) != before, f"{option} of {name} changes nothing"


def test_options_that_are_given_are_the_ones_that_count():
    model = UNet(preset("tiny", width=16, target_rate=0.15, window=6))

    def made(name: str, **options: Any) -> Any:
        return make_segmenter(name, model, **options)

    for name in ("uniform", "random", "bernoulli", "gumbel", "grouped", "hnet", "entropy-threshold"):
        assert (made(name).target_rate, made(name, rate=0.3).target_rate) == (0.15, 0.3), name
    stride = made("stride")
    assert stride.target_rate == 1 / 7  # nearest to 1 / 0.15, not below it
    drawn = stride(torch.zeros(1, 15, 1), torch.zeros(1, 15, dtype=torch.int64)).boundaries[0]
    assert drawn.nonzero().flatten().tolist() == [0, 7, 14]
    rates = [made("learned"), made("whitespace"), made("stride", stride=4)]
    assert [segmenter.target_rate for segmenter in rates] == [0.15, None, 0.25]
    assert made("spacebyte").repeat is True
    for predictor in ("trained", "early_exit", "own"):
        assert made("entropy-spike", predictor=predictor).lags == 2
    assert made("entropy-spike").fidelity == "paper"
    assert made("random").block == 4096 and made("random", block=9).block == 9
    magnet = made("magnet", rate=0.3, rates={"latin": 0.4}, hidden=8)
    assert magnet.by_script == {"other": 0.3, "latin": 0.4, "devanagari": 0.08, "cyrillic": 0.1}
    spike = made("entropy-spike", predictor="own", lags=3, window=5, num_layers=2)
    config = spike.predictor.model.config
    assert (spike.lags, spike.margin, config.window, config.num_encoder_layers, config.width) == (3, 1e-4, 5, 2, 16)
    defaults = made("entropy-threshold").predictor.model.config
    assert (defaults.window, defaults.num_encoder_layers) == (6, model.config.num_encoder_layers)
    for options, threshold in (
        ({}, 1.335442066192627),  # BLT's
        ({"threshold_add": 0.1}, 1.335442066192627),
        ({"rule": "monotonic"}, 0.0),
        ({"threshold": 0.0}, 0.0),
        ({"threshold": 0.7, "threshold_add": 0.0}, 0.7),
        ({"threshold": 0.7, "threshold_add": 0.0, "fidelity": "released"}, 0.7),
    ):
        segmenter = made("entropy-threshold", **options)
        assert float(segmenter.threshold) == threshold, options
        assert getattr(segmenter, "threshold_add", None) == options.get("threshold_add"), options
    assert made("hnet").coefficients == {"ratio": 0.03}
    grouped = made("grouped")
    assert (grouped.block, grouped.group_size, grouped.advantage, grouped.detached) == (64, 4, "centred", True)
    assert all(segmenter.evaluation == "sample" for segmenter in (grouped, magnet, made("gumbel", hidden=8)))
    trained = {"predictor": "trained", "tokenizer": PIECES}
    assert made("unigram", **trained).fidelity == "paper" and made("unigram", **trained).split is PIECES
    for name, hidden in (
        ("gumbel", 2048),
        ("magnet", 2048),
        ("entropy-spike", 2048),
        ("unigram", 2048),
        ("grouped", 16),
    ):
        options = trained if name == "unigram" else {}
        first = next(p for key, p in made(name, **options).named_parameters() if key.endswith("0.weight"))
        assert len(first) == hidden, name


def test_learned_policy_with_rates_draws_at_the_configured_one():
    """Its rows need no ``target_rate`` of their own."""
    model = UNet(preset("tiny", width=16, rate_embedding=True)).double()
    with torch.no_grad():
        model.rate_embedding.weight.normal_()
    segmenter, byte_ids = make_segmenter("learned", model), texts(2, 12)
    states, uniforms = model.encode(byte_ids), fixed_uniforms(byte_ids)
    segments = segmenter(states, byte_ids, uniforms=uniforms)
    expected = model(byte_ids, uniforms=uniforms)
    assert torch.equal(segments.boundaries, expected.boundaries)
    torch.testing.assert_close(segments.logits, expected.boundary_logits, rtol=0, atol=1e-12)


@torch.no_grad()
def test_random_numbers_come_from_the_generator_alone():
    """Whatever draws boundaries or bytes: equal with equal generators, another text with another, global state kept."""

    def stepped(model: UNet, segmenter: Segmenter, generator: torch.Generator) -> Any:
        reader, drawn = start_reading(model, segmenter, 2), []
        for t in range(6):
            reading = read_byte(model, segmenter, reader, texts(2, 6)[:, t], generator=generator)
            drawn.append(reading.segments.boundaries)
        return torch.stack(drawn)

    def written(model: UNet, segmenter: Segmenter, generator: torch.Generator) -> Any:
        steps = list(write_on(model, segmenter, TEXT[:2], max_bytes=4, generator=generator))
        return [[int(step.byte_ids), bool(step.boundaries)] for step in steps]

    drawers: dict[str, Callable[..., Any]] = {
        "window": lambda m, s, g: read_window(m, s, texts(2, 40), generator=g).segments.boundaries,
        "states": lambda m, s, g: encode_and_draw(m, s, texts(2, 40), generator=g)[1].boundaries,
        "text": lambda m, s, g: segment_text(m, s, TEXT[:40], generator=g).boundaries,
        "steps": stepped,
        "written": written,
    }
    own = {"byte_scope": "token", "num_encoder_layers": 2, "num_decoder_layers": 2}
    for name, fields in (("learned", {}), ("gumbel", {}), ("grouped", {}), ("random", {}), ("bernoulli", own)):
        options = {"hidden": 8} if name == "gumbel" else {"block": 16} if name == "random" else {}
        model = UNet(preset("tiny", width=16, target_rate=0.4, **fields)).eval()
        segmenter = make_segmenter(name, model, **options)
        for kind, draw in drawers.items():
            if kind == "written" and name in ("learned", "grouped"):
                continue  # as gumbel's, and slow
            torch.manual_seed(1)
            state, results = torch.get_rng_state(), []
            for seed in (3, 3, 4):
                drawn = draw(model, segmenter, torch.Generator().manual_seed(seed))
                results.append(drawn.tolist() if isinstance(drawn, torch.Tensor) else drawn)
                assert torch.equal(torch.get_rng_state(), state), (name, kind)
            first, same, other = results
            assert first == same != other, (name, kind)


def test_actors_draw_with_the_numbers_that_they_are_given():
    for name in ("learned", "random", "bernoulli", "gumbel", "grouped"):
        model, segmenter = build(CASES[name])
        actor, byte_ids = SegmenterActor(segmenter), texts(1, 40).repeat(2, 1)
        uniforms, states = fixed_uniforms(byte_ids), model.encode(byte_ids)
        for numbers in (uniforms, uniforms.flip(0)):
            expected = segmenter(states, byte_ids, uniforms=numbers)
            assert torch.equal(actor.draw(states, byte_ids, numbers).boundaries, expected.boundaries), name
            if not segmenter.reads_states:
                drawn = actor.draw_from_bytes(byte_ids, numbers)
                assert torch.equal(drawn.boundaries, expected.boundaries), name
                assert torch.equal(
                    draw_from_bytes(segmenter, byte_ids, uniforms=numbers).boundaries, expected.boundaries
                )
        losses = actor.losses(expected, byte_ids, model.final_logits(states))
        own = segmenter.losses(expected, byte_ids, model.final_logits(states))
        assert losses.keys() == {f"segmenter_{part}" for part in segmenter.coefficients}
        for part, value in own.items():
            assert losses[f"segmenter_{part}"].shape == byte_ids.shape
            assert (losses[f"segmenter_{part}"] == value).all(), name
    model, early = build(CASES["entropy-threshold, early exit"])  # which has nothing to learn
    segments = early(model.encode(byte_ids), byte_ids)
    (loss,) = SegmenterActor(early).losses(segments, byte_ids, torch.zeros(2, 40, 256)).values()
    assert loss.shape == byte_ids.shape and not loss.any()


@pytest.mark.parametrize("begin_of_text", [False, True])
@torch.no_grad()
def test_boundaries_of_a_whole_text(begin_of_text):
    """Those of one window; probabilities are the policy's, or certain, and 1 at the first id that the model reads."""
    text, marks = b"To be, or not to be?", int(begin_of_text)
    for name in ("learned", "gumbel", "uniform", "spacebyte", "entropy-threshold"):
        torch.manual_seed(0)
        model = UNet(preset("tiny", width=16, begin_of_text=begin_of_text, num_special=marks)).eval()
        segmenter, calls = make_segmenter(name, model).eval(), []
        seeded = [torch.Generator().manual_seed(0) for _ in range(2)]
        ids = torch.tensor([[256] * marks + [*text]])
        segments = read_window(model, segmenter, ids, generator=seeded[0]).segments
        out = segment_text(model, segmenter, text, generator=seeded[1], progress=lambda *call: calls.append(call))  # noqa: B023
        assert out.text == text and torch.equal(out.boundaries, segments.boundaries[0, marks:]), name
        expected = (segments.boundaries.float() if segments.logits is None else segments.logits.sigmoid())[0]
        expected[0] = 1.0
        torch.testing.assert_close(out.probabilities, expected[marks:])
        assert calls[-1] == (len(text) + marks,) * 2 and calls == sorted(calls), name


WHOLE = {*ORACLES, *(name for name, case in CASES.items() if case.name == "learned")}
"""Cases that cannot draw parts; :func:`segment_text_parts` says why."""


def off_scores(segmenter: Segmenter) -> None:
    """Move a calibrated threshold off the entropy of the text that it equals: parts equal windows up to rounding."""
    if isinstance(segmenter, EntropyThreshold):
        segmenter.threshold.add_(1e-5)


@torch.no_grad()
def test_parts_of_long_texts_equal_windows():
    """For parts of one and several bytes, in training and evaluation, with blocks and characters that a part cuts."""

    def check(case: Case) -> None:
        model, segmenter = build(case)
        assert segmenter.draws_parts == (case not in [CASES[name] for name in WHOLE])
        off_scores(segmenter)
        for byte_ids in (texts(2, 43), *STRANGE.values()) if segmenter.draws_parts else ():
            uniforms = fixed_uniforms(byte_ids)
            for size, training in ((1, True), (2, True), (3, False), (5, False), (17, True)):
                segmenter.train(training)
                states, whole = encode_and_draw(model, segmenter, byte_ids, uniforms=uniforms)
                state, drawn = segmenter.start(len(byte_ids)), []
                for part, ids, numbers in zip(*(x.split(size, 1) for x in (states, byte_ids, uniforms)), strict=True):
                    segments, state = segmenter.draw_part(part, ids, state, uniforms=numbers)
                    drawn.append(segments)
                assert torch.equal(torch.cat([x.boundaries for x in drawn], 1), whole.boundaries), size
                assert [x.logits is None for x in drawn] == [whole.logits is None] * len(drawn)
                if whole.logits is not None:
                    torch.testing.assert_close(torch.cat([x.logits for x in drawn], 1), whole.logits)

    assert_for_all(CASES, check)


@torch.no_grad()
def test_runs_of_wanted_boundaries_continue_in_the_next_part():
    """Every second one is drawn, from the forced one at the first byte on."""

    class Bytes(Predictor):
        reads_states, reach = False, 0

        def forward(self, states: Any, byte_ids: Any) -> Any:
            return byte_ids.double()

    model = UNet(preset("tiny", width=16)).eval()
    for text in (b"abcdefgh", b"aaabcdaefghhij", b"ba"):
        segmenter = EntropyCombined(Bytes(), target_rate=0.5, threshold=0.0)
        whole = draw_from_bytes(segmenter, torch.tensor([[*text]])).boundaries[0]
        for piece in range(1, len(text) + 1):
            parts = list(segment_text_parts(model, segmenter, text, piece=piece))
            assert torch.equal(join_parts(parts).boundaries, whole), piece


@torch.no_grad()
def test_parts_of_texts_that_begin_with_a_mark():
    model = UNet(preset("tiny", width=16, begin_of_text=True, num_special=1)).eval()
    for name in ("uniform", "gumbel"):
        segmenter = make_segmenter(name, model).eval()
        generators = [torch.Generator().manual_seed(1) for _ in range(4)]
        whole = segment_text(model, segmenter, b"to be or", generator=generators[0])
        for piece, generator in zip((1, 2, 3), generators[1:], strict=True):
            parts = list(segment_text_parts(model, segmenter, b"to be or", piece=piece, generator=generator))
            assert all(part.text for part in parts) and join_parts(parts).text == b"to be or"
            assert torch.equal(join_parts(parts).boundaries, whole.boundaries)
            torch.testing.assert_close(join_parts(parts).probabilities, whole.probabilities)


@torch.no_grad()
def test_long_texts_are_segmented_in_bounded_memory(monkeypatch):
    """The first part comes before the second is encoded, and nothing reads more than a part and what it can see."""
    text, piece = (TEXT * 3).encode()[:290], 16

    def check(case: Case) -> None:
        model, segmenter = build(case)
        off_scores(segmenter.eval())
        numbers = [torch.Generator().manual_seed(5) for _ in range(2)]
        whole = segment_text(model, segmenter, text, generator=numbers[0])
        lengths: list[int] = []

        def count_bytes(module: Any, inputs: Any, _: Any) -> None:
            lengths.extend(
                x.shape[1] for x in inputs if isinstance(x, torch.Tensor) and x.dim() == 2 + x.dtype.is_floating_point
            )

        for part in {*model.modules(), *segmenter.modules()}:
            part.register_forward_hook(count_bytes)
        parts = segment_text_parts(model, segmenter, text, generator=numbers[1], piece=piece)
        first = next(parts)
        before = len(lengths)
        both = join_parts([first, *parts])
        assert both.text == whole.text == text and torch.equal(both.boundaries, whole.boundaries)
        torch.testing.assert_close(both.probabilities, whole.probabilities)
        if not segmenter.draws_parts:
            assert len(first.text) == 290
            return
        assert len(first.text) == piece and before < max(len(lengths), 1) / 9  # of 19 parts
        reach = model.config.num_encoder_layers * (model.config.window - 1) + model.config.bytes_before
        assert max(lengths, default=0) <= piece + reach < 290

    assert_for_all(CASES, check)
    model, segmenter = build(CASES["whitespace"])
    with pytest.raises(ValueError, match="piece must be .* got 0"):
        next(segment_text_parts(model, segmenter, text, piece=0))


def test_segmenters_with_windows_of_their_own_read_texts_whole():
    """A subclass that changes the window alone, or a predictor of unknown reach, would draw other parts."""

    class Every(SpaceByte):
        def _window(self, states: Any, byte_ids: Any, uniforms: Any) -> Segments:
            return Segments(byte_ids >= 0)

    class Fast(Every):
        def _part(self, states: Any, byte_ids: Any, state: Any, uniforms: Any) -> Any:
            return Segments(byte_ids >= 0), {}

    class Far(Predictor):
        def forward(self, states: Any, byte_ids: Any) -> Any:
            return byte_ids.double()

    model = UNet(preset("tiny", width=16)).eval()
    for segmenter, fast in ((Every(), False), (Fast(), True), (SpaceByte(), True), (EntropySpike(Far()), False)):
        assert segmenter.draws_parts == fast
        parts = list(segment_text_parts(model, segmenter, "to be or not", piece=5))
        assert [len(part.text) for part in parts] == ([5, 5, 2] if fast else [12])
        if not isinstance(segmenter, EntropySpike):
            spaces = torch.tensor([byte == 32 for byte in b"to be or not"])
            spaces[0] = True
            assert torch.equal(join_parts(parts).boundaries, spaces | isinstance(segmenter, Every))


@torch.no_grad()
def test_written_bytes_are_drawn_as_asked_and_scored_by_the_model():
    """Of the model's distribution, whatever the bytes are drawn by; the continuation alone is new."""
    for begin_of_text in (False, True):
        marks = int(begin_of_text)
        model = UNet(preset("tiny", width=16, begin_of_text=begin_of_text, num_special=marks)).eval()
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        segmenter = make_segmenter("uniform", model)

        def write(**options: Any) -> list[Any]:
            generator = torch.Generator().manual_seed(0)
            return list(write_on(model, segmenter, b"to", generator=generator, **{"max_bytes": 5, **options}))  # noqa: B023

        likeliest = [int(step.byte_ids) for step in write(temperature=0.0)]
        as_they_are = [[int(step.byte_ids) for step in write(**how)] for how in ({}, {"temperature": 1.0})]
        assert as_they_are[0] == as_they_are[1] != likeliest
        for options in ({"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-6}):
            assert [int(step.byte_ids) for step in write(**options)] == likeliest, options
        steps = write(temperature=3.0)
        written = [int(step.byte_ids) for step in steps]
        assert written != likeliest and bytes(written[:2]) == b"to"
        assert [bool(step.new) for step in steps] == [False] * 2 + [True] * 5
        out = read_window(model, segmenter, torch.tensor([[256] * marks + written]))
        scores = out.final_logits[0].log_softmax(-1)
        for place, step in enumerate(steps):
            assert bool(step.boundaries) == bool(out.segments.boundaries[0, place + marks])
            if place + marks:
                expected = scores[place + marks - 1, written[place]]
                torch.testing.assert_close(step.log_probs[0], expected, rtol=1e-4, atol=1e-4)
        assert len(write(max_bytes=0)) == 2


# Planted leaks: the laws must find them.


class Lookahead(SpaceByte):
    """An unshifted rule: a token ends before a space, which only the next byte shows."""

    def _window(self, states, byte_ids, uniforms):
        return Segments(torch.nn.functional.pad(spacebyte(byte_ids)[:, 1:], (0, 1)))


class SpacedPieces(BPESegmenter):
    """A tokenizer whose tokens begin with their space: shifted, its boundaries are causal."""

    looks_ahead = False

    def __init__(self):
        super().__init__(lambda text: [len(piece) for piece in re.findall(rb" ?[^ ]+| ", text)])


class UnshiftedPieces(SpacedPieces):
    """Boundaries at the last bytes of its tokens."""

    def _window(self, states, byte_ids, uniforms):
        starts = split_rows(self.split, byte_ids)
        return Segments(torch.nn.functional.pad(starts[:, 1:], (0, 1), value=True))


class GradientLeak(Segmenter):
    """Weights that are 1 in value and carry a gradient from later bytes."""

    evaluation = "sample"

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def _window(self, states, byte_ids, uniforms):
        segments = self.inner(states, byte_ids, uniforms=uniforms)
        later = states.sum((1, 2))[:, None].expand_as(byte_ids)
        leaky = segments.mixing.receive * (1 + later - later.detach())
        return replace(segments, mixing=replace(segments.mixing, receive=leaky))


def test_boundaries_that_depend_on_later_bytes_are_found():
    model, _ = build(CASES["spacebyte"])
    words, spaced = torch.tensor([list(WORDS.encode())[:40]]), torch.tensor([list(b"to be, or not to")])
    SEGMENTER_LAWS["prefixes"](model, SpacedPieces(), spaced)
    leaks = [(Lookahead(), texts(2, 16)), (UnshiftedPieces(), spaced)]
    for name in ORACLES:
        leaks.append((build(CASES[name])[1], words))
        assert leaks[-1][0].looks_ahead
    for segmenter, byte_ids in leaks:
        with pytest.raises(AssertionError, match="boundaries before byte .* depend on what comes after"):
            SEGMENTER_LAWS["prefixes"](model, segmenter, byte_ids)


@pytest.mark.parametrize("name", ["uniform", "gumbel", "hnet", "hnet, two stages"])
def test_an_upsample_one_token_early_is_found(name, monkeypatch):
    def leaky(states, updates, layout):
        coming = torch.minimum(layout.token_index + 1, layout.token_index[:, -1:])
        return states + updates.reshape(-1, states.shape[-1])[coming]

    monkeypatch.setattr(rltok_rl.models.mixing, "upsample", leaky)
    for law, message in (("prefixes", "predictions before byte"), ("gradients", "has a gradient from later bytes")):
        with pytest.raises(AssertionError, match=message):
            SEGMENTER_LAWS[law](*build(CASES[name]), texts(2, 11))


def test_a_leak_of_the_gradient_alone_is_found():
    model, segmenter = build(CASES["hnet"])
    with pytest.raises(AssertionError, match="has a gradient from later bytes"):
        SEGMENTER_LAWS["gradients"](model, GradientLeak(segmenter), texts(2, 16))


def test_refusals():
    model, segmenter = build(CASES["random"])
    oracle = build(CASES["spacebyte"])[1]
    oracle.looks_ahead = True
    states, bytes_ = torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64)
    for name, options, words in [
        ("bytes", {}, "name must be one of .*, got 'bytes'"),
        ("stride", {"rate": 0.2}, r"options of segmenter 'stride' must be among \['stride'\], got \['rate'\]"),
        ("random", {"rate": 0.0}, r"rate must lie in \(0, 1\], or None, got 0.0"),
        ("magnet", {"rates": {"greek": 0.2}}, r"one of .*, got \['greek'\]"),
        ("random", {"rate": 1.5}, r"rate must lie in \(0, 1\], or None, got 1.5"),
        *((name, {"block": 0}, "block must be an integer of at least 1, got 0") for name in ("random", "grouped")),
        *(
            (name, {"rate": 0.0}, r"rate must lie in \(0, 1\], or None, got 0.0")
            for name in ("grouped", "entropy-threshold")
        ),
        *(
            (name, {"rate": 1.0}, "rate must lie strictly between 0 and 1, or None, got 1.0")
            for name in ("gumbel", "hnet")
        ),
        ("magnet", {"rates": {"other": 0.2}}, r"rates must be by script, .* got \['other'\]"),
        ("magnet", {"rates": {"latin": 1.5}}, "target must lie strictly between 0 and 1"),
        ("magnet", {"evaluation": "greedy"}, "evaluation must be one of"),
        ("grouped", {"group_size": 1}, "group_size must be an integer of at least 2, got 1"),
        ("grouped", {"advantage": "best"}, r"advantage must be one of \['centred', .*'best'"),
        ("entropy-monotonic", {"threshold_add": 0.1}, "threshold_add belongs to rule 'global', got 0.1"),
        ("entropy-monotonic", {"fidelity": "released"}, "fidelity belongs to the rule with threshold_add, got 'rel"),
        *(
            (
                "entropy-threshold",
                {"predictor": "early_exit", size: 2},
                "window and num_layers belong to predictor 'own'",
            )
            for size in ("window", "num_layers")
        ),
        ("entropy-threshold", {"fidelity": "code"}, r"fidelity must be one of \['paper', 'released'\], got 'code'"),
    ]:
        with pytest.raises(ValueError, match=words):
            make_segmenter(name, model, **options)
    for name, option in (
        *((name, "hidden") for name in ("gumbel", "magnet", "grouped", "entropy-spike", "unigram")),
        *(
            (f"entropy-{rule}", size)
            for rule in ("spike", "threshold", "monotonic")
            for size in ("window", "num_layers")
        ),
        ("entropy-spike", "lags"),
    ):
        for value in (-1, 0, 1.5, 2**63, *([10**12] if option in ("hidden", "num_layers") else [])):
            with pytest.raises(ValueError, match=f"{option} must be .*, got"):
                make_segmenter(name, model, **{option: value})
    scoped = UNet(preset("tiny", byte_scope="token"))
    for name in ("learned", "gumbel", "hnet", "magnet", "grouped", "entropy-spike"):
        words = f"decide from bytes alone with byte_scope='token', .* got '{name}', which reads encoder states"
        with pytest.raises(ValueError, match=words):
            make_segmenter(name, scoped)
    for call, words in [
        (lambda: segmenter(states, bytes_[:, :2]), r"states \[B, T, D\] and byte_ids \[B, T\] must agree"),
        (lambda: segmenter(states, bytes_, uniforms=torch.zeros(2, 2)), "uniforms must have the shape of byte_ids"),
        (
            lambda: read_byte(model, oracle, start_reading(model, oracle, 1), bytes_[0, :1]),
            "segmenter must not look ahead to be streamed, got SpaceByte",
        ),
        *(
            (lambda kind=kind: kind(of_width(8), evaluation="greedy"), "evaluation must be one of .*, got 'greedy'")
            for kind in (GumbelSegmenter, MagnetSegmenter, GroupedSegmenter)
        ),
        *(
            (lambda kind=kind: kind(of_width(8), variant="large"), "variant must be one of .*, got 'large'")
            for kind in (GumbelSegmenter, HNetSegmenter)
        ),
        (lambda: TrainedSpike(of_width(8), fidelity="code"), "fidelity must be one of .*, got 'code'"),
        (lambda: entropy_threshold(model, fidelity="code"), "fidelity must be one of .*, got 'code'"),
        (lambda: entropy_threshold(model, predictor="late"), "predictor must be one of .*, got 'late'"),
        (lambda: EntropyThreshold(Predictor(), target_rate=0.2, rule="local"), "rule must be one of .*, got 'local'"),
        (lambda: EntropySpike(Predictor(), lags=0), "lags must be an integer of at least 1, got 0"),
        (lambda: ActorSegmenter(segmenter), "actor must draw whole windows .*, got ExactRandom"),
        (lambda: SegmenterActor(segmenter)(states), "ExactRandom draws whole windows .*; read_byte reads byte by byte"),
        (lambda: segmenter(states[:0], bytes_[:0]), "must agree and not be empty"),
        (
            lambda: segmenter.step(states[:, 0], bytes_[:1, 0], segmenter.start(2)),
            r"states \[B, D\] and byte_ids \[B\]",
        ),
        (lambda: segmenter.start(0), "num_rows must be an integer of at least 1, got 0"),
        (
            lambda: draw_from_bytes(make_segmenter("hnet", model), bytes_),
            "got 'HNetSegmenter', which reads encoder sta",
        ),
        (lambda: segment_text(model, segmenter, ""), "text must have at least 1 byte, got an empty text"),
        # At the call, before any byte is drawn.
        (lambda: write_on(model, oracle, "a", max_bytes=1), "segmenter must not look ahead to write, got SpaceByte"),
        (lambda: write_on(model, segmenter, "", max_bytes=1), "prompt must not be empty"),
        (lambda: write_on(model, segmenter, "a", max_bytes=-1), "max_bytes must be an integer of at least 0, got -1"),
        (lambda: write_on(model, segmenter, "a", max_bytes=1, top_k=0), "top_k must be an integer of at least 1"),
    ]:
        with pytest.raises((ValueError, TypeError), match=words):
            call()
