"""Score a model beside the reference, so that KL(reference ‖ model) needs no file of logits.

Both models are loaded and run on the same windows, each behind its own BOS; `argap.kernels.head.linear_divergence`
reduces their hidden states a few rows and ids at a time.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from argap.errors import ArgapError, MismatchError
from argap.records import KlReference

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from argap.evaluation.windows import EvaluationSet
    from argap.runtime.torchrun import Parallel
    from argap.scoring.batches import Batches
    from argap.scoring.sources import Local, Source


def beside_reference(models: "Sequence[Source]", reference: "Source") -> "list[Source]":
    """Return ``models``, each with ``reference`` beside it.

    Raises `ArgapError` if the reference is a finished run, `MismatchError` for models whose tokenizer is not the
    reference's and for models on different devices.
    """
    if reference.finished is not None:
        raise ArgapError(
            f"{reference.name}: `kl`: a finished run keeps no distributions; name the reference's checkpoint, whose "
            "finished run in `out` is not scored again"
        )
    first = cast("Local", reference)
    made = []
    for model in models:
        own: Any = replace(cast(Any, model), beside=first)
        if own.tokenizer.fingerprint != first.tokenizer.fingerprint:
            raise MismatchError(
                f"{own.name} and {first.name}: `kl`: their tokenizers differ ({own.tokenizer.fingerprint[:12]} and "
                f"{first.tokenizer.fingerprint[:12]}), so their distributions are over different vocabularies; leave "
                "`kl` out, or give `tokenizer=NAME=T` if they are the same"
            )
        if (own.shared or first.shared) and _differ(own.device(), first.device()):
            raise MismatchError(
                f"{own.name} is on {own.device()}, {first.name} on {first.device()}: `kl`: expected both on one device"
            )
        made.append(own)
    return made


def _differ(first: "torch.device", second: "torch.device") -> bool:
    return (first.type, first.index or 0) != (second.type, second.index or 0)


def kl_reference(source: "Local", data: "EvaluationSet", parallel: "Parallel | None") -> KlReference | None:
    """Return what identifies the model beside ``source`` in the run of ``source``; None without one."""
    if source.beside is None:
        return None
    identity = source.beside.identity(data, parallel)
    assert identity.backend in ("native", "hf", "memory")
    return KlReference(identity.checkpoint, identity.dtype, identity.backend, identity.bos)


@contextmanager
def batches_of(reference: "Local | None", data: "EvaluationSet", device: str) -> "Iterator[Batches | None]":
    """Load the reference and return it ready to score ``data`` beside another model; None without one."""
    if reference is None:
        yield None
        return
    from argap.checkpoints.family_code import family_code
    from argap.scoring.batches import Batches

    with reference.loaded(device) as model, family_code(reference.origin, model, data.longest):
        size = reference.config.batch_size
        yield Batches(model, data, device, size, reference.origin, live=reference.shared, bos=reference.bos)


def check_same_vocabulary(source: "Local", model: "PreTrainedModel", reference: "Batches | None") -> None:
    """Raise `MismatchError` if a head lacks an id of the tokenizer: rows beyond those of the other may only be padding.

    Heads are counted by their embeddings' rows, which the output shares or matches.
    """
    if reference is None or source.beside is None:
        return
    rows = {source.name: _rows(model), source.beside.name: _rows(reference.model)}
    ids = source.tokenizer.vocab_size
    if len(set(rows.values())) > 1 and min(rows.values()) < ids:
        found = " and ".join(f"{name} {count:,}" for name, count in rows.items())
        raise MismatchError(f"`kl`: {found} rows of logits, their tokenizer {ids:,} ids; expected one for each id")


def _rows(model: "PreTrainedModel") -> int:
    head: Any = model.get_output_embeddings() or model.get_input_embeddings()
    return int(head.weight.shape[0])
