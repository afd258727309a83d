"""Runs with every segmenter: resumed to the last bit, saved, loaded and evaluated with equal boundaries."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from huggingface_hub import _CACHED_NO_EXIST
from huggingface_hub.errors import LocalEntryNotFoundError
from rltok_rl.agents.segmenters import (
    SEGMENTERS,
    EntropyThreshold,
    WordSplit,
    load_own_state,
    load_segmenter,
    make_segmenter,
    own_parameters,
    own_state,
    read_window,
    save_segmenter,
    saved,
    train_bpe,
    train_unigram,
)
from rltok_rl.agents.segmenters.tokenizer_rates import _nearest, grow_bpe, unigram_at_rate
from rltok_rl.experiments.commands import evaluate, generate, segment
from rltok_rl.experiments.commands.schema import choices
from rltok_rl.experiments.runs.build import make_loss, make_model, make_trainer
from rltok_rl.experiments.runs.segmenters import TOKENIZERS, actor_segmenter, configured_rate, segmenter_options
from rltok_rl.experiments.texts import read_texts

from rltok_rl.data import TextSource
from rltok_rl.evaluation import read_text, summarise
from rltok_rl.models import UNet, preset
from rltok_rl.models.flops import matrix_parameters
from rltok_rl.text import text_to_ids
from rltok_rl.training.metrics import segmenter_matrices

from ..each import each
from ..layout import ROOT
from ..states import same
from .configured import QUICK, configured

CHOICES = [word for word in choices("segmenter") if word != "learned"]
SMALL = [*QUICK[:-1], "data=recall", "model.overrides.target_rate=0.25"]
TINY = [*SMALL, "model.overrides.width=16", "model.overrides.num_token_layers=1"]
TEXT = b"It is a truth universally acknowledged, that a single man in possession of a good fortune, " * 2


def trainer_of(*options: str):
    return make_trainer(configured(*options))[0]


def few(word: str) -> list[str]:
    """Options that make a segmenter quick to train: small predictors, small vocabularies of little text; few layers."""
    if configured(*SMALL, f"segmenter={word}").segmenter.name in TOKENIZERS:
        return ["segmenter.options.vocabulary=300", "segmenter.options.num_bytes=20000"]
    if word == "hnet-2stage":
        return ["model.overrides.num_token_layers=2"]  # one before the second level, one after it
    wide = ("gumbel", "gumbel-round", "magnet", "entropy-spike", "entropy-spike-released")
    return ["segmenter.options.hidden=32"] if word in wide else []


def test_every_segmenter_has_a_word_that_pages_explain():
    pages = [(ROOT / "docs" / page).read_text() for page in ("segmenters.md", "training.md")]
    assert all(f"`{word}`" in page for word in choices("segmenter") for page in pages)
    assert {configured(*SMALL, f"segmenter={word}").segmenter.name for word in choices("segmenter")} == set(SEGMENTERS)


@pytest.mark.parametrize("word", CHOICES)
def test_every_segmenter_trains_and_resumes_to_the_last_bit(word):
    config = configured(*TINY, f"segmenter={word}", *few(word))
    trainer, other = (make_trainer(config)[0] for _ in range(2))
    own = dict(trainer.segmenter.named_parameters()) if trainer.segmenter is not None else {}
    before = {name: parameter.detach().clone() for name, parameter in own.items()}
    first = trainer.update()
    trainer.update()
    other.load_state_dict(copy.deepcopy(trainer.state_dict()))
    assert trainer.update() == other.update() and same(trainer.state_dict(), other.state_dict())
    assert 7 < first["bits_per_byte"] < 9 and first["rate"] <= first["padded_rate"] <= 1
    for name, parameter in own.items():
        if word == "magnet" and "predictors" in name and "latin" not in name:
            continue  # the language has letters of one script
        assert not torch.equal(parameter, before[name]), f"{name} of {word} is not trained"


def test_learned_policy_has_its_recorded_metrics_and_lags():
    """A hundredth of a nat would be another computation."""
    trainer = trainer_of(*QUICK[:-1], "data=recall", "segmenter=learned")
    for _ in range(3):
        metrics = trainer.update()
    expected = {"bits_per_byte": 7.289722, "grad_norm": 2.487803, "loss": 5.569107, "rate": 0.193548}
    expected["flops"] = 281296896.0  # with the tokens at first bytes
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    for word, lags in (("learned-w0", 0), ("learned-w1", 1), ("learned", 8)):
        config = configured(*SMALL, f"segmenter={word}")
        model = make_model(config, torch.device("cpu"))
        assert model.config.num_lags == lags and "policy" in make_loss(config, model).terms


def test_flops_of_a_segmenter_are_those_of_its_matrices():
    """Of MAGNET's four predictors one reads a byte."""
    trainer = trainer_of(*SMALL, "segmenter=gumbel", "segmenter.options.hidden=32")
    parts = matrix_parameters(trainer.model)
    tokens, width = parts.pop("token_layers"), trainer.model.config.width
    metrics = trainer.update()
    per_byte = sum(parts.values()) + 32 * width + 32
    assert metrics["flops"] == pytest.approx(6 * 128 * (per_byte + tokens * metrics["rate"]))
    assert trainer.padded_flops_done == pytest.approx(6 * 128 * (per_byte + tokens * metrics["padded_rate"]))
    model = UNet(preset("tiny"))
    one, four = (make_segmenter(name, model, hidden=32) for name in ("gumbel", "magnet"))
    assert segmenter_matrices(four, model) == segmenter_matrices(one, model) > 0
    assert len(own_parameters(four, model)) > len(own_parameters(one, model))


def test_run_and_schedule_end_with_the_flops():
    config = configured(*TINY, "segmenter=uniform", "optim.lr=0.1", "optim.lr_floor=0.0", "optim.total_bytes=768")
    plain, _ = make_trainer(config)
    plain.run()
    config.optim.total_flops, config.optim.total_bytes = plain.flops_done * 2, 1536
    longer, _ = make_trainer(config)
    rates: list[float] = []
    longer.run(lambda metrics: rates.append(metrics["lr"]))
    assert plain.updates == 6 and longer.updates == 12 and longer.flops_done == pytest.approx(plain.flops_done * 2)
    config.optim.total_bytes = 25600  # warm-up is a share of this; the schedule ends with the FLOPs
    last: list[float] = []
    make_trainer(config)[0].run(lambda metrics: last.append(metrics["lr"]))
    assert len(last) == 12 and last[6] == pytest.approx(rates[6], rel=0.2) and last[-1] < 0.02 * max(last)


def learning_rates(trainer, *stages) -> dict[int, float]:
    """Learning rates by stage: 0, and the last of these modules that holds a parameter."""
    stage = {
        id(p): number for number, modules in enumerate(stages, 1) for module in modules for p in module.parameters()
    }
    groups = trainer.optimizer.param_groups
    pairs = {(stage.get(id(p), 0), group["lr"]) for group in groups for p in group["params"]}
    assert len(pairs) == len(dict(pairs)) == len(stages) + 1
    return dict(pairs)


def test_stages_have_learning_rates_and_ratio_losses():
    """The word brings the model's second level; chunks of 1/0.25 and 1/0.4."""
    trainer = trainer_of(*SMALL, "segmenter=hnet")
    trainer.update()
    rates = learning_rates(trainer, [trainer.model.token_layers])
    assert rates[0] / rates[1] == pytest.approx(2.0)  # sqrt(1 / 0.25)
    for options in (["segmenter=hnet-baseline"], ["segmenter=hnet", "segmenter.stage_factors=false"]):
        assert trainer_of(*SMALL, *options).options.stage_factors is None
    options = ["segmenter=hnet-2stage", "segmenter.options.rate=0.25", "segmenter.options.second_rate=0.4"]
    trainer = trainer_of(*SMALL, *options)
    metrics = trainer.update()
    second, model = trainer.model.second_level, trainer.model
    rates = learning_rates(trainer, [model.token_layers, second.routing], [second.layers])
    assert rates[0] / rates[1] == pytest.approx(2.0) and rates[1] / rates[2] == pytest.approx(0.4**-0.5)
    assert trainer.loss.terms["second_level"].target_rate == 0.4
    assert {"loss_ratio", "loss_second_level"} <= set(metrics)
    parts = matrix_parameters(model)
    tokens = parts.pop("token_layers") + parts.pop("second_level.routing")
    above, width = parts.pop("second_level.layers"), model.config.width
    for prefix, spent in (("", trainer.flops_done), ("padded_", trainer.padded_flops_done)):
        rate, second_rate = metrics[f"{prefix}rate"], metrics[f"{prefix}second_rate"]
        per_byte = sum(parts.values()) + 3 * width**2 + rate * (tokens + second_rate * above)
        assert spent == pytest.approx(6 * 128 * per_byte)


def test_rates_of_random_boundaries_and_thresholds():
    """Each window has ceil(0.2 * 32) random boundaries, or twice ceil(0.2 * 16)."""
    for block, count in (([], 7), (["segmenter.options.block=16"], 8)):
        trainer = trainer_of(*TINY, "segmenter=random", "model.overrides.target_rate=0.2", *block)
        rollouts = [trainer.env.parallel_rollout(trainer.actor) for _ in range(3)]
        assert {int(n) for rollout in rollouts for n in rollout["action"].sum(1)} == {count}
    for word in ("entropy-threshold", "entropy-monotonic", "entropy-combined", "entropy-combined-released"):
        trainer = trainer_of(*TINY, f"segmenter={word}", "optim.total_bytes=640")
        trainer.run()  # the last update calibrates on its own text
        assert isinstance(trainer.segmenter, EntropyThreshold) and trainer.updates == 5
        boundaries = read_window(trainer.model, trainer.segmenter, trainer.step.byte_ids).segments.boundaries
        assert float(boundaries.float().mean()) == pytest.approx(0.25, abs=0.01), word


@pytest.mark.parametrize("word", [word for word in CHOICES if not word.startswith("learned")])
def test_a_saved_and_loaded_segmenter_draws_the_same(word, tmp_path):
    torch.manual_seed(1)
    config = configured(*SMALL, f"segmenter={word}")
    fields = {"num_token_layers": 2} if "2stage" in word else {}
    model = UNet(preset("tiny", target_rate=0.25, **config.segmenter.model, **fields)).eval()
    train_on = {"bpe": train_bpe, "unigram": train_unigram}.get(config.segmenter.name)
    tokens = {} if train_on is None else {"tokenizer": train_on([TEXT.decode()], vocabulary=280)}
    segmenter = make_segmenter(config.segmenter.name, model, **segmenter_options(config), **tokens).eval()
    with torch.no_grad():
        for parameter in segmenter.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        if isinstance(segmenter, EntropyThreshold):
            segmenter.threshold.fill_(5.4321)
    folder = model.save_pretrained(tmp_path / "model")
    save_segmenter(folder, segmenter, model, name=config.segmenter.name, options=segmenter_options(config))
    loaded = UNet.from_pretrained(tmp_path)
    again = load_segmenter(folder, loaded)
    assert type(again) is type(segmenter) and not again.training
    assert train_on is None or type(again.split) is type(segmenter.split)
    for mine, theirs in ((model, loaded), (segmenter, again)):
        assert all(torch.equal(x, y) for x, y in zip(mine.parameters(), theirs.parameters(), strict=True))
    one, other = (
        read_text(m, [TEXT, TEXT[5:90]], context=24, segmenter=s, generator=torch.Generator().manual_seed(0))
        for m, s in ((model, segmenter), (loaded, again))
    )
    assert torch.equal(one.boundaries, other.boundaries)
    torch.testing.assert_close(one.final_nats, other.final_nats, rtol=0, atol=1e-5)  # memory layout may change rounding
    for start in () if segmenter.draws_at_random else (0, 24, 48):  # windows read together are windows read one by one
        alone = read_window(model, segmenter, text_to_ids(TEXT[start : start + 24])[None])
        assert torch.equal(alone.segments.boundaries[0], one.boundaries[start : start + 24])
        costs = -alone.final_logits[0].log_softmax(-1).gather(1, text_to_ids(TEXT[start + 1 : start + 25])[:, None])
        assert torch.allclose(costs.squeeze(1).double(), one.final_nats[start : start + 24], atol=1e-4)


def test_a_saved_segmenter_replaces_an_earlier_one(tmp_path):
    model = UNet(preset("tiny"))
    for name in ("hnet", "uniform"):
        save_segmenter(tmp_path, make_segmenter(name, model), model, name=name, options={})
        assert type(load_segmenter(tmp_path, model)) is type(make_segmenter(name, model))
    assert [path.name for path in tmp_path.iterdir()] == ["segmenter.json"]
    folder, other = (model.save_pretrained(tmp_path / name) for name in ("model", "other"))
    assert load_segmenter(folder, model) is None  # a model without a run
    (tmp_path / "config.yaml").write_text("segmenter: {name: uniform}\n")
    assert load_segmenter(other, model) is None
    with pytest.raises(ValueError, match="model must hold segmenter.json, because .* names the segmenter 'uniform'"):
        load_segmenter(folder, model)


def test_a_segmenter_of_the_hub_is_fetched_with_the_given_options(tmp_path, monkeypatch, capsys):
    model, split = UNet(preset("tiny", width=16)), train_unigram([TEXT.decode()], vocabulary=280)
    options: dict[str, Any] = {"predictor": "trained", "hidden": 8}
    segmenter = make_segmenter("unigram", model, tokenizer=split, **options)
    save_segmenter(tmp_path, segmenter, model, name="unigram", options=options)
    asked: list[tuple] = []
    places = {"revision": "v2", "cache_dir": "cache"}

    def download(*names: str, **given: Any) -> str:
        asked.append((*names, given))
        return str(tmp_path / names[1])

    def missing(*_: str, **__: Any) -> str:
        raise LocalEntryNotFoundError("offline")

    def cached(hub_id: str, name: str, **given: Any) -> Any:
        return _CACHED_NO_EXIST if (hub_id, name, given) == (hub, "segmenter.json", places) else None

    hub = "somebody/a-model"
    monkeypatch.setattr(saved, "hf_hub_download", download)
    loaded = load_segmenter(hub, model, token="secret", **places)
    assert same(loaded.state_dict(), segmenter.state_dict()) and loaded.split(TEXT) == split(TEXT)
    files = ("segmenter.json", "segmenter.safetensors", "tokenizer.json")
    assert asked == [(hub, file, {"token": "secret", **places}) for file in files]
    monkeypatch.setattr(saved, "hf_hub_download", missing)
    monkeypatch.setattr(saved, "try_to_load_from_cache", cached)
    assert load_segmenter(hub, model, token="secret", **places) is None  # known to have none
    assert f"{hub} has no segmenter.json: its own policy draws" in capsys.readouterr().err
    with pytest.raises(FileNotFoundError, match=f"{hub} may have a segmenter.json that is not in the cache"):
        load_segmenter(hub, model, revision="v1", cache_dir="cache")


def test_state_of_another_segmenter_is_refused():
    """By its names and by its shapes, also where as many numbers would fit."""
    model = UNet(preset("tiny", width=16))
    segmenter = make_segmenter("grouped", model, hidden=8)
    state = {name: x.clone() for name, x in own_state(segmenter, model).items()}
    before = copy.deepcopy(state)
    name = "policy.0.weight"
    for wrong in (
        {**state, name: state[name].t()},
        {**state, name: state[name].flatten()},
        {**state, name: 3.0},
        {key: x for key, x in state.items() if key != name},
        {**state, "policy.9.weight": state[name]},
    ):
        with pytest.raises(ValueError, match="state must hold .* of GroupedSegmenter, got another 'policy.*weight'"):
            load_own_state(segmenter, model, wrong)
        assert same(own_state(segmenter, model), before)
    assert own_state(make_segmenter("learned", model), model) == {}
    early = make_segmenter("entropy-threshold", model, predictor="early_exit")
    assert {*own_state(early, model)} == {"threshold"}


def test_a_broken_segmenter_is_named(tmp_path):
    model = UNet(preset("tiny"))
    folder = model.save_pretrained(tmp_path / "model")
    assert load_segmenter(folder, model) is None
    save_segmenter(folder, make_segmenter("hnet", model), model, name="hnet", options={})
    (folder / "segmenter.safetensors").write_bytes(b"no")
    with pytest.raises(ValueError, match="must be a whole safetensors file"):
        load_segmenter(folder, model)
    (folder / "segmenter.safetensors").unlink()
    with pytest.raises(ValueError, match=r"state must hold .* of HNetSegmenter"):
        load_segmenter(folder, model)
    (folder / "segmenter.json").write_text("{}")
    with pytest.raises(ValueError, match="segmenter.json must hold format, got none"):
        load_segmenter(folder, model)


def test_commands_use_the_segmenter_or_actor_of_a_run(gumbel_run, uniform_run, metrics_of, output, tmp_path):
    model, file = UNet.from_pretrained(gumbel_run), tmp_path / "text.txt"
    segmenter = load_segmenter(gumbel_run / "model", model)
    file.write_bytes(TEXT)
    metrics = metrics_of(evaluate, gumbel_run, file)
    expected, of_policy = (summarise(read_text(model, TEXT, context=32, segmenter=s)) for s in (segmenter, None))
    assert metrics["corpus_bits_per_byte"] == expected["corpus_bits_per_byte"] != of_policy["corpus_bits_per_byte"]
    assert metrics["segmenter"].startswith("Gumbel")
    drawn = read_window(model, segmenter, text_to_ids(TEXT)[None]).segments.boundaries[0].tolist()
    shown = output(segment, "--file", file, "--model", gumbel_run, "--colour", "never")
    assert shown.count("|") == sum(drawn)
    shown = output(generate, "It is", "--model", gumbel_run, "--bytes", 5, "--temperature", 0)
    best = read_window(model, segmenter, text_to_ids(b"It is")[None]).final_logits[0, -1].argmax()
    assert shown.startswith("It is") and shown[5:].startswith(chr(int(best))) | (int(best) > 126 or int(best) < 32)
    # A run with evenly spaced boundaries is evaluated with them, not with the policy that it did not train.
    assert metrics_of(evaluate, uniform_run, file)["tokens"] == sum(-(-n // 5) for n in (32, 32, 32, 32, 32, 21))


def test_contradictory_options_are_refused():
    tokenizer = ["segmenter=unigram", "segmenter.options.tokenizer=x"]
    for options, message in (
        (["segmenter=hnet", "actor=uniform"], "actor must be 'learned' with segmenter='hnet', which draws the bound"),
        (["segmenter.options.rate=0.3"], "options of 'learned' must be among"),
        (tokenizer, r"options of 'unigram' must be among \['predictor', .*'vocabulary'.*'tokenizer'"),
        (["segmenter.name=unigramm"], "segmenter.name must be one of .* got 'unigramm'"),
        (["segmenter=hnet", "segmenter.options.stages=2"], "model must have second_level='routing' for .*, got None"),
        (["segmenter=hnet-2stage", "model.overrides.second_residual=identity"], "model must have second_residual="),
        (["segmenter=hnet-2stage", "model.overrides.num_token_layers=1"], "num_token_layers=2 at least.*got .*=1, 1"),
        (["model.overrides.byte_scope=token"], "bytes alone .* byte_scope='token', .* got segmenter='learned'"),
        (["segmenter=hnet", "model.overrides.byte_scope=token"], "with byte_scope='token', .* got 'hnet', which reads"),
        (["segmenter=grouped", "data.num_rows=5"], "multiple of segmenter.options.group_size, 4, in each of 1"),
    ):
        with pytest.raises(ValueError, match=message):
            trainer_of(*SMALL, *options)


def test_tokenizers_are_trained_on_training_text_alone():
    """Words of the training side have tokens, and those of the other side have none."""
    config = configured(*SMALL[:-2], "data=python-docs", "segmenter=bpe", "segmenter.options.most_bytes=20000")
    trainer, texts = make_trainer(config, texts=read_texts(config.data))
    held = next(texts.held_out.documents())[:4000]
    assert trainer.segmenter.looks_ahead and 0.15 < len(trainer.segmenter.split(held)) / len(held) < 0.4
    seen, unseen = (TextSource(f"{words} " * 200) for words in ("abc bca", "xyz zyx"))
    texts = replace(read_texts(configured(*TINY).data), train=seen, held_out=unseen, language=None)
    config = configured(*TINY, "segmenter=bpe", "segmenter.options.vocabulary=270")
    split = make_trainer(config, texts=texts)[0].segmenter.split
    assert len(split(b"abc abc abc")) < 9 and len(split(b"xyz xyz xyz")) >= 9


def test_tokenizers_have_a_vocabulary_or_the_nearest_rate():
    texts = [TEXT.decode()] * 3
    size = {"num_bytes": len(TEXT), "most_bytes": len(TEXT)}
    cut = grow_bpe(
        lambda _: train_bpe(texts, vocabulary=320), [TEXT], 0.48, **size
    ).split  # fewer merges are a smaller vocabulary
    count = cut.tokenizer.get_vocab_size()
    assert 256 < count < 320 and cut(TEXT) == train_bpe(texts, vocabulary=count)(TEXT)
    rates = {v: len(train_bpe(texts, vocabulary=v)(TEXT)) / len(TEXT) for v in range(257, 320)}
    assert len(cut(TEXT)) / len(TEXT) == min(rates.values(), key=lambda rate: abs(rate - 0.48))

    def make(number):  # a token per number + 1 bytes
        return lambda window: window[:: number + 1]

    window = bytes(5040)
    for rate in (0.9, 0.45, 0.3, 0.21, 0.14, 0.01):
        distances = [abs(len(make(number)(window)) / 5040 - rate) for number in range(1, 9)]
        nearest = _nearest(make, 0, 8, [window], rate)
        assert abs(len(nearest(window)) / 5040 - rate) == min(distances)
    unigram = ["segmenter=unigram", "segmenter.options.num_bytes=20000", "segmenter.options.vocabulary=400"]
    trainer = trainer_of(*TINY, "data=python-docs", *unigram)
    assert trainer.segmenter.looks_ahead and trainer.segmenter.split.tokenizer.get_vocab_size() <= 400
    known = ["a boundary is where a token ends; a token is a run of bytes. ", "bytes, tokens, boundaries, runs "]
    windows = [text.encode() * 9 for text in known]
    splits = [unigram_at_rate([text * 9 for text in known], windows, rate, trials=3) for rate in (0.3, 0.6)]
    low, high = (sum(len(split(w)) for w in windows) / sum(map(len, windows)) for split in splits)
    assert type(splits[0]) is WordSplit and low <= high and abs(low - 0.3) < 0.15


def test_target_rates_of_segmenters():
    def target(*options: str) -> float | None:
        config = configured(*TINY, *options)
        model = make_model(config, torch.device("cpu"))
        if config.segmenter.name in ("learned", *TOKENIZERS):
            made = None if config.segmenter.name == "learned" else make_segmenter("whitespace", model)
        else:
            made = make_segmenter(config.segmenter.name, model, **segmenter_options(config))
        return configured_rate(config, model, made)

    for word in ("learned", "uniform", "gumbel", "hnet", "grouped", "entropy-combined", "bpe"):
        assert target(f"segmenter={word}") == 0.25
    for word in ("spacebyte", "whitespace", "entropy-spike", "magnet", "unigram", "unigram-trained"):
        assert target(f"segmenter={word}") is None
    assert target("segmenter=unigram", "segmenter.options.rate=0.3") == 0.3
    assert target("segmenter=bpe", "segmenter.options.rate=0.3") == 0.3
    assert target("segmenter=bpe", "segmenter.options.vocabulary=300") is None


@each(actor=["uniform", "random"], rate=[None, 0.1])
def test_an_actor_is_saved_with_its_rate(actor, rate):
    model = UNet(preset("tiny", target_rate=0.3))
    segmenter, name, options = actor_segmenter(actor, rate, model)
    assert (
        options["rate"] == segmenter.target_rate == make_segmenter(name, model, **options).target_rate == (rate or 0.3)
    )


def test_rows_of_a_group_read_one_text():
    """Also if documents end within a window: rows of a group start anew together."""
    config = configured(*TINY, "segmenter=grouped", "segmenter.options.group_size=2", "data=python-docs")
    prose = "all happy families are alike; every unhappy family is unhappy in its own way. "
    for documents in (prose, [prose[i : i + 9 + i % 7] for i in range(40)]):
        source = TextSource(documents, short_documents="whole")
        texts = replace(read_texts(configured(*TINY).data), train=source, held_out=source, language=None)
        trainer, _ = make_trainer(config, texts=texts)
        trainer.update()  # refuses groups that read several texts
        rows = trainer.step.byte_ids
        assert torch.equal(rows[0::2], rows[1::2]) and not torch.equal(rows[0], rows[2])


def test_second_level_with_routing_has_a_loss():
    for actor in ("learned", "uniform"):
        for level in ("routing", "stride", "null"):
            config = configured(*QUICK, f"actor={actor}", "model=tiny", f"+model.overrides.second_level={level}")
            model = make_model(config, torch.device("cpu"))
            loss = make_loss(config, model)
            assert ("second_level" in loss.terms) == (level == "routing")
            if level == "routing":
                assert float(loss.coefficient("second_level")) == pytest.approx(0.03)
                assert loss.terms["second_level"].target_rate == model.config.second_rate
