"""Show how closely models follow the reference, token by token: for a quantisation, whose NLL alone says little."""

from collections.abc import Sequence

from argap.records import ALL, MOVED, Fidelity, Gap
from argap.reports.tables.formats import Table
from argap.reports.tables.numbers import DASH, percent, percent_range, signed

NEAR = 0.8
"""Agreement of the most likely token from which a model counts as nearly the reference: a conversion or quantisation.
argap's demo models, trained apart on one text, agree on 47 and 63% of the tokens."""
ENDS = "95% interval"
WHAT = (
    f"Δ log p: the model's log-prob of a token minus the reference's, in nats; moved: |Δ log p| > {MOVED:g}; "
    "agreement: the same most likely token."
)
KL = "KL: of the model's distribution from the reference's, in nats."


def is_near(each: Fidelity) -> bool:
    """Return whether a model is nearly the reference, or was scored for its KL."""
    return each.kl is not None or (each.agreement or 0.0) >= NEAR


def fidelity_table(gap: Gap) -> Table | None:
    """Return one row per model that is nearly the reference; None without any."""
    near = [each for each in gap.fidelity if is_near(each)]
    if not near:
        return None
    with_kl = any(each.kl is not None for each in near)
    titles = ("Model", "mean |Δ log p|", "RMS", "median", "99%", "largest", "Moved", "Agreement", ENDS)
    rows = [
        (
            each.model,
            small(each.absolute),
            small(each.rms),
            *(small(each.quantiles and getattr(each.quantiles, name)) for name in ("median", "q99", "largest")),
            _share(each.moved),
            _share(each.agreement),
            DASH if each.agreement_ci95 is None else percent_range(*each.agreement_ci95),
            *((small(each.kl), _ends(each.kl_ci95)) if with_kl else ()),
        )
        for each in near
    ]
    titles += ("mean KL", ENDS) if with_kl else ()
    notes = (f"{WHAT} {KL if with_kl else ''}".strip(), f"On {near[0].n:,} tokens; reference: {gap.reference}.")
    return Table(titles, rows, notes)


def slices_fidelity_table(found: Sequence[Fidelity], reference: str) -> Table:
    """Return one row per model and slice."""
    with_kl = any(each.kl is not None for each in found)
    titles = ("Model", "Slice", "Tokens", "% of tokens", "ΔNLL", "mean |Δ log p|", ENDS, "RMS", "Moved", "Agreement")
    titles += ("mean KL", ENDS, "% of KL", "Entropy") if with_kl else ()
    rows = []
    for each in found:
        cells = (signed(each.delta) if each.delta is not None else DASH, small(each.absolute))
        kl = (small(each.kl), _ends(each.kl_ci95), _share(each.share_of_kl), small(each.entropy)) if with_kl else ()
        name = "overall" if each.name == ALL else each.name
        cells += (_ends(each.absolute_ci95), small(each.rms), _share(each.moved), _share(each.agreement))
        rows.append((each.model, name, f"{each.n:,}", percent(each.share_of_tokens), *cells, *kl))
    notes = [f"{WHAT} {KL if with_kl else ''} Reference: {reference}. Slices may overlap.".replace("  ", " ")]
    if with_kl:
        notes.append("% of KL: the slice's part of the sum of KL over all tokens; entropy: the model's, in nats.")
    return Table(titles, rows, tuple(notes), left=(0, 1))


def closeness(each: Fidelity) -> str:
    """Say in half a sentence how closely a model follows the reference.

    >>> closeness(Fidelity(model="q4", name="all", n=9, share_of_tokens=1.0, absolute=0.0123, agreement=0.984))
    'mean |Δ log p| 0.0123, the most likely token agrees on 98.4%'
    """
    text = f"mean |Δ log p| {small(each.absolute)}, the most likely token agrees on {_share(each.agreement)}"
    return text if each.kl is None else f"{text}, mean KL {small(each.kl)}"


def small(value: float | None) -> str:
    """Format nats to three significant digits, as differences may be tiny.

    >>> small(0.01234), small(1.5e-6), small(12.34), small(0.0), small(None)
    ('0.0123', '1.5e-06', '12.3', '0', '—')
    """
    return DASH if value is None else f"{value:.3g}"


def _ends(ends: tuple[float, float] | None) -> str:
    return DASH if ends is None else f"{small(ends[0])} to {small(ends[1])}".replace("-0", "−0")


def _share(value: float | None) -> str:
    return DASH if value is None else percent(value)
