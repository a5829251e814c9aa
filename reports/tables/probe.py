"""Tables of ``argap probe``: every condition with the models side by side, and the layers of each model."""

from argap.probe.records import DistanceRow, LayersResult, ProbeResult, ProbeRow
from argap.probe.tasks import TASKS
from argap.reports.tables.formats import Table, best_in
from argap.reports.tables.numbers import DASH, percent, percent_range, signed, signed_range


def probe_table(result: ProbeResult) -> Table:
    """Return a row for each condition, with accuracy (95% interval) and NLL per answer token of every model."""
    models = result.models
    conditions: dict[tuple[str, str, int, int], dict[str, ProbeRow]] = {}
    for row in result.rows:
        conditions.setdefault((row.task, row.form, row.load, row.length), {})[row.model] = row
    columns = ["Task", "Form", "Load", "Length", "Chance"]
    columns += [heading for model in models for heading in (model, "95%", "NLL")]
    rows, nlls = [], []
    for (task, form, load, length), found in conditions.items():
        first = next(iter(found.values()))
        cells = [task, form, str(load), str(length) if length else f"{first.tokens:.0f}", percent(first.chance)]
        for model in models:
            row = found[model]
            cells += [percent(row.accuracy), percent_range(*row.accuracy_ci95), f"{row.token_nll:.2f}"]
        rows.append(tuple(cells))
        nlls.append([found[model].token_nll for model in models])
    best = set()
    for k, values in enumerate(nlls):  # the best model of a row, where there are several
        if len(values) > 1:
            column = 7 + 3 * min(range(len(values)), key=lambda j: values[j])
            if sum(rows[k][7 + 3 * j] == rows[k][column] for j in range(len(values))) == 1:
                best.add((k, column))
    return Table(tuple(columns), rows, probe_notes(result), frozenset(best), left=(0, 1))


def distances_table(result: ProbeResult) -> Table:
    """Return a row for each task and power of two of the distance, with accuracy and NLL of every model."""
    models = result.models
    found: dict[tuple[str, str, int], dict[str, DistanceRow]] = {}
    for row in result.distances:
        found.setdefault((row.task, row.form, row.low), {})[row.model] = row
    rows = []
    for (task, form, low), by_model in found.items():
        cells = [task, form, str(low) if low == 1 else f"{low}–{2 * low - 1}"]
        for model in models:  # tokenizers cut text differently, so a model may have no answer at a distance
            row = by_model.get(model)
            cells += [DASH] * 3 if row is None else [f"{row.answers:,}", percent(row.accuracy), f"{row.token_nll:.2f}"]
        rows.append(tuple(cells))
    columns = (
        "Task",
        "Form",
        "Tokens back",
        *(heading for model in models for heading in (f"{model}: n", model, "NLL")),
    )
    note = "Accuracy and NLL of the answers by their distance from what tells them, whatever their load and length."
    return Table(columns, rows, (note,), left=(0, 1), title="By distance")


def probe_notes(result: ProbeResult) -> tuple[str, ...]:
    """Return what a reader needs to read the numbers."""
    loads = ", ".join(f"{name} {TASKS[name].load}" for name in result.tasks)
    shots = f"{result.shots} solved question{'s' * (result.shots != 1)} first" if result.shots else "no examples"
    before = "".join(f"; {bos} before each prompt of {model}" for model, bos in result.bos.items())
    return (
        f"{result.prompts} prompts per row, seed {result.seed}; {shots}, but for induction and lag{before}.",
        f"Load: {loads}. Length: facts and filler in tokens or words; without filler, the mean tokens of a prompt.",
        "Accuracy of whole answers under teacher forcing, as greedy decoding would write them; intervals over prompts.",
        "NLL: nats per token of the answers. Chance: a candidate of the prompt at random.",
    )


def layers_table(result: LayersResult) -> Table:
    """Return a row for each layer: its mixer, its best head, and what zeroing it costs."""
    rows, effects = [], []
    for row in result.rows:
        cells = (row.model, str(row.layer), row.mixer, *_best_head(row.heads), *_best_head(row.previous))
        rows.append((*cells, signed(row.effect), signed_range(row.effect_ci95)))
        effects.append(row.effect)
    best = best_in(rows, {7: effects}, highest=True, groups=[row.model for row in result.rows])
    nll = ", ".join(f"{model} {value:.3f}" for model, value in result.nll.items())
    notes = (
        f"{result.period} random tokens, repeated once; {result.prompts} prompts, seed {result.seed}.",
        "Copying: attention to the token after the earlier occurrence; previous: to the token before; each of the "
        f"layer's best head. {percent(result.uniform)} if attention were uniform.",
        f"Effect: nats per token by which zeroing the mixer's output raises the NLL of the repetition ({nll}).",
    )
    columns = ("Model", "Layer", "Mixer", "Head", "Copying", "Head", "Previous", "Effect", "95%")
    return Table(columns, rows, notes, best, left=(0, 2))


def _best_head(scores: tuple[float, ...] | None) -> tuple[str, str]:
    if not scores:
        return DASH, DASH
    head = max(range(len(scores)), key=lambda k: scores[k])
    return str(head), percent(scores[head])
