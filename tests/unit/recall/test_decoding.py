"""Answers do not depend on how they are computed: batched, cached, recurrent, or by reading everything again."""

from typing import Any

import pytest
import torch

from argap.checkpoints.find import find_checkpoint
from argap.checkpoints.load import load_model
from argap.errors import ArgapError
from argap.models import ArgapConfig, ArgapForCausalLM, steps
from argap.models.modeling import RecurrentState
from argap.models.steps import Steps
from argap.recall import decoding
from argap.recall.decoding import CopyBaseline, Decoder, Generation, after_repeated_suffix, by_length
from argap.recall.examples import load_examples
from argap.recall.prompts import Protocol, build_prompt
from argap.recall.samples import repeats_of_gold
from argap.text.tokenizer import load_tokenizer
from tests.unit.recall.conftest import CHECKPOINTS

UNTIL = ["\n"]


@pytest.fixture(scope="module")
def prompts(decoder: Decoder) -> list[list[int]]:
    """Four prompts of one length, two a little shorter, and one far shorter."""
    rows = load_examples("swde", "fixture", limit=6).rows
    whole = [build_prompt(row, "swde", decoder.tokenizer, Protocol()).ids for row in rows]
    shortest = min(map(len, whole))
    lengths = [shortest] * 4 + [shortest - 3, shortest - 8]
    return [*(ids[-n:] for ids, n in zip(whole, lengths, strict=True)), whole[0][-40:]]


def test_batches_hold_near_lengths_and_every_index() -> None:
    assert list(by_length([[1, 1], [2], [3, 3], [4, 4]], 2)) == [[0, 2], [3], [1]]
    lengths = (3, 9, 5, 1, 6, 12)
    assert list(by_length([[0] * length for length in lengths], 3, within=2)) == [[5], [1], [4, 2, 0], [3]]
    assert list(by_length([[0] * length for length in lengths], 8, within=3)) == [[5, 1, 4, 2, 0, 3]]


def test_the_same_answers_in_batches_and_one_by_one_and_by_forward(decoder: Decoder, prompts) -> None:
    alone = Decoder(decoder.model, decoder.tokenizer, batch_size=1)
    again = Decoder(decoder.model, decoder.tokenizer, batch_size=8)
    again.recurrent = False  # reads the whole sequence for each token
    answers = decoder.generate(prompts, until=UNTIL, new_tokens=12)
    assert decoder.recurrent
    assert answers == alone.generate(prompts, until=UNTIL, new_tokens=12)
    assert answers == again.generate(prompts, until=UNTIL, new_tokens=12)
    assert len({answer.text for answer in answers}) > 1


@pytest.mark.parametrize("name", ["attention", "hybrid"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_same_answers_in_fixed_storage(name: str, device: str, prompts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints of the demo, whose storage grows within an answer; on a GPU the steps are recorded."""
    monkeypatch.setattr(steps, "ROOM", 8)
    monkeypatch.setattr(steps, "BLOCK", 4)
    folder = CHECKPOINTS / name
    model = load_model(find_checkpoint(folder), dtype=torch.float32, device=device)
    decoder, made = Decoder(model, load_tokenizer(folder)), []

    def answers(graphs: bool) -> list[Generation]:
        def start(model: ArgapForCausalLM, state: RecurrentState) -> Steps:
            made.append(Steps(model, state, graphs=graphs))
            return made[-1]

        monkeypatch.setattr(decoding, "Steps", start)
        return decoder.generate(prompts, until=[], new_tokens=24)

    assert answers(graphs=True) == answers(graphs=False)
    assert [one.fixed is not None for one in made] == [True] * (len(made) // 2) + [False] * (len(made) // 2)
    assert made[0].recorded == (device == "cuda")


def test_stop_sequences_end_an_answer_and_are_not_in_it(decoder: Decoder, prompts) -> None:
    free = decoder.generate(prompts[:1], until=[], new_tokens=12)[0]
    assert (free.stop, len(free.ids)) == ("length", 12)
    middle = free.text[3:5]
    stopped = decoder.generate(prompts[:1], until=[middle], new_tokens=12)[0]
    assert stopped.stop == "stop"
    assert stopped.text == free.text[: free.text.index(middle)]
    assert stopped.ids == free.ids[: len(stopped.ids)]


def test_teacher_forcing_gives_the_log_probs_and_ranks_of_the_model(decoder: Decoder, prompts) -> None:
    own = decoder.generate(prompts, until=[], new_tokens=3)
    forced = decoder.force(prompts, [answer.ids for answer in own])
    assert all(f.ranks == [0, 0, 0] for f in forced)  # its own choices
    with torch.inference_mode():
        ids = torch.tensor([*prompts[0], *own[0].ids])
        logprobs = decoder.model(ids[None]).logits[0].log_softmax(-1)
    expected = [float(logprobs[len(prompts[0]) - 1 + t, own[0].ids[t]]) for t in range(3)]
    assert forced[0].logprobs == pytest.approx(expected, abs=1e-4)
    decoder.head, head = None, decoder.head  # through the model's own logits
    try:
        slow = decoder.force(prompts[:1], [own[0].ids])
    finally:
        decoder.head = head
    assert slow[0].logprobs == pytest.approx(expected, abs=1e-4)


def test_of_equally_likely_tokens_the_lowest_id_alone_is_the_models_choice(tokenizer) -> None:
    model = ArgapForCausalLM(ArgapConfig(vocab_size=8192, hidden_size=32, num_hidden_layers=1)).eval()
    model.get_parameter("lm_head.weight").data.zero_()  # every token is as likely as every other
    decoder = Decoder(model, tokenizer)
    (answer,) = decoder.generate([[5, 6, 7]], until=[], new_tokens=1)
    assert answer.ids == [0]
    assert [decoder.force([[5, 6, 7]], [[token]])[0].ranks for token in (0, 1, 100)] == [[0], [1], [100]]
    decoder.head = None  # through the model's own logits
    assert decoder.force([[5, 6, 7]], [[100]])[0].ranks == [100]


def test_a_log_prob_that_is_not_finite_is_refused(tokenizer) -> None:
    model = ArgapForCausalLM(ArgapConfig(vocab_size=8192, hidden_size=32, num_hidden_layers=1)).eval()
    model.get_parameter("model.norm.weight").data.fill_(torch.nan)
    with pytest.raises(ArgapError, match=r"the log-prob of a token is NaN or infinite.*`dtype=float32`"):
        Decoder(model, tokenizer).force([[5, 6, 7]], [[8]])


def test_a_transformers_model_continues_with_its_cache(tokenizer) -> None:
    """A tiny Llama gives the same tokens with its cache as when it reads the whole sequence for each."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    model = LlamaForCausalLM(LlamaConfig(vocab_size=tokenizer.vocab_size, **sizes)).eval()
    answers = Decoder(model, tokenizer).generate([[5, 6, 7, 8], [9, 8, 7, 6], [3, 4]], until=[], new_tokens=6)
    for prompt, answer in zip([[5, 6, 7, 8], [9, 8, 7, 6], [3, 4]], answers, strict=True):
        ids = list(prompt)
        for _ in answer.ids:
            with torch.inference_mode():
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        assert ids[len(prompt) :] == answer.ids


def test_copying_continues_after_the_longest_repeated_suffix(tokenizer) -> None:
    # 2 3 occurs at 1 and again at 5 (after 9); the suffix 1 2 3 only at 0
    assert after_repeated_suffix([1, 2, 3, 4, 9, 2, 3, 7, 1, 2, 3]) == 3
    assert after_repeated_suffix([1, 2, 3]) is None
    ids = tokenizer.encode(["colour: amber\nsize: 5\ncolour:"])[0].tolist()
    answer = CopyBaseline(tokenizer).generate([ids], until=UNTIL, new_tokens=48)[0]
    assert (answer.text, answer.stop) == (" amber", "stop")


def test_which_tokens_of_the_gold_repeat_a_bigram() -> None:
    # bigrams of the prompt: 1-2, 2-3, 3-1; the gold adds 1-2 (seen), 2-4 (new), 4-2 (new), 2-4 (seen by now)
    assert repeats_of_gold([1, 2, 3, 1], [2, 4, 2, 4]) == [True, False, False, True]
