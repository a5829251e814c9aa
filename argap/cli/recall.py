"""``argap recall``: does a model find in its context what the question asks for?"""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from argap.cli.options import Device, TrustRemoteCode


def recall(
    checkpoints: Annotated[
        list[str], typer.Argument(metavar="CKPT...", help="Local folders, hub ids, names, or `copy`, the baseline.")
    ],
    tasks: Annotated[str, typer.Option(help="Some of swde,fda,squad, or zeroshot.")] = "swde,fda,squad",
    ref: Annotated[str | None, typer.Option("--ref", help="Also count the flips against this model.")] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="Rows of one task: FILE.jsonl, or of several: TASK=FILE.jsonl.")
    ] = None,
    fixture: Annotated[bool, typer.Option("--fixture", help="Our own synthetic rows, about 20 a task.")] = False,
    context: Annotated[int | None, typer.Option(help="Tokens of prompt and answer; longer prompts are cut.")] = None,
    truncate: Annotated[
        Literal["left", "oracle"], typer.Option(help="Cut on the left, or (the papers' way) around the gold.")
    ] = "left",
    twice: Annotated[bool, typer.Option("--twice", help="Let the model read text and question twice.")] = False,
    protocol: Annotated[
        Literal["pinned", "upstream"], typer.Option(help="argap's pinned protocol, or lm-eval's tasks unchanged.")
    ] = "pinned",
    limit: Annotated[int | None, typer.Option(help="Only the first so many examples of a task.")] = None,
    index: Annotated[str | None, typer.Option(help="Bigram counts: tells which gold tokens are AR hits.")] = None,
    threshold: Annotated[
        int, typer.Option(min=0, help="An AR hit's bigram occurs at most so often in training.")
    ] = 1250,
    gap: Annotated[Path | None, typer.Option(help="Folder of `argap score`: recall against AR gap.")] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16, float16.")] = "auto",
    device: Device = "auto",
    batch_size: Annotated[int, typer.Option(help="Prompts of equal length at once.", min=1)] = 8,
    backend: Annotated[Literal["auto", "native", "hf"], typer.Option(help="As for argap score.")] = "auto",
    trust_remote_code: TrustRemoteCode = False,
    out: Annotated[Path, typer.Option(help="Folder for samples and results.")] = Path("runs/recall"),
    overwrite: Annotated[bool, typer.Option(help="Discard runs of another configuration there.")] = False,
    paper: Annotated[Path | None, typer.Option(help="CSV of published figures, printed below.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print recall.json instead of the table.")] = False,
) -> None:
    """Measure recall on SWDE, FDA and SQuAD, and say of each example why it failed.

    The same command goes on where it stopped. --tasks zeroshot runs WikiText, LAMBADA, PIQA, HellaSwag,
    WinoGrande and ARC through lm-eval.
    """
    from argap.atomic import read_json
    from argap.errors import ArgapError
    from argap.recall.examples import FIXTURE, TASKS, load_examples
    from argap.recall.harness import UPSTREAM, ZEROSHOT
    from argap.recall.protocol import Protocol
    from argap.recall.run import run_recall, run_upstream
    from argap.reports.recall import published, recall_table, upstream_table, write_recall_page
    from argap.scorer import ScoreOptions

    options = ScoreOptions(dtype, device, batch_size, trust_remote_code, backend)
    names = list(dict.fromkeys(name.strip() for name in tasks.split(",") if name.strip()))
    if not names:
        raise ArgapError(f"--tasks {tasks!r}: expected some of {', '.join(TASKS)}, or zeroshot alone")
    if gap is not None:
        if ref is None:
            raise ArgapError(f"--gap {gap}: the recall gap is to a reference; name it with --ref")
        read_json(gap / "gap.json")  # refused now rather than when all is answered
    figures = None if paper is None else published(paper)
    if protocol == "upstream" or names == ["zeroshot"]:
        if data or fixture or context or twice:
            raise ArgapError("lm-eval's own tasks run unchanged: leave out --data, --fixture, --context and --twice")
        known = ZEROSHOT if names == ["zeroshot"] else {n: UPSTREAM[n] for n in names if n in UPSTREAM}
        if not known:
            raise ArgapError(f"--tasks {tasks}: expected some of {', '.join(TASKS)}, or zeroshot alone")
        models = [*checkpoints, *([ref] if ref else [])]
        found = run_upstream(models, known, out, options=options, limit=limit)
        text = upstream_table(found)
    else:
        pinned = Protocol(context, truncate, twice)
        sources = _sources(names, data or [])
        rows = [load_examples(n, FIXTURE if fixture else sources.get(n), limit=limit) for n in names]
        found = run_recall(
            checkpoints,
            rows,
            out,
            reference=ref,
            protocol=pinned,
            options=options,
            index=index,
            threshold=threshold,
            gap=gap,
            overwrite=overwrite,
        )
        write_recall_page(out)
        text = recall_table(found)
    typer.echo(json.dumps(found, indent=2, ensure_ascii=False) if as_json else text)
    if figures is not None and not as_json:
        typer.echo(figures)


def _sources(tasks: list[str], data: list[str]) -> dict[str, str]:
    """The file of each task."""
    from argap.errors import ArgapError

    found = {}
    for entry in data:
        task, sign, path = entry.partition("=")
        if sign and task in tasks:
            found[task] = path
        elif len(tasks) == 1 and len(data) == 1:
            found[tasks[0]] = entry
        else:
            raise ArgapError(f"--data {entry}: of which task? With several tasks write --data TASK=FILE.jsonl for each")
    return found
