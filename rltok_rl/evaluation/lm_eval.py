"""Adapter to EleutherAI's lm-evaluation-harness, under the model name ``rltok``.

    rltok lm-eval --model_args pretrained=runs/mine --tasks piqa,wikitext
    lm_eval.simple_evaluate(model="rltok", model_args="pretrained=runs/mine", tasks=["piqa"])

From Python, import this module first: the harness looks for models in its own package only. All lengths are in bytes:
``max_gen_toks`` and ``context``.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from rltok_rl.agents.segmenters import Segmenter, load_segmenter, write_on
from rltok_rl.evaluation.continuations import check_samples, continuation_log_likelihood, continuation_seed
from rltok_rl.evaluation.windowed import SegmentedModel
from rltok_rl.foreign import read_config_file
from rltok_rl.models import UNet
from rltok_rl.models.generation import GeneratedByte, stream
from rltok_rl.models.pretrained import model_folder
from rltok_rl.models.weights import check_one_dtype
from rltok_rl.text import text_to_bytes
from rltok_rl.utils import check_count

try:
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
    from tqdm import tqdm
except ImportError as error:
    raise ImportError("the adapter needs lm-evaluation-harness: pip install 'rltok_rl[harness]'") from error

CHUNK = 256
"""Requests that are answered, and then cached by the harness, at a time."""
MAX_GEN_TOKS = 256
"""Bytes to write if a task sets no limit."""
_GENERATION = {"until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p"}


@register_model("rltok")
class RltokLM(LM):
    """A U-Net as a model of the harness.

    An answer of ``loglikelihood`` and ``loglikelihood_rolling`` depends on its request and ``seed`` alone, so the
    harness may cache it; see :func:`~rltok_rl.evaluation.continuations.continuation_log_likelihood`.

    Args:
        pretrained: folder of save_pretrained, folder of a run, hub id, or a model.
        segmenter: draws the boundaries of a model object; a folder has its own.
        context: bytes to read at most; None uses the length that a run was trained on, and for other models no limit.
        samples: draws of the boundaries that score a text; written texts have one.
        greedy: draws a boundary where its probability exceeds one half.
        seed: determines all random numbers.
        rate: boundaries per byte, for a model with ``rate_embedding``.
        device: of a model that is loaded; CUDA falls back to the CPU if there is none.
        batch_size: requests of a forward pass at most; ``"auto"`` limits their bytes, and writes 16 texts at once.
        max_batch_size: the limit for ``"auto"``.
        trust_code: import and execute a custom segmenter, ``module:Class``, named in the files of ``pretrained``.
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
            raise ValueError("segmenter must be left out if pretrained is a name: it is loaded with the model")
        else:
            # The harness's command line asks for cuda:0 by default, even without a GPU.
            absent = device is None or (str(device).startswith("cuda") and not torch.cuda.is_available())
            self.model, self.segmenter, trained = _load(str(pretrained), "cpu" if absent else str(device), trust_code)
            context = trained if context is None else context
        self._device = self.model.embedding.weight.device
        self.context = None if context is None else check_count("context", context, minimum=2)
        self.greedy, self.seed, self.rate = greedy, check_count("seed", seed, minimum=0), rate
        check_samples(SegmentedModel(self.model, self.segmenter, rate, greedy), samples)
        self.samples = samples
        most = None if max_batch_size is None else check_count("max_batch_size", max_batch_size)
        automatic = batch_size is None or str(batch_size).startswith("auto")
        self.batch_rows = most if automatic else _rows(batch_size)

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Return log p(continuation | context) in nats of each request, and whether all its bytes are the likeliest."""
        return self._answer("loglikelihood", requests, disable_tqdm, self._score)

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Return log p of whole texts in nats: each byte once, from as many as allowed.

        The first costs 8 bits, unless the model reads a begin-of-text mark.
        """

        def score(arguments: list[tuple[Any, ...]]) -> list[float]:
            texts = [("", text) for (text,) in arguments if text]
            scores = iter(self._score(texts) if texts else [])
            return [next(scores)[0] if text else 0.0 for (text,) in arguments]  # the empty text is certain

        return self._answer("loglikelihood_rolling", requests, disable_tqdm, score)

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Write a text after the context of each request, with its options; see :meth:`write`."""

        def write(arguments: list[tuple[Any, ...]]) -> list[str]:
            return self.write([context for context, _ in arguments], arguments[0][1])

        return self._answer("generate_until", requests, disable_tqdm, write)

    def write(self, contexts: Sequence[str], options: dict[str, Any]) -> list[str]:
        """Continue non-empty contexts, cut from the left if too long; invalid UTF-8 becomes U+FFFD.

        A text ends before its first stop string (``until``) or after ``max_gen_toks`` bytes. With ``temperature`` 0,
        ``do_sample`` False, or neither given, the likeliest byte is taken. A batch shares a generator, so random
        results depend on ``batch_size``.
        """
        unknown = sorted(set(options) - _GENERATION)
        if unknown:
            raise ValueError(f"options of generation must be of {sorted(_GENERATION)}, got {unknown}")
        until = options.get("until") or []
        stops = [text_to_bytes(stop) for stop in ([until] if isinstance(until, str) else until) if stop]
        most = options.get("max_gen_toks")
        most = check_count("max_gen_toks", MAX_GEN_TOKS if most is None else most, minimum=0)
        temperature = float(options.get("temperature") or 0.0)
        if options.get("do_sample") is False:
            temperature = 0.0
        elif options.get("do_sample") and not temperature:
            raise ValueError("temperature must be above 0 if do_sample is true, got 0")
        sampling = {"temperature": temperature, "top_k": options.get("top_k"), "top_p": options.get("top_p")}
        rows = 1 if self.segmenter is not None else self.batch_rows or 16
        prompts = [text_to_bytes(context) for context in contexts]
        if not all(prompts):
            raise ValueError("context must have at least 1 byte to write on from, got an empty one")
        if self.context is not None:  # so that all that is read and written fits, if possible
            prompts = [prompt[-max(1, self.context - most) :] for prompt in prompts]
        written: list[str] = []
        for start in range(0, len(prompts), rows):
            texts = self._write_batch(prompts[start : start + rows], most, stops, sampling)
            written += [text.decode("utf-8", errors="replace") for text in texts]
        return written

    def _write_batch(
        self, prompts: list[bytes], most: int, stops: list[bytes], sampling: dict[str, Any]
    ) -> list[bytes]:
        if not most:
            return [b"" for _ in prompts]
        generator = torch.Generator(self._device)
        generator.manual_seed(continuation_seed(self.seed, 0, b"".join(prompts)))
        options = {"max_bytes": most, "generator": generator, **sampling}
        steps: Iterator[GeneratedByte]
        if self.segmenter is not None:
            steps = write_on(self.model, self.segmenter, prompts[0], **options)
        else:
            steps = stream(self.model, prompts, greedy=self.greedy, target_rate=self.rate, **options)
        texts, ended = [bytearray() for _ in prompts], [False] * len(prompts)
        for step in steps:
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

    def _score(self, arguments: list[tuple[Any, ...]]) -> list[tuple[float, bool]]:
        scores = continuation_log_likelihood(
            self.model,
            [context for context, _ in arguments],
            [continuation for _, continuation in arguments],
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
        quiet: bool,
        answer: Callable[[list[tuple[Any, ...]]], list[Any]],
    ) -> list[Any]:
        """Answer requests, equal options together, long ones first; cache answers as they come."""
        arguments = [tuple(request.args) for request in requests]
        groups = [str([sorted(part.items()) for part in each if isinstance(part, dict)]) for each in arguments]
        sizes = [sum(len(text) for text in each if isinstance(text, str)) for each in arguments]
        order = sorted(range(len(requests)), key=lambda place: (groups[place], -sizes[place]))
        answers: list[Any] = [None] * len(requests)
        with tqdm(total=len(requests), desc=f"rltok {name}", disable=quiet) as bar:
            for _, members in itertools.groupby(order, key=lambda place: groups[place]):
                while places := list(itertools.islice(members, CHUNK)):
                    for place, result in zip(places, answer([arguments[place] for place in places]), strict=True):
                        answers[place] = result
                        self.cache_hook.add_partial(name, arguments[place], result)
                    bar.update(len(places))
        return answers


def _rows(batch_size: int | str | None) -> int:
    """Return a batch size, which the harness's command line gives as text."""
    if isinstance(batch_size, str):
        if not batch_size.isdecimal():
            raise ValueError(f"batch_size must be an integer of at least 1, or 'auto', got {batch_size!r}")
        batch_size = int(batch_size)
    return check_count("batch_size", batch_size)


def _load(source: str, device: str, trust_code: bool) -> tuple[UNet, Segmenter | None, int | None]:
    """A model, its segmenter (None for its own policy), and the bytes of a window in training, if known."""
    model = UNet.from_pretrained(source, device=device)
    check_one_dtype(model, source)
    folder = model_folder(source)
    segmenter = load_segmenter(folder or source, model, trust_code)
    if folder is None or folder.name != "model" or not os.path.lexists(folder.parent / "config.yaml"):
        return model, segmenter, None
    run = folder.parent / "config.yaml"
    return model, segmenter, (read_config_file(run).get("data") or {}).get("num_steps")
