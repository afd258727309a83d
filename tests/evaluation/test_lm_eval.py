"""The real lm-evaluation-harness on tasks in its format, from local files, against this library's metrics."""

from __future__ import annotations

import importlib.util
import json
import math
import sys

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import CachingLM
from lm_eval.api.registry import get_model
from lm_eval.tasks import TaskManager
from rltok_rl.agents.segmenters import make_segmenter, save_segmenter, write_on
from rltok_rl.experiments.commands import lm_eval as command

from rltok_rl.evaluation import lm_eval as harness
from rltok_rl.evaluation import read_text
from rltok_rl.evaluation.continuations import continuation_log_likelihood
from rltok_rl.evaluation.lm_eval import RltokLM
from rltok_rl.evaluation.tasks import choice_metrics, read_task, score_examples
from rltok_rl.models import UNet
from rltok_rl.models.generation import GeneratedByte, generate

from .conftest import small_model

QUESTIONS = [
    {"goal": "Open a jar", "sol1": "Twist the lid.", "sol2": "Twist it, é.", "label": 1},
    {"goal": "Boil water", "sol1": "In a pot.", "sol2": "In a sock.", "label": 0},
    {"goal": "Find a word that is long enough to be cut", "sol1": "Look.", "sol2": "Listen to it.", "label": 0},
    {"goal": "Sit", "sol1": "Ddirect.", "sol2": "Up.", "label": 1},
    {"goal": "Go", "sol1": "North, and then home.", "sol2": "South.", "label": 0},
]
TEXTS = ["The cat sat on the mat.", "It is a truth universally acknowledged, " * 3 + "é", "a"]
CONTEXT = 40
COMMON = "dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {file}\ntest_split: test\n"
TASKS = {
    "local_choices": 'output_type: multiple_choice\ndoc_to_text: "Question: {{goal}}\\nAnswer:"\n'
    'doc_to_choice: "{{[sol1, sol2]}}"\ndoc_to_target: label\nmetric_list:\n  - metric: acc\n',
    "local_rolling": 'output_type: loglikelihood_rolling\ndoc_to_text: ""\ndoc_to_target: "{{text}}"\n'
    "metric_list:\n  - metric: bits_per_byte\n",
    "local_writing": 'output_type: generate_until\ndoc_to_text: "{{text}}"\ndoc_to_target: "{{text}}"\n'
    'generation_kwargs:\n  until: ["e", "\\n"]\n  max_gen_toks: 12\nmetric_list:\n  - metric: exact_match\n',
}


@pytest.fixture(scope="module")
def model(mild_model) -> UNet:
    return mild_model


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    """A model, three tasks, and the files that they read."""
    root = tmp_path_factory.mktemp("harness")
    model.save_pretrained(root / "model")
    for name, rows in (("piqa", QUESTIONS), ("texts", [{"text": text} for text in TEXTS])):
        (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "tasks").mkdir()
    for name, text in TASKS.items():
        file = root / ("piqa.jsonl" if name == "local_choices" else "texts.jsonl")
        (root / "tasks" / f"{name}.yaml").write_text(f"task: {name}\n{COMMON.format(file=file)}{text}")
    return root


@pytest.fixture(scope="module")
def results(folder):
    """All three tasks, by the name that the model is registered under and the arguments of a command line."""
    with pytest.MonkeyPatch.context() as patched:
        import datasets
        import lm_eval.evaluator

        patched.setattr(datasets.config, "HF_DATASETS_CACHE", str(folder / "datasets"))
        patched.setattr(lm_eval.evaluator, "add_env_info", lambda results: None)  # asks pip what is installed
        return lm_eval.simple_evaluate(
            model="rltok",
            model_args=f"pretrained={folder / 'model'},context={CONTEXT},greedy=True",
            tasks=list(TASKS),
            task_manager=TaskManager(include_path=str(folder / "tasks"), include_defaults=False),
            bootstrap_iters=1,
            batch_size=2,
            device="cpu",
        )


def requests(kind: str, *each) -> list[Instance]:
    return [Instance(request_type=kind, doc={}, arguments=arguments, idx=0) for arguments in each]


def scores(lm: RltokLM, pairs) -> list[tuple[float, bool]]:
    return lm.loglikelihood(requests("loglikelihood", *pairs), disable_tqdm=True)


PAIRS = [("The cat", " sat"), ("", "no context"), ("Where is é? " * 5, " here"), ("a", " b"), ("The cat", " é")]


def test_choices_are_scored_as_here(model, folder, results):
    examples = read_task("piqa", folder)
    direct = score_examples(model, examples, context_bytes=CONTEXT, greedy=True)
    metrics = choice_metrics(examples, direct)
    assert results["results"]["local_choices"]["acc,none"] == pytest.approx(metrics["accuracy"])
    assert results["results"]["local_choices"]["acc_stderr,none"] == pytest.approx(metrics["accuracy_error"])
    assert 0 < metrics["accuracy"] < 1 and metrics["cut"]
    samples = sorted(results["samples"]["local_choices"], key=lambda sample: sample["doc_id"])
    theirs = [float(answer[0][0]) for sample in samples for answer in sample["resps"]]
    assert theirs == pytest.approx(direct.log_likelihood.tolist(), abs=1e-5)


def test_rolling_bits_are_those_of_reading_and_eight_for_each_first_byte(model, results):
    samples = results["samples"]["local_rolling"]
    whole = 0.0
    for sample in samples:
        text = sample["doc"]["text"]
        scored = float(sample["resps"][0][0])
        whole += scored
        if 1 < len(text.encode()) <= CONTEXT + 1:  # one window, the same here and there
            nats = float(read_text(model, text, context=CONTEXT, greedy=True).final_nats.sum())
            assert scored == pytest.approx(-nats - math.log(256), abs=1e-4)
        direct = continuation_log_likelihood(model, [""], [text], context_bytes=CONTEXT, greedy=True)
        assert scored == pytest.approx(float(direct.log_likelihood), abs=1e-5)
    bits = -whole / math.log(2) / sum(len(text.encode()) for text in TEXTS)
    assert results["results"]["local_rolling"]["bits_per_byte,none"] == pytest.approx(bits)


def test_writing_is_that_of_generate_up_to_a_stop(model, results):
    stopped = 0
    for sample in results["samples"]["local_writing"]:
        prompt = sample["doc"]["text"].encode()[-(CONTEXT - 12) :]
        text = generate(model, prompt, max_bytes=12, temperature=0, greedy=True).texts[0]
        expected = text.replace(b"\n", b"e").split(b"e")[0]
        stopped += expected != text
        assert sample["resps"][0][0] == expected.decode("utf-8", errors="replace")
    assert len(results["samples"]["local_writing"]) == len(TEXTS)


def test_answers_do_not_depend_on_what_else_is_asked(model, monkeypatch):
    for options in ({}, {"samples": 3, "seed": 5}, {"greedy": True}, {"context": 20}):
        monkeypatch.setattr(harness, "CHUNK", 256)
        together = scores(RltokLM(model, **options), PAIRS)
        monkeypatch.setattr(harness, "CHUNK", 2)
        backwards = scores(RltokLM(model, batch_size=1, **options), PAIRS[::-1])[::-1]
        names = {name.replace("context", "context_bytes"): value for name, value in options.items()}
        direct = continuation_log_likelihood(model, *zip(*PAIRS, strict=True), **names)
        for first, second, nats in zip(together, backwards, direct.log_likelihood.tolist(), strict=True):
            assert first[0] == pytest.approx(second[0], abs=1e-5) == pytest.approx(nats, abs=1e-5)
            assert isinstance(first[0], float) and isinstance(first[1], bool)
        assert [best for _, best in together] == direct.likeliest.tolist() == [best for _, best in backwards]


def test_what_the_model_would_write_is_greedy(model):
    lm = RltokLM(model, greedy=True)
    contexts = [f"The cat {number}" for number in range(40)]
    written = zip(contexts, lm.write(contexts, {"max_gen_toks": 1}), strict=True)
    pairs = [(context, letter) for context, letter in written if letter.isascii()]  # half a character is none
    assert len(pairs) > 5 and all(greedy for _, greedy in scores(lm, pairs))
    assert not any(greedy for _, greedy in scores(lm, [(context, chr(ord(letter) ^ 1)) for context, letter in pairs]))


def test_answers_are_kept_as_they_come(model, tmp_path, monkeypatch):
    """A run that is killed has what it had answered; one that goes on asks the model for the rest alone."""
    monkeypatch.setattr(harness, "CHUNK", 2)
    lm = RltokLM(model, samples=2)
    whole = scores(lm, PAIRS)
    cached = CachingLM(lm, str(tmp_path / "answers.db"))
    asked: list[int] = []
    score = lm._score

    def fail_at_last(pairs):
        asked.append(len(pairs))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return score(pairs)

    monkeypatch.setattr(lm, "_score", fail_at_last)
    pairs = requests("loglikelihood", *PAIRS)
    with pytest.raises(KeyboardInterrupt):
        cached.loglikelihood(pairs)
    assert asked == [2, 2, 1]
    again = cached.loglikelihood(pairs)
    for (one, greedy), (other, also) in zip(again, whole, strict=True):
        assert one == pytest.approx(other, abs=1e-5) and greedy is also
    assert cached.loglikelihood(pairs) == again and asked == [2, 2, 1, 1]
    cached.dbdict.close()


def test_answers_are_kept_and_counted_by_their_kind(model, capsys):
    lm, kept = RltokLM(model, greedy=True), []
    lm.cache_hook.add_partial = lambda *answer: kept.append(answer)
    for kind, arguments in (
        ("loglikelihood", ("The cat", " sat")),
        ("loglikelihood_rolling", ("The cat",)),
        ("generate_until", ("The cat", {"max_gen_toks": 2})),
    ):
        for quiet in (True, False):
            answers = getattr(lm, kind)(requests(kind, arguments), disable_tqdm=quiet)
            assert kept.pop() == (kind, arguments, answers[0]) and not kept
            assert (f"rltok {kind}: 100%" in capsys.readouterr().err) == (not quiet)


def test_long_requests_come_first_and_equal_options_together(model, monkeypatch):
    lm, asked, written = RltokLM(model), [], []
    monkeypatch.setattr(lm, "_score", lambda pairs: asked.extend(pairs) or [(0.0, True)] * len(pairs))
    pairs = [("a", " b"), ("abc", " d"), ("ab", " cdefgh")]
    scores(lm, pairs)
    assert asked == [pairs[2], pairs[1], pairs[0]]  # by context and continuation together
    monkeypatch.setattr(lm, "write", lambda contexts, options: written.append(contexts) or contexts)
    options = {"until": ["z"], "max_gen_toks": 9}
    other = dict(reversed(options.items()))
    lm.generate_until(requests("generate_until", ("a", options), ("bb", {**options, "until": []}), ("c", other)), True)
    assert sorted(written) == [["a", "c"], ["bb"]]


def test_the_empty_text_is_certain(model):
    lm = RltokLM(model)
    scored = lm.loglikelihood_rolling(requests("loglikelihood_rolling", ("",), ("x",), ("",)), True)
    assert scored == [0.0, pytest.approx(-math.log(256)), 0.0]


def test_texts_are_written_alike_together_and_alone(model):
    lm = RltokLM(model, greedy=True)
    options = {"until": ["zz"], "max_gen_toks": 9}
    contexts = ["The cat", "a", "Some longer context, é"]
    together = lm.write(contexts, options)
    assert together == [lm.write([context], options)[0] for context in contexts]
    asked = [*((context, options) for context in contexts), ("The cat", {**options, "max_gen_toks": 3})]
    asked = requests("generate_until", *asked)
    assert lm.generate_until(asked, disable_tqdm=True) == [*together, *lm.write(["The cat"], {"max_gen_toks": 3})]
    narrow = RltokLM(model, greedy=True, context=8)
    for most, read in ((3, 5), (8, 1), (12, 1)):  # at least the last byte of the context is read
        text = generate(model, "The cat sat"[-read:], max_bytes=most, temperature=0, greedy=True).texts[0]
        assert narrow.write(["The cat sat"], {"max_gen_toks": most}) == [text.decode("utf-8", errors="replace")]


def write_in_step(texts: list[str]):
    """Stream texts after prompts of 1, 2, ... bytes; pad the ones that end early with other bytes."""
    rows = [bytes(row) + text.encode() + b"~" * 9 for row, text in enumerate(texts)]
    for t in range(min(map(len, rows))):
        byte_ids, new = torch.tensor([row[t] for row in rows]), t >= torch.arange(len(rows))
        yield GeneratedByte(byte_ids, new, torch.zeros(len(rows)), new)


def test_stops_end_a_text_where_they_first_appear(model, monkeypatch):
    lm = RltokLM(model, greedy=True)
    text = generate(model, "The cat", max_bytes=12, temperature=0, greedy=True).texts[0]
    stop = next(chr(byte) for byte in reversed(text) if byte < 128)
    expected = text[: text.index(stop.encode())].decode("utf-8", errors="replace")
    for until in (stop, [stop], ["never", stop], [stop, ""]):
        assert lm.write(["The cat"], {"until": until, "max_gen_toks": 12}) == [expected]
    monkeypatch.setattr(harness, "stream", lambda model, prompts, **options: write_in_step(["ab<é>cd", "x<é", "<é>"]))
    for until, texts in (
        (["<é>"], ["ab", "x<é~~", ""]),
        (["é>", "b<é"], ["a", "x<é~~", "<"]),
        ([], ["ab<é>", "x<é~~", "<é>~~"]),
    ):
        assert lm.write(["p"] * 3, {"until": until, "max_gen_toks": 6}) == texts, until
    assert lm.write(["The cat"], {"max_gen_toks": 0}) == [""]


def test_temperature_draws_and_repeats(model):
    hot = {"max_gen_toks": 12, "temperature": 1.0}
    first, second, other = (RltokLM(model, seed=seed).write(["The cat"], hot) for seed in (1, 1, 2))
    assert first == second != other
    cold = RltokLM(model, greedy=True).write(["The cat"], {"max_gen_toks": 12})
    assert RltokLM(model, greedy=True).write(["The cat"], {**hot, "do_sample": False}) == cold != first
    assert RltokLM(model, greedy=True).write(["The cat"], hot) != cold  # bytes are drawn if only a temperature is given
    for filtered in ({"top_k": 1}, {"top_p": 1e-6}):  # leave the likeliest byte alone
        assert RltokLM(model, greedy=True).write(["The cat"], {**hot, **filtered}) == cold, filtered
        assert RltokLM(model, greedy=True).write(["The cat"], {**hot, **filtered, "do_sample": True}) == cold
    even = RltokLM(small_model(head=0.0), batch_size=1)  # writes the same bytes from the same random numbers
    first, second, other = even.write(["a", "a", "b"], hot)
    assert first == second != other
    prompts = ["The cat", "a", "Some longer context, é"]
    written = []
    for greedy in (False, True):  # what is written follows the seed alone, and leaves torch's generator as it was
        state, lm = torch.get_rng_state(), RltokLM(model, greedy=greedy, seed=3)
        together = lm.write(prompts, hot)
        assert torch.equal(state, torch.get_rng_state())
        torch.rand(3)
        assert lm.write(prompts, hot) == together
        written.append(together)
    assert written[0] != written[1]  # boundaries are drawn unless they are greedy


def test_options_reach_what_is_scored_and_written(monkeypatch):
    """A rate for each byte, in a model that reads one; as many rows in a pass as asked."""
    model = small_model(head=0.5, rate_embedding=True)
    torch.nn.init.normal_(model.rate_embedding.weight, std=0.5)
    options = {"max_bytes": 9, "temperature": 0, "greedy": True}
    for rate in (None, 0.02, 0.9):
        lm = RltokLM(model, rate=rate, greedy=True, seed=5)
        direct = continuation_log_likelihood(model, *zip(*PAIRS, strict=True), target_rate=rate, greedy=True)
        assert [nats for nats, _ in scores(lm, PAIRS)] == pytest.approx(direct.log_likelihood.tolist(), abs=1e-5)
        text = generate(model, "The cat", target_rate=rate, **options).texts[0]
        assert lm.write(["The cat"], {"max_gen_toks": 9}) == [text.decode("utf-8", errors="replace")]
        assert scores(RltokLM(model, rate=rate, seed=5), PAIRS) != scores(RltokLM(model, rate=rate, seed=6), PAIRS)
    passes: list[tuple[int, int]] = []
    for given, most, rows in (
        ("auto", None, None),
        ("auto:4", None, None),
        ("auto", 3, 3),
        (None, 3, 3),
        ("2", None, 2),
        (2, 5, 2),
    ):
        lm = RltokLM(model, batch_size=given, max_batch_size=most)
        assert lm.batch_rows == rows, (given, most)
        passes.clear()
        monkeypatch.setattr(lm, "_write_batch", lambda texts, most, *_: passes.append((len(texts), most)) or texts)
        lm.write(["a"] * 20, {})  # tasks that set no limit get 256 bytes
        assert passes[0] == (rows or 16, 256) and sum(count for count, _ in passes) == 20


def test_a_segmenter_writes_and_scores(model):
    segmenter = make_segmenter("uniform", model, rate=0.5).eval()
    lm = RltokLM(model, segmenter=segmenter)
    steps = write_on(model, segmenter, "The cat", max_bytes=6, temperature=0)
    text = bytes(int(step.byte_ids) for step in steps if bool(step.new))
    written = lm.write(["The cat", "a", "The cat"], {"max_gen_toks": 6})
    assert written[0] == written[2] == text.decode("utf-8", errors="replace")
    assert written[1:2] == lm.write(["a"], {"max_gen_toks": 6}) != [""]
    direct = continuation_log_likelihood(model, ["The cat"], [" sat"], segmenter=segmenter)
    assert scores(lm, PAIRS)[0][0] == pytest.approx(float(direct.log_likelihood), abs=1e-5)


def test_a_run_is_read_as_it_was_trained(model, tmp_path):
    assert get_model("rltok") is RltokLM
    model.save_pretrained(tmp_path / "model")
    assert RltokLM(str(tmp_path)).context is None
    (tmp_path / "config.yaml").write_text("data:\n  num_steps: 24\nactor:\n  name: learned\n")
    lm = RltokLM.create_from_arg_string(f"pretrained={tmp_path},samples=2", {"batch_size": "auto", "device": None})
    assert (lm.context, lm.samples, lm.segmenter, lm.batch_rows) == (24, 2, None, None)
    assert RltokLM(str(tmp_path), context=12).context == 12
    model.save_pretrained(tmp_path / "other")
    assert RltokLM(str(tmp_path / "other")).context is None  # of another run, or none
    there = "cuda" if torch.cuda.is_available() else "cpu"  # the command line asks for cuda:0 unless it is told
    assert RltokLM(str(tmp_path), device="cuda:0").device.type == there
    (tmp_path / "config.yaml").write_text("data:\nactor:\n  name: uniform\n")  # no length is known
    with pytest.raises(ValueError, match="model must hold segmenter.json, because .* names the actor 'uniform'"):
        RltokLM(str(tmp_path))
    segmenter = make_segmenter("uniform", model, rate=0.5)
    save_segmenter(tmp_path / "model", segmenter, model, name="uniform", options={"rate": 0.5})
    scored = RltokLM(str(tmp_path)).segmenter
    assert scored is not None and scored.target_rate == 0.5


def test_the_command_names_the_model(monkeypatch):
    import lm_eval.__main__

    seen: list[list[str]] = []
    monkeypatch.setattr(lm_eval.__main__, "cli_evaluate", lambda: seen.append(sys.argv[1:]))
    for given in (["--tasks", "piqa"], ["run", "--tasks", "piqa"], ["--model", "dummy"], ["ls", "tasks"]):
        monkeypatch.setattr(sys, "argv", ["rltok lm-eval", *given])
        assert command.main() == 0
    model = ["--model", "rltok"]
    tasks = ["--tasks", "piqa", *model]
    assert seen == [tasks, ["run", *tasks], ["--model", "dummy"], ["ls", "tasks"]]


def test_without_the_package_it_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.setitem(sys.modules, "lm_eval.api.model", None)
    monkeypatch.delitem(sys.modules, "rltok_rl.evaluation.lm_eval")
    spec = importlib.util.find_spec("rltok_rl.evaluation.lm_eval")
    with pytest.raises(ImportError, match=r"pip install 'rltok_rl\[harness\]'"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    monkeypatch.setattr(sys, "argv", ["rltok lm-eval", "ls", "tasks"])
    assert command.main() == 2
    assert "rltok lm-eval: the adapter needs lm-evaluation-harness" in capsys.readouterr().err
