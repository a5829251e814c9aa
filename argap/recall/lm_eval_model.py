"""A checkpoint as an lm-eval model, so that it can run any of lm-eval's tasks.

Importing this module registers it, so that ``simple_evaluate(model="argap", model_args="pretrained=CKPT")`` works.
"""

from collections.abc import Callable
from typing import Any

import torch

from argap.checkpoints.lengths import max_positions
from argap.errors import ArgapError, extra
from argap.recall.decoding import Decoder, load_decoder
from argap.recall.golds import Answer, Gold, contained, gold_of
from argap.records import Bos, ids_of
from argap.runtime.progress import progress
from argap.runtime.trust import trusting
from argap.scoring.bos import say_bos
from argap.scoring.config import ScoreConfig
from argap.scoring.find import find_source
from argap.scoring.local import CheckpointSource
from argap.scoring.per_model import NO_BOS

with extra("recall"):
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window, simple_parse_args_string

OPTIONS = ("dtype", "device", "batch_size", "backend", "device_map", "bos")
"""Those of `argap.scoring.config.ScoreConfig` that lm-eval's ``model_args`` may set."""
DEFAULT_LENGTH = 2048
"""The window of a model without a maximum length, as in lm-eval."""
DEFAULT_NEW_TOKENS = 256


class ArgapLM(TemplateLM):
    """loglikelihood, loglikelihood_rolling and generate_until with a `Decoder`.

    Prompts longer than the window are cut on the left, as in lm-eval's own models. A BOS comes before each text, as
    `argap.scoring.bos` decides, and takes part in the cut. Decoding is greedy: a task that samples raises `ArgapError`.
    """

    def __init__(
        self,
        decoder: Decoder,
        name: str,
        *,
        max_length: int | None = None,
        bos: Bos = None,
        prefix: Bos = None,
    ) -> None:
        """``bos``: put before each text; ``prefix``: before a text without context, by default ``bos``, else EOS."""
        super().__init__()
        self.decoder, self.name, self.bos = decoder, name, bos
        self._prefix = bos if prefix is None else prefix
        self.golds: list[tuple[Gold, Answer]] = []
        """Golds of the answers so far, of tasks in RULER's form (`argap.recall.golds`)."""
        self.max_length = max_length or max_positions(decoder.model.config.to_dict()) or DEFAULT_LENGTH

    @classmethod
    def of(cls, source: CheckpointSource, config: ScoreConfig, *, max_length: int | None = None) -> "ArgapLM":
        """Load a checkpoint."""
        bos, asked = source.bos, config.bos.of(source.name)
        say_bos(source, asked, bos)
        # As in lm-eval's own models, a BOS that the tokenizer names but does not put serves as the prefix.
        prefix = source.tokenizer.bos if bos is asked is None and not source.without_bos else bos
        length = max_length or source.longest
        return cls(load_decoder(source, config), source.name, max_length=length, bos=bos, prefix=prefix)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> "ArgapLM":
        """Build the model described by lm-eval's ``model_args``.

        They are ``pretrained``, a checkpoint, and optionally those of `OPTIONS`, ``trust_remote_code`` and
        ``max_length``. Raises `ArgapError` for another argument, and the errors of loading.
        """
        given = {name: value for name, value in (arg_dict | (additional_config or {})).items() if value is not None}
        if "bos" in arg_dict and arg_dict["bos"] is None:  # what lm-eval reads for none
            given["bos"] = NO_BOS
        given.pop("max_batch_size", None)  # lm-eval always sends it, and its command line cuda:0 on any machine
        if "device" not in arg_dict and str(given.get("device")).startswith("cuda") and not torch.cuda.is_available():
            del given["device"]
        known = ("pretrained", *OPTIONS, "trust_remote_code", "max_length")
        if unknown := sorted(given.keys() - set(known)):
            raise ArgapError(
                f"{', '.join(unknown)}: no argument of the lm-eval model argap; known are {', '.join(known)}"
            )
        if "pretrained" not in given:
            raise ArgapError("pretrained: missing; expected the checkpoint, as in `pretrained=CKPT`")
        checkpoint, length = str(given.pop("pretrained")), given.pop("max_length", None)
        given["batch_size"] = str(given.get("batch_size", "auto"))
        with trusting(bool(given.pop("trust_remote_code", False))):
            if isinstance(number := given.get("bos"), int):  # lm-eval turns digits into a number: an id
                given["bos"] = find_source(checkpoint).tokenizer.token_text(number)
            config = ScoreConfig.of(**given)
            return cls.of(find_source(checkpoint, config), config, max_length=length)

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> "ArgapLM":
        """Build as `create_from_arg_obj` does, from ``"pretrained=CKPT,dtype=float32"``."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @property
    def eot_token_id(self) -> int:
        eos = self.decoder.tokenizer.eos
        if eos is None:
            raise ArgapError(f"{self.name}: its tokenizer has no EOS token, which lm-eval puts before a text")
        return eos

    @property
    def prefix_token_id(self) -> int:
        """Return the token before a text without context; of several the last (`_begun` puts the others)."""
        return self.eot_token_id if self._prefix is None else ids_of(self._prefix)[-1]

    def _begun(self, context: list[int]) -> list[int]:
        """Put the other tokens of a prefix before a context that is the last one alone."""
        return [*ids_of(self._prefix)[:-1], *context] if context == [self.prefix_token_id] else context

    @property
    def tokenizer_name(self) -> str:
        return self.decoder.tokenizer.name

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Return the tokens of a text behind the BOS, unless ``add_special_tokens`` is False."""
        return [
            *(() if add_special_tokens is False else ids_of(self.bos)),
            *self.decoder.tokenizer.encode([string])[0].tolist(),
        ]

    def get_model_info(self) -> dict[str, object]:
        """Return an entry for ``config`` in lm-eval's results."""
        return {"model_name": self.name, "model_num_parameters": self.decoder.model.num_parameters()}

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        contexts, continuations = [], []
        for texts, context, continuation in requests:
            if not continuation:
                raise ArgapError(f"{self.name}: {texts[1]!r} adds no token to its context")
            continuation = continuation[-self.max_length :]
            whole = [*self._begun(context), *continuation][-(self.max_length + 1) :]  # the last token is only a target
            contexts.append(whole[: len(whole) - len(continuation)])
            continuations.append(continuation)
        forced = self._in_batches(
            lambda ks: self.decoder.force([contexts[k] for k in ks], [continuations[k] for k in ks]),
            [len(a) + len(b) for a, b in zip(contexts, continuations, strict=True)],
        )
        return [(sum(one.logprobs), not any(one.ranks)) for one in forced]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        totals = []
        for (text,) in (request.args for request in requests):
            ids = self.tok_encode(text, add_special_tokens=False)
            windows = get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, context_len=1)
            pairs = [(("", ""), *make_disjoint_window(window)) for window in windows]
            totals.append(sum(logprob for logprob, _ in self._loglikelihood_tokens(pairs)))
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        answers: dict[int, str] = {}
        groups: dict[tuple[tuple[str, ...], int], list[int]] = {}
        for k, request in enumerate(requests):
            options: dict[str, Any] = request.arguments[1]
            if options.get("do_sample") or options.get("num_beams", 1) != 1:
                raise ArgapError(f"{self.name}: the task uses sampling or beam search; argap decodes greedily only")
            until = options.get("until") or []
            stops = (until,) if isinstance(until, str) else tuple(until)
            groups.setdefault((stops, options.get("max_gen_toks", DEFAULT_NEW_TOKENS)), []).append(k)
        for (until, new_tokens), members in groups.items():
            room = self.max_length - new_tokens
            if room < 1:
                raise ArgapError(
                    f"{self.name}: {new_tokens} new tokens leave no room for a prompt in {self.max_length}"
                )
            prompts = [self.tok_encode(requests[k].arguments[0])[-room:] for k in members]
            generations = self._in_batches(
                lambda ks, prompts=prompts, until=until, new_tokens=new_tokens: self.decoder.generate(
                    [prompts[k] for k in ks], until=until, new_tokens=new_tokens
                ),
                [len(prompt) for prompt in prompts],
            )
            for k, generation in zip(members, generations, strict=True):
                answers[k] = generation.text
        self._force_golds(requests, answers)
        return [answers[k] for k in range(len(requests))]

    def _force_golds(self, requests: list[Instance], answers: dict[int, str]) -> None:
        """Append to `golds` those of ``requests`` whose documents have some, and what the model gives them."""
        found = [(k, gold_of(str(r.task_name), r.arguments[0], r.doc)) for k, r in enumerate(requests)]
        golds = [(k, gold) for k, gold in found if gold is not None]
        pairs = []
        for _, gold in golds:
            whole, context = self.tok_encode(f"{gold.prompt} {gold.text}"), self.tok_encode(gold.prompt)
            pairs.append(((gold.prompt, gold.text), context, whole[len(context) :]))
        for (k, gold), (logprob, _) in zip(golds, self._loglikelihood_tokens(pairs), strict=True):
            self.golds.append((gold, Answer(-logprob, contained(requests[k].doc, answers[k]))))

    def _in_batches(self, work: Callable[[list[int]], list[Any]], lengths: list[int]) -> list[Any]:
        """Return the results of ``work`` on all indices, longest first, a few batches at a time, with progress."""
        order = sorted(range(len(lengths)), key=lambda k: -lengths[k])
        results: dict[int, Any] = {}
        size = 4 * self.decoder.batch_size
        with progress(self.name, len(order), "requests") as advance:
            for start in range(0, len(order), size):
                chunk = order[start : start + size]
                results.update(zip(chunk, work(chunk), strict=True))
                advance(len(chunk))
        return [results[k] for k in range(len(order))]


register_model("argap")(ArgapLM)
