"""The additive decomposition: the gap of each model, taken apart by several partitions of the tokens.

For any partition into slices s with shares p_s, the contributions p_s·Δnll_s add up to the gap Δnll.
"""

import numpy as np
import pandas as pd

from argap.records import Bins, Breakdowns, Part
from argap.slices import slices_of_cells

AR_HITS, OTHER = "AR hits", "other tokens"


def breakdowns(cells: pd.DataFrame, bins: Bins, *, reference: str, hits: np.ndarray) -> Breakdowns:
    """The gap by slice, frequency (repeated and other tokens apart), distance, position and domain.

    ``bins``: those that the cells refer to; ``hits``: which cells are AR hits.
    """
    repeated = cells["repeated"].to_numpy()
    frequency = cells["frequency"].to_numpy()
    by: dict[str, dict[tuple[str, bool | None], np.ndarray]] = {
        "slice": {(AR_HITS, None): hits, (OTHER, None): ~hits},
        "frequency": {
            (each.label, again): (frequency == k) & (repeated == again)
            for again in (False, True)
            for k, each in enumerate(bins.frequency)
        },
    }
    for name in ("distance", "position"):
        number = cells[name].to_numpy()
        by[name] = {(each.label, None): number == k for k, each in enumerate(getattr(bins, name))}
    domain = cells["domain"].astype(str).to_numpy()
    by["domain"] = {(str(each), None): domain == each for each in np.unique(domain)}
    masks = {f"{name}/{key}": mask for name, groups in by.items() for key, mask in groups.items() if mask.any()}
    results = {each.name: each for each in slices_of_cells(cells, masks, reference)}

    def part(name: str, key: tuple[str, bool | None]) -> Part:
        scored = results[f"{name}/{key}"]
        compared = [model for model in scored.models if model.contribution is not None]
        return Part(
            bin=key[0],
            n=scored.n,
            share=scored.share,
            nll={model.model: model.nll for model in scored.models if model.nll is not None},
            contribution={model.model: model.contribution.nll for model in compared if model.contribution},
            ci95={model.model: model.contribution.ci95 for model in compared if model.contribution},
            repeated=key[1],
        )

    return Breakdowns(
        **{name: tuple(part(name, key) for key, mask in groups.items() if mask.any()) for name, groups in by.items()}
    )
