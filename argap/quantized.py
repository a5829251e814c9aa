"""Checkpoints whose ``config.json`` has a ``quantization_config``: GPTQ, AWQ, bitsandbytes, torchao and the others that
transformers loads."""

from collections.abc import Mapping
from typing import Any

from argap.errors import ArgapError


def quantization(config: Mapping[str, Any]) -> str | None:
    """The method of a quantised checkpoint, such as ``gptq``; None for one that is not quantised."""
    given = (config.get("text_config") or config).get("quantization_config") or config.get("quantization_config")
    if not isinstance(given, Mapping):
        return None
    return str(given.get("quant_method") or "bitsandbytes")  # which alone once wrote none


def check_quantization(name: str, config: Mapping[str, Any], device: str) -> None:
    """Raise `ArgapError` where transformers cannot run the quantised checkpoint ``name`` here: for a method that it
    does not know, a missing package, or a missing GPU."""
    from transformers.quantizers.auto import AutoHfQuantizer

    method = quantization(config)
    if method is None:
        return
    try:
        quantizer = AutoHfQuantizer.from_config(dict(config["quantization_config"]), pre_quantized=True)
        quantizer.validate_environment(device_map={"": device})
    except ModuleNotFoundError as error:
        raise ArgapError(f"{name}: quantised by {method}; run `pip install {error.name}`") from None
    except (ImportError, ValueError, RuntimeError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ArgapError(f"{name}: quantised by {method}, which does not run here ({reason})") from None
