"""Format numbers for tables, figures and sentences (percent, nats, perplexities, large counts), and name a ΔNLL.

Minus signs are U+2212, and a value that rounds to zero has none.
"""

import math

from argap.records import Direction, Estimate, Gap, Unit

DASH = "—"
"""Shown if there is no number."""
INFINITY = "∞"
UNITS = ((10**9, "G"), (10**6, "M"), (10**3, "k"))


def percent(fraction: float, digits: int = 1) -> str:
    """Format a fraction as a percentage.

    >>> percent(0.731), percent(-0.0004), percent(0.26, 0)
    ('73.1%', '0.0%', '26%')
    """
    return f"{100 * fraction:z.{digits}f}%".replace("-", "−")


def percent_range(low: float, high: float) -> str:
    """Format two fractions as a range in percent, with "to" if a dash would run into a minus sign.

    >>> percent_range(0.702, 0.754), percent_range(-0.03, 0.041), percent_range(-0.0001, 0.051)
    ('70.2–75.4%', '−3.0 to 4.1%', '0.0–5.1%')
    """
    first = percent(low).removesuffix("%")
    return f"{first}{' to ' if first.startswith('−') else '–'}{percent(high)}"


def nats(value: float) -> str:
    """Format a difference of NLLs.

    >>> nats(0.5061)
    '0.506'
    """
    return f"{value:z.3f}".replace("-", "−")


def signed(value: float, digits: int = 3) -> str:
    """Format a difference of NLLs with its sign.

    >>> signed(0.5061), signed(-0.5061, 2)
    ('+0.506', '−0.51')
    """
    return f"{value:+z.{digits}f}".replace("-", "−")


def signed_range(ends: tuple[float, float] | None) -> str:
    """Format both ends of an interval with their signs; a dash if there is no interval.

    >>> signed_range((-0.01, 0.5061)), signed_range(None)
    ('−0.010 to +0.506', '—')
    """
    return DASH if ends is None else f"{signed(ends[0])} to {signed(ends[1])}"


def mean_nll(value: float | None) -> str:
    """Format a mean NLL in nats; a dash if there is none.

    >>> mean_nll(2.399), mean_nll(None), mean_nll(float("nan"))
    ('2.40', '—', '—')
    """
    return DASH if value is None or math.isnan(value) else f"{value:.2f}"


def nats_interval(ends: tuple[float, float] | None) -> str:
    """Format both ends of an interval in nats; a dash if there is no interval.

    >>> nats_interval((-0.01, 0.5061)), nats_interval(None)
    ('−0.010 to 0.506', '—')
    """
    return DASH if ends is None else f"{nats(ends[0])} to {nats(ends[1])}"


def perplexity(value: float) -> str:
    """Format a perplexity with two decimals, or fewer if it is large.

    >>> perplexity(11.014), perplexity(1234.4), perplexity(2e7)
    ('11.01', '1,234', '2.0e+07')
    """
    if value < 1000:
        return f"{value:.2f}"
    return f"{value:,.0f}" if value < 1e6 else f"{value:.1e}"


def loss_name(unit: Unit) -> str:
    """Return the column heading for `loss`: perplexity or bits per byte, each with its NLL."""
    return "PPL (NLL)" if unit == "token" else "bits/byte (NLL)"


def loss(scores: Estimate, unit: Unit) -> str:
    """Format ``PPL (NLL)``, or for unit ``byte`` bits per byte and the NLL in nats per byte; ∞ if both are infinite.

    >>> of = ("m", "all", "all")
    >>> loss(Estimate(*of, 9, 1.0, 2.399, 11.014), "token"), loss(Estimate(*of, 9, 1.0, 0.6931, 2.0), "byte")
    ('11.01 (2.40)', '1.000 (0.693)')
    >>> loss(Estimate(*of, 0, 0.0), "token"), loss(Estimate(*of, 9, 1.0), "token")
    ('—', '∞')
    """
    nll, ppl = scores.nll, scores.ppl
    if nll is None:
        return INFINITY if scores.infinite else DASH
    if unit == "byte":
        return f"{nll / math.log(2):.3f} ({nll:.3f})"
    return f"{'> 1e308' if ppl is None else perplexity(ppl)} ({nll:.2f})"


def short(value: float) -> str:
    """Format a count for an axis, to three significant digits.

    >>> short(10_000), short(1_500_000), short(50), short(0.01)
    ('10k', '1.5M', '50', '0.01')
    """
    scaled, unit = _scaled(value)
    return f"{float(f'{scaled:.3g}'):g}{unit}" if unit else f"{value:g}"


def whole(value: int) -> str:
    """Format a count for a narrow axis, rounded down to whole units.

    >>> whole(2048), whole(500)
    ('2k', '500')
    """
    scaled, unit = _scaled(value)
    return f"{int(scaled)}{unit}"


def parameters(count: int | None) -> str:
    """Format a model's number of parameters; a dash if it is unknown.

    >>> parameters(6_912_345), parameters(125_000_000), parameters(1_400_000_000)
    ('6.9 M', '125 M', '1.4 B')
    """
    if count is None:
        return DASH
    scaled, unit = _scaled(count)
    return f"{scaled:.{1 if scaled < 100 else 0}f} {unit.replace('G', 'B')}" if unit else str(count)


def seen(label: str) -> str:
    """Say a bin of training counts in words.

    >>> seen("0"), seen("1"), seen("3–5")
    ('never in training', 'once in training', '3–5 times in training')
    """
    words = {"0": "never", "1": "once"}.get(label, f"{label} times")
    return f"{words} in training"


def threshold_text(threshold: float) -> str:
    """Format τ. Counts are whole numbers, so a scaled threshold is rounded down.

    >>> threshold_text(1250)
    '1,250'
    """
    return f"{int(threshold):,}"


def _scaled(value: float) -> tuple[float, str]:
    """Return a count in its largest unit, and that unit."""
    return next(((value / size, unit) for size, unit in UNITS if value >= size), (value, ""))


MANY = 4
"""Models compared; more of them share one summary, small multiples and tables in parts."""
WORDS: dict[Direction | None, str] = {"behind": "gap", "ahead": "lead", "level": "difference", None: "difference"}
OF: dict[Direction, str] = {"behind": "behind", "ahead": "ahead of", "level": "level with"}


def word(gap: Gap, model: str) -> str:
    """Return the word for a model's ΔNLL."""
    return WORDS[gap.directions.get(model)]


def gap_word(gap: Gap) -> str:
    """Return one word for the ΔNLLs of all models."""
    known = set(gap.directions.values()) - {"level"}
    if len(known) > 1:
        return "gap or lead"
    return WORDS[known.pop()] if known else "difference"
