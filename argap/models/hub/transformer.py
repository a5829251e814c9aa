"""The attention model (model type ``transformer``) that flash-linear-attention's models are compared with."""

from argap.models.hub.family import Options
from argap.models.hub.fla import attention_mixer, attention_weights, fla_family


def _mixer(options: Options) -> dict[str, object]:
    options.fixed(qk_norm=False, elementwise_affine=True)
    names = ("num_kv_heads", "qkv_bias", "rope_theta", "window_size")
    return attention_mixer({"num_heads": options.size("num_heads", 32), **{name: options.get(name) for name in names}})


TRANSFORMER = fla_family("transformer", "TransformerForCausalLM", _mixer, attention_weights)
