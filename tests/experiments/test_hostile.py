"""Hostile folders: each ends in one line that names the file, at once, and nothing in it is executed."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from rltok_rl.agents.segmenters import load_segmenter, make_segmenter, save_segmenter, train_bpe
from rltok_rl.experiments.commands import boundaries, check, evaluate, generate, report, segment, view
from rltok_rl.experiments.runs.folder import read_run
from safetensors.torch import load_file, save_file

from rltok_rl.models import UNet, preset
from rltok_rl.training.checkpoint import save_checkpoint

from .configured import QUICK, configured

MODULE = "from pathlib import Path\nPath('executed').touch()\n"
SIZES = {"width": 16, "num_token_layers": 1}
CONFIG, YAML, WEIGHTS, WORD = (
    "run/model/config.json",
    "run/config.yaml",
    "run/model/model.safetensors",
    "segmenter.json",
)
CHECKPOINT = "run/checkpoints/update-00000001"
PATTERN, ENDLESS = ("pre_tokenizer", "pretokenizers", 0, "pattern", "Regex"), "(a|aa)+$"
REPLACED = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
LAUGHS = "a: &a [x, x]\nb: &b [*a, *a]\n" + "".join(f"b{n}: [*b, *b]\n" for n in range(20))
DEEP = "[" * 100_000


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A working folder with a run, its checkpoint, a file next to it, and a module that leaves a mark if imported."""
    folder = tmp_path_factory.mktemp("hostile")
    model, run = UNet(preset("tiny", **SIZES)), folder / "run"
    model.save_pretrained(run / "model")
    OmegaConf.save(OmegaConf.structured(configured(*QUICK, "data.num_steps=16")), run / "config.yaml")
    (run / "model.json").write_text(json.dumps(model.config.to_dict()))
    save_checkpoint(run / "checkpoints", 1, {"model": model.state_dict()})
    (folder / "evil.py").write_text(MODULE)
    (folder / "text.txt").write_text("to be or not to be")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert segment.main(["abc", "--model", "run"]) == 0 and evaluate.main(["run", "text.txt"]) == 0
    return folder


@pytest.fixture
def working(made, tmp_path, monkeypatch) -> Path:
    folder = Path(shutil.copytree(made, tmp_path / "hostile"))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    return folder


def text(path: str, content: str | bytes) -> Callable[[], Any]:
    return lambda: Path(path).write_bytes(content if isinstance(content, bytes) else content.encode())


def large(path: str) -> Callable[[], Any]:
    def truncate() -> None:
        with Path(path).open("ab") as file:
            file.truncate(2 << 30)

    return truncate


def sizes(path: str = CONFIG, **fields: Any) -> Callable[[], Any]:
    return lambda: Path(path).write_text(json.dumps(json.loads(Path(path).read_text()) | fields))


def options(**groups: Any) -> Callable[[], Any]:
    return lambda: OmegaConf.save(OmegaConf.merge(OmegaConf.load(YAML), groups), YAML)


def tied(value: Any) -> Callable[[], Any]:
    return lambda: save_file(load_file(WEIGHTS), WEIGHTS, metadata={"tied": json.dumps(value)})


def numbers(value: float, dtype: torch.dtype = torch.float32) -> Callable[[], Any]:
    """Replace one number of the weights."""

    def replace() -> None:
        weights = load_file(WEIGHTS)
        weights["embedding.weight"][7, 3] = value
        save_file({name: x.to(dtype) for name, x in weights.items()}, WEIGHTS)

    return replace


def checkpoint(value: float | None = None, name: str = "bpe", **state: Any) -> Callable[[], Any]:
    """Write a checkpoint whose weights are all one number, or that has more in its state."""

    def save() -> None:
        weights = {n: x if value is None else torch.full_like(x, value) for n, x in load_file(WEIGHTS).items()}
        save_checkpoint(Path("run/checkpoints"), 1, {"model": weights, **state})
        if "segmenter" in state:
            options(segmenter={"name": name})()

    return save


def changed(*places: str | int, value: Any) -> str:
    """Return a tokenizer that splits at spaces, with another value in one place."""
    tokenizer = train_bpe(["to be or not to be"], vocabulary=256, pre_tokenizer="spaces").tokenizer
    content = inner = json.loads(tokenizer.to_str())
    for place in places[:-1]:
        inner = inner[place]
    inner[places[-1]] = value
    return json.dumps(content)


def tokenizer(*places: str | int, value: Any) -> Callable[[], Any]:
    def save() -> None:
        word("bpe", split="pieces")()
        Path("run/model/tokenizer.json").write_text(changed(*places, value=value))

    return save


def word(name: Any = "uniform", options: Any = None, **more: Any) -> Callable[[], Any]:
    content = {"format": 1, "name": name, "options": options or {}, **more}
    return text(f"run/model/{WORD}", json.dumps(content))


def saved(threshold: float = 1.0, **options: Any) -> Callable[[], Any]:
    """Save a segmenter with weights, and change its options."""

    def save() -> None:
        model = UNet.from_pretrained("run")
        segmenter = make_segmenter("entropy-threshold", model, predictor="own")
        segmenter.threshold.fill_(threshold)
        given = {"predictor": "own", **options}
        save_segmenter(Path("run/model"), segmenter, model, name="entropy-threshold", options=given)

    return save


def state(content: Any) -> Callable[[], Any]:
    """Write a checkpoint whose checksums are right."""

    def save() -> None:
        from rltok_rl.data.disk import checksum

        Path(CHECKPOINT, "state.json").write_text(content)
        manifest = json.loads(Path(CHECKPOINT, "manifest.json").read_text())
        manifest["sha256"]["state.json"] = checksum(Path(CHECKPOINT, "state.json"))
        Path(CHECKPOINT, "manifest.json").write_text(json.dumps(manifest))

    return save


def manifest(**fields: Any) -> Callable[[], Any]:
    return sizes(f"{CHECKPOINT}/manifest.json", **fields)


def special(path: str, make: Callable[[Path], Any]) -> Callable[[], Any]:
    """Put a pipe, a folder or a link to nothing in the place of a file."""

    def replace() -> None:
        Path(path).unlink(missing_ok=True)
        make(Path(path))

    return replace


def dtypes() -> None:
    weights = {name: x.half() if at % 2 else x.double() for at, (name, x) in enumerate(load_file(WEIGHTS).items())}
    save_file(weights, WEIGHTS)


def overflowing() -> None:
    save_file({name: torch.full_like(x, 1e38) for name, x in load_file(WEIGHTS).items()}, WEIGHTS)


SEGMENT = (segment, ["abc", "--model", "run"])
EVAL = (evaluate, ["run"])
BOUNDARIES = (boundaries, ["run"])
VIEW = (view, [CHECKPOINT, "text.txt"])
REPORT = (report, ["run"])
Case = tuple[Callable[[], Any], tuple[Any, list[str]], str]
CASES: dict[str, Case] = {
    "2 GB of config.json": (large(CONFIG), SEGMENT, "config.json of run/model must have at most"),
    "2 GB of config.yaml": (large(YAML), EVAL, "run/config.yaml must have at most"),
    "2 GB of metrics.csv": (large("run/metrics.csv"), REPORT, "metrics.csv must have at most"),
    "2 GB of state.json": (large(f"{CHECKPOINT}/state.json"), VIEW, "state.json must have at most"),
    "2 GB of manifest.json": (large(f"{CHECKPOINT}/manifest.json"), VIEW, "manifest.json cannot be read"),
    "deep config.json": (text(CONFIG, DEEP), SEGMENT, "config.json of run/model must be JSON"),
    "deep config.yaml": (text(YAML, DEEP[:60_000]), EVAL, "run/config.yaml cannot be read"),
    "deep state": (state(DEEP), VIEW, "update-00000001 cannot be read"),
    "digits": (text(CONFIG, "9" * 10_000), SEGMENT, "config.json of run/model must be JSON"),
    "bytes": (text(CONFIG, b"\xff\xfe"), SEGMENT, "config.json of run/model must be UTF-8"),
    "a list of segmenter": (
        text(f"run/model/{WORD}", "[1]"),
        SEGMENT,
        f"run/model/{WORD} must hold values by name, got list",
    ),
    "no word of a segmenter": (
        text(f"run/model/{WORD}", "{}"),
        SEGMENT,
        f"run/model/{WORD} must hold format, got none",
    ),
    "a list of summary": (text("run/summary.json", "[1]"), REPORT, "summary.json cannot be read"),
    "a word of the total": (
        options(optim={"total_bytes": "x"}),
        REPORT,
        f"optim.total_bytes of {YAML} must be a finit",
    ),
    "a list of an option": (options(segmenter={"name": [1]}), REPORT, f"segmenter.name of {YAML} must be a string"),
    "no update in metrics.csv": (
        text("run/metrics.csv", "bytes\n1\n"),
        REPORT,
        "must have a column update of integers",
    ),
    "infinite update": (
        text("run/metrics.csv", "update,bytes\ninf,1\n"),
        REPORT,
        "metrics.csv cannot be read: it must",
    ),
    "endless cell": (
        text("run/metrics.csv", f"update\n{'1' * 200_000}\n"),
        REPORT,
        "metrics.csv cannot be read: field",
    ),
    "infinite update of a manifest": (manifest(update=math.inf), VIEW, "manifest.json cannot be read: "),
    "folder of a manifest": (
        manifest(files={"checkpoints": {"bytes": 1, "sha256": "x"}}),
        VIEW,
        "manifest.json cannot be read",
    ),
    "parent of a manifest": (manifest(files={"..": {"bytes": 1, "sha256": "x"}}), VIEW, "manifest.json cannot be read"),
    "long width": (sizes(width=2 * 10**30), SEGMENT, "width must be an integer"),
    "long word": (sizes(width="x" * 500_000), SEGMENT, "width must be an integer"),
    "layers": (sizes(num_token_layers=900), SEGMENT, "layers of config.json of run/model must be at most"),
    "layers of a checkpoint": (sizes("run/model.json", num_token_layers=900), VIEW, "model.json must be at most"),
    "n-grams": (sizes(ngram_sizes=list(range(2, 1_000))), SEGMENT, "layers of config.json of run/model must be"),
    "tied names": (tied({"embedding.weight": "forward"}), SEGMENT, "model.safetensors must tie parameters by name"),
    "tied list": (tied([1]), SEGMENT, "model.safetensors must tie parameters by name"),
    "header": (text(WEIGHTS, b"\xff" * 64), SEGMENT, "model.safetensors must be a whole safetensors file"),
    "NaN": (numbers(math.nan), SEGMENT, 'model.safetensors must hold finite numbers, got others in "embedding.weight"'),
    "infinity": (numbers(-math.inf), (generate, ["a", "--model", "run"]), "model.safetensors must hold finite"),
    "8 bits": (numbers(0, torch.float8_e5m2), SEGMENT, "model.safetensors must hold floating-point weights of 16"),
    "NaN of a checkpoint": (checkpoint(math.nan), VIEW, "update-00000001 must hold finite numbers, got others in"),
    "NaN of a segmenter": (saved(math.nan), SEGMENT, f"the weights of run/model/{WORD} must hold finite numbers"),
    "endless": (tokenizer(*PATTERN, value=ENDLESS), SEGMENT, "tokenizer.json must split text as a tokenizer of train"),
    "endless state": (checkpoint(segmenter={"tokenizer": changed(*PATTERN, value=ENDLESS)}), VIEW, "--trust-code"),
    "no tokenizer": (checkpoint(segmenter={}), VIEW, "must hold a tokenizer"),
    "a list of the segmenter": (checkpoint(segmenter=[1]), VIEW, "must be of a U-Net, but cannot be used"),
    "no tensor": (checkpoint(segmenter={"a": 1}, name="gumbel"), VIEW, "run/config.yaml cannot be used: state must"),
    "replacing": (tokenizer("normalizer", value=REPLACED), EVAL, "tokenizer.json must split text as a tokenizer of"),
    "fewer bytes": (tokenizer("model", "vocab", value={"a": 0}), SEGMENT, "tokenizer.json must be a tokenizer as"),
    "equal ids": (tokenizer("model", "vocab", "a", value=0), SEGMENT, "must have different ids, got equal ones"),
    "custom code": (word("evil:Evil"), SEGMENT, f"run/model/{WORD} names custom code, 'evil:Evil'"),
    "custom reward": (options(estimator={"reward": "evil:Evil"}), (view, ["run", "text.txt"]), "names custom code"),
    "name of a list": (word(["evil:Evil"]), SEGMENT, "run/model/segmenter.json"),
    "options of a list": (word(options=[1]), SEGMENT, f"options of run/model/{WORD} must be values by name"),
    "no rate": (word(options={"rate": "x"}), SEGMENT, f"run/model/{WORD} cannot be used"),
    "block": (word("random", {"block": 10**15}), SEGMENT, f"block of options in run/model/{WORD} must be at most"),
    "hidden": (word("gumbel", {"hidden": 10**9}), SEGMENT, f"hidden x width of options in run/model/{WORD}"),
    "no hidden": (word("gumbel", {"hidden": -5}), SEGMENT, f"run/model/{WORD} cannot be used"),
    "layers of a segmenter": (saved(num_layers=10**9), SEGMENT, f"num_layers of options in run/model/{WORD}"),
    "window of a segmenter": (saved(window=10**12), SEGMENT, f"window of options in run/model/{WORD}"),
    "another segmenter": (saved(num_layers=2), SEGMENT, f"run/model/{WORD} cannot be used: state must hold"),
    "laughs": (text(YAML, LAUGHS), EVAL, "run/config.yaml cannot be read: aliases and more"),
    "Python": (text(YAML, "a: !!python/object/apply:os.mkdir ['executed']"), EVAL, "run/config.yaml cannot be read"),
    "interpolation": (options(data={"source": "${oc.env:HOME}"}), EVAL, "must hold plain values, got the interpol"),
    "group of a list": (text(YAML, "segmenter: [1]"), EVAL, "run/config.yaml must hold options of segmenter by name"),
    "link": (lambda: Path("run/report.md").symlink_to("text.txt"), REPORT, "run/report.md must be a file, got a link"),
    "no steps": (text(YAML, "data: {num_steps: often}"), EVAL, "run/config.yaml: data.num_steps must be an integer"),
    "source outside": (options(data={"source": "/etc/passwd"}), EVAL, "was not trained on by you on this machine"),
    "cache": (options(data={"source": "text.txt", "cache": "../evil"}), EVAL, "pass --trust-data if you trust"),
    "corpus": (options(data={"source": "codeparrot"}), EVAL, "data.source='codeparrot' was not trained on"),
    "unknown option": (text(YAML, "data: {foo: 1}"), EVAL, f"{YAML} has an option that this version does not know: d"),
    "number as a name": (text(YAML, "1: {a: b}"), BOUNDARIES, f"{YAML} has an option that this version does not"),
    "nested interpolations": (
        text(YAML, f'a: "{"${" * 20_000}"'),
        EVAL,
        "must hold plain values, got the interpolation",
    ),
    "infinite float": (
        text(YAML, f"a: {':'.join(['59'] * 20_000)}.5"),
        EVAL,
        "run/config.yaml cannot be read: int too",
    ),
    "interpolated name": (text(YAML, '"${oc.env:HOME}": 1'), EVAL, "must hold plain values, got the interpolation"),
    "empty config.yaml": (text(YAML, ""), BOUNDARIES, f"{YAML} must name model.preset"),
    "word for a number": (options(data={"held_out": "x"}), EVAL, f"{YAML} cannot be used: data.held_out: Value 'x'"),
    "rows": (options(data={"num_rows": 10**9}), EVAL, f"{YAML} cannot be used: data.num_rows must be an integer"),
    "word for gamma": (
        options(estimator={"gamma": "a"}),
        (view, ["run", "text.txt"]),
        f"estimator.gamma of {YAML} must be a finite number",
    ),
    "list of the actor": (options(actor={"name": [1]}), VIEW, f"{YAML} must be a string, or null, got [1]"),
    "pipe of config.yaml": (special(YAML, os.mkfifo), EVAL, f"{YAML} must be a file, got something else"),
    "folder of config.yaml": (special(YAML, Path.mkdir), EVAL, f"{YAML} must be a file, got something else"),
    "lost config.yaml": (special(YAML, lambda path: path.symlink_to("no")), EVAL, f"{YAML} must be a file, got a link"),
    "tokenizer of a word": (word("bpe", {"tokenizer": "x"}), SEGMENT, f"{WORD} cannot be used: tokenizer must be a"),
    "switch for a rate": (word("random", {"rate": True}), SEGMENT, f"{WORD} cannot be used: rate must be a number"),
    "number for a switch": (word("spacebyte", {"repeat": 1e30}), SEGMENT, f"{WORD} cannot be used: repeat must be Tr"),
    "threshold of NaN": (word("entropy-threshold", {"threshold": math.nan}), SEGMENT, "threshold must be a finite nu"),
    "lags of a word": (word("entropy-spike", {"lags": "x"}), SEGMENT, f"{WORD} cannot be used: lags must be an inte"),
    "dtypes": (dtypes, SEGMENT, "run must hold weights of one dtype, got float16, float64"),
    "overflow": (overflowing, SEGMENT, "the weights of run are too large"),
    "segmenter without a state": (
        lambda: (checkpoint()(), options(segmenter={"name": "hnet"})()),
        VIEW,
        "names the segmenter 'hnet', of which the checkpoint holds nothing",
    ),
    "number as a word's format": (word(format=True), SEGMENT, "must be of format 1, got True"),
    "state without a model": (state('{"dict": []}'), VIEW, "must be of a U-Net"),
    "state of nothing": (state('{"tensor": "99"}'), VIEW, "update-00000001 cannot be read"),
    "state of a list": (state('{"a": 1, "b": 2}'), VIEW, "update-00000001 cannot be read"),
}
CASES |= {
    f"{name} {value}": (sizes(**{name: value}, **more), SEGMENT, "of config.json of run/model must be at most")
    for name, value, more in (
        ("width", 10**6, {"num_heads": 1}),
        ("token_mlp_ratio", 1000, {}),
        ("ngram_buckets", 10**6, {"ngram_sizes": [3]}),
        ("num_special", 10**6, {}),
        ("num_lags", 10_000, {}),
        ("window", 10**12, {}),
        ("tokens_read", 10**12, {"upsampling": "attention"}),
        ("second_rate", 1e-12, {"second_level": "stride"}),
    )
}


FIELDS: dict[str, dict[str, list[Any]]] = {  # by file of results: values of fields that are refused
    "summary.json": {
        "tried_flops": ["x", [1], {}, 10**400, math.inf],
        "flops": [0, None, "x"],
        "held_out_rate": [None, math.inf, True],
        "peak_memory": [1.5, 10**30, -1],
    },
    "model.json": {"parameters": ["x", -1, 10**30], "target_rate": ["x", []]},
    "environment.json": {
        "python": [{}, None],
        "processor": [10**30],
        "cpu_capability": [1, None],
        "packages": [[], {"torch": 1}],
        "git": [[1], {"revision": 1}],
        "seconds": ["x", -1, None],
        "cpu_seconds": ["x", -1, None],
        "to_update": [1.5, {}],
    },
    "samples.jsonl": {
        "update": [[], -1],
        "bytes": ["x", 10**400],
        "padded_flops": [[], math.inf],
        "held_out_bits_per_byte": [None, math.inf],
        "text": ["", "\u20ac", "longer", 1],
        "boundaries": ["12", [1, 0]],
        "probabilities": [[0.5, "x"], [0.5, 2], "01", [0.5]],
    },
    "alarms.log": {"update": [None, math.nan], "warning": [1]},
    "evaluation.json": {"corpus_bits_per_byte": [None, "x"], "word_edges": [[], {"space": 1}], "at_rates": [1, [{}]]},
}
START = {"command": "a", "git": None, "from_update": 0, "to_update": 1, "from_bytes": 0, "to_bytes": 9, "seconds": 1.0}
LINE = {"update": 1, "bytes": 9, "text": "ab", "boundaries": "10", "probabilities": [1, 0.5]}
RESULTS: dict[str, dict[str, Any]] = {
    "summary.json": {"flops": 1.0},
    "model.json": {},
    "environment.json": START,
    "samples.jsonl": LINE | {"held_out_bits_per_byte": 2.0, "held_out_rate": 0.5},
    "alarms.log": {"update": 1, "warning": "a"},
    "evaluation.json": dict.fromkeys(
        ("corpus_bits_per_byte", "corpus_standard_error", "early_corpus_bits_per_byte"), 2.0
    ),
}


@pytest.mark.parametrize("name", FIELDS)
def test_wrong_values_in_results_are_named(name, working, capsys):
    def write(row: dict[str, Any]) -> None:
        content = json.dumps([row] if name == "environment.json" else row)
        Path("run", name).write_text(content + "\n")

    write(RESULTS[name])
    read_run(Path("run"))
    cases = [
        (field, value, RESULTS[name] | {field: value}) for field, values in FIELDS[name].items() for value in values
    ]
    required = name in ("environment.json", "samples.jsonl", "alarms.log", "evaluation.json")
    cases += [("", None, {})] if required else []
    for field, value, row in cases:
        write(row)
        for command in (check, report, view):
            capsys.readouterr()
            try:
                status = command.main(["run"])
            except SystemExit as ended:
                status = ended.code
            shown = "".join(capsys.readouterr())
            assert status in (1, 2), (command, field, value)
            assert f"run/{name} cannot be read: " in shown and field in shown, (command, field, value)


@pytest.mark.parametrize("case", CASES)
def test_hostile_folder_ends_in_one_line(case, working, capsys):
    damage, (command, arguments), words = CASES[case]
    damage()
    capsys.readouterr()
    begin = time.process_time()
    try:
        status = command.main(arguments)
    except SystemExit as ended:
        status = ended.code
    seconds = time.process_time() - begin
    error = re.split(r"^rltok \w+: ", capsys.readouterr().err, flags=re.MULTILINE)[-1]
    assert status == 2 and words in error and len(error) < 5000 and error.count("\n") == 1, error
    assert not Path("executed").exists() and not Path("caches").exists() and not Path("../evil").exists()
    assert seconds < 1, seconds


def test_trusted_tokenizers_split_as_they_like(working):
    tokenizer(*PATTERN, value="o")()
    segmenter = load_segmenter("run", UNet.from_pretrained("run"), trust_code=True)
    assert segmenter.split.words(b"to be or") == ["t", "o", "ĠbeĠ", "o", "r"]


def test_pipes_are_not_waited_for(working, capsys):
    for path in (CONFIG, WEIGHTS, YAML):
        os.replace(path, "aside")
        os.mkfifo(path)
        with pytest.raises(SystemExit):
            evaluate.main(["run"])
        os.replace("aside", path)
