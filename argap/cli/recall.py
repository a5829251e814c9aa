"""``argap recall``: measure how well models extract information from their context."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from argap.cli.options import Bos, Device, MaxLength, Overwrite, TrustRemoteCode, only
from argap.cli.output import FORMATS, Output

OF_LM_EVAL = (
    *("tasks", "reference", "protocol", "fewshot", "task_path", "metadata", "limit", "dtype", "device", "batch_size"),
    *("backend", "bos", "max_length", "trust_remote_code", "out", "paper", *FORMATS),
)
"""Options that lm-eval's own tasks heed."""


def recall(
    call: typer.Context,
    checkpoints: Annotated[
        list[str],
        typer.Argument(
            metavar="CKPT...",
            help="Local folders, hub ids, reference names, finished runs (OUT/MODEL of an earlier call, reused), "
            "`copy` for the copy baseline, or with --gap OUT alone, to compute its correlations again.",
        ),
    ],
    tasks: Annotated[
        str,
        typer.Option(metavar="NAMES", help="Any of swde,fda,squad,needle; or lm-eval's tasks and groups; or zeroshot."),
    ] = "swde,fda,squad",
    reference: Annotated[
        str | None,
        typer.Option("--ref", metavar="REF", help="CKPT to compare with; shows examples gained and lost."),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Your own examples: FILE.jsonl for one task, or TASK=FILE.jsonl for several; for needle also "
            "needles:WORDS,... [needles:128,256,512].",
        ),
    ] = None,
    fixture: Annotated[
        bool, typer.Option("--fixture", help="Use 20 synthetic rows per task; needs no network.")
    ] = False,
    context: Annotated[
        int | None, typer.Option(metavar="N", help="Limit prompt and answer to N tokens; longer prompts are cut.")
    ] = None,
    truncate: Annotated[
        Literal["left", "oracle"],
        typer.Option(help="Cut the start of long texts, or keep the gold (as in the papers)."),
    ] = "left",
    twice: Annotated[bool, typer.Option("--twice", help="Repeat text and question in the prompt.")] = False,
    protocol: Annotated[
        Literal["pinned", "upstream"], typer.Option(help="argap's pinned protocol, or lm-eval's tasks unchanged.")
    ] = "pinned",
    fewshot: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="lm-eval's tasks: examples in each prompt [the task's own].")
    ] = None,
    task_path: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of your own lm-eval task files; needs --trust-remote-code."),
    ] = None,
    metadata: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Settings that lm-eval's tasks read, such as RULER's max_seq_lengths."),
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", help="Use only the first N examples of each task.")] = None,
    index: Annotated[
        str | None, typer.Option(metavar="DIR", help="Bigram index, to identify gold tokens that are AR hits.")
    ] = None,
    threshold: Annotated[
        int, typer.Option(metavar="N", min=0, help="Maximum training count of an AR hit's bigram.")
    ] = 1250,
    gap: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Result of `argap score`, to correlate its AR gaps with recall gaps."),
    ] = None,
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"], typer.Option(help="auto: bfloat16 on CUDA.")
    ] = "auto",
    device: Device = "auto",
    batch_size: Annotated[int, typer.Option(metavar="N", help="Prompts per batch.", min=1, max=2**20)] = 8,
    backend: Annotated[Literal["auto", "native", "hf"], typer.Option(help="As in `argap score`.")] = "auto",
    bos: Bos = None,
    max_length: MaxLength = None,
    trust_remote_code: TrustRemoteCode = False,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for samples and results.")] = Path("runs/recall"),
    overwrite: Overwrite = False,
    paper: Annotated[
        Path | None, typer.Option(metavar="FILE", help="CSV of published figures to print below the table.")
    ] = None,
    *,
    output: Output,
) -> None:
    """Measure recall on SWDE, FDA and SQuAD, and show why answers failed.

    Repeat the command to resume an interrupted run. Other --tasks run through lm-eval: any that it includes (mmlu,
    openbookqa, triviaqa, drop, nq_open, ruler, longbench); zeroshot stands for WikiText, LAMBADA, PIQA, HellaSwag,
    WinoGrande and ARC.
    """
    from argap.errors import ArgapError
    from argap.recall.examples import TASKS, load_tasks
    from argap.recall.link import read_ar_nlls
    from argap.recall.lm_eval_tasks import StockOptions, stock_tasks
    from argap.recall.prompts import Protocol
    from argap.recall.run import relink, run_recall, run_upstream
    from argap.records import as_json as to_json
    from argap.reports.pages.recall import (
        draw_link,
        failures_table,
        golds_table,
        published,
        recall_table,
        upstream_table,
        write_recall_page,
    )
    from argap.scoring.config import ScoreConfig

    if gap and reference is None and len(checkpoints) == 1 and (Path(checkpoints[0]) / "recall.json").is_file():
        only(call, "a result of `argap recall`", "gap", *FORMATS)
        linked = relink(Path(checkpoints[0]), gap)
        draw_link(Path(checkpoints[0]), linked)
        output.show(to_json(linked), lambda: [recall_table(linked)])
        return
    ar_nlls = None if gap is None else read_ar_nlls(gap, reference)
    config = ScoreConfig.of(
        bos=bos, max_length=max_length, dtype=dtype, device=device, batch_size=batch_size, backend=backend
    )
    names = list(dict.fromkeys(name.strip() for name in tasks.split(",") if name.strip()))
    figures = [] if paper is None else [published(paper)]
    if protocol == "pinned" and set(names) <= set(TASKS):
        if fewshot is not None or task_path or metadata:
            raise ArgapError("`fewshot`, `task_path` and `metadata` are for lm-eval's own tasks: leave them out")
        measured = run_recall(
            checkpoints,
            load_tasks(names, data or [], fixture=fixture, limit=limit),
            out,
            reference=reference,
            protocol=Protocol(context, truncate, twice),
            config=config,
            index=index,
            threshold=threshold,
            ar_nlls=ar_nlls,
            overwrite=overwrite,
        )
        page = write_recall_page(out)
        output.show(to_json(measured), lambda: [recall_table(measured), failures_table(measured), *figures])
        typer.echo(f"report: {page}", err=True)
        return
    stock = StockOptions(limit, fewshot, task_path, _mapping(metadata))
    stock_tasks(names, stock)
    only(call, "lm-eval's own tasks", *OF_LM_EVAL)
    if protocol == "pinned" and (own := set(names) & set(TASKS)):
        raise ArgapError(
            f"`tasks` {', '.join(sorted(own))}: run by argap's own protocol, the others by lm-eval; run them "
            "separately, or all with `protocol=upstream`"
        )
    models = [*checkpoints, *([reference] if reference else [])]
    by_model = run_upstream(models, names, out, config=config, stock=stock)
    output.show(by_model, lambda: [upstream_table(by_model), *filter(None, [golds_table(by_model)]), *figures])


def _mapping(text: str | None) -> dict[str, object]:
    """Parse a JSON object from the command line."""
    from argap.errors import ArgapError
    from argap.files.atomic import parse_json

    try:
        value = parse_json(text or "{}")
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ArgapError(f'`metadata` {text}: expected a JSON object such as {{"max_seq_lengths": [4096]}}')
    return value
