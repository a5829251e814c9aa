"""The training log: ``log.jsonl`` for programs, a progress line on stderr for people."""

import json
import sys
from pathlib import Path

from argap.errors import FormatError
from argap.files.atomic import append_text, parse_json, write_text
from argap.files.record import to_record
from argap.files.regular import LARGEST_JSON, check_regular, is_there
from argap.records import as_json
from argap.runtime.progress import say, time_left
from argap.runtime.signals import Stopped
from argap.runtime.streams import OwnSequences
from argap.runtime.trackers import Trackers
from argap.train.records import EvaluationLine, StepLine


class TrainLog:
    """Writes ``log.jsonl`` and shows progress; as a context manager, says how to resume an interrupted run."""

    def __init__(self, path: Path, *, total_steps: int, step: int, trackers: Trackers) -> None:
        """Open the log of a run that resumes at ``step``, removing lines of later steps.

        ``trackers`` receive every line as well.
        """
        self.path = path
        self.total_steps = total_steps
        self.line_open = False
        self._trackers = trackers
        earlier = [line for line in read_log(path) if line.step <= step]
        write_text(path, "".join(json.dumps(as_json(line)) + "\n" for line in earlier))

    def write(self, line: StepLine | EvaluationLine) -> None:
        """Append one line and show it."""
        append_text(self.path, json.dumps(as_json(line)) + "\n")
        self._trackers.log(_metrics(line), line.step)
        if isinstance(line, EvaluationLine):
            self.note(f"step {line.step:,}: evaluation loss {line.eval_loss:.4f}")
            return
        left = time_left(line.tokens / line.tokens_per_s, line.step / self.total_steps)
        text = (
            f"step {line.step:,} of {self.total_steps:,}  loss {line.loss:.4f}  "
            f"{line.tokens_per_s:,.0f} tokens/s  {left} left"
        )
        if not sys.stderr.isatty():
            say(text)
            return
        OwnSequences(sys.stderr).write(f"\r\033[K{text}")  # overwrite the previous line
        sys.stderr.flush()
        self.line_open = True

    def __enter__(self) -> "TrainLog":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the trackers' runs; the log itself is written with every line."""
        if kind is Stopped:
            self.note("interrupted; a checkpoint was written, and the same command resumes from it")
        elif kind is KeyboardInterrupt:
            self.note("interrupted; the same command continues from the last checkpoint, if there is one")
        self._trackers.close()

    def note(self, text: str) -> None:
        """Print a separate line on stderr, below the progress."""
        if self.line_open:
            print(file=sys.stderr)
        say(text)
        self.line_open = False


def _metrics(line: StepLine | EvaluationLine) -> dict[str, float | None]:
    """Return a line as metrics: ``train/loss``, ``train/lr`` …, ``eval/loss``."""
    if isinstance(line, EvaluationLine):
        return {"eval/loss": line.eval_loss}
    return {f"train/{name}": value for name, value in as_json(line).items() if name != "step"}


def read_log(path: Path) -> list[StepLine | EvaluationLine]:
    """Read the lines of a log, ignoring a truncated last line.

    Raises `FormatError` naming any other line that is neither kind.
    """
    check_regular(path, LARGEST_JSON)
    texts = path.read_bytes().splitlines() if is_there(path) else []
    lines = []
    for number, text in enumerate(texts, 1):
        try:
            line = parse_json(text.decode())
        except ValueError as error:
            if number == len(texts):
                break
            raise FormatError(f"{path}: line {number}: not a line of a training log ({error})") from None
        kind = EvaluationLine if isinstance(line, dict) and "eval_loss" in line else StepLine
        lines.append(to_record(path, line, kind, part=f"line {number}"))
    return lines


def read_steps(path: Path) -> list[StepLine]:
    """Read the lines of a log without those of evaluations. Raises as `read_log`."""
    return [line for line in read_log(path) if isinstance(line, StepLine)]
