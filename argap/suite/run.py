"""Run a suite: train and score the unfinished members, then collect the result."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from argap.errors import ArgapError
from argap.metric.threshold import Threshold, resolve_threshold
from argap.records import read_gap
from argap.results.printed import log_result
from argap.runtime.cluster import ray_engine
from argap.runtime.jobs import Stop
from argap.runtime.progress import say
from argap.runtime.trackers import check_trackers
from argap.suite.collect import collect, keep_others, left_out_of
from argap.suite.config import Entry, Suite, load_suite
from argap.suite.earlier import open_earlier
from argap.suite.layout import Layout, finished_runs, open_finished
from argap.suite.members import check_models, evaluation_set, run_members, training_index
from argap.tokens.labels import label


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

    ``path``: the suite's file, which Ray workers read. ``sizes`` and ``members``: which to run; () means all. ``ray``:
    run as tasks on the cluster at ``address``, one GPU each, whose nodes share the work folder. ``collects=False``:
    neither read nor write a result. ``log_to``: trackers (`argap.runtime.trackers`) of each model's training and each
    size's result. Returns whether this process wrote the result; with several processes only the main one does.

    Raises `ArgapError` for models that are not in the suite; as `open_earlier` and `check_models` before training; as
    `argap.suite.members`; and as `argap.runtime.cluster.run_on_ray`.
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
        work = Layout(layout.work.absolute())
        jobs = [_Member(path.absolute(), entry, work, keep, tuple(log_to)) for entry in entries]
        for done, job in enumerate(ray_engine(address, device)(jobs, lambda: False), start=1):
            say(f"{done} of {len(jobs)}: {job.entry.size} {job.entry.name}")
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


@dataclass(frozen=True)
class _Member:
    """Training and scoring one member of the suite in the file ``path``, as a job of `argap.runtime.jobs`."""

    path: Path
    entry: Entry
    layout: Layout
    keep: bool
    log_to: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return self.layout.work

    def run(self, device: torch.device, stop: Stop) -> None:
        """Train from the last checkpoint and score; ``stop`` is ignored, as the task itself is interrupted instead."""
        suite = load_suite(self.path)
        data, _ = evaluation_set(suite, self.entry.size)
        sets = {self.entry.size: data}
        run_members(suite, [self.entry], self.layout, sets, device=str(device), keep=self.keep, log_to=self.log_to)

    def is_done(self) -> bool:
        return open_finished(self.layout.run(self.entry)) is not None


def _chosen(suite: Suite, sizes: Sequence[str], members: Sequence[str]) -> list[Entry]:
    entries = [entry for size in sizes for entry in suite.entries(size)]
    chosen = [entry for entry in entries if not members or entry.name in members]
    if not chosen:
        known = ", ".join(dict.fromkeys(entry.name for entry in entries))
        raise ArgapError(f"`member` {', '.join(members)}: not in the suite; its models are {known}")
    return chosen
