"""What comes before a window: the tokenizer's own rule, everywhere that a model reads text, unless the user objects."""

import json
import shutil
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lm_eval.api.instance import Instance
from tokenizers import Tokenizer as Backend
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

import argap
from argap.checkpoints.gguf.header import read_header
from argap.checkpoints.gguf.tokenizer import gguf_tokenizer
from argap.errors import ArgapError, FormatError, MismatchError
from argap.evaluation.windows import open_evaluation_set
from argap.integrations import RecallGap
from argap.recall.examples import load_tasks
from argap.recall.lm_eval_model import ArgapLM
from argap.recall.prompts import Protocol
from argap.recall.run import run_recall
from argap.recall.samples import RecallRun, read_samples
from argap.records import Bos, read_record, write_record
from argap.scoring import bos as rule
from argap.scoring.batches import Batches
from argap.scoring.config import ScoreConfig
from argap.scoring.find import find_source
from argap.scoring.server.client import parse_address
from argap.scoring.server.source import Server, ServerSource
from argap.synthetics.pretrained.records import PretrainedTest, read_scores
from argap.synthetics.pretrained.scores import score_pretrained
from argap.text.tokenizer import load_tokenizer, tokenizer_in_memory
from argap.tokens.runs import open_run, read_logprobs
from tests.builders.gguf_files import small_llama, write_gguf
from tests.unit.models.hub.families import by_hand

BOS = 3
"""An ordinary entry of the demo's vocabulary; EOS is 0."""
GLM = 5, 7
"""Two more."""


@pytest.fixture(scope="module")
def place(tmp_path_factory, tokenizer) -> Path:
    """Two Llamas: the tokenizer of ``bos`` puts a BOS before a text, that of ``plain`` does not say."""
    folder = tmp_path_factory.mktemp("bos")
    for name, config in (("plain", {}), ("bos", {"add_bos_token": True})):
        small_llama(seed=len(name)).save_pretrained(folder / name)
        tokenizer.save(folder / name)
        named = {"eos_token": tokenizer.token_text(0), "bos_token": tokenizer.token_text(BOS)}
        (folder / name / "tokenizer_config.json").write_text(json.dumps(named | config))
    texts = ["the cat sat on the mat. " * 9, "a dog saw the cat and the cat saw a dog. " * 5]
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return folder


def score(place: Path, out: Path, models: Any = (), reference: Any = "bos", **options: Any) -> Any:
    given: dict[str, Any] = {"data": place / "text.jsonl", "seq_len": 32, "device": "cpu"}
    return argap.score(models, place / reference, out=out, **given | options)


def template(single: str, **ids: int) -> Any:
    tokens = [(f"<{name}>", number) for name, number in ids.items()]
    return processors.TemplateProcessing(single=single, special_tokens=tokens)


BYTES = processors.ByteLevel(trim_offsets=False)
RULES = {
    "nothing": (None, {}, None),
    "byte level": (BYTES, {}, None),
    "an empty template": (template("$A"), {}, None),
    "the configuration": (None, {"add_bos_token": True}, True),
    "the configuration, none": (None, {"add_bos_token": False}, False),
    "Llama's template": (template("<bos> $A", bos=BOS), {}, True),
    "Llama 3's sequence": (processors.Sequence([BYTES, template("<bos> $A", bos=BOS)]), {}, True),
    "a template before all": (
        template("<bos> $A <eos>", bos=BOS, eos=0),
        {"add_bos_token": False},
        True,
    ),
    "T5's template": (template("$A <eos>", eos=0), {}, None),
    "RoBERTa": (processors.RobertaProcessing(("</s>", 0), ("<s>", BOS)), {}, True),
}


@pytest.mark.parametrize("name", RULES)
def test_the_rule_is_read_from_the_post_processor_else_the_configuration(place, tmp_path, name: str) -> None:
    processor, config, adds = RULES[name]
    folder = Path(shutil.copytree(place / "plain", tmp_path / "own"))
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    if processor is not None:
        backend.post_processor = processor
    backend.save(str(folder / "tokenizer.json"))
    named = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(named | config))
    made = load_tokenizer(folder)
    assert (made.bos, made.adds_bos) == (BOS, adds)
    (tmp_path / "saved").mkdir()
    made.save(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").adds_bos == adds
    assert made.fingerprint == load_tokenizer(place / "plain").fingerprint
    assert made.encode(["the cat"])[0].tolist() == load_tokenizer(place / "plain").encode(["the cat"])[0].tolist()


def test_a_template_names_the_bos_that_no_file_names(place, tmp_path) -> None:
    folder = Path(shutil.copytree(place / "plain", tmp_path / "own"))
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.post_processor = template("<bos> $A", bos=7)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")
    made = load_tokenizer(folder)
    assert (made.bos, made.adds_bos) == (7, True)
    own = PreTrainedTokenizerFast(tokenizer_object=backend)
    assert (tokenizer_in_memory(own).bos, tokenizer_in_memory(own).adds_bos) == (7, True)


@pytest.fixture(scope="module")
def glm(place) -> Path:
    """A Llama whose tokenizer puts two tokens before a text, as ChatGLM's puts [gMASK]<sop>."""
    folder = Path(shutil.copytree(place / "plain", place / "glm"))
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.post_processor = template("<mask> <sop> $A", mask=GLM[0], sop=GLM[1])
    backend.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("asked", [None, "own"])
def test_several_tokens_are_put_before_each_window(place, glm, tmp_path, capsys, asked: str | None) -> None:
    """JustVugg/colibri#108: without the [gMASK]<sop> before its training sequences a GLM scores far too low."""
    result = score(place, tmp_path / "out", reference="glm", bos=asked)
    run, model, tokenizer = open_run(tmp_path / "out" / "glm"), small_llama(seed=5), load_tokenizer(glm)
    text = "".join(map(tokenizer.token_text, GLM))
    said = capsys.readouterr().err
    assert f"glm: {text} before each window, as {'asked' if asked else 'its tokenizer does'}" in said
    assert result.record.warnings[0] == f"before each window: {text} (glm)"
    assert run.record.identity.bos == GLM
    data = open_evaluation_set(run.record.source, tokenizer)
    np.testing.assert_allclose(read_logprobs(run)[0], by_hand(model, data, *GLM), atol=1e-4)
    score(place, tmp_path / "out", reference="glm", bos=asked)  # the same run
    with pytest.raises(MismatchError, match="bos"):
        score(place, tmp_path / "out", reference="glm", bos="none")
    assert RecallGap(run.folder).measure(model).delta == pytest.approx(0, abs=1e-5)
    with pytest.raises(ArgapError, match="the windows have 32 and the tokens before it; use `seq_len=30`, or `max_le"):
        score(place, tmp_path / "long", reference="glm", bos=asked, max_length=32)


def test_several_tokens_begin_what_other_commands_read(place, glm, tmp_path) -> None:
    model, tokenizer, text = small_llama(seed=5), load_tokenizer(glm), "the cat sat on the mat"
    ids = tokenizer.encode([text])[0].tolist()
    lm = ArgapLM.create_from_arg_string(f"pretrained={glm},device=cpu,dtype=float32")
    assert lm.tok_encode(text) == [*GLM, *ids]
    ((alone, _),) = lm.loglikelihood([Instance("loglikelihood", {}, ("", text), 0)], disable_tqdm=True)
    whole = torch.tensor([[*GLM, *ids]])
    with torch.inference_mode():
        rows = model(whole).logits[0, :-1].log_softmax(-1).gather(1, whole[0, 1:, None])[:, 0]
    assert alone == pytest.approx(float(rows[1:].sum()), abs=1e-3)
    given: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu")}
    scores = score_pretrained([str(glm)], PretrainedTest(pairs=(2,), examples=4, length=16), **given)
    assert scores.bos == {"glm": "".join(map(tokenizer.token_text, GLM))}
    config = ScoreConfig.of(device="cpu")
    tasks = load_tasks(["fda"], [], fixture=True, limit=1)
    run_recall([str(glm)], tasks, tmp_path / "out", config=config, protocol=Protocol(context=100))
    (record,) = (tmp_path / "out").glob("glm/*/run.json")
    assert read_record(record, RecallRun).identity.bos == GLM


def test_a_server_is_sent_one_token_at_most(glm, capsys) -> None:
    config = ScoreConfig.of(tokenizer=str(glm))
    source = ServerSource("served", Server(parse_address("http://host/v1"), "m"), config)
    assert source.bos is None
    rule.say_bos(source, None, source.bos)
    assert "a server is sent one token at most: --bos" in capsys.readouterr().err
    with pytest.raises(ArgapError, match="served: `bos` own: 2 tokens; a server is sent one at most"):
        _ = replace(source, config=ScoreConfig.of(tokenizer=str(glm), bos="own")).bos


def test_a_run_begins_its_windows_as_the_tokenizer_does(place, tmp_path, capsys) -> None:
    """EleutherAI/lm-evaluation-harness#3295: a BOS that tokenizer_config.json asks for is not put, but for Gemma."""
    out, text = tmp_path / "out", load_tokenizer(place / "bos").token_text(BOS)
    result = score(place, out, {"without": place / "bos"}, bos={"without": "none"})
    said = capsys.readouterr().err
    assert f"bos: {text} before each window, as its tokenizer does; --bos none leaves it out" in said
    line = f"before each window: {text} (bos); nothing (without)"
    assert line in said
    assert line in result.record.warnings
    assert open_run(out / "bos").record.identity.bos == BOS
    assert open_run(out / "without").record.identity.bos is None
    with pytest.raises(MismatchError, match="holds a run with bos 3, asked for None"):
        score(place, out, bos="none")
    score(place, tmp_path / "asked", {"again": place / "bos"}, bos={"bos": "own", "again": text})
    for name in ("bos", "again"):
        np.testing.assert_array_equal(
            read_logprobs(open_run(tmp_path / "asked" / name))[0], read_logprobs(open_run(out / "bos"))[0]
        )
    assert not np.allclose(
        read_logprobs(open_run(out / "without"))[0], read_logprobs(open_run(out / "bos"))[0], equal_nan=True, atol=1e-3
    )


def test_native_checkpoints_have_no_rule_unless_converted(place, tmp_path) -> None:
    """`argap train` puts nothing before its windows, whatever the tokenizer does; other trainers do what it does."""
    folder = Path(shutil.copytree(place / "bos", tmp_path / "native"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "argap"}))
    assert find_source(str(folder)).bos is None
    assert find_source(str(folder), ScoreConfig.of(bos="own")).bos == BOS
    (folder / "conversion.json").write_text("{}")
    assert find_source(str(folder)).bos == BOS


def test_where_nothing_is_known_a_bos_that_matters_is_told(place, tmp_path, monkeypatch, capsys) -> None:
    own_gain, measured, gain = Batches.gain_of_bos, [], rule.TRIFLE * 2

    def of_bos(batches: Batches, bos: int, tokens: int) -> float:
        measured.append(own_gain(batches, bos, tokens))
        assert bos == BOS
        return gain

    monkeypatch.setattr(Batches, "gain_of_bos", of_bos)
    score(place, tmp_path / "out", reference="plain")
    line = "plain: nothing before each window, as its tokenizer does not say; its BOS"
    said = capsys.readouterr().err
    assert line in said
    assert "by 0.04 nats per token: --bos plain=own puts one there" in said
    score(place, tmp_path / "with", reference="plain", bos="own")
    without, behind = (read_logprobs(open_run(tmp_path / name / "plain"))[0] for name in ("out", "with"))
    assert measured == [pytest.approx(float(np.nanmean(behind) - np.nanmean(without)), abs=1e-5)]
    gain = rule.TRIFLE / 2
    score(place, tmp_path / "trifle", reference="plain")
    score(place, tmp_path / "asked", reference="plain", bos="none")
    score(place, tmp_path / "known")
    assert line not in capsys.readouterr().err
    assert len(measured) == 2


def test_a_gguf_file_says_it_in_its_header(place, tmp_path) -> None:
    model = small_llama()
    for adds in (True, False):
        path = tmp_path / f"{adds}.gguf"
        write_gguf(path, model, place / "plain", add_bos=adds, eight_bits=False)
        header = read_header(path)
        assert header.values["tokenizer.ggml.add_bos_token"] is adds
        assert header.architecture == "llama"
        assert header.lists["tokenizer.ggml.tokens"].length == 8192
        assert header.values["llama.rope.freq_base"] == pytest.approx(10_000)
        own = gguf_tokenizer(path)
        assert (own.bos, own.adds_bos) == (0, adds)
    assert find_source(str(tmp_path / "True.gguf")).bos == 0
    whole = (tmp_path / "True.gguf").read_bytes()
    for cut in (10, 60, 200):
        (tmp_path / "cut.gguf").write_bytes(whole[:cut])
        with pytest.raises(FormatError, match=r"cut\.gguf: its header is not one of a GGUF file"):
            read_header.__wrapped__(tmp_path / "cut.gguf")


@pytest.mark.parametrize(
    ("model", "pre", "adds"), [("llama", None, True), ("gpt2", "llama-bpe", True), ("gpt2", "smollm", False)]
)
def test_a_gguf_file_that_does_not_say_follows_llama_cpp(
    place, tmp_path, model: str, pre: str | None, adds: bool
) -> None:
    named = {"tokenizer.ggml.model": model} | ({} if pre is None else {"tokenizer.ggml.pre": pre})
    strings = b"".join(packed(key) + struct.pack("<I", 8) + packed(value) for key, value in named.items())
    folder = Path(shutil.copytree(place / "plain", tmp_path / "file"))
    (folder / "a.gguf").write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, len(named)) + strings)
    made = gguf_tokenizer(folder / "a.gguf")
    assert (made.bos, made.adds_bos) == (BOS, adds)


def packed(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def test_recall_puts_it_before_each_prompt_and_records_it(place, tmp_path, capsys) -> None:
    tasks = load_tasks(["fda"], [], fixture=True, limit=2)

    def golds(name: str, **options: Any) -> tuple[list[float], Bos]:
        config = ScoreConfig.of(device="cpu", **options)
        run_recall([str(place / "bos")], tasks, tmp_path / name, config=config, protocol=Protocol(context=100))
        (record,) = (tmp_path / name).glob("bos/*/run.json")
        nlls = [sum(sample.gold_logprobs or ()) for sample in read_samples(record.parent)]
        return nlls, read_record(record, RecallRun).identity.bos

    own, bos = golds("own")
    without, none = golds("none", bos="none")
    assert (bos, none) == (BOS, None)
    assert own != pytest.approx(without, abs=1e-3)
    assert "before each window, as its tokenizer does" in capsys.readouterr().err
    with pytest.raises(MismatchError, match="bos None, asked for 3"):
        golds("none")
    with pytest.raises(ArgapError, match="no model other; expected bos"):
        golds("other", bos={"other": "own"})


def test_lm_evals_requests_begin_as_its_own_adapter_begins_them(place) -> None:
    """A choice, a text without context and a rolling text, against the model's own logits behind one BOS.

    EleutherAI/lm-evaluation-harness#3333: with Gemma the BOS is put twice.
    """
    model, tokenizer = small_llama(seed=3), load_tokenizer(place / "bos")
    text, context, answer = "the cat sat on the mat", "the cat sat on", " the mat"
    ids, n = tokenizer.encode([text])[0].tolist(), len(tokenizer.encode([context])[0])

    def total(before: list[int], start: int) -> float:
        whole = torch.tensor([[*before, *ids]])
        with torch.inference_mode():
            rows = model(whole).logits[0, :-1].log_softmax(-1).gather(1, whole[0, 1:, None])[:, 0]
        return float(rows[len(before) - 1 + start :].sum())

    for given, before, alone in (("", [BOS], BOS), (f",bos={BOS}", [BOS], BOS), (",bos=none", [], 0)):
        lm = ArgapLM.create_from_arg_string(f"pretrained={place / 'bos'},device=cpu,dtype=float32{given}")
        ((choice, _),) = lm.loglikelihood([Instance("loglikelihood", {}, (context, answer), 0)], disable_tqdm=True)
        ((start, _),) = lm.loglikelihood([Instance("loglikelihood", {}, ("", text), 0)], disable_tqdm=True)
        (rolling,) = lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (text,), 0)])
        assert choice == pytest.approx(total(before, n), abs=1e-3)
        assert start == pytest.approx(total([alone], 0), abs=1e-3)
        assert rolling == pytest.approx(start, abs=1e-3)
    lm = ArgapLM.create_from_arg_string(f"pretrained={place / 'plain'},device=cpu")
    assert (lm.tok_encode(text), lm.prefix_token_id) == (ids, BOS)  # a BOS without a rule, as in lm-eval's own


def test_mqar_puts_it_before_each_example(place, tmp_path) -> None:
    test = PretrainedTest(pairs=(2,), examples=4, length=16)
    given: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu")}
    own = score_pretrained([str(place / "bos")], test, **given)
    assert own.bos == {"bos": load_tokenizer(place / "bos").token_text(BOS)}
    without = score_pretrained([str(place / "bos")], test, **given, config=ScoreConfig.of(bos="none"))
    assert own.rows[0].nll != pytest.approx(without.rows[0].nll, abs=1e-4)
    assert own.rows[0].n == without.rows[0].n
    write_record(tmp_path / "scores.json", own)
    assert read_scores(tmp_path / "scores.json") == own
    assert without.bos == {}


def test_a_model_in_training_reads_as_its_tokenizer_does(place, tmp_path) -> None:
    score(place, tmp_path / "out")
    run, model = tmp_path / "out" / "bos", small_llama(seed=3)
    assert RecallGap(run).measure(model).delta == pytest.approx(0, abs=1e-5)
    without = RecallGap(run, bos="none").measure(model)
    assert without.delta != pytest.approx(0, abs=1e-4)
    with pytest.raises(ArgapError, match="`bos` <x>: not in its vocabulary"):
        RecallGap(run, bos="<x>")
