"""Train and score members as tasks of a Ray cluster, one GPU each. All nodes must share the work folder."""

from collections.abc import Sequence
from pathlib import Path

from argap.progress import say
from argap.ray_tasks import completed, connect, task_device
from argap.suite.config import Entry, load_suite
from argap.suite.layout import Layout
from argap.suite.members import evaluation_set, run_members


def run_on_ray(
    suite: Path,
    entries: list[Entry],
    layout: Layout,
    *,
    address: str | None,
    device: str,
    keep: bool,
    log_to: Sequence[str] = (),
) -> None:
    """Train and score ``entries`` of the file ``suite`` on the cluster at ``address`` (None: this machine).

    Finished members are skipped, and a member whose worker died resumes from its last checkpoint. Raises as
    `argap.ray_tasks.completed` and `run_members`.
    """
    ray = connect(address)
    chosen = task_device(ray, device)
    work = Layout(layout.work.absolute())
    calls = [(suite.absolute(), entry, work, chosen, keep, tuple(log_to)) for entry in entries]
    for done, number in enumerate(completed(ray, _run_one, calls, device=chosen), start=1):
        say(f"{done} of {len(entries)}: {entries[number].size} {entries[number].name}")


def _run_one(suite: Path, entry: Entry, layout: Layout, device: str, keep: bool, log_to: Sequence[str]) -> None:
    loaded = load_suite(suite)
    data, _ = evaluation_set(loaded, entry.size)
    run_members(loaded, [entry], layout, {entry.size: data}, device=device, keep=keep, log_to=log_to)
