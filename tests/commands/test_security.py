"""What a hostile file tries, and that it stays without effect: each test looks for the file that it would create."""

import contextlib
import gzip
import json
import math
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import argap
from argap.checkpoints.references import Reference, add_reference
from argap.corpus import open_corpus
from argap.corpus.remote import check_recordable
from argap.errors import ArgapError, FormatError
from argap.files import atomic, regular
from argap.files.plain_yaml import parse_yaml, read_yaml
from argap.files.resumable import begin, plain_name
from argap.records import CheckpointRecord, Record
from argap.runtime.trust import trusting
from argap.suite.config import load_suite
from argap.synthetics.sweeps.sweep import load_sweep
from argap.text.tokenizer import load_tokenizer
from argap.train import load_config
from argap.train.run import train

ROOT = Path(__file__).parents[2]
NAMES = ("../../x", "/tmp/x", "..", ".", "", "a/b", "a\\b", "a\0b", "a\nb", ".hidden", "x" * 201, 3, True, None)
SUITE = {
    "reference": "attention",
    "members": {"attention": None},
    "sizes": {"tiny": None},
    "train": {"tokenizer": "t", "data": ["text"], "steps": 1, "warmup_steps": 0},
    "evaluation": {"data": ["text"]},
}


def saved(path: Path, values: object) -> Path:
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_more_than_one_component_is_refused(name: object) -> None:
    with pytest.raises(ArgapError, match=r"^size .*: the name becomes a folder; expected text that begins with"):
        plain_name("size", name)


def test_plain_names_pass_unchanged() -> None:
    for name in ("attention", "70m", "mega-s4", "module:Class", "H3 hybrid", "Größe", "x" * 200):
        assert plain_name("size", name) == name


@pytest.mark.parametrize("kind", ["members", "sizes"])
@pytest.mark.parametrize("name", NAMES[:-1])
def test_a_suite_refuses_names_that_leave_its_folder(tmp_path: Path, kind: str, name: object) -> None:
    member = {"architecture": "attention"} if kind == "members" else None
    path = saved(tmp_path / "suite.yaml", SUITE | {kind: SUITE[kind] | {name: member}})
    with pytest.raises(ArgapError, match=rf"suite\.yaml: {kind}: .*the name becomes a folder"):
        load_suite(path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("kind", "name"), [("members", "runs"), ("members", "index"), ("sizes", "tokens")])
def test_a_suite_refuses_the_names_of_its_own_folders(tmp_path: Path, kind: str, name: str) -> None:
    member = {"architecture": "attention"} if kind == "members" else None
    with pytest.raises(ArgapError, match=f"{kind}: {name}: this name is reserved in the work folder"):
        load_suite(saved(tmp_path / "suite.yaml", SUITE | {kind: SUITE[kind] | {name: member}}))


def test_a_suite_refuses_two_models_of_one_name(tmp_path: Path) -> None:
    several = {"architecture": "attention", "seeds": [0, 1]}
    for name, said in (("a-seed1", "a-seed1"), ("A-seed1", r"(a|A)-seed1 \(case aside: (a|A)-seed1\)")):
        both = {"a": several, name: {"architecture": "attention"}}
        with pytest.raises(ArgapError, match=f"two models are called {said};"):
            load_suite(saved(tmp_path / "suite.yaml", SUITE | {"reference": "a", "members": both}))


@pytest.mark.parametrize("name", NAMES[:-2])
def test_a_sweep_refuses_names_that_leave_its_folder(tmp_path: Path, name: object) -> None:
    sweep = {"members": {name: {"mixers": ["hyena"]}}, "lengths": [16], "widths": [8]}
    with pytest.raises(ArgapError, match=r"sweep\.yaml: members: .*the name becomes a folder"):
        load_sweep(saved(tmp_path / "sweep.yaml", sweep))


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]" for k in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (bomb(30), "line 1: a0: the anchor &a0; expected a plain value"),
        ("a:\n  b: *x", "line 2: a.b: the alias *x; expected the value itself"),
        ("? *x\n: 1", "line 1: the alias *x"),
        ("a: 1\nb: !!timestamp nonsense", "line 2: b: the tag tag:yaml.org,2002:timestamp"),
        ("b: !!int x", "line 1: b: the tag tag:yaml.org,2002:int"),
        ("b: !!python/object/apply:os.system ['touch created']", "the tag tag:yaml.org,2002:python/object"),
        ("doc_to_text: !function module.name", "the tag !function"),
        ("a: 1\nb: 2\na: 3", "line 3: the key a is listed twice"),
        ("a:\n  1: x\n  0x1: y", "line 3: a: the key 1 is listed twice"),
        ("a: {<<: {b: 1}, <<: {c: 2}}", "line 1: a: the key << is listed twice"),
        ("a: !<tag:yaml.org,2002:binary> eA==", "line 1: a: the tag tag:yaml.org,2002:binary"),
        ("%TAG ! tag:yaml.org,2002:python/\n---\na: !object:os.system {}", "line 3: a: the tag tag:yaml.org"),
        ("a: &a\n  b: *a", "line 1: a: the anchor &a"),
        ("a: " + "{b: " * 5000, "values nested more than 20 deep"),
        ("- " * 5000, "values nested more than 20 deep"),
        ("a: [" + "1," * 200_000 + "]", "line 1: more than 100,000 values"),
        ("a: [" + "[]," * 100_000 + "]", "line 1: more than 100,000 values"),
        ("a: 1\n" + "---\n" * 100_000, "a second document"),
        ("? [1, 2]\n: 3", "line 1: a key that is a mapping or sequence"),
        ("a: " + "[" * 5000, "values nested more than 20 deep"),
        ("a: 1\n---\nb: 2", "a second document"),
        ("a: [1", "not readable as YAML"),
        ('a: "\\UFFFFFFFF"', "not readable as YAML"),
        ('a: {b: "\\ud800"}', "not readable as YAML"),
        ("a: 0x_", "line 1: a: '0x_', which is not a number"),
        ("a: \x00", "not readable as YAML"),
        ("a: " + "x" * 1_000_001, "expected at most 1,000,000"),
    ],
)
def test_yaml_beyond_plain_values_is_one_line_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "suite.yaml"
    path.write_text(text)
    with pytest.raises(ArgapError) as caught:
        read_yaml(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: ")
    assert message in line
    assert "\n" not in line
    assert list(tmp_path.iterdir()) == [path]


def test_plain_yaml_means_what_it_means_to_pyyaml() -> None:
    for path in (ROOT / "suites").rglob("*.yaml"):
        assert read_yaml(path) == yaml.safe_load(path.read_text())
    for text in (
        "a: [1, 1.5, 1e-3, 1.0e-3, 0x1F, 1_000, on, No, ~, null, '12', \"x\\ty\", .inf, -.5, 1:30, 077, '']",
        "a: |\n  two\n  lines\nb: >-\n  one\n  line\nc:\n- x\n- {y: z}\nd:",
        "",
        "# nothing",
        "just text",
    ):
        assert parse_yaml(text) == yaml.safe_load(text)
    assert parse_yaml("2020-01-02") == "2020-01-02"
    assert parse_yaml("9" * 65) == "9" * 65
    assert parse_yaml("<<: {a: =}") == {"<<": {"a": "="}}  # no merging of mappings
    assert math.isnan(parse_yaml(".nan"))


CODE = """
from pathlib import Path
from transformers import PreTrainedTokenizerFast
Path({created!r}).touch()

class Planted(PreTrainedTokenizerFast):
    pass
"""


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tokenizer that needs the module beside it, which would create the file ``created``."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "planted.py").write_text(CODE.format(created=str(tmp_path / "created")))
    settings = {"auto_map": {"AutoTokenizer": ["planted.Planted", "planted.Planted"]}, "tokenizer_class": "Planted"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": "planted"}))
    return folder


def test_a_tokenizer_that_names_code_is_refused_without_running_it(tmp_path: Path, planted: Path) -> None:
    with pytest.raises(ArgapError, match=r"the tokenizer runs code of its own; .*`trust_remote_code=True`$"):
        load_tokenizer(planted)
    assert not (tmp_path / "created").exists()
    with trusting(), contextlib.suppress(Exception):  # the planted class reads no files, but it was imported
        load_tokenizer(planted)
    assert (tmp_path / "created").exists()


def test_trust_in_python_reaches_the_tokenizer(tmp_path: Path, planted: Path) -> None:
    model = ROOT / "argap" / "demo" / "checkpoints" / "attention"
    given = {"tokenizer": {"m": str(planted)}, "out": tmp_path / "out"}
    with pytest.raises(ArgapError, match="the tokenizer runs code of its own"):
        argap.score({"m": model}, model, **given)
    assert not (tmp_path / "created").exists()
    with contextlib.suppress(Exception):  # as above
        argap.score({"m": model}, model, trust_remote_code=True, **given)
    assert (tmp_path / "created").exists()


@pytest.mark.parametrize(
    "address",
    [
        "s3://me:hidden@bucket/text",
        "https://hidden@host/text.jsonl",
        "https://host/text.jsonl?X-Amz-Signature=hidden",
        "https://host/text.jsonl?part=1&token=hidden",
    ],
)
def test_an_address_with_credentials_is_neither_read_nor_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("ARGAP_HOME", str(tmp_path))
    for use in (
        lambda: open_corpus(address),
        lambda: add_reference("x", Reference(checkpoint="c", data=(address,))),
        lambda: add_reference("x", Reference(checkpoint=address)),
    ):
        with pytest.raises(ArgapError, match="with credentials in it, which every record would keep") as caught:
            use()
        assert "hidden" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", ["az://texts@account/x", "hf://datasets/me/x@main/a.jsonl", "s3://b/x?versionId=3"])
def test_an_address_without_credentials_may_be_recorded(address: str) -> None:
    check_recordable(address)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that is not argap's, with files that look like it."""
    folder = tmp_path / "outside"
    (folder / "step-1").mkdir(parents=True)
    (folder / "part-00000.parquet").write_text("mine")
    return folder


def contents(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


class Work(Record, frozen=True):
    """The record of a run, for `begin`."""

    identity: CheckpointRecord
    finished: CheckpointRecord | None = None


def work(name: str) -> tuple[Work, CheckpointRecord]:
    """The record of a run, and its identity."""
    identity = CheckpointRecord(name, name)
    return Work(identity), identity


def test_overwriting_removes_only_the_parts_of_a_run(tmp_path: Path, outside: Path) -> None:
    run, first, other = tmp_path / "run", work("a"), work("b")
    begin(run, *first, overwrite=False)
    (run / "tokens").mkdir()
    for name in ("notes.txt", "tokens/part-00000.parquet", "tokens/notes.txt"):
        (run / name).touch()
    begin(run, *other, overwrite=True)
    assert contents(run) == ["notes.txt", "run.json", "tokens", "tokens/notes.txt"]
    (tmp_path / "linked").mkdir()
    begin(tmp_path / "linked", *first, overwrite=False)
    (tmp_path / "linked" / "tokens").symlink_to(outside)
    with pytest.raises(ArgapError, match=r"tokens: a symbolic link, whose files `overwrite=True` does not remove"):
        begin(tmp_path / "linked", *other, overwrite=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "tokens").symlink_to(outside)
    with pytest.raises(ArgapError, match=r"data: holds tokens but no run\.json; choose another `out`$"):
        begin(tmp_path / "data", *first, overwrite=True)
    assert contents(outside) == ["part-00000.parquet", "step-1"]


def test_training_overwrites_no_model_that_it_did_not_train(tmp_path: Path, outside: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_text("mine")
    config = load_config(None, SUITE["train"] | {"architecture": "attention"})
    with pytest.raises(ArgapError, match=r"model: holds a model but no train\.json; choose another `out`$"):
        train(config, model, device="cpu", overwrite=True)
    assert contents(model) == ["model.safetensors"]
    (model / "train.json").write_text("{}")
    (model / "checkpoints").symlink_to(outside)
    with pytest.raises(ArgapError, match="checkpoints: a symbolic link"):
        train(config, model, device="cpu", overwrite=True)
    assert contents(outside) == ["part-00000.parquet", "step-1"]


def test_a_planted_temporary_name_is_not_written_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda size: "0" * 2 * size)
    with atomic.replacing(tmp_path / "file") as temporary:
        planted = temporary.name
    (tmp_path / planted).symlink_to(tmp_path / "created")
    with pytest.raises(ArgapError, match="could not be written"):
        atomic.write_text(tmp_path / "file", "new")
    assert not (tmp_path / "created").exists()


def test_a_folder_that_is_a_link_is_not_replaced(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "index").symlink_to(outside)
    with pytest.raises(ArgapError, match="index: a symbolic link"), atomic.replacing_folder(tmp_path / "index"):
        pass
    assert contents(outside) == ["part-00000.parquet", "step-1"]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_file_that_unpacks_to_far_more_than_text_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr(regular, "LARGEST_RATIO", 100)
    monkeypatch.setattr(regular, "LONGEST_LINE", 2**20)
    lines, line = json.dumps({"text": "x" * 60_000}).encode() + b"\n", b'{"text": "' + b"x" * 2**21
    much, long = r"unpacks to more than 100 times its size", r"a line of more than"
    for content, most, message in ((lines * 500, 2**16, much), (line, 2**30, long)):
        monkeypatch.setattr(regular, "MOST_UNPACKED", most)
        path = tmp_path / f"text.jsonl{suffix}"
        path.write_bytes({".gz": gzip.compress, ".zst": pa.Codec("zstd").compress}[suffix](content))
        with pytest.raises(FormatError, match=rf"text\.jsonl\{suffix}.*{message}"):
            list(open_corpus(path))


def test_a_table_that_unpacks_to_far_more_than_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regular, "MOST_UNPACKED", 2**16)
    path = tmp_path / "text.parquet"
    pq.write_table(pa.table({"text": ["x" * 10_000] * 2_000}), path, compression="zstd")
    with pytest.raises(FormatError, match=r"text\.parquet: unpacks to more than 1,000 times its size"):
        list(open_corpus(path))
