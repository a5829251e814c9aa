"""A real server, llama-cpp-python's, on a tiny GGUF file, against the same weights in transformers.

Needs ``pip install 'llama-cpp-python[server]' gguf``, which builds llama.cpp from source; skipped without.
"""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import argap
from argap.errors import ArgapError
from argap.tokens.runs import open_run, read_logprobs, read_token_ids
from tests.builders.gguf_files import small_llama, write_gguf

pytestmark = pytest.mark.slow
DOCUMENTS = ["the cat sat on the mat. " * 9, "a dog saw the cat and the cat saw a dog. " * 5, "the end of the mat"]


@pytest.fixture(params=[True, False], ids=["bos", "no_bos"])
def server(request, tmp_path, tokenizer) -> Iterator[tuple[str, bool, Path]]:
    """The address of a server of ``tiny``, whether it puts a BOS before each prompt, and the folder of the weights."""
    app, uvicorn = pytest.importorskip("llama_cpp.server.app"), pytest.importorskip("uvicorn")
    settings = pytest.importorskip("llama_cpp.server.settings")
    pytest.importorskip("gguf")
    folder = tmp_path / "tiny"
    model = small_llama()
    model.save_pretrained(folder)
    tokenizer.save(folder)
    write_gguf(tmp_path / "tiny.gguf", model, folder, add_bos=request.param, eight_bits=False)
    options = settings.ModelSettings(
        model=str(tmp_path / "tiny.gguf"),
        model_alias="tiny",
        logits_all=True,
        n_ctx=128,
        n_threads=1,
        type_k=0,  # float32; llama.cpp keeps keys and values in float16 otherwise
        type_v=0,
        verbose=False,
    )
    one = settings.ServerSettings(host="127.0.0.1", port=0)
    config = uvicorn.Config(app.create_app(server_settings=one, model_settings=[options]), port=0, log_level="error")
    running: Any = uvicorn.Server(config)
    thread = threading.Thread(target=running.run)
    thread.start()
    while not running.started and thread.is_alive():
        time.sleep(0.05)
    yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}/v1", request.param, folder
    running.should_exit = True
    thread.join()


@pytest.mark.filterwarnings("ignore")
def test_the_run_is_that_of_the_same_weights(server, tmp_path) -> None:
    """Token for token, with a BOS: the server's own, or the one that is asked for."""
    url, adds, folder = server
    text = tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"text": document}) + "\n" for document in DOCUMENTS))
    given: dict[str, Any] = {
        "data": text,
        "packing": "document",
        "seq_len": 96,
        "device": "cpu",
        "tokenizer": str(folder),
    }
    if not adds:
        with pytest.raises(ArgapError, match="one position late unless a BOS is before the prompt: use `bos=own`"):
            argap.score(url, folder, model_name="served", out=tmp_path / "out", **given)
    argap.score(url, folder, model_name="served", out=tmp_path / "out", bos="own", overwrite=True, **given)
    served, own = (open_run(tmp_path / "out" / name) for name in ("served", "tiny"))
    how = served.record.finished.server
    assert (how.bos, how.prompts, how.logprobs) == (True, "text", "echo")
    assert served.record.evaluation == own.record.evaluation
    np.testing.assert_array_equal(read_token_ids(served), read_token_ids(own))
    np.testing.assert_allclose(read_logprobs(served)[0], read_logprobs(own)[0], atol=1e-4)
    logprob = read_logprobs(served)[0]
    first, last = np.flatnonzero(np.isnan(logprob))[:2]  # the first window, by the model itself
    ids = torch.tensor([[0, *read_token_ids(served)[first:last]]])
    with torch.inference_mode():
        rows = small_llama()(ids).logits[0, 1:-1].log_softmax(-1)
    np.testing.assert_allclose(logprob[first + 1 : last], rows.gather(1, ids[0, 2:, None])[:, 0], atol=1e-4)
