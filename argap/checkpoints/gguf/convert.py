"""Write a GGUF file as a folder that plain transformers loads: ``config.json``, safetensors and tokenizer."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from argap.checkpoints.gguf.header import read_header
from argap.checkpoints.gguf.tokenizer import gguf_tokenizer
from argap.checkpoints.load import load_model
from argap.files.atomic import read_json, write_json
from argap.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from argap.checkpoints.find import Checkpoint


def write_folder(checkpoint: "Checkpoint", folder: Path, tokenizer: Tokenizer | None) -> None:
    """Write the model of a GGUF file, in float32, and ``tokenizer``, by default the file's own.

    float32 holds the dequantised weights exactly, so that the folder has the log-probs of the file. Raises `ArgapError`
    for a file that cannot be loaded.
    """
    import torch

    path = checkpoint.gguf
    assert path is not None
    chosen = tokenizer or gguf_tokenizer(path)
    model: Any = load_model(checkpoint, dtype=torch.float32, device="cpu", backend="hf")
    # transformers counts the model as quantised, and refuses to save it.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    chosen.save(folder)
    settings = folder / "tokenizer_config.json"
    template = read_header(path).values.get("tokenizer.chat_template")
    # Without a class, transformers builds the tokenizer that it knows for the model's type from the vocabulary.
    named = {"tokenizer_class": "PreTrainedTokenizerFast"} | ({"chat_template": template} if template else {})
    write_json(settings, read_json(settings) | named, seal=False)
