"""Choose launch configurations of flash-linear-attention's kernels on this GPU, for all GPUs of its class.

    PYTHONPATH=. python benchmarks/tune.py [--architectures delta_net,gla] [--sizes 360m,125m]

Trains one step of one layer of each model at each size with Triton's search, on shapes as in `benchmarks/train.py`
(bfloat16, 8 windows of 2,048 tokens), and writes the choices to ``argap/models/fla/tuned_CLASS.json``, bundled with
argap. The file keeps its other choices if the same versions made them on the same GPU. It is written after each model;
all four take a few minutes on an H200. Choices that Triton has cached on disk are reused; for a fresh search set
``TRITON_CACHE_DIR`` to an empty folder.
"""

import os
import time
from dataclasses import replace

import torch
from measured import machine, parser
from train import ON_GPU, Sizes, build, new_trainer, random_windows, train_config

from argap.kernels.launch import device_class
from argap.models.fla import autotuning, tuned
from argap.models.fla.operators import use_fla
from argap.models.sizes import SIZES

ARCHITECTURES = "delta_net,gla,retnet,linear_attention"
"""The kernels of Based's operator have no configurations to choose from."""
LAYERS, VOCABULARY = 1, 256
"""The kernels of all layers are the same and do not depend on the vocabulary."""


def main() -> None:
    flags = parser(__doc__, json=False)
    flags.add_argument("--architectures", default=ARCHITECTURES, help=f"comma-separated [{ARCHITECTURES}]")
    flags.add_argument("--sizes", default="360m", help="comma-separated, of argap.models.sizes [360m]")
    arguments = flags.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no GPU")
    gpus = device_class(torch.device("cuda"))
    if gpus == "any":
        raise SystemExit("this GPU is of no class; add one to argap.kernels.launch.device_class")
    os.environ[tuned.SWITCH] = "1"
    made_with = {"gpu": machine(())["gpu"], "versions": tuned.versions()}
    before = tuned.Tuned.read(gpus)
    known = before.choices if before.made_with == made_with else ()
    for size in arguments.sizes.split(","):
        for architecture in arguments.architectures.split(","):
            begun = time.monotonic()
            first_step(architecture, size, ON_GPU)
            table = tuned.Tuned(known, made_with).with_choices(autotuning.chosen_here())
            table.write(gpus)
            took = time.monotonic() - begun
            print(f"{architecture} {size}: {len(table.choices)} choices after {took:.1f} s", flush=True)
    print(tuned.path_of(gpus))


def first_step(architecture: str, size: str, sizes: Sizes) -> None:
    """Run one step of one layer, which chooses the configurations of all kernels, forward and backward."""
    model = build(architecture, "tiny", VOCABULARY, sizes.length, SIZES[size].hidden_size, LAYERS)
    use_fla(model)
    config = replace(train_config(sizes.length, sizes.batch, architecture, True), compile="false")
    trainer = new_trainer(model, config, False, True)
    trainer.step(random_windows(trainer), 0).tolist()  # waits for the GPU


if __name__ == "__main__":
    main()
