"""Arrange ``--help``: commands in groups, options in panels, placeholders for values, an example per command."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import typer.core

Formatter = Any  # of click, which typer may vendor

GROUPS: Mapping[str, Sequence[str]] = {
    "Compare models": ("demo", "score", "compare", "import", "ref"),
    "Read a result": ("view", "report", "slice", "discover", "diff", "label", "push"),
    "Count training text": ("index",),
    "Test recall": ("recall", "synthetics", "probe"),
    "Build and train models": ("train", "suite", "models", "convert"),
    "Check argap itself": ("kernels", "paper"),
}
"""Headings of ``argap --help`` and their commands. A command that none of them names comes last."""

PANELS: Mapping[str, Sequence[str]] = {
    "Tasks": (
        *(
            "task",
            "tasks",
            "forms",
            "load",
            "length",
            "prompts",
            "shots",
            "pairs",
            "examples",
            "fill",
            "fixture",
            "context",
        ),
        *("truncate", "twice", "protocol", "fewshot", "task_path", "metadata", "limit"),
    ),
    "Text": (
        *("data", "seq_len", "packing", "limit_tokens", "limit_document_tokens", "text_column", "token_dtype", "keep"),
    ),
    "AR hits and slices": ("index", "threshold", "base", "slices"),
    "Models": (
        *("tokenizer", "bos", "max_length", "dtype", "backend", "trust_remote_code", "model_name", "concurrency"),
        *("rank", "kl", "short_context", "context_curve"),
    ),
    "Machine": ("device", "device_map", "batch_size", "memory", "engine", "address", "shards", "shard"),
    "Output": ("out", "work", "overwrite", "as_json", "latex", "markdown", "log_to", "help"),
}
"""Headings of the options of a command with more than `MANY`, by parameter; all others come first, as "Options"."""
MANY = 12

EXAMPLES: Mapping[str, str] = {
    "demo": "argap demo --limit-tokens 20000",
    "score": "argap score base_conv --ref attention",
    "compare": "argap compare runs/demo/base_conv runs/demo/hybrid --ref runs/demo/attention",
    "import": "argap import logprobs.parquet --tokenizer my-model --data text/",
    "ref add": "argap ref add mine my-attention --data text/ --index index",
    "ref list": "argap ref list",
    "ref remove": "argap ref remove mine",
    "view": "argap view runs/demo",
    "report": "argap report runs/demo --pdf",
    "slice": "argap slice runs/demo --where 'repeated AND distance > 256' --name far",
    "discover": "argap discover runs/demo --model base_conv",
    "diff": "argap diff runs/bf16 runs/fp32 --tolerance 0.01",
    "push": "argap push runs/demo hf://datasets/me/demo",
    "probe": "argap probe base_conv attention --tasks induction,phonebook",
    "synthetics tasks": "argap synthetics tasks",
    "suite rates": "argap suite rates suites/today-7m.yaml",
    "suite weights": "argap suite weights suites/today-7m.yaml --to archives",
    "label": "argap label runs/score --index index --threshold scaled",
    "index build": "argap index build stdlib:train --tokenizer models/attention --out index",
    "index merge": "argap index merge index-a index-b --weight 11 --weight 3.7 --out index",
    "index profile": "argap index profile index stdlib:heldout",
    "index from-counts": "argap index from-counts counts.csv --tokenizer models/attention --out index",
    "index from-arpa": "argap index from-arpa bigrams.arpa --tokenizer T --tokens 1000000 --out index",
    "index info": "argap index info index",
    "index count": "argap index count index of the",
    "recall": "argap recall base_conv --ref attention --tasks swde --fixture",
    "synthetics generate": "argap synthetics generate --out mqar.npz --length 64 --pairs 4",
    "synthetics train": "argap synthetics train base_conv --length 64 --pairs 4",
    "synthetics sweep": "argap synthetics sweep suites/mqar/figure2-small.yaml --dry-run",
    "synthetics plot": "argap synthetics plot results/mqar/figure2-small",
    "synthetics score": "argap synthetics score base_conv attention --pairs 16,32 --examples 100",
    "train": "argap train recipe.yaml --architecture gla --out runs/gla",
    "suite run": "argap suite run suites/table1-mini.yaml",
    "suite status": "argap suite status suites/table1-mini.yaml",
    "suite trajectory": "argap suite trajectory series.yaml --out runs/series",
    "suite table": "argap suite table suites/table1-mini.yaml",
    "models list": "argap models list --size 360m",
    "models show": "argap models show mamba2_hybrid",
    "models bench": "argap models bench attention mamba2 --out runs/speed",
    "convert": "argap convert smollm2.gguf smollm2",
    "kernels": "argap kernels",
    "paper": "argap paper --markdown",
}
"""A command line for each command, shown by ``--help`` and on the page of all commands."""

VALUES = {"str": "TEXT", "int": "N", "integer": "N", "float": "X", "path": "PATH", "Path": "PATH"}
VALUES |= {f"{name} range": VALUES[name] for name in ("int", "integer", "float")}
"""Placeholders for values, by the type names of all supported versions of typer."""


class GroupedHelp(typer.core.TyperGroup):
    """A group whose help lists commands under the headings of `GROUPS`."""

    def format_commands(self, ctx: Any, formatter: Formatter) -> None:
        """Write one section per heading, all in columns of one width."""
        shown = {name: each for name, each in self.commands.items() if not each.hidden}
        width = max(map(len, shown))
        grouped = {name for names in GROUPS.values() for name in names}
        for heading, names in {**GROUPS, "Other": [name for name in shown if name not in grouped]}.items():
            rows = [
                (name.ljust(width), shown[name].get_short_help_str(formatter.width - width - 6))
                for name in names
                if name in shown
            ]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


class PanelHelp(typer.core.TyperCommand):
    """A command whose help lists many options under the headings of `PANELS`, and ends with an example."""

    def format_options(self, ctx: Any, formatter: Formatter) -> None:
        """Write arguments, then one section per heading."""
        found: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": [], **{name: [] for name in PANELS}}
        parameters = self.get_params(ctx)
        many = sum(each.param_type_name == "option" for each in parameters) > MANY
        of_name = {name: heading for heading, names in PANELS.items() for name in names} if many else {}
        for each in parameters:
            heading = "Arguments" if each.param_type_name == "argument" else of_name.get(each.name or "", "Options")
            if (record := each.get_help_record(ctx)) is not None:
                found[heading].append(record)
        for heading, records in found.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: Any, formatter: Formatter) -> None:
        """Write the example on one line, to be copied."""
        if self.epilog:
            formatter.write(f"\nExample:\n  {self.epilog}\n")


def arrange(command: Any, words: Sequence[str] = ()) -> None:
    """Name the values of all options in help, and give each command its example."""
    for name, child in getattr(command, "commands", {}).items():
        arrange(child, [*words, name])
    command.epilog = EXAMPLES.get(" ".join(words))
    for parameter in command.params:
        many = "..." if parameter.nargs != 1 else ""
        if parameter.param_type_name == "argument":
            name = (parameter.metavar or parameter.name.upper()).removesuffix("...")
            parameter.metavar = name
            shown = f"{name}{many}" if parameter.required else f"[{name}{many}]"
            parameter._usage_display_name = partial(str, shown)
            parameter.display_type_rich = _no_type
        elif parameter.metavar is None and not parameter.is_flag:
            shown = parameter.display_type(None) if hasattr(parameter, "display_type") else parameter.type.name
            parameter.metavar = VALUES.get(shown.strip("<>").removeprefix("list[").rstrip("]"))


def _no_type(ctx: Any) -> None:
    """Show no type: the name of an argument is enough."""
