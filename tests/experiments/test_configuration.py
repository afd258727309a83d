"""Every yaml file builds a trainer; options that cannot run are refused by name."""

from __future__ import annotations

from functools import reduce
from pathlib import Path

import pytest
import torch
from rltok_rl.agents import RandomActor, UniformActor, WhitespaceActor
from rltok_rl.agents.segmenters import SpaceByte
from rltok_rl.experiments import train
from rltok_rl.experiments.commands.schema import CONF, choices
from rltok_rl.experiments.run_config import GROUPS, WHOLE
from rltok_rl.experiments.runs import run
from rltok_rl.experiments.runs.build import make_advantages, make_trainer
from rltok_rl.experiments.runs.segmenters import WARM_START_RULES
from rltok_rl.experiments.runs.valid_options import check_options
from rltok_rl.experiments.texts import read_texts

from rltok_rl.data import DocumentSource, OrderedSource, local_prose
from rltok_rl.objectives import BASELINE_NAMES, BoundaryClipPPOLoss, LocalFlips
from rltok_rl.training import LoopOptions

from .configured import QUICK, composed, configured

FILES = sorted(p.relative_to(CONF).with_suffix("").as_posix() for p in CONF.rglob("*/*.yaml"))
SMALL_TOKENIZER = ["segmenter.options.vocabulary=300", "segmenter.options.num_bytes=20000"]
WITHOUT_BASELINE = ("control_variate", "local_flips", "near_flips", "token_gain")
COMPANY = {
    **{f"estimator/{name}": ["baseline=none"] for name in WITHOUT_BASELINE},
    **{f"segmenter/{name}": SMALL_TOKENIZER for name in ("bpe", "unigram", "unigram-trained")},
    "estimator/critic_advantage": ["loss=ppo"],
    "actor/warm_start": ["loss=importance"],
    "recipe/released": ["loss.rows_per_mean=4", "changes=[loss.rows_per_mean]"],
}
"""Options that a file needs in addition."""
ON_FILES = ("books", "own-text", "pocket", "precision", "files")
UPDATED = ("ablation", "actor", "baseline", "estimator", "loss", "optim", "rate", "recipe", "segmenter")
"""Groups whose files change an update; of the others, the trainer is built."""


def trainer_of(*options: str):
    return make_trainer(configured(*QUICK, *options))[0]


def test_every_file_has_no_ignored_options_and_makes_a_trainer():
    """The paper's sizes and data sets are composed alone."""
    assert {path.name for path in CONF.iterdir() if path.is_dir()} == {*GROUPS, *WHOLE}
    for file in FILES:
        group, name = file.split("/")
        chosen = [f"{group}={name}", *COMPANY.get(file, []), "compute.device=cpu"]
        check_options(configured(*chosen, *(["data.source=books"] if name in ON_FILES or "compare" in name else [])))
        config = configured(*chosen, *QUICK, "compute.compile=false")
        config.actor.warm_start_bytes = min(config.actor.warm_start_bytes, 128)
        config.data.options, config.data.min_bytes = {}, 2
        if "paper-" in config.model.preset:
            continue
        trainer, texts = make_trainer(config)
        assert trainer.bytes_per_update == 4 * 32 * config.compute.micro_batches and texts.described, file
        if group in UPDATED:
            metrics = trainer.update()
            assert all(torch.isfinite(torch.tensor(value)) for value in metrics.values()), file
            assert {"loss", "bits_per_byte", "rate", "grad_norm", "lr", "flops"} <= set(metrics), file
    for source in ("recall", "lexicon", "python-code", "python-docs"):
        trainer, texts = make_trainer(configured(*QUICK[:-1], f"data={source}", "data.num_steps=32"))
        assert (texts.language is not None) == (source in ("recall", "lexicon"))
        assert trainer.update()["bits_per_byte"] > 0


def test_options_of_these_tests_are_composed_as_by_hydra():
    for options in (
        [*QUICK, "actor=uniform", "model=pocket", "optim.lr=0.5", "+model.overrides.second_level=null"],
        ["estimator=local_flips", "baseline=none", "+baseline.options.a=1", "compare.systems=[bpe,learned]"],
        ["experiment=recall", "segmenter=gumbel", "segmenter.options.hidden=32", "optim=paper", "optim.lr=0.5"],
    ):
        assert configured(*options) == composed(*options)


def test_ablations_change_one_option_and_the_papers_runs_have_its_numbers():
    """Table 2 and Section 4: sizes, bytes, batches of 4096-byte sequences."""
    base = configured("experiment=ablations")
    named = (base.estimator.name, base.estimator.gamma, base.baseline.name)
    assert named == ("discounted_return", 0.99, "batch_mean")
    changes = {
        "no-discount": ("estimator.gamma", 1.0),
        "no-batch-mean": ("baseline.name", "none"),
        "no-early-exit": ("estimator.reward", "log_likelihood"),
        "no-rate-loss": ("rate.coefficient", 0.0),
        "one-lag": ("model.overrides", {**base.model.overrides, "num_lags": 1}),
        "no-lags": ("model.overrides", {**base.model.overrides, "num_lags": 0}),
    }
    for name, (option, value) in changes.items():
        assert reduce(getattr, option.split("."), configured("experiment=ablations", f"ablation={name}")) == value, name
    assert configured("experiment=ablations", "ablation=no-early-exit").loss.early_exit == 0.0
    for name, numbers in {
        "paper-147m-fineweb": ("paper-147m", "fineweb-10bt", 6_000_000_000, 1.5e-3, 450_000_000, 128),
        "paper-90m-codeparrot": ("paper-90m", "codeparrot", 3_400_000_000, 2e-3, 250_000_000, 128),
        "rate-sweep": ("paper-20m", "fineweb-10bt", 1_500_000_000, 3e-3, 110_000_000, 64),
    }.items():
        config = configured(f"experiment={name}")
        data, optim, rows = config.data, config.optim, config.data.num_rows * config.compute.micro_batches
        sizes = (config.model.preset, data.source, optim.total_bytes, optim.lr, optim.warm_up_bytes, rows)
        assert sizes == numbers and (data.min_bytes, data.max_bytes, data.num_steps + 1) == (4096, 4096, 4096)
        assert (optim.beta1, optim.beta2, config.estimator.gamma) == (0.9, 0.999, 0.99)
        assert config.baseline.name == "batch_mean"


def test_options_reach_the_objects_that_they_name():
    trainer = trainer_of("loss=ppo", "loss.clip_high=0.3", "loss.policy=0.5", "estimator=critic_advantage")
    term = trainer.loss.terms["policy"]
    assert isinstance(term, BoundaryClipPPOLoss) and term.critic_network is not None
    assert float(term.clip_epsilon_high) == pytest.approx(0.3) and float(term.clip_epsilon_low) == pytest.approx(0.2)
    assert float(trainer.loss.coefficient("policy")) == 0.5 and trainer.options.policy_epochs == 3
    flips = make_advantages(configured("estimator=local_flips", "baseline=none", "estimator.price=0.5"), trainer.model)
    assert isinstance(flips, LocalFlips) and flips.price == 0.5
    for name, kind in {"random": RandomActor, "uniform": UniformActor, "whitespace": WhitespaceActor}.items():
        trainer = trainer_of(f"actor={name}")
        assert isinstance(trainer.actor, kind) and "policy" not in trainer.loss.terms
    assert {*BASELINE_NAMES} == {*choices("baseline")}
    assert all(configured(f"baseline={word}").baseline.name == word for word in choices("baseline"))
    given = {"lr": 0.5, "warm_up_bytes": 130, "lr_floor": 0.25, "weight_decay": 0.125, "clip_norm": 2.0}
    options = [f"optim.{name}={value}" for name, value in {**given, "beta1": 0.5, "beta2": 0.75}.items()]
    options += ["compute.micro_batches=3", "compute.precision=bfloat16", "loss.policy_epochs=2"]
    more = {"betas": (0.5, 0.75), "micro_batches": 3, "precision": "bfloat16", "policy_epochs": 2}
    expected = LoopOptions(total_bytes=512, warm_start_bytes=20, **given, **more)
    assert trainer_of("loss=ppo", *options, "actor.warm_start_bytes=20").options == expected


def test_a_rule_draws_the_boundaries_that_the_policy_imitates():
    trainer = trainer_of("actor.warm_start_rule=third-letter", "actor.warm_start_bytes=100")
    rule = trainer.step.warm_start_rule.segmenter
    assert isinstance(rule, SpaceByte) and rule.offset == 3 and "loss_imitation" in trainer.update()
    for rule in WARM_START_RULES:
        assert (
            trainer_of(f"actor.warm_start_rule={rule}", "actor.warm_start_bytes=100").step.warm_start_rule is not None
        )


def test_an_entropy_bonus_adds_its_weighted_loss_to_every_objective():
    for loss in ("reinforce", "importance", "ppo"):
        options = [f"loss={loss}", "loss.policy_epochs=1"]
        plain, bonus = (trainer_of(*options, f"loss.entropy={weight}").update() for weight in (0.0, 0.5))
        assert "loss_entropy" not in plain
        assert bonus["loss_entropy"] == pytest.approx(-0.5 * bonus["entropy"], rel=1e-5)
        assert bonus["loss"] == pytest.approx(plain["loss"] + bonus["loss_entropy"], rel=1e-5), loss


def test_epochs_visit_the_training_text_in_an_order_of_the_seed():
    """Held-out text is in no epoch."""
    (first, texts), (other, _) = (make_trainer(configured(*QUICK, "data.order=epochs", f"seed={n}")) for n in (0, 1))
    source, held = first.env.source, texts.held_out
    assert isinstance(source, OrderedSource) and isinstance(held, DocumentSource)
    assert b"".join(source.source.documents()) + b"".join(held.documents()) == local_prose()
    assert not torch.equal(source.order(0), other.env.source.order(0))


NOT_TRAINED = [
    ("actor.warm_start_rule=spacebyte", "actor.warm_start_rule needs actor.warm_start_bytes, .* got 0"),
    (
        "actor.warm_start_rule=space-byte actor.warm_start_bytes=100",
        r"actor.warm_start_rule must be one of \['spacebyte', .* got 'space-byte'; did you mean 'spacebyte'",
    ),
    (
        "actor.warm_start_rule=uniform actor.warm_start_bytes=100 loss=ppo",
        "actor.warm_start_rule needs loss.objective='reinforce', got 'ppo'",
    ),
    (
        "actor.warm_start_rule=uniform actor.warm_start_bytes=100 actor.rates=[0.1,0.3] "
        "model.overrides.rate_embedding=true",
        "actor.warm_start_rule must be null with actor.rates",
    ),
    ("estimator.name=td", "estimator.name must be one of"),
    ("baseline.name=mean", "baseline.name must be one of"),
    ("baseline.name=leave_one", "got 'leave_one'; did you mean 'leave_one_out'"),
    ("baseline.name=group_maen", "got 'group_maen'; did you mean 'group_mean'"),
    ("estimator=control_variate", "baseline must be 'none' with ControlVariateReturn, .* got 'leave_one_out'"),
    ("actor.name=greedy", "actor.name must be one of"),
    ("loss.objective=trpo", "loss.objective must be one of"),
    ("estimator=local_flips", "baseline must be 'none' with 'local_flips'"),
    ("estimator=token_gain", "baseline must be 'none' with 'token_gain'"),
    ("estimator=critic_advantage", "estimator 'critic_advantage' needs loss.objective='ppo'"),
    ("estimator=control_variate baseline=group_mean", "must be 'none' with ControlVariateReturn, .*'group_mean'"),
    ("baseline=group_mean baseline.rows_per_text=1", "baseline.rows_per_text must be at least 2"),
    ("actor.rate=0.3", "actor.rate belongs to 'random' and 'uniform'"),
    ("loss.policy_epochs=2", "policy_epochs=2 needs a term 'policy' that weighs decisions"),
    ("data.order=sorted", "data.order must be one of"),
    ("+data.options.a=1", "data.options belong to a language or a corpus"),
    ("data=recall data.source=recall data.order=epochs", "data.order must be 'random' for a language"),
    ("data.held_out=1.5", "held_out must lie strictly between 0 and 1, got 1.5"),
    ("data.num_steps=1_000_000", "documents must have at least the 1000001 bytes of a window"),
]
"""Options, and the message of the trainer."""
IGNORED = [
    ("checkpoint_every=0", "checkpoint_every must be an integer of at least 1, got 0"),
    ("checkpoint_minutes=0", "checkpoint_minutes must be positive and finite, or None, got 0"),
    ("snapshots.batches=0", "snapshots.batches must be an integer of at least 1 and at most 10_000, got 0"),
    ("snapshots.num_bytes=1", "snapshots.num_bytes must be an integer of at least 2 and at most 1e7, got 1"),
    ("baseline.rows_per_text=0", "baseline.rows_per_text must be an integer of at least 1 and at most 1e6, got 0"),
    ("compute.threads=-1", "compute.threads must be an integer of at least 0 and at most 1024, got -1"),
    ("data.num_steps=0", "data.num_steps must be an integer of at least 1 and at most 1e7, got 0"),
    ("compute.tokens=packed compute.token_room=-1", r"compute.token_room must lie in \(0, 1000\], or None, got -1"),
    ("compute.device=gpu", "compute.device 'gpu' cannot be used"),
    ("compute.device=cuda:99", "compute.device 'cuda:99' cannot be used"),
    ("data.limit=3", "data.limit belongs to files and corpora, got data.source='python-docs' .data=python-docs"),
    ("experiment=books", "data.min_bytes belongs to files and corpora, got data.source='python-docs'"),
    ("data.source=recall data.held_out=0.5", "data.held_out belongs to files and corpora, got .*'recall'"),
    ("loss.clip_low=0.1", "loss.clip_low belongs to ppo, got loss.objective='reinforce'"),
    ("loss.max_weight=3", "loss.max_weight belongs to importance, got loss.objective='reinforce'"),
    ("loss=ppo loss.average=all", "loss.average belongs to reinforce and importance, got .*'ppo'"),
    ("estimator=local_flips baseline=none +baseline.options.a=1", "baseline.options must be empty with"),
    ("estimator=token_gain baseline=none +baseline.options.a=1", "baseline.options must be empty with"),
]
"""Options, and the message before anything is read."""


def test_options_that_cannot_be_trained_are_refused(monkeypatch):
    for options, message in NOT_TRAINED:
        with pytest.raises(ValueError, match=message):
            trainer_of(*options.split())
    monkeypatch.setattr(run, "make_trainer", lambda *_: pytest.fail("a trainer was made"))
    for options, message in IGNORED:
        with pytest.raises(ValueError, match=message):
            train.run(configured(*QUICK, *options.split()), "")


def test_a_rule_can_replace_the_policy_of_an_experiment():
    """The experiment's options of a policy are ignored; those that matter to a rule are not."""
    given = ["actor.name=uniform", "loss.language_model=0.9", "loss.early_exit=0.3", "actor.rate=0.5", *QUICK]
    given += ["model.preset=tiny", "compute.device=cpu", "compute.compile=false", "compute.micro_batches=1"]
    for name in ("lexicon", "compare-ppo", "rate-sweep"):
        config = configured(f"experiment={name}", *given, "data.min_bytes=2")
        config.data.options, config.model.overrides, config.model.weights = {}, {}, None
        trainer, _ = make_trainer(config)
        assert set(trainer.loss.terms) == {"language_model", "early_exit"}, name
        assert [float(trainer.loss.coefficient(term)) for term in trainer.loss.terms] == pytest.approx([0.9, 0.3])
    assert trainer.update()["rate"] == 0.5


def test_files_are_cached_filtered_and_counted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [f'{{"text": "{"to be or not to be, " * n}"}}' for n in range(1, 41)]
    (tmp_path / "some.jsonl").write_text("\n".join(lines))
    options = [*QUICK[:-1], "data=files", "data.source=some.jsonl", "data.min_bytes=100", "data.order=epochs"]
    options += ["data.num_steps=32", "data.held_out=0.2"]
    trainer, texts = make_trainer(configured(*options))
    assert "kept 36 of 40 documents" in texts.described and "data.min_bytes=2 keeps all" in texts.described
    assert "\n  cached in caches/some-" in texts.described and "skipped" not in texts.described
    assert len(list((tmp_path / "caches").iterdir())) == 1
    trainer.update()
    make_trainer(configured(*options, "data.min_bytes=200"))
    assert len(list((tmp_path / "caches").iterdir())) == 2  # other filters, another cache


def test_the_packaged_model_reads_documents_of_any_length(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    text = local_prose(30_000)
    for number in range(30):
        (tmp_path / "mine" / f"{number}.txt").write_bytes(text[1000 * number : 1000 * number + 40 * (number + 1)])
    (tmp_path / "mine" / "table.csv").write_text("a,b")
    (tmp_path / "one.txt").write_bytes(text[:2000])
    trainer, texts = make_trainer(configured("experiment=own-text", "data.source=mine", "data.num_rows=2"))
    assert "kept 30 of 30" in texts.described and "skipped 1 of other kinds (.csv)" in texts.described
    assert trainer.update()["bits_per_byte"] < 4.0  # it has learned to read before
    for source, message, *options in (
        ("mine", "data.num_steps=512 is too much for the training text .*; data.short_documents=whole"),
        ("one.txt", "too much for the held-out text .1 document .1,800 bytes. to train on", "data.num_steps=256"),
    ):
        options += [f"data.source={source}", "data.short_documents=error"]
        with pytest.raises(ValueError, match=message):
            make_trainer(configured("experiment=own-text", *options))


def test_text_that_cannot_be_read_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, content in {
        "plain.txt": b"some words, and more of them",
        "broken.txt": b"abc\xff\xfe",
        "empty.txt": b"",
        "table.jsonl": b'{"body": "some words"}',
    }.items():
        (tmp_path / name).write_bytes(content)
    for options, error, message in (
        ("none.txt", FileNotFoundError, "data.source must be one of .*'fineweb-10bt'.*, a file or a folder"),
        ("", FileNotFoundError, "data.source must be one of .*, got ''"),
        ("plain.txt data.column=body", ValueError, "data.column belongs to tables, got 'body' with plain text, 'plain"),
        ("plain.txt data.cache=/dev/null/cache", OSError, "data.cache must be a folder that can be written, got '/dev"),
        ("broken.txt", ValueError, "text must be UTF-8, got .* at byte 3 of broken.txt"),
        ("empty.txt", ValueError, "empty.txt|documents must hold at least one text"),
        ("table.jsonl", ValueError, "column.*body"),
    ):
        with pytest.raises(error, match=message):
            source = f"data.source={options}".split()
            make_trainer(configured(*QUICK[:-1], "data=files", *source, "data.num_steps=8"))


def test_tables_without_a_book_are_split_by_document_or_refused_without_a_trace(tmp_path, monkeypatch):
    """`experiment=own-text` takes any table; `data=books` names the column that it misses."""
    monkeypatch.chdir(tmp_path)
    rows = "".join('{"text": "' + f"document {number} " * 600 + '"}\n' for number in range(40))
    Path("mine.jsonl").write_text(rows)
    assert configured("experiment=own-text", "data.source=mine.jsonl").data.split_by is None
    with pytest.raises(ValueError, match=r"split_by must be one of \['text'\] .*, or null .*, got 'book'"):
        read_texts(configured("experiment=books", "data.source=mine.jsonl").data)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.jsonl"]
    read = read_texts(configured("experiment=books", "data.source=mine.jsonl", "data.split_by=null").data)
    assert read.held_out_groups is None and "40 documents" in read.described
