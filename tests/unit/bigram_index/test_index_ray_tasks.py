"""A Ray cluster gives the same bytes as a local build, even if a worker is killed."""

import json
import sys
import threading
import time
from contextlib import suppress

import numpy as np
import pytest

from argap.bigram_index import ray_tasks
from argap.bigram_index.build import build_from_source
from argap.bigram_index.ray_tasks import Job, build_on_ray
from argap.bigram_index.sources.token_source import TokenSource
from argap.corpus import open_corpus
from argap.errors import ArgapError
from argap.text.tokenizer import load_tokenizer
from tests.builders.index import contents
from tests.conftest import word_tokenizer

WORDS = [f"w{i}" for i in range(40)]
RNG = np.random.default_rng(5)


@pytest.fixture
def corpus(tmp_path):
    """A tokenizer, and a text of 300 documents, some of them empty."""
    word_tokenizer(WORDS, unknown="w0").save(tmp_path / "words")
    texts = [" ".join(WORDS[i] for i in RNG.integers(0, 40, n)) for n in RNG.integers(0, 50, 300)]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    return str(tmp_path / "text.jsonl"), str(tmp_path / "words")


def job(corpus, tmp_path, **changes):
    data, tokenizer = corpus
    given = {"data": (data,), "tokenizer": tokenizer, "work": str(tmp_path / "work"), "shards": 20}
    return Job(**given | changes)


@pytest.fixture
def whole(corpus, tmp_path):
    data, tokenizer = corpus
    source = TokenSource([open_corpus(data)], load_tokenizer(tokenizer))
    return contents(build_from_source(source, tmp_path / "whole").folder)


def test_tasks_without_a_cluster_give_the_same_bytes(corpus, whole, tmp_path):
    made = job(corpus, tmp_path, shards=3)
    names = [ray_tasks.count_shard(made, number) for number in (2, 0, 1)]
    assert ray_tasks.count_shard(made, 0) == names[1]  # is there, and is not counted again
    left = ray_tasks.merge_shards(made, *names[:2])
    top = ray_tasks.merge_shards(made, left, names[2])
    assert contents(ray_tasks._fetch(made, top, tmp_path)) == whole
    assert len({*names, left, top}) == 5


def test_finished_shards_are_not_recounted(corpus, tmp_path, monkeypatch):
    made = job(corpus, tmp_path, shards=3)
    name = ray_tasks.count_shard(made, 1)
    monkeypatch.setattr(ray_tasks, "build_from_source", None)  # would raise
    assert ray_tasks.count_shard(made, 1) == name
    (tmp_path / "work" / name / "index.json").unlink()  # as a worker leaves it that is killed in time
    with pytest.raises(TypeError):
        ray_tasks.count_shard(made, 1)


def test_index_json_is_written_last(corpus, tmp_path, monkeypatch):
    put, order = ray_tasks._put, []
    monkeypatch.setattr(ray_tasks, "_put", lambda fs, path, target: (order.append(path.name), put(fs, path, target)))
    ray_tasks.count_shard(job(corpus, tmp_path, shards=2), 0)
    assert order == ["part-00000.parquet", "index.json"]


def test_different_jobs_have_different_names(corpus, tmp_path):
    names = {
        ray_tasks.count_shard(job(corpus, tmp_path, **changes), number)
        for number in (0, 1)
        for changes in ({"shards": 2}, {"shards": 3}, {"shards": 2, "passes": 2.0})
    }
    assert len(names) == 6


def test_missing_ray_says_how_to_install_it(corpus, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ArgapError, match=r"pip install argap\[cluster\]"):
        build_on_ray(job(corpus, tmp_path), tmp_path / "index", address=None)


@pytest.fixture
def two_nodes():
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    made.add_node(num_cpus=1)
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.mark.filterwarnings("ignore")
def test_a_killed_worker_does_not_change_the_index(two_nodes, corpus, whole, tmp_path):
    import psutil

    killed = []

    def kill_one():
        while not killed:
            for process in psutil.process_iter(["cmdline"]):
                if (process.info["cmdline"] or [""])[0].startswith("ray::call_with_trust"):
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
                        killed.append(process.pid)
                        return
            time.sleep(0.01)

    killer = threading.Thread(target=kill_one, daemon=True)
    killer.start()
    index = build_on_ray(job(corpus, tmp_path), tmp_path / "index", address=two_nodes.address)
    assert killed
    assert contents(index.folder) == whole


@pytest.mark.filterwarnings("ignore")
def test_a_node_that_is_gone_does_not_change_the_index(two_nodes, corpus, whole, tmp_path):
    """The second node ends, with its raylet and workers, once a shard is finished and before the last one is."""
    gone = []

    def end_a_node():
        while not list((tmp_path / "work").glob("*/index.json")):
            time.sleep(0.01)
        node = next(node for node in two_nodes.list_all_nodes() if node is not two_nodes.head_node)
        finished = len(list((tmp_path / "work").glob("*/index.json")))
        two_nodes.remove_node(node, allow_graceful=False)
        gone.append(finished)

    ender = threading.Thread(target=end_a_node, daemon=True)
    ender.start()
    index = build_on_ray(job(corpus, tmp_path, shards=40), tmp_path / "index", address=two_nodes.address)
    ender.join()
    assert gone
    assert gone[0] < 40
    assert contents(index.folder) == whole


@pytest.mark.filterwarnings("ignore")
def test_failure_of_a_shard_is_raised_unchanged(two_nodes, corpus, tmp_path):
    made = job(corpus, tmp_path, text_column="body")
    with pytest.raises(ArgapError, match="no text in column 'body'"):
        build_on_ray(made, tmp_path / "index", address=two_nodes.address)
    assert not (tmp_path / "index").exists()
