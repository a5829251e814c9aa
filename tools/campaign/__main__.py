"""Run the campaign: commands with one altered file, and commands that are killed; count the outcomes.

    python tools/campaign [--tries 5000] [--kills 500] [--seed N] [--only score,train] [--log campaign.jsonl]
    python tools/campaign --each 10 [--first 3]
    unshare --map-root-user --mount python tools/campaign --tries 0 --kills 0 --disks 300

A try copies toy material, alters one file of it, and runs an argap command in a separate process. Its number and the
seed repeat it: ``--seed 7 --first 312 --tries 1``. ``--each N`` draws nothing at random and kills nothing: it tries
every N-th change of a part of a JSON or YAML file, starting at change ``--first``. ``--disks N`` runs commands on a
full or read-only disk, then again with space. Exits with 1 if a try ended in a traceback, a crash, a hang, or a
silent change, or if a killed or refused command did not end with the undisturbed result when it ran again.
"""

import argparse
import json
import logging
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, TextIO

import disks
import each
import forked
import kills
import material
import tries
import visits
from cases import CASES, Case
from mutations import UNSEALED


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=5000)
    parser.add_argument("--kills", type=int, default=500, help="disturbed runs; one may be killed several times")
    parser.add_argument("--disks", type=int, default=0, help="runs on a full or read-only disk, which needs root")
    parser.add_argument("--seed", type=int, default=None, help="default: a fresh one, which is printed")
    parser.add_argument("--first", type=int, default=0, help="number of the first try or kill")
    parser.add_argument("--each", type=int, metavar="N", help="every N-th change of parts, and nothing drawn")
    parser.add_argument("--only", default="", help="names of cases, comma-separated")
    parser.add_argument("--log", type=Path, default=Path("campaign.jsonl"), help="a line of JSON for each try and kill")
    parser.add_argument("--keep", type=Path, help="keep the folders of failed tries here")
    options = parser.parse_args()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    logging.disable(logging.WARNING)
    forked.preload()
    with tempfile.TemporaryDirectory() as scratch, open(options.log, "a", encoding="utf-8") as log:
        campaign = Campaign(seed, Path(scratch), options.keep, log)
        campaign.make_material()
        first, cases = options.first, _chosen(CASES, options.only)
        if options.each:
            options.kills, tried = 0, campaign.alter_each(first, options.each, cases)
        else:
            tried = campaign.alter(range(first, first + options.tries), cases)
        killed = campaign.kill(range(first, first + options.kills), _chosen(kills.KILLED, options.only))
        filled = campaign.fill(range(first, first + options.disks), cases)
    for title, counts in (("tries", tried), ("disturbed runs", killed), ("runs on full disks", filled)):
        shown = ", ".join(f"{name} {count:,}" for name, count in counts.most_common())
        print(f"{sum(counts.values()):,} {title}: {shown}")
    failures = ((tried, tries.FAILURES), (killed, kills.FAILURES), (filled, disks.FAILURES))
    return int(any(counts[name] for counts, names in failures for name in names))


def _chosen(cases: list[Case], names: str) -> list[Case]:
    wanted = [name for name in names.split(",") if name]
    return [case for case in cases if not wanted or case.name in wanted]


@dataclass(frozen=True)
class Campaign:
    """Where the campaign works and what it writes."""

    seed: int
    scratch: Path
    keep: Path | None
    """Where the folders of failures stay."""
    log: TextIO

    @property
    def material(self) -> Path:
        return self.scratch / "material"

    def make_material(self) -> None:
        """Make it in a process of its own: the threads that this starts must not be forked."""
        self.material.mkdir()
        process = os.fork()
        if process == 0:
            code = 1
            try:
                os.chdir(self.material)
                material.make(self.material)
                code = 0
            except Exception as error:
                print(error, file=sys.stderr)
            finally:
                os._exit(code)
        if os.waitpid(process, 0)[1]:
            raise SystemExit("the material could not be made")

    def alter(self, numbers: range, cases: list[Case]) -> Counter[str]:
        """Run commands with one altered file each; returns how often each outcome was seen."""
        counts: Counter[str] = Counter()
        if not numbers or not cases:
            return counts
        expected = {case.name: tries.undisturbed(case, self.material, self.scratch / "undisturbed") for case in cases}
        began = time.monotonic()
        for number in numbers:
            rng = Random(f"{self.seed}-{number}")
            case, folder = rng.choice(cases), self._folder(number)
            done = tries.attempt(case, expected[case.name], rng, self.material, folder)
            counts[done.outcome] += 1
            self._record(number, asdict(done), folder, failed=done.outcome in tries.FAILURES)
            if number % 100 == 99:
                print(f"{number + 1:,} tries, {time.monotonic() - began:,.0f} s: {dict(counts)}", flush=True)
        return counts

    def alter_each(self, first: int, every: int, cases: list[Case]) -> Counter[str]:
        """Run commands with one part of one file changed, each ``every``-th change; returns the outcomes."""
        counts: Counter[str] = Counter()
        expected = {case.name: tries.undisturbed(case, self.material, self.scratch / "undisturbed") for case in cases}
        for number, (case, name, how, content) in islice(enumerate(self._each_change(cases)), first, None, every):
            folder = self._folder(number)
            case.copy(self.material, folder)
            (folder / name).unlink()  # the new file writes through no link
            (folder / name).write_bytes(content)
            done = tries.run_altered(case, expected[case.name], folder, folder / name, f"{how}, {UNSEALED}")
            counts[done.outcome] += 1
            self._record(number, asdict(done), folder, failed=done.outcome in tries.FAILURES)
            if sum(counts.values()) % 100 == 0:
                print(f"{sum(counts.values()):,} tries, now {case.name}: {dict(counts)}", flush=True)
        return counts

    def _each_change(self, cases: list[Case]) -> Iterator[tuple[Case, Path, str, bytes]]:
        """Cases, the file to alter, what is changed in it, and its new content."""
        for case in cases:
            folder = self.scratch / "unaltered"
            folder.mkdir()
            case.copy(self.material, folder)
            found = [(path, *change) for path in case.files(folder) for change in each.changes(path)]
            shutil.rmtree(folder)
            yield from ((case, path.relative_to(folder), how, content) for path, how, content in found)

    def kill(self, numbers: range, cases: list[Case]) -> Counter[str]:
        """Kill commands at random moments and run them again; returns how often each outcome was seen."""
        counts: Counter[str] = Counter()
        if not numbers or not cases:
            return counts
        expected, lengths = {}, {}
        for case in cases:
            folder = self.scratch / "undisturbed"
            expected[case.name] = tries.undisturbed(case, self.material, folder)
            shutil.rmtree(folder)
            folder.mkdir()
            case.copy(self.material, folder)
            lengths[case.name] = forked.run(case.command, folder).seconds
        signals = 0
        for number in numbers:
            rng = Random(f"{self.seed}-kill-{number}")
            case, folder = cases[number % len(cases)], self._folder(number)
            done = kills.disturb(case, expected[case.name], lengths[case.name], rng, self.material, folder)
            counts[done.outcome] += 1
            signals += len(done.kills)
            self._record(number, asdict(done), folder, failed=done.outcome in kills.FAILURES)
            if number % 20 == 19:
                print(f"{number + 1} disturbed runs, {signals} kills: {dict(counts)}", flush=True)
        print(f"{signals} kills", flush=True)
        return counts

    def fill(self, numbers: range, cases: list[Case]) -> Counter[str]:
        """Run commands on disks without enough space; returns how often each outcome was seen."""
        counts: Counter[str] = Counter()
        cases = [case for case in cases if case.outputs != visits.ANSWERS]  # a file that the campaign itself writes
        known: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {}
        for number in numbers:
            rng = Random(f"{self.seed}-disk-{number}")
            case, folder = cases[number % len(cases)], self._folder(number)
            if case.name not in known:
                expected = tries.undisturbed(case, self.material, self.scratch / "undisturbed")
                known[case.name] = expected, disks.needed(case, self.material, folder)
            done = disks.disturb(case, *known[case.name], rng, self.material, folder)
            counts[done.outcome] += 1
            self._record(number, asdict(done), folder, failed=done.outcome in disks.FAILURES)
        return counts

    def _folder(self, number: int) -> Path:
        """Make a new folder inside another, so that anything beside it was written outside."""
        folder = self.scratch / "cases" / str(number) / "x"
        folder.mkdir(parents=True)
        return folder

    def _record(self, number: int, done: dict[str, Any], folder: Path, *, failed: bool) -> None:
        """Log a try, show a failure, and remove or keep its folder."""
        self.log.write(json.dumps({"seed": self.seed, "number": number, **done}) + "\n")
        self.log.flush()
        if failed:
            print(f"{number}: {done}", flush=True)
            if self.keep is not None:
                shutil.copytree(folder, self.keep / str(number), dirs_exist_ok=True, symlinks=True)
        shutil.rmtree(folder.parent, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
