"""Sources of a text: leaving some out, the gap without each, and warnings of a text that no result should rest on."""

import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from argap.errors import ArgapError, FormatError
from argap.records import EvaluationRecord, Gap, read_gap
from argap.reports.pages.write import write_report
from argap.reports.tables.by_source import sources_table
from argap.reports.tables.formats import latex, markdown
from argap.results.by_source import BySource, by_source, group, read_by_source
from argap.results.sources import choose, parse_conditions, read_documents, source_name, without
from argap.results.summary import summarize
from argap.results.text_warnings import HitCounts, outliers, warn_of_bigrams, warn_of_sources
from argap.slices.cells import write_cells
from argap.slices.figures import Seeds
from argap.slices.margins import sum_hits
from argap.text.tokenizer import load_tokenizer

ROOT = Path(__file__).parents[2]
TABLE = pd.DataFrame(
    {
        "document": np.arange(6, dtype=np.int32),
        "domain": ["web", "web", "web", "web", "wiki", "wiki"],
        "source": ["news", "news", "mail", "mail", "facts", "foreign"],
    }
)
PERPLEXITIES = [3.9, 6.0, 7.1, 8.6, 9.4, 9.4, 28.7, 33.5, 36.2, 43.5, 47.2, 51.9]
"""Of a 7 M model on twelve sources, each with training text of its own."""


def cells(gap_of_hits: list[float], gap_of_others: list[float], difficulty: list[float]) -> pd.DataFrame:
    """Of each document 10 hits and 30 other tokens; gaps and difficulty in nats per token."""
    rows = [
        {
            "document": d,
            "domain": TABLE["domain"][d],
            "repeated": hit,
            "distance": 0,
            "n": n,
            "logprob/attention": -n * difficulty[d],
            "logprob/model": -n * (difficulty[d] + gap),
        }
        for d in range(6)
        for hit, n, gap in ((True, 10, gap_of_hits[d]), (False, 30, gap_of_others[d]))
    ]
    return pd.DataFrame(rows)


SOURCES = dict(enumerate(TABLE["source"]))
FOREIGN = cells([0.2, 0.3, 0.2, 0.3, 0.2, 1.0], [0.1, 0.2, 0.1, 0.2, 0.1, 0.1], [2.0, 2.2, 2.1, 2.0, 2.1, 4.0])


def gap_of(frame: pd.DataFrame, seeds: Seeds | None = None) -> Gap:
    evaluation = EvaluationRecord("0" * 64, "words", "0" * 64, 246, 240, 6, 6, 2048, "packed")
    return summarize(frame, reference="attention", threshold=None, evaluation=evaluation, index=None, seeds=seeds)


def warned(frame: pd.DataFrame, sources: dict[int, str]) -> tuple[str, ...]:
    gap = gap_of(frame)
    return warn_of_sources(gap, sum_hits(frame, gap.threshold, gap.bins), sources)


def left_out(frame: pd.DataFrame, sources: dict[int, str] | None = SOURCES) -> tuple[BySource, Gap]:
    gap = gap_of(frame)
    return by_source(gap, frame, sources), gap


def test_sources_that_end_in_a_nul_are_told_apart():
    named = {"news": "a", "mail": "a\0"}
    found, _ = left_out(FOREIGN)
    again, _ = left_out(FOREIGN, {number: named.get(str(name), str(name)) for number, name in SOURCES.items()})
    expected = {named.get(row.name, row.name): row.models for row in found.sources}
    assert {row.name: row.models for row in again.sources} == expected


def test_the_share_without_a_source_is_that_of_the_other_cells():
    found, _ = left_out(FOREIGN)
    lost = FOREIGN["logprob/attention"] - FOREIGN["logprob/model"]
    assert {row.name: row.documents for row in found.sources} == {"news": 2, "mail": 2, "facts": 1, "foreign": 1}
    by_name = {row.name: row for row in found.sources}
    for name, documents in TABLE.groupby("source")["document"]:
        own = FOREIGN["document"].isin(documents)
        (model,) = by_name[str(name)].models
        assert by_name[str(name)].share_of_tokens == pytest.approx(own.mean())
        assert model.part == pytest.approx(lost[own].sum() / lost.sum())
        rest = without(FOREIGN, documents.to_numpy())
        lost_there = rest["logprob/attention"] - rest["logprob/model"]
        assert model.hits == pytest.approx(lost_there[rest["repeated"]].sum() / lost_there.sum())
    (whole,) = found.hits
    assert (whole.part, whole.hits) == (1, pytest.approx(lost[FOREIGN["repeated"]].sum() / lost.sum()))


def test_a_model_may_be_level_or_unresolved_without_a_source():
    easy = [0.0, 0.1, 0.3, 0.3, 0.3, 0.3]  # news, mail, facts, foreign: without mail four documents are left
    found, gap = left_out(cells(easy, easy, [2.0] * 6))
    assert gap.directions == {"model": "behind"}
    cell = {row[0]: row[3] for row in sources_table(found, gap).rows}
    assert [name for name in cell if cell[name] == "level"] == ["mail"]
    found, gap = left_out(cells([0.2, -0.1, 0.2, -0.1, 0.2, 0.2], [0.3] * 6, [2.0] * 6))
    table = sources_table(found, gap)
    assert all(row[3].startswith("(") for row in table.rows)
    assert table.notes[1] == (
        "Unresolved without that source (the interval of the slice's part of the gap contains 0): model (4 of 4)."
    )


def test_figures_are_means_over_seeds():
    seeds = {"attention": ("attention",), "model": ("model", "model-seed1")}
    second = FOREIGN["logprob/model"] - 0.2 * ~FOREIGN["repeated"]
    frame = FOREIGN.assign(**{"logprob/model-seed1": second})
    gap = gap_of(frame, seeds)
    found = by_source(gap, frame, SOURCES)
    mean = FOREIGN.assign(**{"logprob/model": (FOREIGN["logprob/model"] + second) / 2})
    expected, _ = left_out(mean)
    assert [each.model for each in found.hits] == ["model"]
    assert found.hits[0].hits == pytest.approx(expected.hits[0].hits)
    for own, row in zip(found.sources, expected.sources, strict=True):
        assert own.models[0].part == pytest.approx(row.models[0].part)
        assert own.models[0].hits == pytest.approx(row.models[0].hits)


def sources_as_documents(sources: int, models: int = 1) -> pd.DataFrame:
    """Cells of two sources a domain, each with one document, all of equal size."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "document": np.repeat(np.arange(sources), 2),
            "domain": np.repeat([f"d{k // 2}" for k in range(sources)], 2),
            "repeated": np.tile([True, False], sources),
            "distance": 0,
            "n": np.tile([10, 30], sources),
        }
    )
    names = ["model", *(f"model-{k}" for k in range(1, models))]
    gaps = {f"logprob/{name}": -frame["n"] * (2 + rng.normal(0.3, 0.1, len(frame))) for name in names}
    return frame.assign(**{"logprob/attention": -2.0 * frame["n"]}, **gaps)


def twice(frame: pd.DataFrame) -> tuple[pd.DataFrame, dict[int, str]]:
    """Each document once more, with the name of its source: they count as one."""
    frame = pd.concat([frame.assign(document=2 * frame["document"] + k) for k in (0, 1)]).sort_values("document")
    return frame, {d: f"s{d // 2}" for d in frame["document"].unique()}


def test_intervals_with_sources_as_units_are_those_of_sources_as_documents():
    alone = sources_as_documents(12)
    expected = gap_of(alone)
    found, gap = left_out(*twice(alone))
    (own,) = found.over
    assert own.model == "model"
    assert own.delta_ci95 == pytest.approx(expected.on_all["model"].delta_ci95)
    assert own.share_ci95 == pytest.approx(expected.on_hits["model"].share_ci95)
    narrow = gap.on_all["model"].delta_ci95
    assert narrow is not None
    assert own.delta_ci95 is not None
    assert np.ptp(narrow) < 0.8 * np.ptp(own.delta_ci95)
    note = next(note for note in sources_table(found, gap).notes if "units" in note)
    (low, high), share = own.delta_ci95, own.share_ci95
    assert share is not None
    assert note == (
        f"With the 12 sources, not the documents, as units, ΔNLL is +{low:.3f} to +{high:.3f} for model "
        f"({100 * share[0]:.1f}–{100 * share[1]:.1f}% of it on repeated bigrams)."
    )


def test_of_many_models_those_are_named_that_become_level():
    frame, sources = twice(sources_as_documents(12, models=6))
    found, gap = left_out(frame, sources)
    assert sources_table(found, gap).notes[-1].endswith("as units, no model becomes level.")
    lost = frame["n"] * np.where(frame["document"] // 2 % 2, -0.1, 0.3)  # in half of the sources
    found, gap = left_out(frame.assign(**{"logprob/model-3": frame["logprob/attention"] - lost}), sources)
    assert gap.directions["model-3"] == "behind"
    assert sources_table(found, gap).notes[-1].endswith("as units, these become level: model-3.")


@pytest.mark.parametrize(("number", "of"), [(9, "9"), (12, "3")])
def test_few_or_unequal_sources_are_no_units(number, of):
    frame, sources = twice(sources_as_documents(number))
    if number == 12:
        large = frame["document"] < 4
        frame = frame.assign(**{x: frame[x].where(~large, 20 * frame[x]) for x in frame if x == "n" or "/" in x})
    found, gap = left_out(frame, sources)
    assert found.over == ()
    note = f"The {number} sources count as {of} of equal size, too few to be the units of intervals: what holds of them"
    assert sources_table(found, gap).notes[-1].startswith(note)
    domains, gap = left_out(frame, {})
    assert (domains.by, domains.over) == ("domain", ())
    assert not any("units" in note for note in sources_table(domains, gap).notes)


@pytest.mark.parametrize(
    ("frame", "sources", "reason"),
    [
        (
            FOREIGN.loc[FOREIGN["domain"] == "web"],
            SOURCES | dict.fromkeys(range(4), "news"),
            "one domain, web: leaving it out",
        ),
        (cells([0.1, -0.1] * 3, [0.0] * 6, [2.0] * 6), SOURCES, "No model has a gap or a lead, so the sources"),
        (FOREIGN.drop(columns="logprob/model"), SOURCES, "No other model with a finite ΔNLL to compare."),
    ],
)
def test_nothing_to_leave_out_is_said_in_words(frame, sources, reason):
    found, gap = left_out(frame, {d: sources[d] for d in frame["document"].unique()})
    assert found.sources == ()
    assert reason in (found.reason or "")
    table = sources_table(found, gap)
    assert "|" not in markdown(table)
    assert reason in markdown(table)
    assert "tabular" not in latex(table)


def test_without_a_table_groups_are_domains_of_tokens():
    gap = gap_of(FOREIGN)
    grouped = group(gap, sum_hits(FOREIGN, gap.threshold, gap.bins))
    assert (grouped.by, grouped.names, grouped.documents.tolist()) == ("domain", ["web", "wiki"], [4, 2])
    assert grouped.n.tolist() == [[160, 80], [40, 20]]
    named = FOREIGN.assign(domain=FOREIGN["domain"].replace({"web": "a\0", "wiki": "a"}))
    assert group(gap, sum_hits(named, gap.threshold, gap.bins)).names == ["a", "a\0"]


def test_a_level_model_has_no_warnings():
    level = cells([0.1, -0.1, 0.1, -0.1, 0.1, -0.1], [0.0] * 6, [2.0] * 6)
    assert warned(level, SOURCES) == ()


@pytest.mark.parametrize(
    ("perplexity", "far"),
    [
        ([*PERPLEXITIES, 111.7], [12]),  # raw WikiText among sources with training text of their own
        ([10.0, 12.0, 40.0], [2]),
        ([10.0, 11.0, 13.0], []),  # close together, but near: the spread is at least a quarter of the median
        (PERPLEXITIES, []),
        ([4.7, 7.1, 9.1, 43.6, 48.0, 55.0], []),  # an easy and a difficult kind
        ([4.7, 7.1, 9.1, 9.3, 43.6, 48.0], []),
        ([4.7, 7.1, 9.1, 9.3, 12.0, 48.0], [5]),
        ([10.0, 90.0], []),  # either may be the odd one
        ([10.0, 12.0, 20.6], []),  # three: up to 1.875 times the mean of the others, 20.625
        ([10.0, 12.0, 20.7], [2]),
        ([10.0, 20.0, 39.7], []),  # and up to 3.5 / √2 times their difference above it, 39.75
        ([10.0, 20.0, 39.8], [2]),
        ([], []),
    ],
)
def test_outliers(perplexity, far):
    assert np.flatnonzero(outliers(np.array(perplexity))).tolist() == far


def test_enormous_perplexities_are_judged_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert outliers(np.array([2e200, 1e200, 2.5e200, 9e201])).tolist() == [False, False, False, True]


def test_a_foreign_source_is_named_with_the_share_without_it():
    lines = warned(FOREIGN, SOURCES)
    assert lines[0] == (
        "source foreign: perplexity 55 under attention, 7.8 to 8.2 in the 3 others; is the text like any training text?"
    )
    # 13 of 46 nats; 22 of 46 on hits, and 12 of the other 33
    foreign = next(line for line in lines[1:] if line.startswith("source foreign"))
    assert foreign == (
        "source foreign: 17% of the tokens, 28% of the gap of model; without it 36% of that gap is on hits, with it 48%"
    )


def test_one_source_and_one_per_document_are_judged_by_domain():
    for sources in (dict.fromkeys(range(6), "all"), {d: f"{d}.txt" for d in range(6)}):
        assert all(line.startswith("domain ") for line in warned(FOREIGN, sources))


def test_the_listed_sources_of_a_committed_result_hold_the_whole_gap():
    """Of models with several seeds, and of one that is level."""
    folder = ROOT / "results" / "table1-mini" / "7m"
    gap = read_gap(folder)
    found = read_by_source(folder, gap)
    assert found is not None
    assert (found.by, len(found.sources), found.smaller) == ("source", 12, 0)
    for k, whole in enumerate(found.hits):
        level = gap.directions[whole.model] == "level"
        assert sum(row.models[k].part or 0 for row in found.sources) == pytest.approx(0 if level else 1)
        assert whole.hits == pytest.approx(gap.on_hits[whole.model].share)
    table = sources_table(found, gap)
    assert table.columns == (
        "Source",
        "% of tokens",
        "% of gap",
        "Range",
        "Change of the share on AR hits, points",
        "Range",
    )  # fifteen models
    assert [row[0] for row in table.rows[:2]] == ["eltec_eng", "stacks_project"]
    assert read_by_source(folder / "none", gap) is None


def written(folder: Path, frame: pd.DataFrame, sources: dict[int, str] | None = None) -> tuple[str, str]:
    """The page and the Markdown of a result with these cells."""
    gap = gap_of(frame)
    write_cells(frame, folder / "cells.parquet", gap.bins)
    if sources is not None:
        TABLE.assign(source=TABLE["document"].map(sources.get)).to_parquet(folder / "documents.parquet")
    page = write_report(folder, gap=gap).read_text(encoding="utf-8")
    return page, (folder / "table.md").read_text(encoding="utf-8")


def test_page_and_markdown_show_each_source_without_paths(tmp_path, monkeypatch):
    monkeypatch.setattr("argap.reports.figures.result.draw_all", lambda *_: {})
    found, gap = left_out(FOREIGN)
    shown = sources_table(found, gap)
    page, text = written(tmp_path, FOREIGN, {d: f"/home/me/{source}" for d, source in SOURCES.items()})
    assert markdown(shown) in text
    section = page.partition('<section id="sources">')[2].partition("</section>")[0]
    for row in shown.rows:
        assert f'<tr><th scope="row" class="left">{row[0]}</th>' + "".join(f"<td>{c}</td>" for c in row[1:]) in section
    assert "/home/me" not in page + text


def test_a_document_that_the_table_lacks_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("argap.reports.figures.result.draw_all", lambda *_: {})
    written(tmp_path, FOREIGN, SOURCES)
    TABLE.drop(index=4).to_parquet(tmp_path / "documents.parquet")
    with pytest.raises(FormatError, match=r"documents\.parquet: no document 4, which cells\.parquet has; repeat its"):
        write_report(tmp_path, gap=gap_of(FOREIGN))


def test_one_source_is_an_empty_state_with_words(tmp_path, monkeypatch):
    monkeypatch.setattr("argap.reports.figures.result.draw_all", lambda *_: {})
    page, text = written(tmp_path, FOREIGN.loc[FOREIGN["domain"] == "web"], dict.fromkeys(range(6), "one"))
    reason = "All of the text is one domain, web: leaving it out leaves nothing."
    assert reason not in page  # which leaves out the section
    assert text.endswith(f"**Without each domain**\n\n- {reason}\n")


@pytest.mark.parametrize("pending", [0, 2**22])
def test_frequent_bigrams_are_counted_over_portions(monkeypatch, pending):
    monkeypatch.setattr("argap.results.text_warnings.PENDING", pending)
    tokenizer = load_tokenizer(ROOT / "argap" / "demo" / "tokenizer")
    generator = np.random.default_rng(0)
    tokens = generator.integers(5, 60, size=40_000).astype(np.int32)
    tokens[100:2100:2], tokens[101:2101:2] = 7, 8
    hits = generator.random(len(tokens)) < 0.5
    counts, few = HitCounts(), HitCounts()
    for rows in (slice(20_000), slice(20_000, 30_000), slice(30_000, None)):
        hits[rows.start or 0] = False
        counts.add(tokens[rows], hits[rows])
    few.add(tokens[:200], hits[:200])
    pairs = [(int(tokens[k - 1]), int(tokens[k])) for k in np.flatnonzero(hits)]
    assert counts.total == len(pairs)
    expected = Counter(first << 32 | second for first, second in pairs)
    assert counts.above(0) == dict(sorted(expected.items(), key=lambda each: (-each[1], each[0])))
    line, *others = warn_of_bigrams(counts, tokenizer)
    n = pairs.count((7, 8))
    text = tokenizer.decode([7, 8])
    assert line == f"bigram {text!r}: {100 * n / len(pairs):.1f}% of the hits ({n:,} of {len(pairs):,})"
    assert [other.split(":")[0] for other in others] == [f"bigram {tokenizer.decode([8, 7])!r}"]
    assert few.total > 0
    assert warn_of_bigrams(few, tokenizer) == ()  # too few hits


def test_documents_are_chosen_by_any_condition():
    where = parse_conditions(["source=foreign", "document=2", "domain=wiki"])
    assert choose(TABLE, where).tolist() == [2, 4, 5]
    with pytest.raises(ArgapError, match=r"`without` source=wikitext: no document has it; known are news, mail"):
        choose(TABLE, parse_conditions(["source=wikitext"]))
    for text in ("foreign", "kind=foreign", "source="):
        with pytest.raises(ArgapError, match="expected source=NAME, domain=NAME or document=NUMBER"):
            parse_conditions([text])


def test_a_table_of_documents_is_read_from_csv(tmp_path):
    path = tmp_path / "documents.csv"
    TABLE.to_csv(path, index=False)
    pd.testing.assert_frame_equal(read_documents(path), TABLE.astype({"domain": str, "source": str}))
    for domains, sources in ((["007", "010"], ["1e5", "NA"]), (["true", "TRUE"], ["a\nb", ""])):
        rows = "".join(f'{k},{row[0]},"{row[1]}"\n' for k, row in enumerate(zip(domains, sources, strict=True)))
        path.write_text(f"document,domain,source\n{rows}")
        assert (read := read_documents(path))["domain"].tolist() == domains
        assert read["source"].tolist() == sources
    path.write_text("document,domain\n0,web\n")
    with pytest.raises(FormatError, match=r"documents\.csv: no column source"):
        read_documents(path)
    for rows in ("0,web,a\n0,web,b", "4294967296,web,a"):
        path.write_text(f"document,domain,source\n{rows}\n")
        with pytest.raises(FormatError, match="expected a different whole number in each row"):
            read_documents(path)
    # A column of lists, which metadata calls one of texts.
    table = pa.Table.from_pandas(TABLE.astype({"domain": str, "source": str}))
    lists = table.set_column(1, "domain", pa.array([["a"]] * len(TABLE))).replace_schema_metadata(table.schema.metadata)
    pq.write_table(lists, tmp_path / "documents.parquet")
    with pytest.raises(FormatError, match=r"documents\.parquet: domain is list<.*; expected strings"):
        read_documents(tmp_path / "documents.parquet")


def test_a_place_without_a_number_is_a_source():
    assert [source_name(place) for place in ("a#b#12", "c#", "d.txt")] == ["a#b", "c#", "d.txt"]
