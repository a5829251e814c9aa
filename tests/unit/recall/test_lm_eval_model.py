"""lm-eval's three requests, against the model's own log-probs."""

import pytest
import torch
from lm_eval.api.instance import Instance

from argap.errors import ArgapError
from argap.recall.decoding import Decoder
from argap.recall.lm_eval_model import ArgapLM


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
