"""Faults put into small models on purpose: `argap diff` says where each of them is."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

import argap
from argap.errors import ArgapError, FormatError, MismatchError
from argap.evaluation.windows import EvaluationSet
from argap.metric.location import Tokens, locate, shared_prefixes
from argap.records import RunIdentity, RunResult, SourceRecord
from argap.reports.tables.difference import words
from argap.tokens.runs import begin_run, finish_run, new_record, write_shards

IDS, WIDTH, LENGTH, BLOCK = 200, 32, 256, 16


class Weights(NamedTuple):
    """One attention layer over tied embeddings."""

    embedding: torch.Tensor
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


def drawn() -> Weights:
    generator = torch.Generator().manual_seed(0)
    return Weights(
        torch.randn(IDS, WIDTH, generator=generator),
        *(torch.randn(WIDTH, WIDTH, generator=generator) / WIDTH**0.5 for _ in range(3)),
    )


W = drawn()


def rotated(x: torch.Tensor, base: float) -> torch.Tensor:
    """Rotary positions of ``x [T, D]`` (arXiv 2104.09864)."""
    half = x.shape[1] // 2
    angle = torch.arange(len(x))[:, None] * base ** (-torch.arange(half) / half)
    first, second = x[:, :half], x[:, half:]
    return torch.cat([first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()], 1)


def predictions(ids: torch.Tensor, mixed: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Log-prob and top-1 id of each token of a window, given the mixer's output."""
    logprobs = ((W.embedding[ids] + 2 * mixed) @ W.embedding.T / WIDTH**0.5).log_softmax(-1)
    own = logprobs[:-1].gather(1, ids[1:, None])[:, 0]
    return np.append(np.nan, own.numpy()).astype(np.float32), np.append(-1, logprobs[:-1].argmax(1).numpy())


def by_attention(ids: torch.Tensor, *, base: float = 1e4, pad: int = 0, wrong: tuple[int, torch.Tensor] | None = None):
    """Softmax attention with rotary positions.

    ``pad``: tokens of padding on the left that are seen. ``wrong``: the number of whole blocks taken from the cache,
    whose last one holds the keys and values of another window's tokens.
    """
    x = W.embedding[torch.cat([torch.zeros(pad, dtype=torch.int64), ids])]
    q, k, v = rotated(x @ W.query, base), rotated(x @ W.key, base), x @ W.value
    mixed = _attend(q, k, v)[pad:]
    if wrong is not None:
        blocks, other = wrong
        stale, theirs = slice((blocks - 1) * BLOCK, blocks * BLOCK), W.embedding[other]
        k[stale], v[stale] = rotated(theirs @ W.key, base)[stale], (theirs @ W.value)[stale]
        mixed = torch.cat([mixed[: blocks * BLOCK], _attend(q, k, v)[blocks * BLOCK :]])
    return predictions(ids, mixed)


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = (q @ k.T).masked_fill(torch.ones(len(q), len(q)).triu(1).bool(), -torch.inf)
    return scores.softmax(-1) @ v


def by_state(ids: torch.Tensor, dtype: torch.dtype = torch.float32) -> tuple[np.ndarray, np.ndarray]:
    """Linear attention whose state, Σ exp(k)ᵀv, and its normaliser are kept in ``dtype`` between steps."""
    x = W.embedding[ids]
    q, k, v = (x @ W.query).exp(), (x @ W.key).exp(), torch.cat([x @ W.value, torch.ones(len(x), 1)], 1)
    state, mixed = torch.zeros(WIDTH, WIDTH + 1, dtype=dtype), []
    for t in range(len(x)):
        state = (state.float() + k[t][:, None] * v[t]).to(dtype)
        read = q[t] @ state.float()
        mixed.append(read[:-1] / read[-1])
    return predictions(ids, torch.stack(mixed))


@pytest.fixture(scope="module")
def windows() -> list[torch.Tensor]:
    """Twelve windows of 256 tokens; five shorter ones; and six that begin like the first, four of them up to 80."""
    generator = torch.Generator().manual_seed(1)
    made = [torch.randint(IDS, (length,), generator=generator) for length in [LENGTH] * 12 + [70, 90, 33, 140, 201]]
    for k, shared in enumerate([80, 80, 80, 80, 48, 112]):
        made[k + 1][:shared] = made[0][:shared]
    return made


Fault = Callable[[int, list[torch.Tensor]], tuple[np.ndarray, np.ndarray]]
PREFIXES = {1: 5, 2: 5, 3: 5, 4: 5, 5: 3, 6: 7}
"""Whole blocks that each window has in common with the first."""
FAULTS: dict[str, tuple[Fault, Fault]] = {
    "state": (lambda k, w: by_state(w[k]), lambda k, w: by_state(w[k], torch.bfloat16)),
    "rotary": (lambda k, w: by_attention(w[k]), lambda k, w: by_attention(w[k], base=2e4)),
    "padding": (lambda k, w: by_attention(w[k]), lambda k, w: by_attention(w[k], pad=LENGTH - len(w[k]))),
    "prefix": (
        lambda k, w: by_attention(w[k]),
        lambda k, w: by_attention(w[k], wrong=(PREFIXES[k], w[11]) if k in PREFIXES else None),
    ),
}


def write_run(folder: Path, windows: list[torch.Tensor], model: Fault, dtype: str = "float32") -> Path:
    offsets = np.cumsum([0, *map(len, windows)])
    tokens = torch.cat(windows).numpy().astype(np.int32)
    sources = [f"text-{k}.txt" for k in range(len(windows))]
    data = EvaluationSet(
        tokens, offsets, offsets[1:], ["d"] * len(windows), sources, LENGTH, "document", None, "t", "f"
    )
    columns = [model(k, windows) for k in range(len(windows))]
    identity = RunIdentity("weights", data.fingerprint, dtype, "cpu", 1, "native")
    run = begin_run(folder, new_record("m", "m", SourceRecord(), data.record, identity), overwrite=False)
    logprob, top1 = (np.concatenate(each) for each in zip(*columns, strict=True))
    write_shards(folder, data, logprob, top1.astype(np.int32))
    finish_run(run, RunResult(1, "chunked", 1, "cpu", 1, 1.0, None))
    return folder


@pytest.fixture(scope="module")
def pairs(tmp_path_factory, windows) -> dict[str, tuple[Path, Path]]:
    place = tmp_path_factory.mktemp("diff")
    return {
        name: (write_run(place / name / "a", windows, good), write_run(place / name / "b", windows, bad, "bfloat16"))
        for name, (good, bad) in FAULTS.items()
    }


def test_a_state_kept_in_bfloat16_grows_along_the_window(pairs):
    found = argap.diff(*pairs["state"])
    first = found.findings[0]
    assert first.where == "growth"
    assert first.low is not None
    assert first.low > LENGTH // 2
    assert first.outside is not None
    assert first.inside > 1.5 * first.outside
    assert "grows along the window" in words(first)
    means = [each.absolute for each in found.breakdowns["position"]]
    assert means[-1] > 2 * means[0] > 0  # pyright: ignore[reportOptionalOperand]


def test_a_wrong_rotary_base_grows_along_the_window(pairs):
    found = argap.diff(*pairs["rotary"])
    assert found.findings[0].where == "growth"
    assert found.whole.agreement is not None
    assert found.whole.agreement < 1


def test_padding_that_leaks_is_only_in_short_windows(pairs):
    found = argap.diff(*pairs["padding"])
    first = found.findings[0]
    assert (first.where, first.windows, first.of_windows) == ("short windows", 5, 5)
    assert first.share == pytest.approx(1, abs=1e-4)
    assert words(first).startswith("only in windows shorter than 256 tokens (5 of 5 such): padding is seen; 100.0% of")
    assert {each.name for each in found.breakdowns["window"][:5]} == {"12", "13", "14", "15", "16"}


def test_a_prefix_cache_off_by_one_block_begins_behind_a_block(pairs):
    found = argap.diff(*pairs["prefix"])
    prefix, onset = found.findings[:2]
    assert (prefix.where, prefix.windows, prefix.of_windows) == ("shared prefix", 6, 6)
    assert (onset.where, onset.low, onset.high, onset.block) == ("onset", 49, 113, BLOCK)
    text = words(onset)
    assert "begins abruptly, at positions 49 to 113, always right behind a multiple of 16 tokens, in 6 of 6" in text


def test_figures_are_those_of_the_files(pairs):
    found = argap.diff(*pairs["rotary"], tolerance=0.1)
    from argap.tokens.runs import open_run, read_logprobs

    (one, top1), (two, other) = (read_logprobs(open_run(folder)) for folder in pairs["rotary"])
    some = ~np.isnan(one)
    delta = two[some].astype(np.float64) - one[some]
    assert found.whole.absolute == pytest.approx(np.abs(delta).mean())
    assert found.whole.agreement == pytest.approx((top1 == other)[some].mean())
    assert found.beyond == (np.abs(delta) > 0.1).sum() > 0
    assert found.whole.quantiles is not None
    assert found.whole.quantiles.q99 == pytest.approx(np.quantile(np.abs(delta), 0.99), rel=0.05)
    assert (
        [abs(b - a) for a, b in (each.logprobs for each in found.worst)]
        == pytest.approx(  # pyright: ignore
            np.sort(np.abs(delta))[::-1][:10], rel=1e-5
        )
    )
    for by in ("position", "distance", "length"):
        assert sum(each.n for each in found.breakdowns[by]) == some.sum()
        assert sum(each.share or 0 for each in found.breakdowns[by]) == pytest.approx(1)
    assert found.settings["dtype"] == ("float32", "bfloat16")


def test_the_same_run_is_identical_and_rounding_is_everywhere(pairs, windows, tmp_path):
    (found,) = argap.diff(pairs["state"][0], pairs["state"][0], tolerance=0).findings
    assert words(found) == f"identical: all {found.n:,} log-probs are the same"

    def rounded(k: int, w: list[torch.Tensor]) -> tuple[np.ndarray, np.ndarray]:
        logprob, top1 = by_attention(w[k])
        return logprob + np.random.default_rng(k).normal(0, 1e-3, len(logprob)).astype(np.float32), top1

    noisy = write_run(tmp_path / "noisy", windows, rounded)
    assert [each.where for each in argap.diff(pairs["rotary"][0], noisy).findings] == ["even"]


def test_distances_and_single_windows_are_found_too():
    generator = np.random.default_rng(0)
    window, position = np.repeat(np.arange(20), 100), np.tile(np.arange(1, 101), 20)
    distance = np.where(generator.random(2000) < 0.3, generator.integers(1, 64, 2000), 0)
    quiet = np.abs(generator.normal(0, 1e-5, 2000))
    plain = Tokens(quiet, window, position, distance, np.full(20, 101), np.zeros(20, dtype=int))
    far = plain._replace(absolute=quiet + 0.1 * (distance >= 33))
    (found,) = locate(far)
    assert (found.where, found.low, found.inside) == ("distance", 33, pytest.approx(0.1, rel=0.1))
    one = plain._replace(absolute=quiet + 0.1 * (window == 7))
    first, *_ = locate(one)
    assert (first.where, first.windows, first.of_windows) == ("few windows", 1, 20)
    (start,) = locate(plain._replace(absolute=quiet + 1 / position))
    assert (start.where, start.low) == ("decline", 1)


def test_prefixes_shared_with_earlier_windows():
    a, b = np.arange(20), np.arange(100, 112)
    tokens = np.concatenate([a, b, a[:12], [7, 7], a])
    assert shared_prefixes(tokens, np.array([0, 20, 32, 46, 66])).tolist() == [0, 0, 12, 20]


def test_the_command_prints_places_json_and_fails_beyond_a_tolerance(pairs, run_command):
    folders = [str(folder) for folder in pairs["padding"]]
    code, out, _ = run_command("diff", *folders)
    assert code == 0
    for text in ("Where: only in windows shorter than 256 tokens", "float32 and bfloat16", "Tokens that differ most"):
        assert text in " ".join(out.split())
    code, out, err = run_command("diff", *folders, "--tolerance", "1e-3", "--json")
    assert code == 1
    assert json.loads(out)["findings"][0]["words"].startswith("only in windows shorter")
    said, line = err.strip().splitlines()
    assert said.endswith("its tokenizer is not here, so tokens are shown by their ids")
    assert "tokens differ by more than 0.001 nats (largest" in line
    assert run_command("diff", *folders, "--tolerance", "100")[0] == 0


def test_runs_of_other_tokens_and_bad_tolerances_are_refused(pairs, windows, tmp_path):
    other = write_run(tmp_path / "other", [w.flip(0) for w in windows], FAULTS["rotary"][0])
    with pytest.raises(MismatchError, match=r"other holds evaluation set .*the text itself differs"):
        argap.diff(pairs["rotary"][0], other)
    with pytest.raises(ArgapError, match="`tolerance` -1: expected a finite number of nats, 0 or more"):
        argap.diff(*pairs["rotary"], tolerance=-1)
    with pytest.raises(ArgapError, match=r"no run.json there; expected a run folder"):
        argap.diff(pairs["rotary"][0], tmp_path)


def test_a_damaged_tokenizer_is_no_reason_to_show_ids(token_result, tmp_path):
    copied = Path(shutil.copytree(token_result, tmp_path / "out"))
    config = copied / "labels" / "tokenizer_config.json"
    config.write_text(config.read_text().replace("{", '{"x": 1, ', 1))
    with pytest.raises(FormatError, match=r"tokenizer_config\.json"):
        argap.diff(copied / "ref", copied / "m2")


def test_where_there_is_no_tokenizer_a_line_says_so(pairs, capsys):
    argap.diff(*pairs["state"])
    assert "its tokenizer is not here, so tokens are shown by their ids" in capsys.readouterr().err
