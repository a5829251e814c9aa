"""The HTML page: complete, self-contained, with hostile text escaped."""

import csv
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from argap.errors import FormatError
from argap.files.atomic import write_json, write_text
from argap.records import GAP_FORMAT, NAMED, Estimate, Examples, Gap, SliceInfo, save_gap, write_record
from argap.reports.pages.page import TEMPLATES
from argap.reports.pages.write import write_report
from argap.reports.tables.sentences import CAPTIONS
from argap.reports.tables.tokens import visible
from argap.results.layout import FIGURES, OWN_SCALES, remove_report
from tests.conftest import changed

Maker = Callable[..., Any]

HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    '" onmouseover="alert(2)" x="',
    "' onfocus='alert(3)",
    "{{ 7 * 7 }}",
    "<style>*{display:none}</style>",
    "line\nbreak",
    "\x00\x07\t",
    "\u202eright to left\u200f",
    "\u2028",
    "\ud800",
    " שלום",
    "http://example.org/x.js",
    "&amp;",
    "�",
]


class Page(HTMLParser):
    """Elements, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def spans(self, name: str) -> list[dict[str, str | None]]:
        return [a for tag, a in self.tags if tag == "span" and name in (a.get("class") or "").split()]


def write(folder: Path, gap: Gap, examples: Examples | None = None) -> str:
    save_gap(folder / "gap.json", gap)
    if examples is not None:
        write_record(folder / "examples.json", examples)
    return write_report(folder).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def written(gap: Gap, make_examples: Maker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a result and its report."""
    folder = tmp_path_factory.mktemp("written")
    write(folder, gap, make_examples(["a", " b"]))
    return folder


@pytest.fixture(scope="module")
def page(written: Path) -> str:
    return (written / "report.html").read_text(encoding="utf-8")


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is written without its figures, which take most of the time."""
    monkeypatch.setattr("argap.reports.figures.result.draw_all", lambda *_: {})


def test_all_files_are_written_beside_the_result(gap: Gap, page: str, tmp_path: Path, make_examples: Maker) -> None:
    text = write(tmp_path, gap, make_examples(["a", " b"]))
    names = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    assert {"report.html", "table.md", "table.tex", "table.csv", "figures/gap_by_distance.svg"} <= names
    assert len(names) == 2 + 4 + 6 + 4  # four figures also with a scale for each model
    assert text.count("<svg") == 6 + 4
    assert f"base_conv is {gap.deltas['base_conv']:.3f} nats per token behind attention" in text
    assert gap.fingerprint in text
    assert text == page  # again the same


def test_the_page_loads_nothing_and_runs_its_own_script_alone(page: str) -> None:
    parsed = Page(page)
    code = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval|Function\(|import|fetch|XMLHttp", code
    )
    digest = b64encode(hashlib.sha256(code.encode()).digest()).decode()
    (policy,) = [a["content"] for tag, a in parsed.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    assert page.count(f"<script>{code}</script>") == 1
    page = page.replace(f"<script>{code}</script>", "")
    data = re.search(r'<script type="application/json" id="data">([^<>&]+)</script>', page)
    assert data is not None
    assert data[1].isascii()
    assert len(json.loads(data[1])["states"]) > 10
    page = page.replace(data[0], "")
    assert not re.search(r"https?:|//[a-z]", page)
    assert not re.search(r"<script|<!--|@import|\son\w+=", page)
    for _, attributes in parsed.tags:
        for name in ("src", "href", "xlink:href", "data", "action"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), value
    ids = [a["id"] for _, a in parsed.tags if "id" in a]
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', page))
    assert used <= set(ids)


def test_hostile_text_stays_text(tmp_path: Path, make_gap: Maker, make_examples: Maker) -> None:
    name = "<b>model</b>\"'\u202e"
    gap = make_gap({name: 1.0}, domains=("<i>domain</i>", "other\x00"))
    gap = replace(gap, evaluation=replace(gap.evaluation, data=("<u>path</u>",)))
    # JSON files hold no lone surrogate: the window is shown apart, below.
    tokens = [t for t in HOSTILE if t != "\ud800"]
    examples = make_examples(tokens, models=("attention", name))
    window = replace(examples.windows[0], domain="<i>domain</i>", source="<script>source</script>")
    text = write(tmp_path, gap, replace(examples, windows=(window,)))
    page = Page(text)
    allowed = "html head meta link title style body main header aside section article h1 h2 h3 p div ul li dl dt dd"
    allowed += " span strong b small cite br figure figcaption table thead tbody tfoot tr th td"
    allowed += " nav a details summary svg g defs path use rect clippath label input output button script"
    assert {tag for tag, _ in page.tags} - set(allowed.split()) == set()
    assert sum(tag == "style" for tag, _ in page.tags) == 1 + 6  # ours, and one in each figure
    assert sum(tag == "script" for tag, _ in page.tags) == 2  # the data and the code
    assert not any(attribute.startswith("on") for _, a in page.tags for attribute in a)
    assert not re.search("[\x00-\x08\x0b-\x1f\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028]", text)
    shown = "".join(page.text)
    for token in tokens:
        assert all(visible(line) in shown for line in token.split("\n"))
    assert "line↵" in shown
    assert "{{ 7 * 7 }}" in shown
    titles = [a["title"] or "" for a in page.spans("t") if "title" in a]
    assert len(titles) == len(tokens)
    assert any("<b>model</b>\"'⟨202E⟩ −4.50" in title for title in titles)


def test_cases_reach_the_page(tmp_path: Path, make_gap: Maker) -> None:
    """A loss of −1 on the hits: worse on other tokens but better on hits. Also a model equal to the reference."""
    gap = make_gap({"same": 0.0, "better": -1.0})
    assert gap.directions == {"same": "level", "better": "ahead"}
    text = write(tmp_path, gap)
    assert "same is level with attention: ΔNLL is +0.000 nats" in text
    assert "nothing to take a share of" in text
    assert f"better is {-gap.deltas['better']:.3f} nats per token ahead of attention" in text
    assert "What it looks like in text" not in text


@pytest.mark.usefixtures("no_figures")
def test_many_models_share_one_summary_ordered_by_gap(tmp_path: Path, make_gap: Maker) -> None:
    losses = {"bad": 1.4, "good": 0.2, **{f"m{k}": 0.4 + 0.1 * k for k in range(7)}}
    gap = make_gap(losses)
    text = write(tmp_path, gap)
    low, high = (f"{gap.deltas[name]:.3f}" for name in ("good", "bad"))
    title = f"9 models against attention: from {low} behind (good) to {high} behind (bad), in nats per token"
    assert f"<h1>{title}</h1>" in text
    listed = re.findall(r'<li><b title="(\w+)">', text)
    assert listed == sorted(losses, key=losses.__getitem__)
    # Tables of parts show four models at a time: three groups of nine.
    assert text.count("<tfoot>") == 6 * 3
    for model, delta in gap.deltas.items():
        assert text.count(f"ΔNLL, {model}</th>") == 6, model
        assert f"+{delta:.3f} · 100%" in text


def test_every_colour_of_a_figure_follows_the_scheme(page: str) -> None:
    assert "var(--model-0)" in page
    assert "prefers-color-scheme: dark" in page
    assert not [style for style in re.findall(r'style="[^"]*"', page) if re.search("#[0-9a-f]{6}", style)]


@pytest.mark.usefixtures("no_figures")
def test_windows_that_the_reference_does_not_know_are_left_out(tmp_path: Path, gap: Gap, make_examples: Maker) -> None:
    examples = make_examples(["a", " b"])
    (known,) = examples.windows
    unknown = replace(known, domain="unknown", logprob=known.logprob | {"attention": (None, -3.0)})
    text = write(tmp_path, gap, replace(examples, windows=(known, unknown)))
    assert text.count("<article>") == 1
    assert "Left out: 1 whose hit the reference itself gives less than 25%." in text


def test_a_reference_alone_makes_a_page(tmp_path: Path, make_gap: Maker) -> None:
    assert "attention alone: no other model to compare" in write(tmp_path, make_gap({}))


def test_printed_parts_add_up_to_the_whole(gap: Gap, page: str) -> None:
    whole = gap.on_all["base_conv"]
    feet = re.findall(r"<tfoot>(.*?)</tfoot>", page, flags=re.DOTALL)
    assert len(feet) == 6
    for foot in feet:
        assert "<td>20,000</td><td>100.0%</td>" in foot
        assert f"<td>{whole.nll:.2f}</td>" in foot
        assert whole.delta_ci95 is not None
        low, high = whole.delta_ci95
        ends = f"<br><small>{low:.3f} to {high:.3f}</small></td>"
        assert f"<td>+{gap.deltas['base_conv']:.3f} · 100%{ends}" in foot


@pytest.mark.usefixtures("no_figures")
def test_each_part_has_its_interval_and_says_where_it_is_unresolved(gap: Gap, tmp_path: Path) -> None:
    first = gap.parts("distance")[0]
    assert first["base_conv"].contribution_ci95 is not None
    text = write(
        tmp_path,
        changed(gap, "base_conv", first.bin, contribution=0.1, contribution_ci95=(-0.001, 0.2), share=0.2, reason="no"),
    )
    assert "<td>+0.100 · (20%)<br><small>−0.001 to 0.200</small></td>" in text
    low, high = first["hyena"].contribution_ci95 or (0, 0)
    assert f"<br><small>{low:.3f} to {high:.3f}</small></td>" in text


RARE = (
    Estimate("attention", NAMED, "rare", 700, 0.035, 2.0, 7.389),
    Estimate(
        *("base_conv", NAMED, "rare", 700, 0.035, 2.5, 12.182),
        *(0.5, (0.4, 0.6), 0.0175, (-0.001, 0.03), 0.0346, (-0.002, 0.06), 0.0346),
        reason="the interval of the gap contains 0",
    ),
    Estimate(
        *("hyena", NAMED, "rare", 700, 0.035, 2.1, 8.166),
        *(0.1, (0.05, 0.15), 0.0035, (0.002, 0.005), 0.0121, (0.007, 0.017), 0.0121),
    ),
)
ABOUT = SliceInfo("rare", "train_count < 10 & '_'", "Rare <b>bigrams</b>", ar_hits=0.25)


@pytest.mark.usefixtures("no_figures")
def test_slices_are_in_every_output(gap: Gap, tmp_path: Path) -> None:
    text = write(tmp_path, replace(gap, slices=(ABOUT,), estimates=(*gap.estimates, *RARE)))
    row = '<td class="wide">700</td><td>3.5%</td><td class="wide">12.18 (2.50)</td><td class="wide">+0.500</td>'
    assert (
        row + "<td>+0.018<br><small>−0.001 to +0.030</small></td><td>(3.5%)ᵃ<br><small>−0.2 to 6.0%</small></td>"
        in text
    )
    assert "ᵃ unresolved: the interval of the gap contains 0." in text
    assert "rare: Rare &lt;b&gt;bigrams&lt;/b&gt;. train_count &lt; 10 &amp; &#39;_&#39;" in text
    assert text.count('class="best"') == 2  # on other tokens both print the same loss: neither is best
    cells = (
        "base\\_conv | rare | 700 | 3.5% | 12.18 (2.50) | +0.500 | +0.018 | −0.001 to +0.030 | (3.5%)ᵃ | −0.2 to 6.0%"
    )
    assert cells in (tmp_path / "table.md").read_text()
    tex = (tmp_path / "table.tex").read_text()
    assert r"hyena & rare & 700 & 3.5\% & \textbf{8.17 (2.10)} & +0.100 & +0.004 & +0.002 to +0.005 & 1.2\% & " in tex
    assert r"rare: Rare $<$b$>$bigrams$<$/b$>$. train\_count $<$ 10 \& '\_'" in tex
    lines = list(csv.DictReader(io.StringIO((tmp_path / "slices.csv").read_text())))
    assert [(line["slice"], line["model"]) for line in lines] == [
        (name, m) for name in ("ar_hits", "rare") for m in ("attention", "base_conv", "hyena")
    ]
    lines = lines[3:]
    assert (lines[1]["share_low"], lines[1]["contribution"], lines[1]["ar_hits"]) == (
        "-0.002",
        "0.0175",
        "0.25",
    )
    assert lines[1]["reason"] == "the interval of the gap contains 0"
    assert lines[0]["share"] == lines[2]["reason"] == ""
    write(tmp_path, gap)
    assert not (tmp_path / "slices.csv").exists()


@pytest.mark.usefixtures("no_figures")
def test_commands_in_notes_are_code(gap: Gap, tmp_path: Path) -> None:
    text = write(tmp_path, gap.replaced({"copy": (), "induction": ()}))
    assert "what can be copied; <code>argap label</code> adds them" in text


def test_a_folder_without_a_result_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"no gap\.json there; expected a folder that `argap score`"):
        write_report(tmp_path)
    write_json(tmp_path / "gap.json", {"format": GAP_FORMAT})
    with pytest.raises(
        FormatError, match=r"gap\.json: .* missing required field `reference`; run the command that wrote it"
    ):
        write_report(tmp_path)
    write_json(tmp_path / "gap.json", {"format": GAP_FORMAT + 1})
    with pytest.raises(FormatError, match="written by a newer argap"):
        write_report(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["gap.json"]


def test_every_figure_with_a_caption_is_removed_with_the_report() -> None:
    assert tuple(CAPTIONS) == tuple(name for name in FIGURES if not name.endswith(OWN_SCALES))


def test_removing_a_report_keeps_other_files(written: Path, tmp_path: Path) -> None:
    remove_report(tmp_path / "no such folder")
    folder = tmp_path / "result"
    shutil.copytree(written, folder)
    for figure in list((folder / "figures").iterdir()):
        write_text(figure.with_suffix(".png"), "of `argap report --png`")
    for name in ("notes.md", "figures/distances.svg"):
        write_text(folder / name, "not of `argap report`")
    remove_report(folder)
    left = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert left == {"gap.json", "examples.json", "notes.md", "figures/distances.svg"}
    (folder / "figures" / "distances.svg").unlink()
    remove_report(folder)
    assert not (folder / "figures").exists()


@pytest.mark.parametrize("name", ["figures", "figures/gap_by_position.svg", "table.csv"])
def test_a_report_is_removed_or_written_whole_or_not_at_all(written: Path, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(written, tmp_path / "result")
    if name == "figures":
        shutil.rmtree(folder / name)
    else:
        (folder / name).unlink()
    os.mkfifo(folder / name)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    for change in (remove_report, write_report):
        with pytest.raises(FormatError, match=f"{name}: a pipe; expected a f"):
            change(folder)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.parametrize("older", [{}, {"format": 2}])
def test_a_gap_of_an_older_format_is_one_line(older: dict[str, int], tmp_path: Path) -> None:
    """The first format had no format number."""
    write_json(tmp_path / "gap.json", {"rows": []} | older)
    number = older.get("format", 1)
    expected = f"older argap \\(format {number}, expected 3\\); run the command that wrote it again: `argap score`"
    with pytest.raises(FormatError, match=expected):
        write_report(tmp_path)


def test_a_report_loads_neither_torch_nor_transformers(tmp_path: Path, make_gap: Maker) -> None:
    save_gap(tmp_path / "gap.json", make_gap({}))
    code = (
        "import sys; from pathlib import Path; from argap.reports.pages.write import write_report\n"
        "print({'torch', 'matplotlib', 'jinja2', 'rich', 'pandas'} & set(sys.modules))\n"
        "write_report(Path(sys.argv[1])); print({'torch', 'transformers', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\nset()\n"


def test_the_command_writes_to_the_given_folder(make_gap: Maker, tmp_path: Path, run_command: Maker) -> None:
    save_gap(tmp_path / "gap.json", make_gap({}))
    code, out, _ = run_command("report", str(tmp_path), "--out", str(tmp_path / "other"))
    assert (code, out) == (0, f"{tmp_path / 'other' / 'report.html'}\n")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["gap.json", "other"]


def test_the_card_holds_the_finding_the_table_and_its_provenance(
    make_gap: Maker, tmp_path: Path, run_command: Maker
) -> None:
    gap = make_gap({"<b>m_1</b>": 1.0})
    save_gap(tmp_path / "gap.json", gap)
    code, out, _ = run_command("report", str(tmp_path), "--card")
    assert code == 0
    assert out.startswith("## Associative recall\n")
    assert "<b>" not in re.sub(r"\\\\<", "", out)
    assert "\\<b\\>m\\_1\\</b\\> is " in out
    assert " behind attention, " in out
    assert "| Model | Params | Overall |" in out
    assert gap.fingerprint in out
    assert [p.name for p in tmp_path.iterdir()] == ["gap.json"]
    assert run_command("report", str(tmp_path), "--card", "--png")[0] == 1


@pytest.mark.usefixtures("no_figures")
def test_card_and_page_have_no_path_of_the_machine(
    make_gap: Maker, make_examples: Maker, tmp_path: Path, run_command: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    gap = make_gap({"m": 1.0})
    evaluation = replace(gap.evaluation, data=(f"{tmp_path}/data/text", "hub:org/text"), tokenizer="/home/me/tokenizer")
    assert gap.index is not None
    index = replace(gap.index, folder="/home/me/counts")
    rows = tuple(replace(row, run=f"{tmp_path}/runs/{row.model}") for row in gap.rows)
    save_gap(tmp_path / "gap.json", replace(gap, evaluation=evaluation, index=index, rows=rows))
    _, out, _ = run_command("report", ".", "--card")
    assert "- Text: data/text, hub:org/text\n" in out
    assert "- Training index: counts: " in out
    assert "- Tokenizer: tokenizer (" in out
    assert "- Runs: attention: runs/attention; m: runs/m\n" in out
    examples = make_examples(["a", " b"], ("attention", "m"))
    (window,) = examples.windows
    windows = (replace(window, source=f"{tmp_path}/data/text/a.txt"), replace(window, source="/home/me/b.parquet#3"))
    write_record(tmp_path / "examples.json", replace(examples, windows=windows))
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "<dd>data/text, hub:org/text</dd>" in page
    assert re.findall('class="where">(.*)</span></h3>', page) == ["data/text/a.txt", "b.parquet#3"]
    for text in (out, page):
        assert "/home" not in text
        assert str(tmp_path) not in text
