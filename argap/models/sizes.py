"""The paper's model sizes: width, depth and MLP of each, with the printed parameters and TFLOPs.

All use GPT-2's vocabulary, a tied head and windows of 2,048 tokens. The paper's tables of widths and depths were not
available; each `Size` states where its values come from.
"""

from dataclasses import dataclass

from argap.errors import ArgapError
from argap.metric.paper import GAP_TABLES, HYBRID_TABLE
from argap.models.configuration import MLP_MATRICES, ArgapConfig
from argap.models.cost import cost
from argap.models.presets import build_config
from argap.records.models import Printed

VOCABULARY = 50_257
WINDOW = 2_048
STEP = 16
"""The MLP's inner width is a multiple of this."""


@dataclass(frozen=True)
class Size:
    """The backbone of the attention model of a size."""

    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    """8/3 of the width, rounded up to a multiple of 256 (1.4b: three times the width)."""
    note: str
    """Source of width and depth."""


SIZES: dict[str, Size] = {
    "70m": Size(640, 8, 1792, "width and depth are ours, such that both printed figures of attention come out"),
    "125m": Size(768, 12, 2048, "width and depth of GPT-3's 125M (arXiv 2005.14165, table 2.1)"),
    "360m": Size(1024, 24, 2816, "width and depth of the authors' attn-360m (published with arXiv 2402.18668)"),
    "1.4b": Size(2048, 24, 6144, "width and depth of GPT-3's 1.3B (arXiv 2005.14165, table 2.1); the MLP is ours"),
}

NAMES = {
    "Attention": "attention",
    "Long Conv": "long_conv",
    "H3": "h3",
    "Hyena": "hyena",
    "Hyena + Slide Attn. (64)": "hyena_window_64",
    "Hyena + Slide Attn. (256)": "hyena_window_256",
    "RWKV": "rwkv4",
    "RetNet (128)": "retnet_window",
    "BaseConv": "base_conv",
    **{f"BaseConv + {kind} selection": f"hybrid_{kind.lower()}" for kind in ("Random", "Programmatic", "Learned")},
    "BaseConv + Full attention": "hybrid_full",
}
"""Our names of the paper's models."""
PRINTED: dict[str, dict[str, Printed]] = {
    size: {
        NAMES[row.model]: Printed(row.parameters, None if size == "1.4b" else row.tflops)
        for row in (*GAP_TABLES, *HYBRID_TABLE)
        if row.scale.lower() == size
    }
    for size in SIZES
}
"""Tables 2, 4 and 5."""


def build_at(architecture: str, size: str, *, seq_len: int = WINDOW) -> ArgapConfig:
    """Build the configuration of a named architecture at a named size.

    All architectures share the size's width and depth. For all but attention, the inner width of the MLP is chosen to
    match the parameters that the paper prints for the architecture, or attention's where it prints none. (The paper's
    models differ in width and depth instead. ``rwkv4_channel`` and ``mamba_block`` have no MLP to adjust.) Raises
    `ArgapError` for an unknown size or architecture.
    """
    if size not in SIZES:
        raise ArgapError(f"size {size!r}: unknown; known are {', '.join(SIZES)}")
    chosen = SIZES[size]

    def built(name: str, inner: int) -> ArgapConfig:
        return build_config(
            name,
            hidden_size=chosen.hidden_size,
            num_hidden_layers=chosen.num_hidden_layers,
            vocab_size=VOCABULARY,
            seq_len=seq_len,
            intermediate_size=inner,
        )

    config = built(architecture, chosen.intermediate_size)
    matrices = MLP_MATRICES[config.mlp]
    if architecture == "attention" or not matrices:
        return config
    if printed := PRINTED[size].get(architecture):
        target = 1_000_000 * printed.params_m
    else:
        target = cost(built("attention", chosen.intermediate_size), seq_len).parameters
    missing = target - cost(config, seq_len).parameters
    per_column = matrices * chosen.hidden_size * chosen.num_hidden_layers
    inner = max(1, round((chosen.intermediate_size + missing / per_column) / STEP)) * STEP
    return built(architecture, inner)


def note_on(architecture: str, size: str, config: ArgapConfig, parameters: int) -> str:
    """Write one sentence on a model's size: which values are the paper's, which ours, and how parameters differ.

    The difference is that of ``parameters`` from the printed number.
    """
    chosen, printed = SIZES[size], PRINTED[size].get(architecture)
    if printed is None:
        return f"{chosen.note}; the paper prints no such model"
    off = parameters / (1_000_000 * printed.params_m) - 1
    note = f"{chosen.note}; parameters {abs(off):.1%} {'above' if off > 0 else 'below'} those printed"
    if architecture != "attention":
        note += f", by an inner width of {config.intermediate_size:,} of the MLP, which is ours"
    return note
