"""The native language model: an embedding, pre-norm blocks (`argap.models.block`), and a tied or untied head.

There is no attention mask: the sequences of a batch have equal length, or padding on the right, which no earlier
position sees. Legend: B batch, T positions, D ``hidden_size``, V ``vocab_size``.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput

from argap.errors import ArgapError
from argap.kernels.launch import runs_kernels
from argap.models.block import Block, add_and_norm, build_norm
from argap.models.configuration import ArgapConfig
from argap.models.mixer import OwnInitialization, ResidualLinear, State
from argap.runtime.trust import trusting


@dataclass
class TrunkOutput(BaseModelOutput):
    """Hidden states and, in training, the sum of the mixers' auxiliary losses, if any."""

    auxiliary_loss: torch.Tensor | None = None


@dataclass
class LanguageModelOutput(CausalLMOutput):
    """Logits, loss and, separately, the ``auxiliary_loss`` of `TrunkOutput`."""

    auxiliary_loss: torch.Tensor | None = None


class RecurrentState(NamedTuple):
    """The state of the model between two steps."""

    position: int | torch.Tensor
    """Number of tokens so far; ``[1]`` in fixed storage (`argap.models.steps`)."""
    layers: list[State]
    """The state of each layer's mixer."""


class ArgapPreTrainedModel(PreTrainedModel):
    """Configuration and initialisation of both models."""

    config_class = ArgapConfig  # pyright: ignore[reportAssignmentType]
    base_model_prefix = "model"
    _no_split_modules = ["Block"]  # noqa: RUF012  (the library's way)
    _supports_sdpa = True
    accepts_loss_kwargs = False
    """The loss is the mean of its batch, so transformers' Trainer has to average over the batches of a step."""

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load as transformers does; ``trust_remote_code=True`` also allows mixers named as ``module:Class``."""
        with trusting(bool(kwargs.get("trust_remote_code"))):
            return super().from_pretrained(*args, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise as GPT-2: normal(0.02), divided by √(2·layers) for projections to the residual stream.

        transformers skips modules whose parameters are all in submodules, so each module sets its own.
        """
        config: ArgapConfig = self.config  # pyright: ignore[reportAssignmentType]
        std = config.initializer_range
        residual_std = std / math.sqrt(2 * config.num_hidden_layers)
        if isinstance(module, OwnInitialization):
            module.initialize(std, residual_std)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=residual_std if isinstance(module, ResidualLinear) else std)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=std)
        elif isinstance(module, (nn.RMSNorm, nn.LayerNorm)) and module.elementwise_affine:
            nn.init.ones_(module.weight)
            if isinstance(module, nn.LayerNorm):
                nn.init.zeros_(module.bias)


class ArgapModel(ArgapPreTrainedModel):
    """The trunk: embedding, blocks, final norm."""

    def __init__(self, config: ArgapConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        if config.learned_positions and config.max_position_embeddings is not None:
            self.embed_positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        if config.embedding_norm:
            self.embed_norm = build_norm(config)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = build_norm(config)
        self.post_init()

    @property
    def blocks(self) -> list[Block]:
        """The layers, typed."""
        return [block for block in self.layers if isinstance(block, Block)]

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **_: Any,
    ) -> TrunkOutput:
        """Map ``input_ids [B, T]`` to normed hidden states ``[B, T, D]``.

        ``inputs_embeds [B, T, D]`` replace the embeddings of the tokens; only mixers that read tokens still do. Other
        arguments from transformers (such as ``use_cache``) are ignored. Raises `ArgapError` for more tokens than
        ``max_position_embeddings`` and for padding on the left.
        """
        self.check_length(input_ids.shape[1])
        if attention_mask is not None and not bool(attention_mask[:, 0].all()):
            raise ArgapError("padding on the left: a native model would read it as text; pad on the right")
        x = self._embed(input_ids, torch.arange(input_ids.shape[1], device=input_ids.device), inputs_embeds)
        if self._fuses(x):
            return TrunkOutput(last_hidden_state=self._fused(x, input_ids))
        auxiliary = None
        for block in self.blocks:
            loss = block.auxiliary_loss(x) if self.training else None
            if loss is not None:
                auxiliary = loss if auxiliary is None else auxiliary + loss
            x = block(x, input_ids)
        return TrunkOutput(last_hidden_state=self.norm(x), auxiliary_loss=auxiliary)

    def _fuses(self, x: torch.Tensor) -> bool:
        """Return whether layers may leave their last sum to the next norm.

        They may not if a layer or a norm has a hook (a user's, or accelerate's between devices): it expects the module
        to be called with its whole input.
        """
        if self.training or torch.is_grad_enabled() or not runs_kernels(x):
            return False
        called = [self.norm]
        for block in self.blocks:
            called += [block, block.mixer_norm, *([block.mlp_norm] if block.has_mlp else [])]
        return not any(m._forward_hooks or m._forward_pre_hooks or hasattr(m, "_hf_hook") for m in called)

    def _fused(self, x: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
        """Compute normed hidden states of embedded tokens ``x [B, T, D]``, each sum in the kernel of the next norm."""
        added = None
        for block in self.blocks:
            x, added = block.terms(x, added, input_ids)
        return add_and_norm(self.norm, x, added)[0]

    def init_state(self, batch: int) -> RecurrentState:
        """Return the state before the first token. Raises `ArgapError` if a mixer has no recurrent step."""
        self._check_recurrent()
        weight: torch.Tensor = self.embed_tokens.weight  # pyright: ignore[reportAssignmentType]
        return RecurrentState(0, [block.mixer.init_state(batch, weight.dtype, weight.device) for block in self.blocks])

    def prefill(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, RecurrentState]:
        """Process prompts of one length, ``input_ids [B, T]``, into normed hidden states ``[B, T, D]`` and a state.

        `step` continues from the state. Raises `ArgapError` as `forward` and `init_state` do.
        """
        self.check_length(input_ids.shape[1])
        self._check_recurrent()
        x = self._embed(input_ids, torch.arange(input_ids.shape[1], device=input_ids.device))
        layers = []
        for block in self.blocks:
            x, state = block.prefill(x, input_ids)
            layers.append(state)
        return self.norm(x), RecurrentState(input_ids.shape[1], layers)

    def step(self, input_ids: torch.Tensor, state: RecurrentState) -> tuple[torch.Tensor, RecurrentState]:
        """Process one token per sequence, ``input_ids [B]``, into its normed hidden state ``[B, D]`` and a new state.

        Raises `ArgapError` past ``max_position_embeddings``, if the position is a number.
        """
        if isinstance(state.position, int):
            self.check_length(state.position + 1)
        x = self._embed(input_ids, state.position + torch.zeros_like(input_ids))
        layers = []
        for block, before in zip(self.blocks, state.layers, strict=True):
            x, after = block.step(x, before, input_ids)
            layers.append(after)
        return self.norm(x), RecurrentState(state.position + 1, layers)

    def _embed(
        self, input_ids: torch.Tensor, positions: torch.Tensor, embedded: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Embed tokens unless ``embedded``, adding learned positions and the embedding norm if configured."""
        x = self.embed_tokens(input_ids) if embedded is None else embedded
        if self.config.learned_positions:
            x = x + self.embed_positions(positions)
        return self.embed_norm(x) if self.config.embedding_norm else x

    def _check_recurrent(self) -> None:
        for number, block in enumerate(self.blocks):
            if not block.mixer.recurrent:
                raise ArgapError(f"layer {number}: {type(block.mixer).__name__} has no recurrent step; use forward")

    def check_length(self, length: int) -> None:
        """Raise `ArgapError` for a window longer than ``max_position_embeddings``."""
        limit = self.config.max_position_embeddings
        if limit is not None and length > limit:
            raise ArgapError(
                f"a window of {length} tokens; the model was made for at most {limit} "
                f"(its filters or positions end there): use `seq_len={limit}`"
            )


class ArgapForCausalLM(ArgapPreTrainedModel, GenerationMixin):
    """The language model: hidden states through a linear head to logits ``[B, T, V]``."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012  (the library's way)

    def __init__(self, config: ArgapConfig) -> None:
        super().__init__(config)
        self.model = ArgapModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **_: Any,
    ) -> LanguageModelOutput:
        """Return logits of all positions, or of the last ``logits_to_keep``, and with ``labels`` the loss.

        The loss is the mean next-token loss in float32 (nats); ``labels [B, T]`` are the ids themselves, and −100 is
        ignored. Raises `ArgapError` as `ArgapModel.forward` does, and for labels with ``logits_to_keep``.
        """
        trunk = self.model(input_ids, attention_mask)
        hidden = trunk.last_hidden_state
        positions = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(hidden[:, positions])
        loss = None
        if labels is not None:
            if logits.shape[:2] != labels.shape:
                raise ArgapError("labels: the loss needs the logits of all positions; leave logits_to_keep out")
            loss = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        return LanguageModelOutput(loss=loss, logits=logits, auxiliary_loss=trunk.auxiliary_loss)

    def prepare_inputs_for_generation(
        self, input_ids: torch.Tensor, *_: Any, attention_mask: torch.Tensor | None = None, **kwargs: Any
    ) -> dict[str, object]:
        """Return the arguments that `generate` passes to `forward`: all tokens so far, because nothing is cached."""
        if attention_mask is not None and not bool(attention_mask.all()):
            raise ArgapError("generate: padded prompts; a native model continues prompts of equal length only")
        return {"input_ids": input_ids, "logits_to_keep": kwargs.get("logits_to_keep", 0)}

    def init_state(self, batch: int) -> RecurrentState:
        """Return the state before the first token, as `ArgapModel.init_state` does."""
        return self.model.init_state(batch)

    def prefill(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, RecurrentState]:
        """Process prompts ``input_ids [B, T]`` into the logits ``[B, V]`` after the last token, and the state."""
        hidden, state = self.model.prefill(input_ids)
        return self.lm_head(hidden[:, -1]), state

    def step(self, input_ids: torch.Tensor, state: RecurrentState) -> tuple[torch.Tensor, RecurrentState]:
        """Process one token per sequence, ``input_ids [B]``, into its logits ``[B, V]`` and the next state.

        The logits are those that `forward` gives at this position.
        """
        hidden, state = self.model.step(input_ids, state)
        return self.lm_head(hidden), state
