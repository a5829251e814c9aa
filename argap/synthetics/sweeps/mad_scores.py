"""Published accuracies on the six tasks of MAD (arXiv 2403.17844), from table 1 of arXiv 2406.06484.

In percent. The table's averages are the means of its rows, to the digit printed.
"""

from typing import NamedTuple

SOURCE = "arXiv 2406.06484, table 1"
MAD_TASKS = ("compression", "fuzzy_recall", "in_context_recall", "memorization", "noisy_recall", "selective_copy")
"""Names in `argap.synthetics.tasks.registry.TASKS`, in the order of the table."""


class PublishedScores(NamedTuple):
    """One row of the table."""

    model: str
    member: str | None
    """The same mixer in `argap.synthetics.training.models.MEMBERS`, or None."""
    scores: tuple[float, ...]
    """Scores in the order of `MAD_TASKS`."""
    average: float

    def score(self, task: str) -> float | None:
        """Return the score on a task, given by its label; None if the table does not have it."""
        return self.scores[MAD_TASKS.index(task)] if task in MAD_TASKS else None


PUBLISHED = (
    PublishedScores("Transformer", "attention", (51.6, 29.8, 94.1, 85.2, 86.8, 99.6), 74.5),
    PublishedScores("Hyena", "hyena", (45.2, 7.9, 81.7, 89.5, 78.8, 93.1), 66.0),
    PublishedScores("Multihead Hyena", "multihead_hyena", (44.8, 14.4, 99.0, 89.4, 98.6, 93.0), 73.2),
    PublishedScores("Mamba", "mamba", (52.7, 6.7, 90.4, 89.5, 90.1, 86.3), 69.3),
    PublishedScores("GLA", "gla", (38.8, 6.9, 80.8, 63.3, 81.6, 88.6), 60.0),
    PublishedScores("DeltaNet", "delta_net", (42.2, 35.7, 100.0, 52.8, 100.0, 100.0), 71.8),
)


def published_scores(member: str) -> PublishedScores | None:
    """Return the row of a member's mixer, or None."""
    return next((row for row in PUBLISHED if row.member == member), None)
