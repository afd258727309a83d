"""Every yaml file makes a training; what cannot be trained is refused by name."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.errors import ConfigCompositionException
from omegaconf import MissingMandatoryValue
from rltok_rl.agents import RandomActor, UniformActor, WhitespaceActor
from rltok_rl.experiments import train
from rltok_rl.experiments.commands.options import (
    CONF,
    check_folder,
    check_overrides,
    check_policy,
    choices,
)
from rltok_rl.experiments.commands.overrides import STANDS_ALONE, TAKES_VALUE
from rltok_rl.experiments.config import GROUPS
from rltok_rl.experiments.runs import run
from rltok_rl.experiments.runs.build import make_advantages, make_trainer
from rltok_rl.experiments.runs.valid_options import check_options
from rltok_rl.experiments.texts import read_texts

from rltok_rl.data import DocumentSource, OrderedSource, local_prose
from rltok_rl.objectives import BASELINE_NAMES, BoundaryClipPPOLoss, LocalFlips
from rltok_rl.training import LoopOptions

from ..forked import run_forked
from ..layout import ROOT
from .configured import QUICK, composed, configured

FILES = sorted(p.relative_to(CONF).with_suffix("").as_posix() for p in CONF.rglob("*/*.yaml"))
#: What a file needs beside itself.
COMPANY = {
    "estimator/control_variate": ["baseline=none"],
    "estimator/critic": ["loss=ppo"],
    "estimator/flips": ["baseline=none"],
    "estimator/near_flips": ["baseline=none"],
    "actor/warm_start": ["loss=importance"],
    "experiment/pocket-on": ["model.weights=pocket"],
}


@pytest.mark.parametrize("file", FILES)
def test_every_file_makes_a_trainer(file):
    """Composed, built and run for an update; the paper's sizes and data sets are composed alone."""
    group, name = file.split("/")
    config = configured(
        f"{group}={name}", *COMPANY.get(file, []), *QUICK, "compute.device=cpu", "compute.compile=false"
    )
    config.actor.warm_start_bytes = min(config.actor.warm_start_bytes, 128)
    config.data.options = {}
    if "paper-" in config.model.preset:
        return
    config.data.min_bytes = 2
    trainer, texts = make_trainer(config)
    assert trainer.bytes_per_update == 4 * 32 * config.compute.micro_batches and texts.described
    figures = trainer.update()
    assert all(torch.isfinite(torch.tensor(value)) for value in figures.values())
    assert {"loss", "bits_per_byte", "rate", "grad_norm", "lr", "flops"} <= set(figures)


@pytest.mark.parametrize("source", ["recall", "lexicon", "python-code", "python-docs"])
def test_every_source_is_trained_on(source):
    trainer, texts = make_trainer(configured(*QUICK[:-1], f"data={source}", "data.num_steps=32"))
    assert (texts.language is not None) == (source in ("recall", "lexicon"))
    assert trainer.update()["bits_per_byte"] > 0


@pytest.mark.parametrize(
    "options",
    [
        [*QUICK, "actor=uniform", "+model.overrides.second_level=null"],
        ["estimator=local_flips", "baseline=none", "+baseline.options.a=1", "compare.systems=[bpe,learned]"],
        ["experiment=recall", "segmenter=gumbel", "segmenter.options.hidden=32", "optim=paper", "optim.lr=0.5"],
    ],
)
def test_options_of_these_tests_are_put_together_as_hydra_does(options):
    assert configured(*options) == composed(*options)


def test_groups_are_the_schemas():
    folders = {p.name for p in CONF.iterdir() if p.is_dir()}
    assert folders == {*GROUPS, "experiment"}


def test_an_experiment_says_what_it_changes():
    base = configured("experiment=ablations")
    assert (base.estimator.name, base.estimator.gamma, base.baseline.name) == (
        "discounted_return",
        0.99,
        "batch_mean",
    )
    changes = {
        "no-discount": ("estimator.gamma", 1.0),
        "no-batch-mean": ("baseline.name", "none"),
        "no-early-exit": ("estimator.reward", "log_likelihood"),
        "no-rate-loss": ("rate.coefficient", 0.0),
        "one-lag": ("model.overrides.num_lags", 1),
        "no-lags": ("model.overrides.num_lags", 0),
    }
    for name, (option, value) in changes.items():
        found = configured(f"experiment={name}")
        for part in option.split("."):
            found = found[part] if isinstance(found, dict) else getattr(found, part)
        assert found == value, name
    assert configured("experiment=no-early-exit").loss.early_exit == 0.0


def test_the_papers_runs_have_the_papers_numbers():
    """Table 2 and Section 4: sizes, bytes, batches of 4096-byte sequences."""
    expected = {
        "paper-147m-fineweb": ("paper-147m", "fineweb-10bt", 6_000_000_000, 1.5e-3, 450_000_000, 128),
        "paper-90m-codeparrot": ("paper-90m", "codeparrot", 3_400_000_000, 2e-3, 250_000_000, 128),
        "rate-sweep": ("paper-20m", "fineweb-10bt", 1_500_000_000, 3e-3, 110_000_000, 64),
    }
    for name, numbers in expected.items():
        config = configured(f"experiment={name}")
        rows = config.data.num_rows * config.compute.micro_batches
        optim = config.optim
        found = (config.model.preset, config.data.source, optim.total_bytes, optim.lr, optim.warm_up_bytes, rows)
        assert found == numbers
        assert (config.data.min_bytes, config.data.max_bytes, config.data.num_steps + 1) == (4096, 4096, 4096)
        assert (optim.beta1, optim.beta2, config.estimator.gamma, config.baseline.name) == (
            0.9,
            0.999,
            0.99,
            "batch_mean",
        )


@pytest.mark.parametrize(("name", "jobs"), [("rate-sweep", 3), ("estimator-grid", 6), ("gamma-grid", 7)])
def test_grids_are_as_many_runs_as_they_say_each_in_its_folder(name, jobs):
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        made = compose("train", [f"experiment={name}"], return_hydra_config=True)
        ((option, values),) = [(k, v) for k, v in made.hydra.sweeper.params.items() if "," in v]
        outs = [compose("train", [f"experiment={name}", f"{option}={value}"]).out for value in values.split(",")]
    assert len(set(outs)) == len(outs) == jobs


def test_options_reach_what_they_name():
    trainer, _ = make_trainer(
        configured(*QUICK, "loss=ppo", "loss.clip_high=0.3", "loss.policy=0.5", "estimator=critic_advantage")
    )
    term = trainer.loss.terms["policy"]
    assert isinstance(term, BoundaryClipPPOLoss) and term.critic_network is not None
    assert float(term.clip_epsilon_high) == pytest.approx(0.3) and float(term.clip_epsilon_low) == pytest.approx(0.2)
    assert float(trainer.loss.coefficient("policy")) == 0.5 and trainer.options.policy_epochs == 3
    flips = make_advantages(configured("estimator=local_flips", "baseline=none", "estimator.price=0.5"), trainer.model)
    assert isinstance(flips, LocalFlips) and flips.price == 0.5
    for name, kind in {"random": RandomActor, "uniform": UniformActor, "whitespace": WhitespaceActor}.items():
        trainer, _ = make_trainer(configured(*QUICK, f"actor={name}"))
        assert isinstance(trainer.actor, kind) and "policy" not in trainer.loss.terms
    assert {f"{name}" for name in choices("baseline")} == {
        "none",
        "batch_mean",
        "leave_one_out",
        "z_score",
        "running_mean",
        "group_mean",
    }
    assert {*BASELINE_NAMES} == {*choices("baseline")}
    assert all(configured(f"baseline={word}").baseline.name == word for word in choices("baseline"))


def test_how_it_is_optimised_reaches_the_loop():
    """Every number, none of them its default."""
    given = {
        "optim.lr": 0.5,
        "optim.warm_up_bytes": 130,
        "optim.lr_floor": 0.25,
        "optim.beta1": 0.5,
        "optim.beta2": 0.75,
        "optim.weight_decay": 0.125,
        "optim.clip_norm": 2.0,
        "compute.micro_batches": 3,
        "compute.precision": "bfloat16",
        "loss.policy_epochs": 2,
        "actor.warm_start_bytes": 20,
    }
    trainer, _ = make_trainer(configured(*QUICK, "loss=ppo", *(f"{name}={value}" for name, value in given.items())))
    assert trainer.options == LoopOptions(
        total_bytes=512,
        lr=0.5,
        warm_up_bytes=130,
        lr_floor=0.25,
        betas=(0.5, 0.75),
        weight_decay=0.125,
        clip_norm=2.0,
        micro_batches=3,
        precision="bfloat16",
        policy_epochs=2,
        warm_start_bytes=20,
    )


@pytest.mark.parametrize("loss", ["reinforce", "importance", "ppo"])
def test_an_entropy_bonus_goes_with_every_objective(loss):
    """One of weight w adds w times its own loss to the total, whatever the policy's term weighs."""
    plain, with_bonus = (
        make_trainer(configured(*QUICK, f"loss={loss}", "loss.policy_epochs=1", f"loss.entropy={weight}"))[0].update()
        for weight in (0.0, 0.5)
    )
    assert "loss_entropy" not in plain
    assert with_bonus["loss_entropy"] == pytest.approx(-0.5 * with_bonus["entropy"], rel=1e-5)
    assert with_bonus["loss"] == pytest.approx(plain["loss"] + with_bonus["loss_entropy"], rel=1e-5)


def test_an_order_is_one_of_the_texts_to_train_on_with_the_runs_seed():
    """What is held out is in no epoch."""
    (first, texts), (other, _) = (make_trainer(configured(*QUICK, "data.order=epochs", f"seed={n}")) for n in (0, 1))
    train, held = first.env.source, texts.held_out
    assert isinstance(train, OrderedSource) and isinstance(held, DocumentSource)
    whole = local_prose()
    assert b"".join(train.source.documents()) + b"".join(held.documents()) == whole
    assert not torch.equal(train.order(0), other.env.source.order(0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["estimator.name=td"], "estimator.name must be one of"),
        (["baseline.name=mean"], "baseline.name must be one of"),
        (["baseline.name=leave_one"], "got 'leave_one'; did you mean 'leave_one_out'"),
        (["baseline.name=group_maen"], "got 'group_maen'; did you mean 'group_mean'"),
        (["estimator=control_variate"], "baseline must be 'none' with ControlVariateReturn, .* got 'leave_one_out'"),
        (["actor.name=greedy"], "actor.name must be one of"),
        (["loss.objective=trpo"], "loss.objective must be one of"),
        (["estimator=local_flips"], "baseline must be 'none' with 'local_flips'"),
        (["estimator=critic_advantage"], "estimator 'critic_advantage' needs loss.objective='ppo'"),
        (
            ["estimator=control_variate", "baseline=group_mean"],
            "must be 'none' with ControlVariateReturn, .*'group_mean'",
        ),
        (["baseline=group_mean", "baseline.rows_per_text=1"], "baseline.rows_per_text must be at least 2"),
        (["actor.rate=0.3"], "actor.rate belongs to 'random' and 'uniform'"),
        (["loss.policy_epochs=2"], "policy_epochs=2 needs a term 'policy' that weighs decisions"),
        (["data.order=sorted"], "data.order must be one of"),
        (["+data.options.a=1"], "data.options belong to a language or a corpus"),
        (["data=recall", "data.source=recall", "data.order=epochs"], "data.order must be 'random' for a language"),
        (["data.held_out=1.5"], "held_out must lie strictly between 0 and 1, got 1.5"),
        (["data.num_steps=1_000_000"], "documents must have at least the 1000001 bytes of a window"),
    ],
)
def test_what_cannot_be_trained_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make_trainer(configured(*QUICK, *options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["checkpoint_every=0"], "checkpoint_every must be at least 1, got 0"),
        (["snapshots.batches=0"], "snapshots.batches must be at least 1, got 0"),
        (["snapshots.num_bytes=1"], "snapshots.num_bytes must be at least 2, got 1"),
        (["baseline.rows_per_text=0"], "baseline.rows_per_text must be at least 1, got 0"),
        (["compute.threads=-1"], "compute.threads must be at least 0, got -1"),
        (["data.num_steps=0"], "data.num_steps must be at least 1, got 0"),
        (["compute.device=gpu"], "compute.device 'gpu' cannot be used"),
        (["compute.device=cuda:99"], "compute.device 'cuda:99' cannot be used"),
        (["data.limit=3"], "data.limit belongs to files and corpora, got data.source='python-docs' .data=python-docs"),
        (["experiment=books"], "data.min_bytes belongs to files and corpora, got data.source='python-docs'"),
        (["data.source=recall", "data.held_out=0.5"], "data.held_out belongs to files and corpora, got .*'recall'"),
        (["loss.clip_low=0.1"], "loss.clip_low belongs to ppo, got loss.objective='reinforce'"),
        (["loss.max_weight=3"], "loss.max_weight belongs to importance, got loss.objective='reinforce'"),
        (["loss=ppo", "loss.average=all"], "loss.average belongs to reinforce and importance, got .*'ppo'"),
        (["estimator=local_flips", "baseline=none", "+baseline.options.a=1"], "baseline.options must be empty with"),
    ],
)
def test_what_would_be_ignored_or_never_end_well_is_refused_before_anything_is_read(options, message, monkeypatch):
    monkeypatch.setattr(run, "make_trainer", lambda *_: pytest.fail("a trainer was made"))
    with pytest.raises(ValueError, match=message):
        train.run(configured(*QUICK, *options), "")


@pytest.mark.parametrize(
    "option",
    [
        "estimator=discounted_return",
        "estimator.gamma=0.9",
        "+estimator.options.span=8",
        "baseline=group_mean",
        "baseline.rows_per_text=2",
        "rate=hinge",
        "rate.coefficient=0.1",
        "loss=ppo",
        "loss=reinforce",
        "loss.policy=0.1",
        "loss.entropy=0.1",
        "loss.policy_epochs=3",
        "actor.warm_start_bytes=100",
    ],
)
@pytest.mark.parametrize(
    "drawing", ["actor=uniform", "actor.name=random", "actor=whitespace", "segmenter=hnet", "segmenter.name=bpe"]
)
def test_what_is_asked_of_a_policy_is_refused_where_there_is_none(option, drawing):
    message = f"{option.lstrip('+')} belongs to a policy that is learned, got {drawing}"
    with pytest.raises(ValueError, match=re.escape(message)):
        check_policy([option, drawing, "seed=1"])
    group = drawing.partition("=")[0].partition(".")[0]
    check_policy([option, f"{group}=learned"])
    check_policy([option, drawing, f"{group}=learned"])  # Hydra takes the last one
    check_policy([option, "--multirun", f"{group}=learned,uniform"])  # of other runs


@pytest.mark.parametrize(
    ("typed", "refused"),
    [
        (["segmenter=hnet", "actor=uniform"], "actor=uniform"),
        (["segmenter=hnet", "actor=warm_start"], "actor=warm_start"),
        (["segmenter=hnet", "actor.rate=0.5"], "actor.rate=0.5"),
        (["segmenter=hnet", "rate.control=none"], "rate.control=none"),
        (["segmenter=learned-w0", "actor=uniform", "loss=ppo"], "loss=ppo"),
        (["segmenter=learned-w0", "actor=warm_start", "loss=ppo", "segmenter.options.num_lags=1"], None),
        (["segmenter=hnet", "actor=learned", "loss=released", "loss.early_exit=0.2"], None),
        (["actor=uniform", "actor.rate=0.5", "loss=released", "loss.language_model=2"], None),
        (["actor=uniform", "actor=warm_start", "loss=ppo"], None),
        (["experiment=books", "segmenter=hnet", "segmenter.options.rate=0.3"], None),
        (["estimator=local_flips", "baseline=none", "rate=hinge"], None),
    ],
)
def test_who_draws_says_what_may_be_asked(typed, refused):
    if refused is None:
        check_policy(typed)
        return
    with pytest.raises(ValueError, match=f"^{re.escape(refused)} belongs to a policy that is learned"):
        check_policy(typed)


@pytest.mark.parametrize("name", choices("experiment"))
def test_a_rule_can_stand_in_for_any_experiments_policy(name):
    """What an experiment says about the policy lies idle then; what matters is heeded, and may be asked for."""
    given = [f"experiment={name}", "actor=uniform", "loss=released", "loss.early_exit=0.3", "actor.rate=0.5", *QUICK]
    check_policy(given)
    one = ["compute.device=cpu", "compute.compile=false", "compute.micro_batches=1"]
    config = configured(*given, *one, "model=tiny", "data.min_bytes=2")
    config.data.options, config.model.overrides, config.model.weights = {}, {}, None
    trainer, _ = make_trainer(config)
    figures = trainer.update()
    assert set(trainer.loss.terms) == {"language_model", "early_exit"} and figures["rate"] == 0.5
    assert [float(trainer.loss.coefficient(term)) for term in trainer.loss.terms] == pytest.approx([0.9, 0.3])


@pytest.mark.parametrize("file", FILES)
def test_no_file_has_options_that_are_ignored(file):
    group, name = file.split("/")
    needed = (
        "data/files",
        "data/books",
        "experiment/books",
        "experiment/compare",
        "experiment/compare-seeds",
        "experiment/own-text",
        "experiment/pocket",
        "experiment/pocket-on",
    )
    source = ["data.source=books"] if file in needed else []
    check_options(configured(f"{group}={name}", *COMPANY.get(file, []), *source, "compute.device=cpu"))


def test_files_are_cached_filtered_and_counted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [f'{{"text": "{"to be or not to be, " * n}"}}' for n in range(1, 41)]
    (tmp_path / "some.jsonl").write_text("\n".join(lines))
    options = [*QUICK[:-1], "data=files", "data.source=some.jsonl", "data.min_bytes=100", "data.order=epochs"]
    trainer, texts = make_trainer(configured(*options, "data.num_steps=32", "data.held_out=0.2"))
    assert "kept 36 of 40 documents" in texts.described and "data.min_bytes=2 keeps all" in texts.described
    assert "\n  cached in caches/some-" in texts.described and "skipped" not in texts.described
    assert len(list((tmp_path / "caches").iterdir())) == 1
    trainer.update()
    make_trainer(configured(*options, "data.num_steps=32", "data.held_out=0.2", "data.min_bytes=200"))
    assert len(list((tmp_path / "caches").iterdir())) == 2  # another way of filtering is another cache


def test_the_packaged_model_reads_documents_of_any_length(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    text = local_prose(30_000)
    for number in range(30):
        (tmp_path / "mine" / f"{number}.txt").write_bytes(text[1000 * number : 1000 * number + 40 * (number + 1)])
    (tmp_path / "mine" / "table.csv").write_text("a,b")
    trainer, texts = make_trainer(configured("experiment=own-text", "data.source=mine", "data.num_rows=2"))
    assert "kept 30 of 30" in texts.described and "skipped 1 of other kinds (.csv)" in texts.described
    assert trainer.update()["bits_per_byte"] < 4.0  # it has learned to read before
    with pytest.raises(ValueError, match="data.num_steps=512 is too much for the text .*; data.short_documents=whole"):
        make_trainer(configured("experiment=own-text", "data.source=mine", "data.short_documents=error"))
    (tmp_path / "one.txt").write_bytes(text[:2000])
    short = ["data.short_documents=error", "data.num_steps=256"]
    with pytest.raises(ValueError, match="too much for the held-out text .1 document .1,800 bytes. to train on"):
        make_trainer(configured("experiment=own-text", "data.source=one.txt", *short))


def test_text_that_cannot_be_read_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def read(name: str, *options: str):
        return make_trainer(configured(*QUICK[:-1], "data=files", f"data.source={name}", "data.num_steps=8", *options))

    with pytest.raises(FileNotFoundError, match="data.source must be one of .*'fineweb-10bt'.*, a file or a folder"):
        read("none.txt")
    with pytest.raises(FileNotFoundError, match="data.source must be one of .*, got ''"):
        read("")
    (tmp_path / "plain.txt").write_text("some words, and more of them")
    with pytest.raises(ValueError, match="data.column belongs to tables, got 'body' with plain text, 'plain.txt'"):
        read("plain.txt", "data.column=body")
    with pytest.raises(OSError, match="data.cache must be a folder that can be written, got '/dev/null/cache'"):
        read("plain.txt", "data.cache=/dev/null/cache")
    (tmp_path / "broken.txt").write_bytes(b"abc\xff\xfe")
    with pytest.raises(ValueError, match="text must be UTF-8, got .* at byte 3 of broken.txt"):
        read("broken.txt")
    (tmp_path / "empty.txt").write_bytes(b"")
    with pytest.raises(ValueError, match="empty.txt|documents must hold at least one text"):
        read("empty.txt")
    (tmp_path / "table.jsonl").write_text('{"body": "some words"}')
    with pytest.raises(ValueError, match="column.*body"):
        read("table.jsonl")


def test_keys_that_do_not_exist_are_refused_with_the_nearest():
    with pytest.raises(ConfigCompositionException, match="lrr"):
        composed("optim.lrr=1")
    for argument, message in [
        ("optim.lrr=1", "there is no option 'optim.lrr'; did you mean 'optim.lr'"),
        ("lr=1", "there is no option 'lr'; did you mean 'optim.lr'"),
        ("estimator=local_flip", "estimator must be one of .* got 'local_flip'; did you mean 'local_flips'"),
        ("experiment=paper-147m", "did you mean 'paper-147m-fineweb'"),
        ("model.overrides.widht=3", "got 'widht'; did you mean 'width'"),
        ("baseline=none,leave_one_ot", "got 'leave_one_ot'; did you mean 'leave_one_out'"),
    ]:
        with pytest.raises(ValueError, match=message):
            check_overrides([argument])
    check_overrides(["--multi", "--cfg=job", "-cjob", "-c", "job", "--info", "all"])
    check_overrides(
        [
            "--multirun",
            "hydra/launcher=joblib",
            "+rate.options.margin=1",
            "estimator=discounted_return,local_flips",
            "seed=1",
        ]
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["estimater=flips"], "there is no option 'estimater'; did you mean 'estimator'?"),
        (["actor=uniform", "rate=hinge"], "rate=hinge belongs to a policy that is learned, got actor=uniform"),
        (["out=/dev/null/run"], "out must be a folder that can be written, got '/dev/null/run': Not a directory"),
        (["data=files"], "data.source must be given"),
        (["data.source=nosuch", "out=runs/deep/x"], None),
        (["estimator.gamma=5"], "estimator.gamma must lie in [0, 1], got 5.0"),
        (
            ["seed=1,2"],
            "seed must be one value without --multirun, got 1,2; add --multirun for a run each",
        ),
        (["--hlep"], "there is no flag '--hlep'; did you mean '--help'?"),
        (["--nosuch"], "there is no flag '--nosuch'; --help lists options"),
        (["--seed", "3"], "options must be written name=value, got '--seed'; write seed=VALUE"),
        (["--model=tiny"], "options must be written name=value, got '--model=tiny'; write model=tiny"),
        (["--lr=1"], "options must be written name=value, got '--lr=1'; write optim.lr=1"),
        (["-model=tiny"], "options must be written name=value, got '-model=tiny'; write model=tiny"),
        (["-multirun", "seed=1,2"], "there is no flag '-multirun'; did you mean '--multirun'?"),
        (["seed=-1"], "seed must be at least 0, got -1"),
        (["out=runs/${seeed}"], "Interpolation key 'seeed' not found"),
        (
            ["data=recall", "data.num_rows=1"],
            "data.num_rows must be at least 2 with baseline=leave_one_out, which compares rows, got 1; write "
            "baseline=running_mean for one row",
        ),
        (
            ["+seed=3"],
            "Could not append to config. An item is already at 'seed'; Either remove + prefix: 'seed=3'; Or "
            "add a second + to add or override 'seed': '++seed=3'",
        ),
        (["compute.device=meta:x"], "compute.device 'meta:x' cannot be used: Invalid device string: 'meta:x'"),
        (
            ["optim.total_bytes=9", "optim.warm_up_bytes=400_000"],
            "optim.warm_up_bytes must lie in [0, optim.total_bytes=9), got 400000; lower it, or use a share of "
            "the run: optim.warm_up_bytes=null optim.warm_up=0.05",
        ),
    ],
)
def test_the_command_says_what_is_wrong_in_one_line(options, message, tmp_path):
    done = run_forked("rltok_rl.experiments.train", *options, cwd=tmp_path)
    assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1
    assert message is None or done.stderr.strip() == f"rltok train: {message}"
    assert list(tmp_path.iterdir()) == [], "a refused command leaves nothing behind"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["estimator.gamma=7,8", "out=runs/${estimator.gamma}"], "estimator.gamma must lie in [0, 1], got 7.0"),
        (
            ["seed=0,1", "baseline=none,group_mean"],
            "out must name another folder for each seed and baseline of --multirun, got runs/train; write "
            "'out=runs/train-${seed}-${hydra:runtime.choices.baseline}'",
        ),
        (
            ["seed=0,1", "out=runs/${model.preset}"],
            "out must name another folder for each seed of --multirun, got runs/${model.preset}; write "
            "'out=runs/${model.preset}-${seed}'",
        ),
        (
            ["experiment=gamma-grid", "out=runs/x"],
            "out must name another folder for each estimator.gamma of --multirun, got runs/x; write "
            "'out=runs/x-${estimator.gamma}'",
        ),
        (
            ["model.overrides.num_token_layers=1,2"],
            "out must name another folder for each model.overrides.num_token_layers of --multirun, got runs/train; "
            "write 'out=runs/train-${hydra:job.num}'",
        ),
        (
            ["seed=range(2)"],
            "out must name another folder for each seed of --multirun, got runs/train; write 'out=runs/train-${seed}'",
        ),
        (["out=runs/${seeed}"], "Interpolation key 'seeed' not found"),
    ],
)
def test_a_refused_sweep_leaves_nothing_behind(options, message, tmp_path):
    done = run_forked("rltok_rl.experiments.train", "--multirun", *options, cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.strip() == f"rltok train: {message}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [
        ["seed=0,1", "out=runs/${seed}"],
        ["seed=0,1", "seed=3", "out=runs/x"],
        ["model=tiny,toy", "out=runs/${model.preset}"],
        ["seed=0,1", "model=tiny,toy", "out=runs/${hydra:job.num}"],
        ["experiment=gamma-grid"],
        ["out=runs/a,runs/b", "seed=0,1"],
        ["seed=range(2)", "out=runs/${seed}"],
    ],
)
def test_folders_that_follow_the_sweep_are_taken(options, tmp_path):
    """They get as far as the text, which does not exist."""
    done = run_forked("rltok_rl.experiments.train", "--multirun", *options, "data.source=nosuch", cwd=tmp_path)
    assert done.stderr.strip().startswith("rltok train: data.source must be one of")


def test_flags_are_those_of_hydra():
    actions = [one for one in get_args_parser()._actions if one.option_strings]
    for flags, followed in ((TAKES_VALUE, True), (STANDS_ALONE, False)):
        theirs = {flag for one in actions if (one.nargs != 0) == followed for flag in one.option_strings}
        assert theirs == {flag for flag in (*flags, *flags.values()) if flag}


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("estimator.gamma=abc", "estimator.gamma must be a float, got 'abc'"),
        ("optim.total_bytes=1.5", "optim.total_bytes must be an int, got 1.5"),
        ("data.limit=", "data.limit must be an int or null, got ''"),
        ("seed=null", "seed must be an int, got null"),
        ("resume=maybe", "resume must be true or false, got 'maybe'"),
        ("out=null", "out must be a string, got null"),
        ("compare.systems=bpe", "compare.systems must be a list of strings, got 'bpe'; write compare.systems=[bpe]"),
        ("actor.rates=[a,b]", "actor.rates must be a list of floats or null, got [a,b]"),
        ("data.options=3", "data.options must be a dict, got 3; write data.options.NAME=VALUE"),
        ("model.overrides.window=abc", "model.overrides.window must be an int, got 'abc'"),
        ("seed=1,x", "seed must be an int, got 'x'"),
        ("seed", "options must be written name=value, got 'seed'; write seed=VALUE"),
        ("optim. lr=3", "options must be written name=value without spaces around the name, got 'optim. lr=3'"),
        ("out='runs/x", "out must end with the quote that it begins with, got 'runs/x"),
        ("data.options={a:1", "data.options must end with '}', got '{a:1'; quote the whole option if it has spaces"),
        (
            "data.source=a(b.txt",
            "data.source must be quoted if it has special characters, got 'a(b.txt'; write \"data.source='a(b.txt'\"",
        ),
    ],
)
def test_values_of_the_wrong_type_are_named(argument, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check_overrides([argument])


def test_whole_numbers_are_ints():
    given = ["optim.total_bytes=1e6", "data.limit=2e2,null", "optim.lr=1e1", "model.overrides.width=6.4e1", "-m"]
    expected = ["optim.total_bytes=1000000", "data.limit=200,null", "optim.lr=1e1", "model.overrides.width=64", "-m"]
    assert check_overrides(given) == expected
    assert check_overrides(["seed=${data.num_rows}", "--cfg", "job"]) == ["seed=${data.num_rows}", "--cfg", "job"]


@pytest.mark.parametrize("name", ["it's here", "a,b", "plain"])
def test_a_quoted_folder_leaves_no_stray_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_folder(["out='" + name.replace("'", "\\'") + "/run'"])
    assert list(tmp_path.iterdir()) == []
    (tmp_path / name).mkdir()
    check_folder([f'out="{name}/run"'])
    assert list(tmp_path.iterdir()) == [tmp_path / name] and not list((tmp_path / name).iterdir())


@pytest.mark.parametrize("out", ["out=", "out=''", "out=' '"])
def test_an_empty_folder_is_refused(out):
    with pytest.raises(ValueError, match="out must be a folder, got an empty name; write out=runs/NAME"):
        check_folder([out])
    with pytest.raises(ValueError, match="out must be a folder, got an empty name"):
        check_options(configured(*QUICK, out))


def commands_of(page: str) -> list[str]:
    """Trainings that a page says to type, in tables and lines of their own."""
    text = (ROOT / page).read_text().replace("\\\n", " ")
    found = re.findall(r"`rltok train ([^`\n]+)`", text) + re.findall(r"^    rltok train ([^#\n]+)", text, flags=re.M)
    return [one.strip() for one in found if "..." not in one and "[^" not in one]


@pytest.mark.parametrize("page", ["README.md", "docs/claims.md", "docs/training.md", "docs/tutorials/data.md"])
def test_commands_on_pages_can_be_typed(page):
    """Composed and checked, not trained; of a grid its first run."""
    commands = commands_of(page)
    assert len(commands) >= 1
    for command in commands:
        given = [one for one in shlex.split(command) if not one.startswith(("-", "hydra"))]
        if "--multirun" in command:
            given = [one if "[" in one else one.split(",")[0] for one in given]
        check_overrides(given)
        check_policy(given)
        try:
            configured(*given)
        except MissingMandatoryValue as missing:
            raise AssertionError(f"{page}: `rltok train {command}` lacks {missing.full_key}") from None


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
