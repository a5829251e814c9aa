"""Which layers copy: attention to the token after the earlier occurrence, and the cost of zeroing each mixer's output.

Both are measured on random tokens repeated once (`argap.probe.tasks.induction`). Attention to the token after the
earlier occurrence of the current one is what arXiv 2209.11895 calls prefix matching. Zeroing needs no attention
weights, so it compares mixers of any kind.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from argap.checkpoints.family_code import family_code
from argap.errors import ArgapError
from argap.files.lock import one_writer
from argap.files.regular import is_there
from argap.files.resumable import environment, folder_name
from argap.models.mixers.attention import Attention
from argap.models.modeling import ArgapForCausalLM
from argap.probe.measures import mean_with_interval
from argap.probe.prompts import ProbeSet, build_prompts, check_fits
from argap.probe.records import FORMAT, LayerRow, LayersOfModel, LayersResult, ProbeSpec
from argap.records import Bos, ids_of, read_record, write_record
from argap.runtime.progress import progress
from argap.scoring.batches import Batches
from argap.scoring.config import DEFAULT, ScoreConfig
from argap.scoring.find import find_checkpoints
from argap.scoring.local import CheckpointSource
from argap.scoring.sources import check_folders

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MIXERS = (
    "self_attn",
    "self_attention",
    "attention",
    "attn",
    "linear_attn",
    "mixer",
    "mamba",
    "temporal_block",
    "conv",
    "mlstm_layer",
    "time_mix",
)
"""Names of the mixer among the children of a layer of transformers' families."""
PROMPTS_AT_ONCE = 8
"""When attention weights are kept, ``[B, H, T, T]`` for each layer in turn."""
PERIOD = 32
Heads = tuple[float, ...] | None
"""A value per head; None without attention weights."""


class Layer(NamedTuple):
    """The modules of one layer that mix positions: one, or two side by side."""

    number: int
    mixers: tuple[nn.Module, ...]

    @property
    def name(self) -> str:
        """Return the mixers' classes."""
        return " + ".join(type(mixer).__name__ for mixer in self.mixers)


@one_writer("out")
def probe_layers(
    checkpoints: Sequence[str],
    out: Path,
    *,
    period: int = PERIOD,
    prompts: int = 16,
    seed: int = 0,
    config: ScoreConfig = DEFAULT,
) -> LayersResult:
    """Measure every layer of every checkpoint; write and return ``layers.json``.

    The layers of a finished model, in its folder's ``layers.json``, are kept where weights, prompts and precision are
    the same. Raises as `argap.probe.run.probe`, and `ArgapError` for a model whose mixers are not found.
    """
    spec = ProbeSpec(tasks=("induction",), loads={"induction": (period,)}, prompts=prompts, shots=0, seed=seed)
    sources = find_checkpoints(checkpoints, config)
    check_folders(source.name for source in sources)
    config.check_models([source.name for source in sources])
    made = []
    for source in sources:
        source.check(None)
        made.append(build_prompts(spec, source.tokenizer))
        check_fits(source, made[-1])
    found = [_layers_of(source, own, out) for source, own in zip(sources, made, strict=True)]
    visible = [answer.start for prompt in made[0].prompts for answer in prompt.answers]
    result = LayersResult(
        format=FORMAT,
        period=period,
        prompts=prompts,
        seed=seed,
        rows=tuple(row for each in found for row in each.rows),
        nll={source.name: each.nll for source, each in zip(sources, found, strict=True)},
        uniform=float(np.mean(1 / np.array(visible))),
        **environment(),
    )
    write_record(out / "layers.json", result)
    return result


def _layers_of(source: CheckpointSource, made: ProbeSet, out: Path) -> LayersOfModel:
    """Measure one model, or read its earlier measurement."""
    identity = source.identity(made.data, None)
    path = out / folder_name(source.name) / "layers.json"
    if is_there(path) and not source.config.overwrite:
        earlier = read_record(path, LayersOfModel, newest=FORMAT)
        if earlier.identity == identity:
            return earlier
    device = str(source.device())
    with source.loaded(device) as model, family_code(source.origin, model, made.data.longest):
        nll, rows = measure_layers(model, source.name, made, device=device, bos=source.bos)
    result = LayersOfModel(FORMAT, identity, nll, tuple(rows))
    write_record(path, result)
    return result


def measure_layers(
    model: "PreTrainedModel", name: str, made: ProbeSet, *, device: str, bos: Bos = None
) -> tuple[float, list[LayerRow]]:
    """Return the NLL of the answers (nats per token) with every layer, and a row for each layer.

    The model is left as it was, but for its attention, which runs without fused kernels from then on.
    """
    layers = find_layers(model, name)
    heads = attention_of_heads(model, layers, made, bos)
    batches = Batches(model, made.data, device, "auto", name, live=True, bos=bos)
    with progress(f"zeroing layers of {name}", len(layers) + 1, "layers") as advance:
        whole = _losses(batches, made)
        advance(1)
        rows = []
        for layer, (copying, previous) in zip(layers, heads, strict=True):
            with zeroed(layer.mixers):
                effect, ends = mean_with_interval(_losses(batches, made) - whole)
            rows.append(LayerRow(name, layer.number, layer.name, copying, previous, effect, ends))
            advance(1)
    return float(whole.mean()), rows


def find_layers(model: "PreTrainedModel", name: str) -> list[Layer]:
    """Return the layers of a native model or one of transformers'. Raises `ArgapError` for a layer without mixer."""
    if isinstance(model, ArgapForCausalLM):
        return [Layer(k, (block.mixer,)) for k, block in enumerate(model.model.blocks)]
    count = model.config.get_text_config().num_hidden_layers
    stack = next((m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == count), None)
    found = []
    for k, layer in enumerate(stack or ()):
        mixers = tuple(child for each, child in layer.named_children() if each in MIXERS)
        if not mixers:
            parts = ", ".join(each for each, _ in layer.named_children()) or type(layer).__name__
            raise ArgapError(f"{name}: layer {k} has no mixer that argap knows; found {parts}")
        found.append(Layer(k, mixers))
    if not found:
        raise ArgapError(f"{name}: {type(model).__name__} has no list of {count} layers; its layers cannot be probed")
    return found


@contextmanager
def zeroed(mixers: Sequence[nn.Module]) -> Iterator[None]:
    """Replace the mixers' outputs by zero within the block; the layer then adds nothing but its MLP."""

    def zero(module: nn.Module, inputs: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (torch.zeros_like(output[0]), *output[1:])
        return torch.zeros_like(output)

    with ExitStack() as hooks:
        for mixer in mixers:
            hooks.callback(mixer.register_forward_hook(zero).remove)
        yield


@torch.no_grad()
def attention_of_heads(
    model: "PreTrainedModel", layers: Sequence[Layer], made: ProbeSet, bos: Bos = None
) -> list[tuple[Heads, Heads]]:
    """Return each head's mean attention, from the token before an answer, to two places, for each layer.

    They are the token that tells the answer, where an induction head looks, and the previous token, where the heads
    look that induction heads need in an earlier layer. None for a layer without attention weights. transformers'
    attention is switched to its eager form, which gives them.
    """
    if not isinstance(model, ArgapForCausalLM):
        try:
            model.set_attn_implementation("eager")
        except (ValueError, AttributeError, ImportError):  # a model without attention may refuse
            return [(None, None) for _ in layers]
    before = ids_of(bos)
    sums: list[torch.Tensor | None] = [None for _ in layers]
    answers = sum(len(prompt.answers) for prompt in made.prompts)
    for start in range(0, len(made.prompts), PROMPTS_AT_ONCE):
        chosen = made.prompts[start : start + PROMPTS_AT_ONCE]  # all of one length
        rows = torch.tensor([row for row, prompt in enumerate(chosen) for _ in prompt.answers])
        places = [(a.start - 1 + len(before), a.start - a.distance + len(before)) for p in chosen for a in p.answers]
        query, key = torch.tensor(places).T

        def keep(layer: int, weights: torch.Tensor, rows: Any = rows, query: Any = query, key: Any = key) -> None:
            own = weights.cpu().double()
            total = torch.stack([own[rows, :, query, to].sum(0) for to in (key, query - 1)])
            sums[layer] = total if (earlier := sums[layer]) is None else earlier + total

        ids = torch.tensor([[*before, *prompt.ids.tolist()] for prompt in chosen], device=model.device)
        with _watched(layers, keep, ids.shape[1]):
            model.base_model(input_ids=ids, use_cache=False)
    means = [None if total is None else (total / answers).clamp(max=1).tolist() for total in sums]
    return [(None, None) if mean is None else (tuple(mean[0]), tuple(mean[1])) for mean in means]


@contextmanager
def _watched(layers: Sequence[Layer], keep: Callable[[int, torch.Tensor], None], length: int) -> Iterator[None]:
    """Call ``keep`` with the number and the attention weights ``[B, H, T, T]`` of every layer that has some."""

    def watch(number: int) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(module, Attention):
                keep(number, module.weights(inputs[0]))
            elif isinstance(output, tuple):
                for part in output[1:]:
                    if isinstance(part, torch.Tensor) and part.dim() == 4 and part.shape[2:] == (length, length):
                        keep(number, part)

        return hook

    with ExitStack() as hooks:
        for layer in layers:
            for mixer in layer.mixers:
                hooks.callback(mixer.register_forward_hook(watch(layer.number)).remove)
        yield


def _losses(batches: Batches, made: ProbeSet) -> np.ndarray:
    """Return the NLL of each prompt's answers, nats per token, float64 ``[W]``."""
    logprob = batches.score(made.data.all).arrays()[0].astype(np.float64)
    starts = made.data.offsets[:-1].tolist()
    return np.array(
        [
            -np.mean([logprob[start + answer.start] for answer in prompt.answers])
            for prompt, start in zip(made.prompts, starts, strict=True)
        ]
    )
