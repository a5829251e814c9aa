"""``argap score`` and ``argap compare``: from checkpoints, or from finished runs, to the table."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from argap.cli.options import (
    BatchSize,
    Data,
    Device,
    Index,
    LogTo,
    Overwrite,
    Threshold,
    TrustRemoteCode,
    Windows,
)
from argap.cli.output import Output

Reference = Annotated[
    str,
    typer.Option(
        "--ref", metavar="REF", help="What to compare with: a checkpoint, a finished run (not scored again), or a name."
    ),
]
Base = Annotated[str | None, typer.Option(help="Also show the share of this model's gap that the others close.")]
Keep = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN", help="Column of JSON lines and Parquet to slice by (argap slice). Repeatable."),
]
SliceFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="YAML with slices of the tokens to show as well [those of the earlier result]."),
]


def score(
    checkpoints: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]CKPT", help="Local folders, hub ids, names, or servers (http://HOST/v1); NAME= names a row."
        ),
    ],
    ref: Reference,
    data: Data = None,
    index: Index = None,
    threshold: Threshold = "1250",
    *,
    windows: Windows,
    model_name: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="NAME", help="A server's model, as it knows it; once for each server."),
    ] = None,
    tokenizer: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]T", help="Of servers and of CKPTs without one; NAME=T replaces CKPT NAME's own."),
    ] = None,
    bos: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]TOKEN",
            help="Token before each window: own (the tokenizer's BOS) or a token's text; NAME=TOKEN for one model.",
        ),
    ] = None,
    concurrency: Annotated[int, typer.Option(metavar="N", min=1, help="Requests at once to a server.")] = 8,
    dtype: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]TYPE",
            help="auto (float32 on a CPU, else bfloat16), float32, bfloat16, float16; NAME=TYPE for one model.",
        ),
    ] = None,
    device: Device = "auto",
    device_map: Annotated[
        bool, typer.Option("--device-map", help="Spread models over all GPUs, then the CPU's memory.")
    ] = False,
    batch_size: BatchSize = "auto",
    keep: Keep = None,
    rank: Annotated[bool, typer.Option("--rank", help="Also keep the rank of each token in the vocabulary.")] = False,
    token_dtype: Annotated[str | None, typer.Option(help="Type of .bin shards: uint16 or uint32.")] = None,
    base: Base = None,
    slices: SliceFile = None,
    backend: Annotated[
        Literal["auto", "native", "hf"],
        typer.Option(help="Run known families by argap's own code (native), or as transformers does (hf)."),
    ] = "auto",
    trust_remote_code: TrustRemoteCode = False,
    out: Annotated[Path, typer.Option(help="Folder for the runs and the result.")] = Path("runs/score"),
    overwrite: Overwrite = False,
    log_to: LogTo = None,
    output: Output,
) -> None:
    """Score checkpoints and show how much of their gap to --ref is associative recall.

    Models with other tokenizers than the reference's are compared in bytes, between the token ends that all share.

    Without --data or --index, those recorded with the reference are used; where there are none, the held-out modules of
    Python's standard library are scored, and every repeated bigram is a hit (argap label adds the training counts
    later). Under torchrun the processes, one a GPU, share the windows; the files are the same.

    A server needs --model and --tokenizer; its key is read from the environment variable ARGAP_API_KEY.
    """
    from argap.metric.threshold import parse_threshold
    from argap.records import EvaluationSpec
    from argap.results.metrics import log_result
    from argap.results.pipeline import score_models
    from argap.runtime.torchrun import join_torchrun
    from argap.runtime.trackers import check_trackers
    from argap.scoring.per_model import ModelSettings, per_model
    from argap.scoring.scorer import ScoreOptions, parse_batch_size
    from argap.slices.library import read_slices

    check_trackers(log_to or ())
    specs = None if slices is None else read_slices(slices)
    with join_torchrun(device) as parallel:
        gap = score_models(
            checkpoints,
            ref,
            out,
            spec=EvaluationSpec(
                data=tuple(data or ()), token_dtype=token_dtype, keep=tuple(keep or ()), **asdict(windows)
            ),
            index=index,
            threshold=parse_threshold(threshold),
            options=ScoreOptions(
                device=device,
                batch_size=parse_batch_size(batch_size),
                backend=backend,
                device_map=device_map,
                rank=rank,
            ),
            settings=ModelSettings(per_model("dtype", dtype), per_model("tokenizer", tokenizer), per_model("bos", bos)),
            model_names=model_name or (),
            concurrency=concurrency,
            base=base,
            slices=specs,
            overwrite=overwrite,
            parallel=parallel,
        )
    if parallel is None or parallel.is_main:
        log_result(gap, log_to or (), out)
        output.show_gap(gap)


def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help="Finished run folders.")],
    ref: Annotated[str, typer.Option("--ref", metavar="RUN", help="The run to compare with.")],
    threshold: Threshold = "1250",
    base: Annotated[
        str | None, typer.Option(metavar="RUN", help="Also show the share of this run's gap that the others close.")
    ] = None,
    slices: SliceFile = None,
    out: Annotated[Path, typer.Option(help="Folder for the result.")] = Path("runs/compare"),
    *,
    output: Output,
) -> None:
    """Compare finished runs on their stored log-probs; no model is run."""
    from argap.metric.threshold import parse_threshold
    from argap.results.compare import compare_runs
    from argap.slices.library import read_slices

    tau, specs = parse_threshold(threshold), None if slices is None else read_slices(slices)
    output.show_gap(compare_runs(runs, ref, out, threshold=tau, base=base, slices=specs))
