"""Score models again with a short context: what each token gains from the rest of its window.

Such a pass is a run like any other, in the folder ``short-K`` of the run with whole windows, which is not scored again.
It reads windows of K tokens with stride K/2 (`argap.evaluation.windows`), so about twice the tokens of the whole run;
of attention's work, which grows with the window, it needs the less the shorter K is.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from argap.errors import ArgapError
from argap.evaluation.windows import EvaluationSet, tokens_read
from argap.files.resumable import check_resumable
from argap.records import RunIdentity, SourceRecord
from argap.runtime.progress import say
from argap.scoring.config import ScoreConfig
from argap.scoring.segmented import ModelsText
from argap.scoring.sources import Local, Source
from argap.tokens.runs import Run, short_identity, short_passes, short_path

if TYPE_CHECKING:
    from argap.runtime.torchrun import Parallel


def check_context(config: ScoreConfig) -> None:
    """Raise `ArgapError` for a short context of less than two tokens, and for a curve without a first point."""
    if config.short_context is not None and config.short_context < 2:
        raise ArgapError(
            f"`short_context` {config.short_context}: expected at least 2, one of context and one to score"
        )
    if config.short_context is None and config.context_curve:
        raise ArgapError("`context_curve`: begins at `short_context`, which is not given; for example 64")


def contexts_of(config: ScoreConfig, text: ModelsText) -> list[int]:
    """Return the short contexts asked for, ascending.

    Raises `ArgapError` for one that is not shorter than the windows, and for models of several tokenizers, whose
    windows hold the same bytes and not as many tokens.
    """
    context = config.short_context
    if context is None:
        return []
    if text.segmented is not None:
        raise ArgapError(
            "`short_context`: the models have different tokenizers; expected one, whose tokens are counted"
        )
    longest = text.sets[0].longest
    if context >= longest:
        raise ArgapError(f"`short_context` {context:,}: the longest window has {longest:,} tokens; expected fewer")
    doublings = ((longest - 1) // context).bit_length() if config.context_curve else 1
    return [context * 2**k for k in range(doublings)]


def check_short(
    source: Source, identity: RunIdentity, contexts: Sequence[int], folder: Path, *, overwrite: bool
) -> None:
    """Raise `ArgapError` for a server, and as `check_resumable` for a ``folder`` with another pass over ``contexts``.

    Say so if a finished run lacks a pass, which it cannot get as no model is run.
    """
    if contexts and not (source.finished or hasattr(source, "loaded")):
        raise ArgapError(f"{source.name}: `short_context`: not scored on a server; leave `short_context` out")
    known = short_passes(folder, identity)
    for context in contexts:
        if source.finished is None:
            check_resumable(short_path(folder, context), short_identity(identity, context), overwrite=overwrite)
        elif context not in known:
            say(
                f"{source.name}: a finished run without a pass over {context:,} tokens of context, so without that "
                "gain; name its checkpoint to score one"
            )


def score_short(
    source: Source,
    run: Run,
    data: EvaluationSet,
    contexts: Sequence[int],
    text: SourceRecord,
    parallel: "Parallel | None" = None,
) -> None:
    """Score ``source`` with each of the short ``contexts``, into the folder of its finished ``run``.

    Raises as `argap.scoring.scorer.score`.
    """
    if source.finished is not None or not contexts:
        return
    from argap.scoring.scorer import score

    known, speaks = short_passes(run.folder, run.record.identity), parallel is None or parallel.is_main
    for context in contexts:
        if context not in known and speaks:
            say(
                f"{source.name}: reading {tokens_read(data, data.all, context):,} tokens in windows of {context:,} "
                f"with stride {context // 2:,}, for the {data.scored:,} scored"
            )
        score(cast(Local, source), data, short_path(run.folder, context), text, parallel, context=context)
    if speaks and (shorter := [context for context in known if context < min(contexts)]):
        say(f"{source.name}: gain stays over {shorter[0]:,} tokens of context, the shortest pass in {run.folder}")
