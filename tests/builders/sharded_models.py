"""Programs for two processes: measure a Llama as copies, FSDP2 shards and tensor parallel halves; train it."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments, default_data_collator

from argap.errors import ArgapError
from argap.integrations import RecallGap
from argap.integrations.next_token import logprobs_of_logits
from argap.integrations.transformers import GapCallback

SLICES = {"later": "pos > 16", "hard": "nll.{reference} > 4"}
COLUMNS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
LAYERS = ["LlamaDecoderLayer"]
ROWS = ("self_attn.o_proj", "mlp.down_proj")


def main() -> None:
    """Write the figures of each form to ``RANK.json``; arguments: the reference's run, the checkpoint."""
    run, checkpoint = sys.argv[1:]
    dist.init_process_group("gloo")
    gap, world = RecallGap(run, threshold=2, slices=SLICES), dist.group.WORLD

    def load() -> Any:
        return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()

    def by_logits(model: Any) -> Any:
        return lambda ids: logprobs_of_logits(model(input_ids=ids, use_cache=False).logits, ids)

    found = {"copies": gap.measure(load(), group=world)}

    sharded = load()
    for layer in sharded.model.layers:
        fully_shard(layer)
    fully_shard(sharded)
    found["fsdp2"] = gap.measure_logprobs(by_logits(sharded), group=world, batch_size=2, length=36)

    mesh, split = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp")), load()
    plan: Any = dict.fromkeys(COLUMNS, ColwiseParallel()) | dict.fromkeys(ROWS, RowwiseParallel())
    for layer in split.model.layers:
        parallelize_module(layer, mesh["tp"], plan)
    parallelize_module(split, mesh["tp"], {"lm_head": ColwiseParallel(use_local_output=False)})
    found["tensor parallel"] = gap.measure_logprobs(by_logits(split), group=mesh["dp"].get_group(), batch_size=3)

    broken, error = load(), ""
    if dist.get_rank() == 1:
        with torch.no_grad():
            broken.lm_head.weight.fill_(float("nan"))
    try:
        gap.measure(broken, group=world)
    except ArgapError as raised:
        error = str(raised)
    figures = {name: each.metrics() for name, each in found.items()}
    Path(f"{dist.get_rank()}.json").write_text(json.dumps({"figures": figures, "error": error}))
    dist.destroy_process_group()


def train() -> None:
    """Train the checkpoint for two steps and write the figures logged to ``RANK.json``; third argument: by FSDP2.

    accelerate shards on any device but a CPU, so it is told that the processes have GPUs; all else is its own.
    """
    run, checkpoint, *fsdp = sys.argv[1:]
    sharded: dict[str, Any] = {"fsdp": True, "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": LAYERS}}
    args = TrainingArguments(
        output_dir="output",
        max_steps=2,
        per_device_train_batch_size=2,
        learning_rate=0.1,
        optim="sgd",  # Adam's first steps magnify rounding
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        dataloader_pin_memory=False,
        **(sharded if fsdp else {}),
    )
    if fsdp:
        assert args.device.type == "cpu"  # which makes the state
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    rows = [{"input_ids": torch.arange(k, k + 24), "labels": torch.arange(k, k + 24)} for k in range(16)]
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    trainer = Trainer(model=model, args=args, train_dataset=rows, data_collator=default_data_collator)  # pyright: ignore
    trainer.add_callback(GapCallback(trainer, run, every=1, threshold=2, slices=SLICES))
    trainer.train()
    weights: Any = trainer.model_wrapped
    assert any(isinstance(each, DTensor) for each in weights.parameters()) == bool(fsdp)  # a root's stay after forward
    logged = [row for row in trainer.state.log_history if "eval_argap_delta" in row]
    Path(f"{dist.get_rank()}.json").write_text(json.dumps(logged))
    dist.destroy_process_group()
