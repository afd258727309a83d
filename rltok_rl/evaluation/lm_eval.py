"""Models of this library in EleutherAI's lm-evaluation-harness, under the name ``rltok``.

    rltok lm-eval --model_args pretrained=runs/mine --tasks piqa,wikitext
    lm_eval.simple_evaluate(model="rltok", model_args="pretrained=runs/mine", tasks=["piqa"])

The second needs this module to be imported before, because the harness looks for models nowhere but in its own package.
Everything is counted in bytes: ``max_gen_toks``, and the ``context`` that is read at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from rltok_rl.agents.segmenters import Segmenter, load_segmenter, write_on
from rltok_rl.evaluation.continuations import check_drawing, continuation_log_likelihood, continuation_seed
from rltok_rl.models import UNet
from rltok_rl.models.generation import GeneratedByte, stream
from rltok_rl.models.pretrained import model_folder
from rltok_rl.utils import check_count, read_config_file

try:
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
    from tqdm import tqdm
except ImportError as error:
    raise ImportError("the adapter needs lm-evaluation-harness: pip install 'rltok_rl[harness]'") from error

CHUNK = 256
"""Requests that are answered, and told to the harness's cache, at a time."""
MAX_GEN_TOKS = 256
"""Bytes to write where a task does not say."""
_GENERATION = {"until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p"}


@register_model("rltok")
class RltokLM(LM):
    """A U-Net as the harness wants it.

    ``loglikelihood`` and ``loglikelihood_rolling`` are
    :func:`~rltok_rl.evaluation.continuations.continuation_log_likelihood`: an answer depends on its request and on
    ``seed`` alone, so that it may be kept, whatever it was asked together with.

    Args:
        pretrained: folder of save_pretrained, folder of a run, hub id, or a model.
        segmenter: draws the boundaries of a model that is given as such; beside one in a folder it is found.
        context: bytes to read at most; None is what a run was trained on, and all for other models.
        samples: how often boundaries are drawn to score a text; one that is written has its own.
        greedy: draw a boundary where its probability exceeds one half.
        seed: of all random numbers.
        rate: boundaries per byte to aim at, where the model has ``rate_embedding``.
        device: where to run a model that is loaded; the CPU where it names CUDA and there is none.
        batch_size: requests of a forward pass at most; ``"auto"`` goes by their bytes, and writes 16 texts at once.
        max_batch_size: the same for ``"auto"``.
        trust_code: whether to import and execute a custom segmenter, ``module:Class``, that the files of ``pretrained``
            name. The default raises an error instead.

    Example:
        >>> from rltok_rl.models import preset
        >>> lm = RltokLM(UNet(preset("tiny")).eval(), context=256)
        >>> written = lm.write(["The cat"], {"until": ["."], "max_gen_toks": 5})
        >>> len(written)
        1
    """

    def __init__(
        self,
        pretrained: str | UNet,
        *,
        segmenter: Segmenter | None = None,
        context: int | None = None,
        samples: int = 1,
        greedy: bool = False,
        seed: int = 0,
        rate: float | None = None,
        device: str | None = None,
        batch_size: int | str | None = "auto",
        max_batch_size: int | None = None,
        trust_code: bool = False,
    ) -> None:
        super().__init__()
        if isinstance(pretrained, UNet):
            self.model, self.segmenter = pretrained, segmenter
        elif segmenter is not None:
            raise ValueError("segmenter must be left out where pretrained is a name: it is found beside the model")
        else:
            # The harness's command line names cuda:0 where it was told nothing, also where there is none.
            absent = device is None or (str(device).startswith("cuda") and not torch.cuda.is_available())
            where = "cpu" if absent else str(device)
            self.model, self.segmenter, trained = _load(str(pretrained), where, trust_code)
            context = trained if context is None else context
        self._device = self.model.embedding.weight.device
        self.context = None if context is None else check_count("context", context, minimum=2)
        self.greedy, self.seed, self.rate = greedy, check_count("seed", seed, minimum=0), rate
        self.samples = check_count("samples", samples)
        check_drawing(samples, greedy, self.segmenter, rate)
        self.batch_rows = max_batch_size
        if batch_size is not None and not str(batch_size).startswith("auto"):
            self.batch_rows = check_count("batch_size", int(batch_size) if isinstance(batch_size, str) else batch_size)

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Log p(continuation | context) in nats, and whether every byte of it is the likeliest.

        Args:
            requests: whose ``args`` are (context, continuation).
            disable_tqdm: show no progress.
        """
        return self._answer("loglikelihood", requests, self._score, _total_length, disable_tqdm)

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Log p of whole texts in nats: each byte once, from as much as may be read; the first costs 8 bits.

        Args:
            requests: whose ``args`` are (text,).
            disable_tqdm: show no progress.
        """

        def score(asked: list[tuple[Any, ...]]) -> list[float]:
            texts = [("", text) for (text,) in asked if text]
            found = iter(self._score(texts) if texts else [])
            return [next(found)[0] if text else 0.0 for (text,) in asked]  # no text is certain

        return self._answer("loglikelihood_rolling", requests, score, _total_length, disable_tqdm)

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """What the model writes after each context, up to the first of the stop strings, which is left out.

        Args:
            requests: whose ``args`` are (context, options), see :meth:`write`.
            disable_tqdm: show no progress.
        """

        def score(asked: list[tuple[Any, ...]]) -> list[str]:
            return self.write([context for context, _ in asked], asked[0][1])

        def alike(request: tuple[Any, ...]) -> Any:
            return sorted((name, str(value)) for name, value in request[1].items()), -len(request[0])

        return self._answer("generate_until", requests, score, alike, disable_tqdm, together=lambda one: alike(one)[0])

    def write(self, contexts: Sequence[str], options: dict[str, Any]) -> list[str]:
        """Continue contexts; bytes that are no UTF-8 come out as U+FFFD.

        With ``temperature`` 0 (or ``do_sample`` False, or neither of the two) the likeliest byte is taken. Random
        numbers of texts that are written together come from one generator: results depend on ``batch_size`` then.

        Args:
            contexts: texts, none empty; the last bytes are read where they are too long.
            options: ``until``, one stop string or several; ``max_gen_toks``, bytes; ``do_sample``, ``temperature``,
                ``top_k``, ``top_p``.
        """
        unknown = sorted(set(options) - _GENERATION)
        if unknown:
            raise ValueError(f"options of generation must be of {sorted(_GENERATION)}, got {unknown}")
        until = options.get("until") or []
        stops = [stop.encode() for stop in ([until] if isinstance(until, str) else until) if stop]
        most = options.get("max_gen_toks")
        most = check_count("max_gen_toks", MAX_GEN_TOKS if most is None else most, minimum=0)
        temperature = float(options.get("temperature") or 0.0)
        if options.get("do_sample") is False:
            temperature = 0.0
        elif options.get("do_sample") and not temperature:
            raise ValueError("temperature must be above 0 where do_sample is true, got 0")
        how = {"temperature": temperature, "top_k": options.get("top_k"), "top_p": options.get("top_p")}
        rows = 1 if self.segmenter is not None else self.batch_rows or 16
        prompts = [self._prompt(context, most) for context in contexts]
        written: list[str] = []
        for start in range(0, len(prompts), rows):
            texts = self._write_batch(prompts[start : start + rows], most, stops, how)
            written += [text.decode("utf-8", errors="replace") for text in texts]
        return written

    def _prompt(self, context: str, most: int) -> bytes:
        """The last bytes of a context, so that no more than ``self.context`` are read at the end, if that can be."""
        prompt = context.encode()
        if not prompt:
            raise ValueError("context must have at least 1 byte to write on from, got an empty one")
        return prompt if self.context is None else prompt[-max(1, self.context - most) :]

    def _write_batch(self, prompts: list[bytes], most: int, stops: list[bytes], how: dict[str, Any]) -> list[bytes]:
        generator = torch.Generator(self._device)
        generator.manual_seed(continuation_seed(self.seed, 0, b"".join(prompts)))
        steps: Iterator[GeneratedByte]
        if self.segmenter is not None:
            (prompt,) = prompts
            steps = write_on(self.model, self.segmenter, prompt, max_bytes=most, generator=generator, **how)
        else:
            steps = stream(
                self.model,
                prompts,
                max_bytes=most,
                generator=generator,
                greedy=self.greedy,
                target_rate=self.rate,
                **how,
            )
        texts, ended = [bytearray() for _ in prompts], [most == 0] * len(prompts)
        for step in steps if most else ():
            for row, (byte, new) in enumerate(zip(step.byte_ids.tolist(), step.new.tolist(), strict=True)):
                if not new or ended[row]:
                    continue
                text = texts[row]
                text.append(byte)
                stop = next((stop for stop in stops if text.endswith(stop)), None)
                if stop is not None:
                    del text[-len(stop) :]
                ended[row] = stop is not None or len(text) == most
            if all(ended):
                break
        return [bytes(text) for text in texts]

    def _score(self, asked: list[tuple[Any, ...]]) -> list[tuple[float, bool]]:
        scores = continuation_log_likelihood(
            self.model,
            [context for context, _ in asked],
            [continuation for _, continuation in asked],
            context_bytes=self.context,
            samples=self.samples,
            greedy=self.greedy,
            seed=self.seed,
            segmenter=self.segmenter,
            target_rate=self.rate,
            batch_rows=self.batch_rows,
        )
        return list(zip(scores.log_likelihood.tolist(), scores.likeliest.tolist(), strict=True))

    def _answer(
        self,
        name: str,
        requests: list[Any],
        answer: Callable[[list[tuple[Any, ...]]], list[Any]],
        order: Callable[[tuple[Any, ...]], Any],
        quiet: bool,
        together: Callable[[tuple[Any, ...]], Any] = lambda _: None,
    ) -> list[Any]:
        """Answers in the order of the requests; they are worked on in another, and told to the cache as they come."""
        asked = [tuple(request.args) for request in requests]
        places = sorted(range(len(asked)), key=lambda place: order(asked[place]))
        answers: list[Any] = [None] * len(asked)
        with tqdm(total=len(asked), desc=f"rltok {name}", disable=quiet) as bar:
            for chunk in _chunks(places, lambda place: together(asked[place])):
                for place, found in zip(chunk, answer([asked[place] for place in chunk]), strict=True):
                    answers[place] = found
                    self.cache_hook.add_partial(name, asked[place], found)
                bar.update(len(chunk))
        return answers


def _load(source: str, device: str, trust_code: bool) -> tuple[UNet, Segmenter | None, int | None]:
    """A model, who draws its boundaries (None is its own policy), and bytes of the windows that it was trained on."""
    model = UNet.from_pretrained(source, device=device)
    folder = model_folder(source)
    if folder is None:
        return model, None, None
    segmenter, run = load_segmenter(folder, model, trust_code), folder.parent / "config.yaml"
    if folder.name != "model" or not run.is_file():
        return model, segmenter, None
    config = read_config_file(run)
    for group in ("segmenter", "actor"):
        name = (config.get(group) or {}).get("name", "learned")
        if segmenter is None and name != "learned":  # of an actor: older versions saved none
            raise ValueError(f"pretrained needs the segmenter of {group}={name} beside its model, got none in {folder}")
    return model, segmenter, (config.get("data") or {}).get("num_steps")


def _total_length(request: tuple[Any, ...]) -> int:
    """The longest first."""
    return -sum(len(text) for text in request)


def _chunks(places: list[int], together: Callable[[int], Any]) -> Iterator[list[int]]:
    """Runs of at most :data:`CHUNK` places that go together."""
    chunk: list[int] = []
    for place in places:
        if chunk and (len(chunk) == CHUNK or together(place) != together(chunk[0])):
            yield chunk
            chunk = []
        chunk.append(place)
    if chunk:
        yield chunk
