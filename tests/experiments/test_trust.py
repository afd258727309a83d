"""Custom code that files name is executed only if the user trusts it."""

from __future__ import annotations

import ast
import json
import shutil
import sys
from functools import cache
from pathlib import Path

import gymnasium
import pytest
import torch
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from omegaconf import OmegaConf
from rltok_rl.agents.segmenters import load_segmenter, saved
from rltok_rl.experiments.commands import boundaries, evaluate, generate, report, segment, tasks, view
from rltok_rl.experiments.commands import lm_eval as harness
from rltok_rl.experiments.compare import train_systems as compare
from rltok_rl.experiments.runs import segmenters as segmenting
from rltok_rl.experiments.runs.folder import load_checkpointed, read_run
from rltok_rl.experiments.runs.resume import check_same_run
from rltok_rl.experiments.runs.run import run

from rltok_rl import UNet
from rltok_rl.evaluation.lm_eval import RltokLM
from rltok_rl.foreign import read_config_file
from rltok_rl.models import pretrained

from ..layout import modules
from .configured import QUICK, configured
from .custom import EVERY

NAME = "foreign_code:Every"
# A segmenter that works, in a module that leaves a file behind as soon as it is executed.
MODULE = f"""
from pathlib import Path

(Path(__file__).parent / "executed").touch()
{EVERY}"""
TRAINING = [
    *QUICK,
    "optim.total_bytes=256",
    "checkpoint_every=1",
    "snapshots.batches=1",
    "snapshots.count=1",
    "model.overrides.width=16",
    f"segmenter.name={NAME}",
    "segmenter.options.every=4",
    "compute.threads=1",
]
"""What a user types; the name of the custom segmenter is part of it."""
COMMANDS = {
    "segment": lambda model: (segment, ["abcdefghi", "--model", model]),
    "generate": lambda model: (generate, ["to be", "--model", model, "--bytes", "2"]),
    "eval": lambda model: (evaluate, [model, "text.txt"]),
    "boundaries": lambda model: (boundaries, [model, "--text", "text.txt"]),
    "view": lambda model: (view, [model, "text.txt", "--out", "page.html"]),
    "tasks": lambda model: (tasks, [model, "lambada_openai", "--data", "."]),
}


def forget() -> None:
    """Unload the module, so that the next import executes it again."""
    sys.modules.pop("foreign_code", None)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A working folder with a module, and a run that was trained with its segmenter."""
    folder = tmp_path_factory.mktemp("working")
    (folder / "foreign_code.py").write_text(MODULE)
    (folder / "text.txt").write_text("To be, or not to be, that is the question.")
    (folder / "lambada_openai.jsonl").write_text(json.dumps({"text": "to be or not to be"}) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [*sys.path])
        run(configured(*TRAINING, "out=run"), "rltok train")
    forget()
    return folder


@pytest.fixture
def working(made, tmp_path, monkeypatch) -> Path:
    """A copy as the working folder, whose module has not been executed."""
    folder = Path(shutil.copytree(made, tmp_path / "working"))
    (folder / "executed").unlink()
    (folder / "caches").mkdir(exist_ok=True)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    forget()
    yield folder
    forget()


@pytest.fixture
def without_segmenter(working) -> Path:
    """A run whose model folder has lost its segmenter file."""
    Path("run/model/segmenter.json").unlink()
    return working


def executed() -> bool:
    return Path("executed").exists()


def change(options: dict) -> None:
    """Replace options in the run's ``config.yaml``."""
    OmegaConf.save(OmegaConf.merge(OmegaConf.load("run/config.yaml"), options), "run/config.yaml")


def refused(command, arguments, capsys) -> str:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2 and not executed() and "foreign_code" not in sys.modules
    return capsys.readouterr().err


def message(path: str) -> str:
    return f"{path} names custom code, 'foreign_code:Every', which would be executed; pass --trust-code"


def test_segmenter_file_with_custom_code_needs_trust(working, capsys):
    for number, name in enumerate(COMMANDS):
        command, arguments = COMMANDS[name](("run", "run/model")[number % 2])
        assert message("run/model/segmenter.json") in refused(command, arguments, capsys)
        assert command.main([*arguments, "--trust-code"]) == 0 and executed()
        Path("executed").unlink()
        forget()
    for command in (evaluate, boundaries):  # on the run's own text
        assert message("run/model/segmenter.json") in refused(command, ["run"], capsys)
    capsys.readouterr()
    assert segment.main(["abcdefghi", "--model", "run", "--format", "json", "--trust-code"]) == 0
    tokens = [json.loads(line)["token"] for line in capsys.readouterr().out.splitlines()]
    assert tokens == ["a", "bcde", "fghi"]


def test_run_without_a_learned_policy_needs_its_segmenter_file(without_segmenter, capsys):
    """Nothing is made by a name in config.yaml."""
    for group, other in (("segmenter", "actor"), ("actor", "segmenter")):
        change({group: {"name": NAME, "options": {}}, other: {"name": "learned"}})
        expected = f"run/model must hold segmenter.json, because run/config.yaml names the {group} 'foreign_code:Every'"
        for name in COMMANDS:
            command, arguments = COMMANDS[name]("run")
            for trust in ([], ["--trust-code"]):
                assert expected in refused(command, [*arguments, *trust], capsys), name


def test_segmenter_of_a_checkpoint_needs_trust(working, capsys):
    """Its name stands in the run's config.yaml."""
    checkpoint = "run/checkpoints/update-00000002"
    command, arguments = COMMANDS["view"](checkpoint)
    assert message(f"{working / 'run'}/config.yaml") in refused(command, arguments, capsys)
    with pytest.raises(ValueError, match="trust_code=True"):
        load_checkpointed(Path(checkpoint), torch.device("cpu"))
    assert not executed()
    assert command.main([*arguments, "--trust-code"]) == 0 and executed()
    assert load_checkpointed(Path(checkpoint), torch.device("cpu"), trust_code=True)[1].every == 4


def test_reward_of_a_run_needs_trust(without_segmenter, capsys):
    change({"segmenter": {"name": "learned", "options": {}}, "estimator": {"reward": NAME}})
    command, arguments = COMMANDS["view"]("run")
    assert message("run/config.yaml") in refused(command, arguments, capsys)


def test_actor_is_made_by_name_alone(working):
    with pytest.raises(ValueError, match="actor.name must be one of"):
        segmenting.actor_segmenter(NAME, None, UNet.from_pretrained("run"))
    assert not executed()


def test_configuration_does_not_read_the_environment(without_segmenter, monkeypatch, capsys):
    monkeypatch.setenv("A_SECRET", "xyzzy")
    change({"segmenter": {"name": "learned", "options": {}}, "data": {"source": "${oc.env:A_SECRET}"}})
    for name in COMMANDS:
        error = refused(*COMMANDS[name]("run"), capsys)
        assert "config.yaml must hold plain values, got the interpolation '${oc.env:A_SECRET}' in data.source" in error
        assert "xyzzy" not in error


def test_configuration_executes_no_code_of_a_corpus_and_no_python_objects(without_segmenter, capsys):
    corpus = {"source": "codeparrot", "options": {"trust_remote_code": True}}
    change({"segmenter": {"name": "learned", "options": {}}, "data": corpus})
    error = refused(evaluate, ["run"], capsys)
    assert "config.yaml cannot be used: data.options.trust_remote_code must be left out" in error
    with Path("run/config.yaml").open("a") as file:
        file.write("extra: !!python/object/apply:os.mkdir ['executed']\n")
    assert "run/config.yaml cannot be read" in refused(evaluate, ["run"], capsys)


def test_loading_in_python_needs_trust(working):
    folder = Path("run/model")
    model = UNet.from_pretrained("run")
    with pytest.raises(ValueError, match=r"segmenter\.json names custom code, 'foreign_code:Every', which would"):
        load_segmenter(folder, model)
    with pytest.raises(ValueError, match=r"segmenter\.json names custom code"):
        RltokLM("run")
    assert not executed()
    assert load_segmenter(folder, model, trust_code=True).every == 4
    assert RltokLM("run", trust_code=True).segmenter.every == 4


def test_trust_is_passed_to_the_harness(monkeypatch):
    import lm_eval.__main__

    seen: list[list[str]] = []
    monkeypatch.setattr(lm_eval.__main__, "cli_evaluate", lambda: seen.append(sys.argv[1:-2]))
    for words, passed in (
        (["--model_args", "pretrained=run", "--trust-code"], ["--model_args", "pretrained=run,trust_code=True"]),
        (["--trust-code", "--model_args=pretrained=run"], ["--model_args=pretrained=run,trust_code=True"]),
        (["-a", '{"pretrained": "run"}', "--trust-code"], ["-a", '{"pretrained": "run", "trust_code": true}']),
        (["--trust-code"], ["--model", "rltok"]),
    ):
        monkeypatch.setattr(sys, "argv", ["rltok lm-eval", *words])
        assert harness.main() == 0 and seen.pop() == passed


def test_reading_a_run_executes_nothing(working):
    """A report, the check before resuming, weights to start from, an environment."""
    check_same_run(configured(*TRAINING, "out=run"), Path("run/config.yaml"))
    assert read_run(Path("run")).option("segmenter.name") == NAME
    UNet.from_pretrained("run")
    gymnasium.make("rltok_rl/ByteBoundary-v0", model="run", text="to be", num_steps=4).reset(seed=0)
    assert report.main(["run"]) == 0
    assert not executed()


def test_names_on_the_command_line_need_no_trust_and_resume(working):
    Path("run/summary.json").unlink()
    shutil.rmtree("run/checkpoints/update-00000002")
    done = run(configured(*TRAINING, "out=run", "resume=true"), "rltok train")
    assert done["updates"] == 2 and executed()


def test_comparison_refuses_custom_code_in_its_folder(working):
    """Its systems are those of the library."""
    with pytest.raises(ValueError, match=r"segmenter\.json names custom code"):
        compare.evaluate(configured(*QUICK, "segmenter=uniform", "model.overrides.width=16", "out=run"), 2)
    assert not executed()


@cache
def calls() -> set[tuple[str, str]]:
    """All calls of the library: the module, and the called expression."""
    nodes = [(module, node) for module, path in modules() for node in ast.walk(ast.parse(path.read_text()))]
    return {(module, ast.unparse(node.func)) for module, node in nodes if isinstance(node, ast.Call)}


def used(name: str) -> set[str]:
    """Modules that call a function."""
    return {module for module, called in calls() if f".{called}".endswith(f".{name}")}


def test_names_from_files_pass_one_check():
    """Whoever adds a caller here: a name from a file goes through ``rebuild_segmenter``, not through these."""
    segmenters = "rltok_rl.agents.segmenters"
    experiments = "rltok_rl.experiments"
    assert used("import_path") == {
        f"{segmenters}.registry",
        f"{experiments}.runs.custom",
        f"{experiments}.commands.play",  # typed
        f"{experiments}.studies.suite_entries",  # typed
        "rltok_rl.functional.rewards",  # of environments: no command makes one from a file without --trust-code
        "rltok_rl.envs.reference",  # given in Python
    }
    assert used("segmenter_maker") == {f"{segmenters}.registry", f"{experiments}.runs.segmenters"}
    assert used("make_segmenter") == {
        f"{segmenters}.saved",  # after the check
        "rltok_rl.evaluation.detail",  # evenly spaced boundaries, to compare with
        f"{experiments}.commands.boundaries",  # rules, by name
        f"{experiments}.runs.segmenters",  # of a configuration that was typed; of actors, by name
        f"{experiments}.compare.systems",  # of the package's own configurations
    }


def test_configurations_are_read_in_one_place():
    assert used("OmegaConf.load") == {
        "rltok_rl.foreign",
        "rltok_rl.experiments.commands.run_checks",  # of the package
        "rltok_rl.experiments.recipes",  # of the package
    }
    # Whoever adds a caller here: estimators, baselines and segmenters of such a configuration must not be made.
    assert used("read_config_file") == {
        "rltok_rl.agents.segmenters.saved",
        "rltok_rl.evaluation.lm_eval",
        "rltok_rl.experiments.commands.arguments",
        "rltok_rl.experiments.runs.saved_options",
        "rltok_rl.experiments.runs.folder",
    }


def test_models_of_the_hub_bring_their_segmenter_or_say_that_they_have_none(working, monkeypatch, capsys):
    missing: type[Exception] = EntryNotFoundError

    def download(hub_id: str, name: str, **_) -> str:
        if not (path := Path("run/model", name)).is_file():
            raise missing(name)
        return str(path)

    for module in (pretrained, saved):
        monkeypatch.setattr(module, "hf_hub_download", download)
    arguments = ["abcdefghi", "--model", "somebody/a-model", "--format", "json"]
    assert "segmenter.json names custom code" in refused(segment, arguments, capsys)
    assert segment.main([*arguments, "--trust-code"]) == 0 and executed()
    assert json.loads(capsys.readouterr().out.splitlines()[1])["token"] == "bcde"
    Path("run/model/segmenter.json").unlink()
    note = "somebody/a-model has no segmenter.json: its own policy draws the boundaries"
    assert segment.main(arguments) == 0 and note in capsys.readouterr().err
    missing = LocalEntryNotFoundError  # offline: nobody knows
    Path("executed").unlink()
    forget()
    assert "may have a segmenter.json that is not in the cache" in refused(segment, arguments, capsys)


def test_text_of_a_run_needs_trust_unless_the_user_trained_on_it(without_segmenter, capsys, monkeypatch):
    """Here, the source was trained on in the fixture's folder; from elsewhere it is another file."""
    documents = [json.dumps({"text": f"{n} to be or not to be, that is the question " * 9}) + "\n" for n in range(9)]
    Path("lines.jsonl").write_text("".join(documents))
    data = ["data=files", "data.source=lines.jsonl", "data.num_steps=16", "data.held_out=0.3"]
    learned = [option for option in TRAINING if not option.startswith(("segmenter", "data"))]
    run(configured(*learned, *data, "out=mine"), "rltok train")
    assert evaluate.main(["mine"]) == 0 and boundaries.main(["mine"]) == 0
    assert view.main(["mine", "held-out", "--out", "page.html"]) == 0
    capsys.readouterr()
    shutil.copytree("mine", "elsewhere/mine")
    shutil.copy("lines.jsonl", "elsewhere")
    monkeypatch.chdir("elsewhere")
    for command, arguments in ((evaluate, ["mine"]), (boundaries, ["mine"]), (view, ["mine", "held-out"])):
        error = refused(command, arguments, capsys)
        assert "data.source='lines.jsonl' was not trained on by you on this machine" in error
        assert "pass --trust-data if you trust the run" in error and not Path("caches").exists()
    assert evaluate.main(["mine", "--trust-data"]) == 0 and evaluate.main(["mine", "lines.jsonl"]) == 0
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")  # a home that cannot be written
    run(configured(*learned, *data, "out=again"), "rltok train")


def test_json_of_others_is_read_in_one_place():
    assert used("json.load") == set()
    own = ("rltok_rl.experiments.bench", "rltok_rl.experiments.demo", "rltok_rl.experiments.studies")
    assert {module for module in used("json.loads") if not module.startswith(own)} == {
        "rltok_rl.foreign",
        "rltok_rl.agents.segmenters.tokenizer_files",  # of a file that was read
        "rltok_rl.agents.segmenters.tokenizer_rates",  # of a tokenizer that was read
        "rltok_rl.models.weights",  # metadata
        "rltok_rl.training.metrics",  # lines of a file that was read
        "rltok_rl.data.byte_cache",
        "rltok_rl.data.files",  # documents
        "rltok_rl.experiments.commands.lm_eval",  # of the command line
    }


def test_nothing_is_unpickled():
    for name in ("torch.load", "pickle.load", "pickle.loads", "yaml.load", "yaml.unsafe_load", "joblib.load"):
        assert used(name) == set(), name
    for _, path in modules():
        assert "allow_pickle" not in path.read_text(), path


def test_configuration_that_cannot_be_used_is_named(tmp_path):
    path = tmp_path / "config.yaml"
    for content, error in (
        ("- a", "must hold options by name, got list"),
        ("a: [", "cannot be read"),
        ("a: ${b}", "in a;"),
    ):
        path.write_text(content)
        with pytest.raises(ValueError, match=error):
            read_config_file(path)
