"""Threads and workers of the tests, and the fixtures that several of them share."""

import gc
import importlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

pytest_plugins = ["tests.builders.toy_corpus"]
pytest.register_assert_rewrite("tests.builders")

ROOT = Path(__file__).parent.parent
MAX_WORKERS = 8
"""Each worker imports torch and transformers, about 1 GB."""

# Before torch, numba or tokenizers start their threads: the tensors here are small, and pytest-xdist runs a worker
# for each core. OMP_NUM_THREADS=2 runs the tests with two threads of torch.
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"):
    os.environ.setdefault(name, "1")

os.fsync = lambda fd: None  # no test cuts the power

import torch  # noqa: E402

# Before anything imports triton, as transformers' Trainer does: kernels run in its interpreter where there is no GPU.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    from tests.builders.interpreter import hurry

    with suppress(ImportError, AttributeError):  # without Triton, or with another, they take longer
        hurry()


# Property tests try the same examples on every run and take as long as they need; `--hypothesis-profile=explore` tries
# other examples.
UNHURRIED: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("explore", **UNHURRIED)
settings.register_profile("repeatable", derandomize=True, **UNHURRIED)
settings.load_profile("repeatable")
# Hypothesis also draws constants of the modules that are loaded so far, which differ from worker to worker.
providers._get_local_constants = providers.Constants  # pyright: ignore[reportPrivateImportUsage]


def pytest_xdist_auto_num_workers() -> int:
    """``-n auto``: a worker for each core that this process may use, up to `MAX_WORKERS`."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MAX_WORKERS)


def pytest_collection_finish() -> None:
    """Leave what is imported by now, a million objects, out of the passes of Python's garbage collector."""
    gc.freeze()
    gc.set_threshold(50_000)


def pytest_unconfigure() -> None:
    """Let the interpreter take apart what it imported."""
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Run a test marked `alone`, which takes much of a card's memory, while no other test marked `gpu` runs."""
    if item.get_closest_marker("gpu") is None:
        return (yield)
    import fcntl

    with open(Path(tempfile.gettempdir(), f"argap-gpu-tests-{os.getuid()}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH if item.get_closest_marker("alone") is None else fcntl.LOCK_EX)
        try:
            return (yield)
        finally:
            if torch.cuda.is_available() and torch.cuda.memory_reserved() > 2**30:
                torch.cuda.empty_cache()  # what a worker keeps, other workers and local memory of kernels lack


@pytest.fixture(scope="session")
def tokenizer():
    """The demo's tokenizer: byte-level BPE with 8,192 entries; EOS is id 0."""
    from argap.text.tokenizer import load_tokenizer

    return load_tokenizer(ROOT / "argap" / "demo" / "tokenizer")


def word_tokenizer(words: list[str], *, unknown: str, eos: str | None = None) -> Any:
    """A `Tokenizer` of white-space-delimited words, whose ids are their order; ``unknown`` stands for all others."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers

    from argap.text.tokenizer import Tokenizer

    backend: Any = Backend(models.WordLevel({word: k for k, word in enumerate(words)}, unk_token=unknown))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer(backend, name="words", eos=None if eos is None else words.index(eos))


def index_of(documents: Iterable[Any], folder: Path, tokenizer: Any, /, **options: Any) -> Any:
    """The index of documents of token ids of a tokenizer; ``options`` as for `build`."""
    from tests.builders.index import build

    made = {"tokenizer": tokenizer.name, "tokenizer_fingerprint": tokenizer.fingerprint, "sources": ["train"]}
    return build(folder, documents, vocab_size=tokenizer.vocab_size, **made | options)


def drawn_model(config: Any, seed: int = 0) -> Any:
    """A model of transformers with random weights, whose embeddings are so large that its logits differ."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(20 + seed)
    return model


def save_model(folder: Path, config: Any, tokenizer: Any, seed: int = 0) -> Path:
    """Save a `drawn_model` with its tokenizer as a checkpoint."""
    drawn_model(config, seed).save_pretrained(folder)
    tokenizer.save(folder)
    return folder


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real texts and published figures, ``$ARGAP_DATA``. Without it the test is skipped."""
    folder = Path(os.environ.get("ARGAP_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; set ARGAP_DATA to its folder")
    return folder


def flip_bit(path: Path, at: int) -> None:
    """Flip the lowest bit of a file's byte ``at``."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def assert_close(found: Any, expected: Any) -> None:
    """Records, alone or in lists and objects, whose floats agree up to rounding and all else exactly."""
    import msgspec

    found, expected = msgspec.to_builtins(found), msgspec.to_builtins(expected)
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_close(found[key], value)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other)
    else:
        assert found == (pytest.approx(expected, rel=1e-9, abs=1e-12) if isinstance(expected, float) else expected)


HOMES = itertools.count()


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory, monkeypatch):
    """Each test has an ``ARGAP_HOME`` of its own, created only if it is written to."""
    monkeypatch.setenv("ARGAP_HOME", str(tmp_path_factory.getbasetemp() / f"home-{next(HOMES)}"))


@pytest.fixture(autouse=True)
def no_lines_by_the_clock(monkeypatch):
    """What is printed does not depend on the machine's speed: lines of progress come only where a test wants them."""
    from argap.runtime import progress

    monkeypatch.setattr(progress, "SECONDS_TO_FIRST_LINE", 3600.0)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 3600.0)


@pytest.fixture(autouse=True)
def drawn_alike(request):
    """A test's draws, from torch's global generator or its module's ``RNG``, do not depend on the tests before it."""
    torch.manual_seed(0)
    if (generator := getattr(request.module, "RNG", None)) is not None:
        import numpy as np

        generator.bit_generator.state = np.random.default_rng(0).bit_generator.state


@pytest.fixture(scope="session")
def token_result(tmp_path_factory, tokenizer):
    """A result on disk with its tokens: three models with drawn log-probs on 30 documents of code and prose."""
    import json
    import textwrap

    from argap.corpus import open_corpus
    from argap.corpus.tokenize import token_documents
    from argap.evaluation.windows import build_evaluation_set

    place = tmp_path_factory.mktemp("token-result")
    code = Path(json.decoder.__file__).read_text()
    prose = "Wörter — words — 言葉. Then Ada Lovelace met Charles Babbage; Ada wrote 12 notes! The End.\n\tAnd so on. "
    for k in range(30):
        domain = place / "text" / ("code" if k % 3 else "prose")
        domain.mkdir(parents=True, exist_ok=True)
        text = code[300 * k : 300 * k + 900] if k % 3 else textwrap.fill(prose * (1 + k % 5), 60 + k)
        (domain / f"{k:02d}.txt").write_text(text)
    half = list(token_documents(open_corpus(place / "text"), tokenizer))[::2]
    index = index_of((document.ids for document in half), place / "index", tokenizer)
    data = build_evaluation_set(open_corpus(place / "text"), tokenizer, seq_len=48)
    return write_drawn_result(place / "out", data, tokenizer, index, source=place / "text", ranked=("ref", "m2"))


@pytest.fixture(scope="session")
def result(token_result):
    """`token_result`, opened."""
    from argap.result import open_result

    return open_result(token_result)


def copied(result: Path, out: Path) -> Path:
    """A copy of a result, whose recorded runs are those of the copy."""
    shutil.copytree(result, out)
    return with_runs(out, lambda model: str(out / model))


def copied_without_tokens(result: Path, out: Path) -> Path:
    """A copy of a result's figures and cells."""
    out.mkdir(exist_ok=True)
    for name in ("gap.json", "cells.parquet"):
        shutil.copy(result / name, out)
    return with_runs(out, lambda model: "")


def with_runs(folder: Path, run: Callable[[str], str]) -> Path:
    """Record other folders for the runs of a result."""
    from msgspec.structs import replace

    from argap.records import read_gap, save_gap

    gap = read_gap(folder)
    rows = tuple(replace(row, run=run(row.model)) for row in gap.rows)
    save_gap(folder / "gap.json", replace(gap, rows=rows))
    return folder


def changed(gap, model: str, bin_: str = "ar_hits", **changes: Any):
    """A result with other figures of a model on all tokens, the AR hits or the others."""
    from msgspec.structs import replace

    def one(each):
        return replace(each, **changes) if (each.model, each.bin) == (model, bin_) else each

    return replace(gap, estimates=tuple(map(one, gap.estimates)))


def estimates_in(values: dict[str, Any], bin_: str = "all", partition: str | None = None) -> list[dict[str, Any]]:
    """The estimates of the models on a bin, from the JSON of a result."""
    of = [each for each in values["estimates"] if each["bin"] == bin_]
    return [each for each in of if partition is None or each["partition"] == partition]


def only(gap, *models: str):
    """A result of some of its models."""
    from msgspec.structs import replace

    rows = tuple(row for row in gap.rows if row.model in models)
    return replace(gap, rows=rows, estimates=tuple(each for each in gap.estimates if each.model in models))


def exchanging(module: Any, name: str, path: Path, monkeypatch: Any) -> None:
    """Exchange a file, for a copy of itself, right after a function of ``module`` is called."""
    whole, called = path.read_bytes(), getattr(module, name)

    def then_exchanged(*arguments: Any, **options: Any) -> Any:
        found = called(*arguments, **options)
        path.unlink()
        path.with_name("other").write_bytes(whole)
        path.with_name("other").rename(path)
        return found

    monkeypatch.setattr(module, name, then_exchanged)


def write_drawn_result(
    out: Path,
    data,
    tokenizer,
    index=None,
    *,
    source: Path,
    harder: Any = 0.0,
    loss: Any = None,
    models=("ref", "m-1", "m2"),
    ranked=(),
) -> Path:
    """The result of some models with drawn log-probs on an evaluation set, each worse than the one before, mostly on
    repeated bigrams.

    ``harder``: what the third loses besides, in nats, of each token. ``loss``: of each model, in place of those drawn.
    ``ranked``: the models with ranks: 1 where the token is the most likely one, else 2 to 9.
    """
    import numpy as np

    from argap.records import RunIdentity, RunResult, SourceRecord
    from argap.results.compare import write_gap
    from argap.tokens.labels import label, write_labels
    from argap.tokens.runs import begin_run, finish_run, new_record, shard_path, write_shard

    labels = label(data, index)
    generator = np.random.default_rng(0)
    hard = generator.gamma(2.0, 1.5, len(data.tokens))
    runs = []
    for k, name in enumerate(models):
        lost = hard + k * 0.3 * labels.repeated + 0.05 * k + 0.3 * generator.standard_normal(len(hard))
        lost = lost + harder * (k == 2) if loss is None else loss[k]
        top1 = np.where(generator.random(len(hard)) < 0.4, data.tokens, 5).astype(np.int32)
        rank = np.where(top1 == data.tokens, 1, 2 + data.tokens % 8).astype(np.int32) if name in ranked else None
        identity = RunIdentity(name, data.fingerprint, "float32", "cpu", 1, "native", rank=rank is not None)
        record = new_record(name, name, SourceRecord(data=(str(source),)), data.record, identity)
        run = begin_run(out / name, record, overwrite=False)
        bounds = [*range(0, data.windows, 20 + 7 * k), data.windows]  # shards of other sizes in each run
        for shard, (first, last) in enumerate(itertools.pairwise(bounds)):
            rows = slice(data.offsets[first], data.offsets[last])
            path = shard_path(run.folder, shard)
            logprob, further = -np.abs(lost[rows]).astype(np.float32), {} if rank is None else {"rank": rank[rows]}
            write_shard(path, data, range(first, last), logprob, top1[rows], further)
        runs.append(finish_run(run, RunResult(1, "chunked", 1, "cpu", 1, 1.0, None)))
    write_labels(labels, tokenizer, out / "labels")
    write_gap(runs, out / "labels", tokenizer, out, threshold=2, base=None)
    return out


@pytest.fixture(scope="module")
def chromium():
    """One Chromium for the tests of a module; they are skipped where none is installed.

    Not for the session: while Playwright runs, its event loop is this thread's, where no other can then run.
    """
    from playwright.sync_api import sync_playwright

    from tests.builders.browser import find_chromium

    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium on the path; install Debian's package chromium, or set ARGAP_CHROMIUM")
    with sync_playwright() as playwright:
        # Where there is no GPU, a process that stands for one takes a sixth of the time.
        browser = playwright.chromium.launch(executable_path=program, args=["--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def browser(chromium):
    """The Chromium, whose pages are closed after the test, so that none uses the processor or the server of a later."""
    yield chromium
    for context in chromium.contexts:
        context.close()


@pytest.fixture(scope="session")
def fla_models() -> Any:
    """flash-linear-attention's models. Its import warns where there is no GPU, and takes over some of
    transformers' model types, which they get back here so that no other test sees it."""
    from argap.models.hub.registry import register_fla

    if find_spec("fla") is None:
        pytest.skip("flash-linear-attention is not installed")
    register_fla("fla")
    return importlib.import_module("fla.models")


@pytest.fixture(scope="module")
def known():
    """Models with random weights, or after a few steps of training, know no hit: there would be no windows to show."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("argap.results.example_windows.KNOWN", 0.0)
        yield


@pytest.fixture
def pickles_read_here(monkeypatch):
    """`argap.checkpoints.convert` reads pickles in this process; a process of its own imports torch for each."""
    from argap.checkpoints import convert, unpickle

    monkeypatch.setattr(convert, "unpickle", lambda path, target: unpickle.main(str(path), str(target)))


@contextmanager
def figures_sketched() -> Iterator[None]:
    """Figures are drawn, but neither laid out nor written in full: their files are empty pictures.

    For tests of commands that write many figures and look at none: most of such a command's time is spent there.
    """
    from matplotlib.figure import Figure

    from argap.reports.figures import drawing

    def write(canvas: Any, path: Path, **options: Any) -> None:
        size = 'width="1pt" height="1pt" viewBox="0 0 1 1"'
        Path(path).write_text(f'<?xml version="1.0"?>\n<svg {size} xmlns="http://www.w3.org/2000/svg"></svg>\n')

    def lay_out(figure: Figure) -> None:
        figure.set_layout_engine("none")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "lay_out", lay_out)
        patch.setattr(drawing.FigureCanvasSVG, "print_svg", write)
        yield


RunCommand = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run_command(monkeypatch, capsys) -> RunCommand:
    """Runs ``argap`` with arguments; returns the exit code, stdout and stderr."""

    from argap.cli import main

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["argap", *arguments])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
