"""``argap train``: train a checkpoint configured by a YAML file, flags, or both."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from argap.cli.complete import architectures
from argap.cli.options import Device, Json, LogTo, Overwrite, Settings, TrustRemoteCode
from argap.cli.output import print_json


@dataclass(frozen=True)
class Flags:
    """Fields of `argap.train.TrainConfig`."""

    architecture: Annotated[
        str | None, typer.Option(help="Preset: attention, base_conv, ...", autocompletion=architectures)
    ] = None
    tokenizer: Annotated[str | None, typer.Option(help="Folder with a tokenizer.json, or hub id.")] = None
    data: Annotated[list[str] | None, typer.Option(help="Corpus to train on. Repeatable.")] = None
    seq_len: Annotated[int | None, typer.Option(help="Tokens per window.")] = None
    batch_size: Annotated[int | None, typer.Option(help="Windows per step, over all devices.")] = None
    micro_batch_size: Annotated[int | None, typer.Option(help="Windows per forward pass.")] = None
    steps: Annotated[int | None, typer.Option(help="Optimizer steps.")] = None
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None
    backend: Annotated[
        Literal["auto", "fla", "native"] | None,
        typer.Option(help="Operators: fla (flash-linear-attention), native, or auto: fla on a GPU where it can run."),
    ] = None
    seed: Annotated[int | None, typer.Option(help="Seed of the weights and the data order.")] = None
    save_dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None, typer.Option(help="dtype of the finished model's weights.")
    ] = None


def train(
    config: Annotated[Path | None, typer.Argument(help="YAML file; flags override it.", metavar="CONFIG")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run [runs/CONFIG].")] = None,
    settings: Settings = None,
    *,
    flags: Flags,
    tokens: Annotated[
        Path | None, typer.Option(help="Folder of packed tokens to share between runs [OUT/tokens].")
    ] = None,
    device: Device = "auto",
    trust_remote_code: TrustRemoteCode = False,
    overwrite: Overwrite = False,
    log_to: LogTo = None,
    as_json: Json = False,
) -> None:
    """Train a language model. Repeat the command to resume an interrupted run.

    On several GPUs: torchrun --nproc-per-node N -m argap train CONFIG.
    """
    from argap.errors import ArgapError
    from argap.files.configs import check_field
    from argap.train import load_config
    from argap.train.config import TrainConfig, parse_settings

    given = {key: value for key, value in asdict(flags).items() if value is not None and value != []}
    further = parse_settings(settings or [])
    for key, value in given.items():
        check_field(TrainConfig, key, value, f"--{key.replace('_', '-')}")
    for key, value in further.items():
        check_field(TrainConfig, key, value, f"--set {key}")
    resolved = load_config(config, given | further)
    if out is None:
        if config is None:
            raise ArgapError("without a configuration file, name the folder with --out DIR")
        out = Path("runs") / config.stem
    from argap.runtime.torchrun import is_first
    from argap.train.run import train  # torch, once the configuration is read

    record = train(resolved, out, device=device, tokens=tokens, overwrite=overwrite, log_to=log_to or ())
    if not is_first():
        return
    if as_json:
        print_json(record)
    else:
        done = record.finished
        assert done is not None  # no exception: the run is finished
        typer.echo(
            f"{out}: loss {done.loss:.4f} after {done.tokens:,} tokens in {done.wall_time_s:,.0f} s "
            f"({done.tokens_per_s:,.0f} tokens/s)"
        )
