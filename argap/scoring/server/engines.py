"""Run a checkpoint by an inference engine in this process: vLLM's offline engine, or SGLang's.

Both take prompts of token ids and return the log-prob of each token with that of the most likely one, as vLLM's server
does, so their answers pass the same checks (`argap.scoring.server.dialects.of_ids`). Every window asks for one new
token, which is ignored: an engine does not stop at the prompt.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from argap.checkpoints.find import NATIVE, read_config
from argap.checkpoints.lengths import stated_positions
from argap.checkpoints.load import check_trusted
from argap.errors import ArgapError, MismatchError, extra
from argap.evaluation.windows import EvaluationSet
from argap.records import RunIdentity, SourceRecord, ids_of
from argap.runtime.trust import is_trusted
from argap.scoring.config import Engine
from argap.scoring.local import CheckpointSource
from argap.scoring.server.dialects import Choice, Scored, TokenScore, of_ids
from argap.scoring.server.probe import check_next_token, probes_of
from argap.scoring.server.scoring import longest_window, score_prompts
from argap.text.tokenizer import Tokenizer
from argap.tokens.runs import Run, new_record

if TYPE_CHECKING:
    from argap.runtime.torchrun import Parallel

TOKENS_PER_CALL = 2**16
"""Tokens handed to an engine at a time with batch size "auto"; it batches them itself."""
TOKENS_PER_STEP = 2**11
"""Most tokens that vLLM computes at once: it holds the logits of those of one window, for the whole vocabulary."""
SAID = 300
"""Most characters of an engine's message to quote."""
Position = dict[int, TokenScore] | None
"""The scores at a position by token id; None at position 0."""
Prompts = Callable[[list[list[int]]], list[list[Position]]]
"""Scores prompts of token ids, in order."""


class Setting(NamedTuple):
    """What an engine is started with."""

    folder: str
    dtype: str
    length: int
    """Tokens of the longest prompt, and one more."""
    gpus: int


@contextmanager
def _vllm(setting: Setting) -> Iterator[Prompts]:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # read at import
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # stdout has results alone
    import vllm  # pyright: ignore[reportMissingImports]

    engine: Any = vllm.LLM(
        model=setting.folder,
        skip_tokenizer_init=True,
        load_format="safetensors",
        trust_remote_code=is_trusted(),
        dtype=setting.dtype,
        max_model_len=setting.length,
        max_num_batched_tokens=TOKENS_PER_STEP,
        tensor_parallel_size=setting.gpus,
        enable_prefix_caching=False,  # the log-probs of a cached prefix are not computed
        enforce_eager=True,  # prompts alone are read, which CUDA graphs do not speed up
    )
    asked = vllm.SamplingParams(max_tokens=1, temperature=1.0, prompt_logprobs=1, detokenize=False)

    def position(given: Mapping[int, Any] | None) -> Position:
        return (
            None if given is None else {token: TokenScore(score.logprob, score.rank) for token, score in given.items()}
        )

    def score(prompts: list[list[int]]) -> list[list[Position]]:
        answers = engine.generate([{"prompt_token_ids": ids} for ids in prompts], asked, use_tqdm=False)
        return [[position(given) for given in answer.prompt_logprobs or []] for answer in answers]

    try:
        yield score
    finally:
        engine.llm_engine.engine_core.shutdown()  # its memory is needed for the next model


@contextmanager
def _sglang(setting: Setting) -> Iterator[Prompts]:
    import sglang  # pyright: ignore[reportMissingImports]

    engine: Any = sglang.Engine(
        model_path=setting.folder,
        skip_tokenizer_init=True,
        load_format="safetensors",
        trust_remote_code=is_trusted(),
        dtype=setting.dtype,
        context_length=setting.length,
        tp_size=setting.gpus,
        disable_radix_cache=True,  # as in vLLM
        log_level="error",
    )
    asked = {"max_new_tokens": 1, "temperature": 1.0}

    def position(own: Sequence[Any], top: Sequence[Sequence[Any]] | None) -> Position:
        if own[0] is None:
            return None
        return {own[1]: TokenScore(own[0])} | {token: TokenScore(logprob, rank=1) for logprob, token, *_ in top or ()}

    def score(prompts: list[list[int]]) -> list[list[Position]]:
        answers = engine.generate(
            input_ids=prompts, sampling_params=asked, return_logprob=True, logprob_start_len=0, top_logprobs_num=1
        )
        about = [answer["meta_info"] for answer in answers]
        return [list(map(position, each["input_token_logprobs"], each["input_top_logprobs"])) for each in about]

    try:
        yield score
    finally:
        engine.shutdown()


ENGINES: dict[Engine, Callable[[Setting], AbstractContextManager[Prompts]]] = {"vllm": _vllm, "sglang": _sglang}


@dataclass(frozen=True)
class EngineSource(CheckpointSource):
    """A checkpoint that the engine named by ``config.backend`` runs."""

    @property
    def engine(self) -> Engine:
        return cast("Engine", self.config.backend)

    @property
    def longest(self) -> int | None:
        """Return the longest window, BOS included; the new token takes the last position."""
        stated = stated_positions(read_config(self.checkpoint))
        return self.config.longest(self.name, stated and stated - 1)

    def check(self, parallel: "Parallel | None") -> None:
        from argap.runtime.device import resolve_device

        engine, config = self.engine, read_config(self.checkpoint)
        if parallel is not None:
            raise ArgapError(f"{engine} starts its own processes; run without torchrun, `device_map` takes all GPUs")
        for option in ("rank", "kl", "short_context"):
            if getattr(self.config, option):
                raise ArgapError(f"{engine}: `{option}`: an engine returns no logits; leave `{option}` out")
        if self.checkpoint.gguf is not None or config.get("model_type") == NATIVE:
            raise ArgapError(
                f"{self.name}: {engine} runs folders of transformers, not argap's own checkpoints or GGUF files; use "
                "`backend=auto`"
            )
        with extra(engine):
            if find_spec(engine) is None:
                raise ModuleNotFoundError(name=engine)
        if resolve_device(self.config.device) != resolve_device("auto"):
            raise ArgapError(
                f"`device` {self.config.device}: {engine} takes the first GPUs that it sees; choose them by "
                "CUDA_VISIBLE_DEVICES"
            )
        check_trusted(self.checkpoint)

    def check_windows(self, data: EvaluationSet, parallel: "Parallel | None") -> None:
        """Raise `ArgapError` for windows too long for the model, and for a token id that it lacks."""
        from argap.scoring.scorer import check_ids

        super().check_windows(data, parallel)
        config = read_config(self.checkpoint)
        rows = (config.get("text_config") or config).get("vocab_size")
        if isinstance(rows, int):
            check_ids(rows, data, self.origin)

    def _backend(self) -> Engine:
        return self.engine

    def score(self, data: EvaluationSet, folder: Path, text: SourceRecord, parallel: "Parallel | None" = None) -> Run:
        """Return the run over ``data``.

        Raises `ArgapError` for a model that the engine refuses and impossible log-probs, `MismatchError` for other
        tokens than the text's; finished shards are kept.
        """
        identity = self.identity(data, parallel)
        return score_prompts(
            folder,
            data,
            new_record(self.name, self.origin, text, data.record, identity),
            lambda: self._started(data, identity),
            concurrency=1,
            overwrite=self.config.overwrite,
        )

    @contextmanager
    def _started(self, data: EvaluationSet, identity: RunIdentity) -> "Iterator[_Engine]":
        """Start the engine, and find out whether its log-probs are those of the next token."""
        import torch

        before, batch = ids_of(self.bos), self.config.batch_size
        gpus = torch.cuda.device_count() if self.config.device_map else 0
        setting = Setting(str(self.checkpoint.folder), identity.dtype, len(before) + data.longest + 1, max(1, gpus))
        where = f"{self.origin}: {self.engine}"
        with ExitStack() as stack:
            with _quoting(where):
                prompts = stack.enter_context(ENGINES[self.engine](setting))
            windows = max(1, TOKENS_PER_CALL // data.seq_len) if batch == "auto" else batch
            engine = _Engine(where, prompts, before, self.tokenizer, windows)
            probes = engine.ask(probes_of(longest_window(data), self.tokenizer, as_text=False))
            check_next_token([each.best[-1] for each in probes], f"{where}: its")
            yield engine


class _Engine(NamedTuple):
    """An engine that has been started."""

    where: str
    prompts: Prompts
    before: tuple[int, ...]
    """Ids of the tokens to put before each window."""
    tokenizer: Tokenizer
    batch: int

    @property
    def device_name(self) -> str:
        import torch

        return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"

    def ask(self, windows: Sequence[Sequence[int]]) -> list[Scored]:
        with _quoting(self.where):
            answers = self.prompts([[*self.before, *ids] for ids in windows])
        if len(answers) != len(windows):
            raise MismatchError(f"{self.where}: {len(answers)} answers to {len(windows)} prompts")
        choices = [Choice(prompt_logprobs=[None, *given[len(self.before) + 1 :]]) for given in answers]
        pairs = zip(choices, windows, strict=True)
        return [of_ids(choice, ids, self.tokenizer, self.where) for choice, ids in pairs]

    def stop(self) -> None:
        """Do nothing: a call ends by itself."""

    def record(self, parts: Sequence[Path]) -> None:
        """Return None: what a run's identity says is all."""


@contextmanager
def _quoting(where: str) -> Iterator[None]:
    """Turn an engine's failure, of whatever type, into an `ArgapError`; its processes log the cause to stderr."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())[:SAID] or type(error).__name__
        raise ArgapError(f"{where} failed ({reason})") from error
