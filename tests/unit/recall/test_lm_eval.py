"""Any task of lm-eval through the adapter, and its three requests against the model's own log-probs."""

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance

from argap.cli import main
from argap.errors import ArgapError
from argap.recall.decoding import Decoder
from argap.recall.lm_eval_model import ArgapLM
from argap.recall.lm_eval_tasks import StockOptions, _machine, stock_tasks, task_folders
from argap.recall.run import run_upstream
from argap.reports.pages.recall import golds_table
from argap.runtime.trust import trusting

HYBRID = str(Path(__file__).parents[3] / "argap" / "demo" / "checkpoints" / "hybrid")
ROWS = [
    {"question": "import", "choices": [" os", " sys", " zebra"], "label": 0},
    {"question": "return", "choices": [" None", " banana", " self"], "label": 2},
    {"question": "for i in", "choices": [" range", " cloud"], "label": 0},
]
NEEDLES = [
    {"input": "The code is 7. Rain fell on the hill.", "outputs": ["7"], "max_length": 32, "gen_prefix": "The code is"},
    {"input": "Rain fell on the hill. The code is 9.", "outputs": ["9"], "max_length": 32, "gen_prefix": "The code is"},
    {"input": "The codes are 1 and 2. Rain fell.", "outputs": ["1", "2"], "max_length": 16, "gen_prefix": "They are"},
]
"""Documents in RULER's form."""
pytestmark = pytest.mark.filterwarnings("ignore")  # lm-eval's own


@pytest.fixture(scope="module")
def toys(tmp_path_factory) -> Path:
    """A multiple-choice task, a generation task with code, a rolling one, and a group of the first two."""
    folder = tmp_path_factory.mktemp("toys")
    (folder / "rows.json").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    data = f"dataset_path: json\ndataset_kwargs:\n  data_files: {folder}/rows.json\ntest_split: train\n"
    (folder / "choice.yaml").write_text(
        f"task: toy_choice\noutput_type: multiple_choice\n{data}doc_to_text: '{{{{question}}}}'\n"
        "doc_to_choice: choices\ndoc_to_target: label\ntarget_delimiter: ''\nmetadata: {version: 3}\n"
    )
    (folder / "code.py").write_text("def text(doc):\n    return doc['question']\n")
    (folder / "generate.yaml").write_text(
        f"task: toy_generate\noutput_type: generate_until\n{data}doc_to_text: !function code.text\n"
        "doc_to_target: '{{choices[label]}}'\ngeneration_kwargs: {until: ['\\n'], max_gen_toks: 4}\n"
        "metric_list:\n  - {metric: exact_match, aggregation: mean, higher_is_better: true}\n"
    )
    (folder / "rolling.yaml").write_text(
        f"task: toy_rolling\noutput_type: loglikelihood_rolling\n{data}doc_to_text: ''\n"
        "doc_to_target: '{{question}} {{choices[0]}}'\n"
        "metric_list:\n  - {metric: bits_per_byte}\n"
    )
    (folder / "needles.json").write_text("".join(json.dumps(row) + "\n" for row in NEEDLES))
    (folder / "needles.yaml").write_text(
        f"task: toy_needles\noutput_type: generate_until\n{data.replace('rows.json', 'needles.json')}"
        "doc_to_text: '{{input}}'\ndoc_to_target: '{{outputs[0]}}'\ngen_prefix: '{{gen_prefix}}'\n"
        "generation_kwargs: {until: ['\\n'], max_gen_toks: 4}\n"
        "metric_list:\n  - {metric: exact_match, aggregation: mean, higher_is_better: true}\n"
    )
    (folder / "group.yaml").write_text("group: toy_group\ntask:\n  - toy_choice\n  - toy_generate\n")
    return folder


@pytest.fixture(scope="module")
def results(toys, tmp_path_factory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("out")
    with trusting():
        twice = [HYBRID, f"{HYBRID}/../hybrid"]  # one model
        by_model = run_upstream(twice, ["toy_group", "toy_rolling"], out, stock=StockOptions(task_path=toys))
    assert [*by_model] == ["hybrid"]
    assert json.loads((out / "hybrid" / "results.json").read_text()) == by_model["hybrid"]
    return by_model["hybrid"]


def test_a_multiple_choice_task_takes_the_likeliest_choice(results, decoder) -> None:
    right = 0
    for row in ROWS:
        totals = []
        for choice in row["choices"]:
            before = decoder.tokenizer.encode([row["question"]])[0].tolist()
            ids = decoder.tokenizer.encode([row["question"] + choice])[0].tolist()
            with torch.inference_mode():
                logprob = decoder.model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
            totals.append(float(logprob.gather(-1, torch.tensor(ids[1:])[:, None])[len(before) - 1 :].sum()))
        right += totals.index(max(totals)) == row["label"]
    assert results["results"]["toy_choice"]["acc,none"] == pytest.approx(right / 3)
    assert results["versions"]["toy_choice"] == 3


def test_generation_and_rolling_tasks_run_and_a_group_holds_its_parts(results, decoder) -> None:
    answers = [
        decoder.generate([decoder.tokenizer.encode([row["question"]])[0].tolist()], until=["\n"], new_tokens=4)[0].text
        for row in ROWS
    ]
    right = [answer == row["choices"][row["label"]] for answer, row in zip(answers, ROWS, strict=True)]
    assert results["results"]["toy_generate"]["exact_match,none"] == pytest.approx(sum(right) / 3)
    assert results["results"]["toy_rolling"]["bits_per_byte,none"] > 0
    assert sorted(results["group_subtasks"]["toy_group"]) == ["toy_choice", "toy_generate"]


def test_a_folder_that_is_named_like_a_task_file_is_none(tmp_path) -> None:
    (tmp_path / "more.yaml").mkdir()
    (tmp_path / "mine.yaml").write_text("task: mine\n")
    assert task_folders(["mine"], tmp_path) == [tmp_path]


def test_tasks_in_rulers_form_have_the_nll_of_their_golds_by_length_and_depth(toys, decoder, tmp_path) -> None:
    with trusting():
        by_model = run_upstream([HYBRID], ["toy_needles"], tmp_path, stock=StockOptions(task_path=toys))
    golds = json.loads((tmp_path / "hybrid" / "results.json").read_text())["golds"]
    assert golds == by_model["hybrid"]["golds"]
    assert [(row["length"], row["depth"], row["n"]) for row in golds["rows"]] == [
        (16, "several", 1),
        (32, "second quarter", 1),
        (32, "last quarter", 1),
    ]
    texts = [(row["input"] + " " + row["gen_prefix"], ", ".join(row["outputs"])) for row in NEEDLES]
    contexts = [decoder.tokenizer.encode([prompt])[0].tolist() for prompt, _ in texts]
    wholes = [decoder.tokenizer.encode([f"{prompt} {gold}"])[0].tolist() for prompt, gold in texts]
    forced = decoder.force(contexts, [whole[len(c) :] for c, whole in zip(contexts, wholes, strict=True)])
    several, first, last = (row["nll"] for row in golds["rows"])
    assert [first, last, several] == pytest.approx([-sum(one.logprobs) for one in forced], rel=1e-5)
    answers = decoder.generate(contexts, until=["\n"], new_tokens=4)
    expected = [gold in answer.text for (_, gold), answer in zip(texts[:2], answers, strict=False)]
    assert [row["contained"] for row in golds["rows"][1:]] == expected
    digest = hashlib.sha256("".join(f"{prompt}\0{gold}\0" for prompt, gold in texts).encode())
    assert golds["sha256"] == {"toy_needles": digest.hexdigest()}
    table = golds_table(by_model)
    assert table is not None
    assert table.rows[0][:5] == ("hybrid", "toy_needles", "16", "several", "1")
    assert golds_table({"hybrid": {}}) is None


def test_task_files_of_the_user_need_trust(toys, tmp_path, monkeypatch, capsys) -> None:
    with pytest.raises(ArgapError, match="task files can run code; allow it with `trust_remote_code=True`"):
        run_upstream([HYBRID], ["toy_choice"], tmp_path, stock=StockOptions(task_path=toys))
    flags = [
        "--tasks",
        "toy_choice",
        "--task-path",
        str(toys),
        "--limit",
        "2",
        "--fewshot",
        "1",
        "--out",
        str(tmp_path),
    ]
    for trust, code in (([], "1"), (["--trust-remote-code"], "0")):
        monkeypatch.setattr("sys.argv", ["argap", "recall", HYBRID, *flags, *trust])
        with pytest.raises(SystemExit, match=code):
            main()
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["hybrid", "toy_choice", "3", "acc"] in [row[:4] for row in rows]
    config = json.loads((tmp_path / "hybrid" / "results.json").read_text())
    assert (config["n-shot"]["toy_choice"], config["n-samples"]["toy_choice"]["effective"]) == (1, 2)


def test_names_are_found_where_lm_eval_defines_them() -> None:
    """The tasks that the papers report: the folder of each, without lm-eval's index of them all."""
    names = ["mmlu", "openbookqa", "triviaqa", "drop", "nq_open", "ruler", "niah_single_1", "longbench", "swde", "fda"]
    folders = [str(folder) for folder in task_folders([*names, "squad_completion", "piqa"])]
    for part in ("mmlu/default", "openbookqa", "triviaqa", "drop", "nq_open", "ruler", "longbench", "swde", "piqa"):
        assert any(folder.endswith(f"tasks/{part}") for folder in folders), part
    assert stock_tasks(["zeroshot", "squad"])[:2] == ["wikitext", "lambada_openai"]
    assert stock_tasks(["squad"]) == ["squad_completion"]
    with pytest.raises(ArgapError, match=r"`tasks` openbokqa: no task of lm-eval; close are .*openbookqa"):
        stock_tasks(["openbokqa"])


def test_lm_eval_finds_the_registered_model(toys, results) -> None:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(toys), include_defaults=False)
    arguments = f"pretrained={HYBRID},dtype=float32,device=cpu"
    run: Any = simple_evaluate
    own = run(model="argap", model_args=arguments, tasks=["toy_choice"], task_manager=manager, batch_size="2")
    assert own["results"]["toy_choice"]["acc,none"] == results["results"]["toy_choice"]["acc,none"]
    with pytest.raises(
        ArgapError, match="nonsense: no argument of the lm-eval model argap; known are pretrained, dtype"
    ):
        run(model="argap", model_args=f"{arguments},nonsense=1", tasks=["toy_choice"], task_manager=manager)


def request(request_type, *arguments) -> Instance:
    return Instance(request_type=request_type, doc={}, arguments=arguments, idx=0)


def logprobs(decoder: Decoder, ids: list[int]) -> torch.Tensor:
    """Of tokens 1 … T−1."""
    with torch.inference_mode():
        results = decoder.model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    return results.gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]


def test_loglikelihood_sums_the_continuation_and_says_whether_it_is_greedy(decoder: Decoder) -> None:
    lm = ArgapLM(decoder, "hybrid")
    pairs = [("The return value is", " a string"), ("import os", "\nimport sys"), ("", "import")]
    results = lm.loglikelihood([request("loglikelihood", *pair) for pair in pairs], disable_tqdm=True)
    for (context, continuation), (total, greedy) in zip(pairs, results, strict=True):
        before = lm.tok_encode(context) or [lm.eot_token_id]
        ids = [*before, *lm.tok_encode(continuation)]
        own = logprobs(decoder, ids)[len(before) - 1 :]
        assert total == pytest.approx(float(own.sum()), abs=1e-3)
        with torch.inference_mode():
            best = decoder.model(torch.tensor([ids])).logits[0, len(before) - 1 : -1].argmax(-1)
        assert greedy == (best.tolist() == ids[len(before) :])


def test_rolling_scores_every_token_once_in_windows_of_the_model(decoder: Decoder) -> None:
    lm = ArgapLM(decoder, "hybrid", max_length=8)
    text = "def add(first, second):\n    return first + second\n"
    ids = lm.tok_encode(text)
    assert len(ids) > 9
    # The first window starts from EOS, each later one from the last token of the window before it. The last
    # window is filled up with earlier tokens; only its new tokens are scored.
    expected = float(logprobs(decoder, [lm.eot_token_id, *ids[:8]]).sum())
    start = 8
    while start < len(ids):
        end = min(start + 8, len(ids))
        expected += float(logprobs(decoder, ids[end - 9 : end])[-(end - start) :].sum())
        start = end
    (total,) = lm.loglikelihood_rolling([request("loglikelihood_rolling", text)])
    assert total == pytest.approx(expected, abs=1e-3)


def test_a_long_context_is_cut_to_the_longest_window(decoder: Decoder) -> None:
    """The context is cut so that the model reads exactly ``max_length`` tokens."""
    lm = ArgapLM(decoder, "hybrid")
    context, continuation = "word " * 1200 + "word", " word"
    ((total, _),) = lm.loglikelihood([request("loglikelihood", context, continuation)], disable_tqdm=True)
    ids = [*lm.tok_encode(context), *lm.tok_encode(continuation)][-1025:]
    with torch.inference_mode():
        own = decoder.model(torch.tensor([ids[:-1]])).logits[0, -1].log_softmax(-1)[ids[-1]]
    assert total == pytest.approx(float(own), abs=1e-3)


def test_generation_takes_a_tasks_options_and_refuses_sampling(decoder: Decoder) -> None:
    lm = ArgapLM(decoder, "hybrid")
    options = {"until": ["\n"], "max_gen_toks": 5}
    requests = [request("generate_until", "import os", options), request("generate_until", "The", {"max_gen_toks": 3})]
    answers = lm.generate_until(requests)
    prompts = [lm.tok_encode("import os"), lm.tok_encode("The")]
    assert answers[0] == decoder.generate(prompts[:1], until=["\n"], new_tokens=5)[0].text
    assert answers[1] == decoder.generate(prompts[1:], until=[], new_tokens=3)[0].text
    with pytest.raises(ArgapError, match="decodes greedily only"):
        lm.generate_until([request("generate_until", "The", {"do_sample": True})])


def test_the_machine_is_described_without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would go on if argap were killed meanwhile."""
    started: list[str] = []
    begin = subprocess.Popen.__init__

    def noted(self: Any, command: Any, *args: Any, **options: Any) -> None:
        started.append(str(command))
        begin(self, command, *args, **options)

    monkeypatch.setattr(subprocess.Popen, "__init__", noted)
    described = _machine.__wrapped__()
    assert started
    assert not any("pip" in command for command in started)
    assert f"torch=={torch.__version__}" in described["pretty_env_info"]
