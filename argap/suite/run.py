"""Run a suite: train and score the unfinished members, then collect the result."""

from collections.abc import Sequence
from pathlib import Path

from argap.errors import ArgapError
from argap.metric.threshold import Threshold, resolve_threshold
from argap.records import Record, read_gap
from argap.results.metrics import log_result
from argap.runtime.cluster import completed, connect, task_device
from argap.runtime.progress import say
from argap.runtime.trackers import check_trackers
from argap.suite.collect import collect, left_out_of
from argap.suite.config import Entry, Suite, load_suite
from argap.suite.earlier import open_earlier
from argap.suite.layout import Layout, finished_runs, open_finished, steps_done
from argap.suite.members import check_models, evaluation_set, run_members, training_index
from argap.tokens.labels import label
from argap.tokens.left_out import keep_others


class Status(Record, frozen=True):
    """Progress of one model of a suite."""

    size: str
    name: str
    steps: int
    """Optimizer steps finished."""
    total_steps: int
    scored: bool

    def __str__(self) -> str:
        if self.scored:
            return "scored"
        if not self.steps:
            return "not started"
        return "trained" if self.steps >= self.total_steps else f"step {self.steps:,} of {self.total_steps:,}"


def run_suite(
    suite: Suite,
    path: Path,
    layout: Layout,
    out: Path,
    *,
    sizes: Sequence[str] = (),
    members: Sequence[str] = (),
    threshold: Threshold,
    device: str = "auto",
    keep: bool = True,
    ray: bool = False,
    address: str | None = None,
    collects: bool = True,
    log_to: Sequence[str] = (),
) -> bool:
    """Train and score the unfinished models, and write the result of each size to ``out/SIZE``.

    ``path``: the suite's file, which Ray workers read. ``sizes`` and ``members``: only these; () means all. ``ray``:
    run as tasks of the cluster at ``address``. ``collects=False``: write no result, and look at none. ``log_to``:
    trackers (`argap.runtime.trackers`) that get the training of each model and the result of each size. Returns whether
    this process wrote the result; with several processes only the main one does.

    Raises `ArgapError` for models that are not in the suite, as `open_earlier` and `check_models` before anything is
    trained, and as `argap.suite.members`.
    """
    check_trackers(log_to)
    chosen_sizes = list(sizes) or list(suite.sizes)
    entries = _chosen(suite, chosen_sizes, members)
    sets = {size: evaluation_set(suite, size) for size in chosen_sizes}
    windows = {size: data for size, (data, _) in sets.items()}
    if collects:
        for size, data in windows.items():
            runs = dict.fromkeys(entry.name for entry in entries) | finished_runs(suite, size, layout)
            record = data.record
            if (left_out := left_out_of(out / size)) is not None:
                record = keep_others(record, data.tokens, data.window, data.document_of_window, left_out).record
            open_earlier(suite, size, runs, record, threshold, out / size)
    check_models(suite, entries, layout, windows)
    if ray:
        _run_on_ray(path, entries, layout, address, device, keep, tuple(log_to))
    elif not run_members(suite, entries, layout, windows, device=device, keep=keep, log_to=log_to):
        return False
    if not collects:
        return False
    for size, (data, tokenizer) in sets.items():
        index = training_index(suite, size, layout)
        tau = resolve_threshold(threshold, index.exposed_tokens)
        collect(suite, size, layout, label(data, index), tokenizer, out / size, threshold=tau)
        log_result(read_gap(out / size), log_to, layout.work / size)
    return True


def _run_on_ray(
    suite: Path,
    entries: list[Entry],
    layout: Layout,
    address: str | None,
    device: str,
    keep: bool,
    log_to: Sequence[str],
) -> None:
    """Train and score ``entries`` of the file ``suite`` as tasks of a cluster, one GPU each; all nodes must share the
    work folder.

    Finished members are skipped, and a member whose worker died resumes from its last checkpoint. Raises as
    `argap.runtime.cluster.completed` and `run_members`.
    """
    ray = connect(address)
    chosen = task_device(ray, device)
    work = Layout(layout.work.absolute())
    calls = [(suite.absolute(), entry, work, chosen, keep, log_to) for entry in entries]
    for done, number in enumerate(completed(ray, _run_one, calls, device=chosen), start=1):
        say(f"{done} of {len(entries)}: {entries[number].size} {entries[number].name}")


def _run_one(suite: Path, entry: Entry, layout: Layout, device: str, keep: bool, log_to: Sequence[str]) -> None:
    loaded = load_suite(suite)
    data, _ = evaluation_set(loaded, entry.size)
    run_members(loaded, [entry], layout, {entry.size: data}, device=device, keep=keep, log_to=log_to)


def statuses(suite: Suite, layout: Layout, sizes: Sequence[str] = ()) -> list[Status]:
    """Progress of each model, in training order."""
    entries = [entry for size in sizes or suite.sizes for entry in suite.entries(size)]
    runs = [open_finished(layout.run(entry)) for entry in entries]
    return [
        Status(entry.size, entry.name, steps_done(entry, layout), entry.config.total_steps, run is not None)
        for entry, run in zip(entries, runs, strict=True)
    ]


def _chosen(suite: Suite, sizes: Sequence[str], members: Sequence[str]) -> list[Entry]:
    entries = [entry for size in sizes for entry in suite.entries(size)]
    chosen = [entry for entry in entries if not members or entry.name in members]
    if not chosen:
        known = ", ".join(dict.fromkeys(entry.name for entry in entries))
        raise ArgapError(f"`member` {', '.join(members)}: not in the suite; its models are {known}")
    return chosen
