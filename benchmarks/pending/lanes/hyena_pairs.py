"""Whole models of two trees measured in turn, each tree in a process of its own; then launches of the new tree's kernels.

hyena_pairs.py OLD NEW out.json PID-of-the-tests
"""
import json
import os
import statistics
import subprocess
import sys
import time

MODELS = os.environ.get("MODELS", "hyena,h3,mamba").split(",")
EXACT = ("hyena", "h3")
PAIRS = int(os.environ.get("PAIRS", "3"))
DEADLINE = float(os.environ.get("DEADLINE", "70"))
STARTED = time.monotonic()


def replies(worker):
    for line in worker.stdout:
        if line.startswith("REPLY "):
            return json.loads(line[6:])
        sys.stderr.write(line)
    raise RuntimeError("a worker ended")


def start(role, tree):
    path = os.pathsep.join((tree, os.path.join(tree, "benchmarks"), "/tmp/site"))
    return subprocess.Popen(
        [sys.executable, __file__, role, tree],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        cwd=tree,
        text=True,
    )


def ask(worker, command):
    worker.stdin.write(command + "\n")
    worker.stdin.flush()
    return replies(worker)


def main(old, new, out, tests):
    workers = {"old": start("worker", old), "new": start("worker", new)}
    sweep = start("sweep", new)
    report = {"models": {}, "launches": {}}
    first = {tree: replies(worker) for tree, worker in workers.items()}
    print(f"models ready after {time.monotonic() - STARTED:.0f} s", first["old"]["tree"], first["new"]["tree"], flush=True)
    while time.monotonic() - STARTED < 75 and os.path.exists(f"/proc/{tests}"):
        time.sleep(0.2)
    ready = replies(sweep)
    print(f"measuring after {time.monotonic() - STARTED:.0f} s; launches that failed: {ready['failed']}", flush=True)
    os.path.exists("/tmp/dev/quiet.sh") and os.system("bash /tmp/dev/quiet.sh on")
    for model in MODELS:
        rounds = {"old": [], "new": []}
        for pair in range(PAIRS):
            if time.monotonic() - STARTED > DEADLINE - 5:
                break
            for tree in ("old", "new") if pair % 2 == 0 else ("new", "old"):
                rounds[tree].append(ask(workers[tree], model))
        row = {}
        for tree, found in rounds.items():
            for key in ("ms", "device_ms"):
                values = [each[key] for each in found if key in each]
                if values:
                    row[f"{tree} {key}"] = statistics.median(values)
                    row[f"{tree} {key}, all"] = values
            row[f"{tree} error"] = first[tree]["error"].get(model)
        report["models"][model] = row
        json.dump(report, open(out, "w"), indent=1)
    print(f"{'model':8}{'old ms':>9}{'new ms':>9}{'device':>9}{'device':>9}{'error old':>11}{'new':>9}")
    for model, row in report["models"].items():
        numbers = [row.get(f"{tree} {key}", float("nan")) for key in ("ms", "device_ms") for tree in ("old", "new")]
        errors = [row["old error"], row["new error"]]
        print(f"{model:8}", *(f"{x:8.2f}" for x in numbers), *(f"{x:9.4f}" if x else "        -" for x in errors))
    for tree, worker in workers.items():
        if time.monotonic() - STARTED < DEADLINE:
            report["launches"][f"{tree} as it is"] = ask(worker, "convolution")
    if time.monotonic() - STARTED < DEADLINE:
        report["launches"] |= ask(sweep, "go")
    for name, value in report["launches"].items():
        print(f"{name:42}", value)
    json.dump(report, open(out, "w"), indent=1)
    for process in (*workers.values(), sweep):
        process.stdin.close()
        process.kill()
    print(f"done after {time.monotonic() - STARTED:.0f} s")


def reply(value):
    print("REPLY " + json.dumps(value), flush=True)


def worker(tree):
    import torch
    from score import BATCH, LAYERS, LENGTH, VOCABULARY, WIDTH, Batches, by_all_logits, windows_of
    from triton.testing import do_bench

    from argap.models.modeling import ArgapForCausalLM
    from argap.models.presets import build_config

    import argap

    scorers, graphs, errors = {}, {}, {}
    torch.manual_seed(0)
    ids = torch.randint(1000, (BATCH, LENGTH), device="cuda")
    for name in MODELS:
        torch.manual_seed(1)
        config = build_config(name, hidden_size=WIDTH, num_hidden_layers=LAYERS, vocab_size=VOCABULARY, seq_len=LENGTH)
        with torch.device("cuda"):
            model = ArgapForCausalLM(config).eval()
        exact = None
        if name in EXACT:
            exact = by_references(lambda: torch.cat([by_all_logits(model, row[None]) for row in ids[:1]]))
        model = model.to(torch.bfloat16)
        with torch.inference_mode():
            scorers[name] = batches = Batches(model, windows_of(ids), "cuda", BATCH, name)
            batches.score(range(BATCH)).arrays()
            if exact is not None:
                errors[name] = float((batches.logprobs(ids[:1]).logprob[:, :-1].float() - exact).abs().double().mean())
            batches.logprobs(ids)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                kept = batches.logprobs(ids)
            graphs[name] = graph, kept
    reply({"tree": os.path.dirname(argap.__file__), "error": errors})
    for line in sys.stdin:
        name = line.strip()
        with torch.inference_mode():
            if name == "convolution":
                reply(convolution(do_bench))
                continue
            batches = scorers[name]
            whole = do_bench(lambda: batches.score(range(BATCH)).arrays(), warmup=100, rep=300, return_mode="median")
            device = do_bench(graphs[name][0].replay, warmup=100, rep=300, return_mode="median")
        reply({"ms": whole, "device_ms": device})


def by_references(function):
    """``function()`` in float32 with no kernel of argap."""
    import torch

    changed = [
        (module, module.runs_kernels)
        for name, module in list(sys.modules.items())
        if name.startswith("argap.") and hasattr(module, "runs_kernels")
    ]
    for module, _ in changed:
        module.runs_kernels = lambda *tensors: False
    try:
        with torch.no_grad():
            return function()
    finally:
        for module, chosen in changed:
            module.runs_kernels = chosen


def inputs(length, taps=None):
    import torch

    from argap.kernels.launch import new_by_channel
    from argap.kernels.toeplitz_convolution import shifted_taps

    torch.manual_seed(0)
    x, gate = (new_by_channel(y).copy_(y) for y in torch.randn(2, 8, length, 1024, device="cuda").bfloat16())
    filters = torch.randn(taps or length, 1024, device="cuda") / length**0.5
    return x, shifted_taps(filters, length, torch.bfloat16), gate, torch.randn(1024, device="cuda").bfloat16(), filters


def convolution(do_bench):
    """Milliseconds of the long convolution with gate and skip as a tree launches it."""
    from argap.kernels.toeplitz_convolution import toeplitz_convolution

    found = {}
    for length, taps in ((2048, None), (1024, None), (512, None), (2048, 64)):
        x, copies, gate, skip, _ = inputs(length, taps)
        ms = do_bench(lambda: toeplitz_convolution(x, copies, gate, skip), warmup=20, rep=60, return_mode="median")
        found[f"T {length}, {taps or length} taps"] = round(ms, 4)
    return found


TOEPLITZ = [
    (64, 128, 64, 4, 3),
    (64, 128, 64, 4, 2),
    (64, 128, 64, 4, 4),
    (64, 128, 32, 4, 4),
    (64, 128, 128, 4, 2),
    (128, 64, 64, 4, 3),
    (128, 64, 64, 4, 2),
    (128, 128, 64, 8, 3),
    (128, 128, 64, 8, 2),
    (64, 64, 64, 4, 3),
]
SHORT = [(64, 64, 4), (64, 64, 8), (64, 32, 4), (128, 32, 4), (32, 64, 4), (128, 64, 8)]


def sweep(_):
    import torch
    import torch.nn.functional as F
    from triton.testing import do_bench

    import argap.kernels.short_convolution as short
    import argap.kernels.toeplitz_convolution as toeplitz
    from argap.kernels.launch import Launch, LaunchTable
    from argap.kernels.long_convolution import long_convolution_reference

    failed, cases = [], {}

    def table(launch, *names):
        return LaunchTable("", {"any": dict.fromkeys(names, launch), "hopper": dict.fromkeys(names, launch)})

    def of_toeplitz(blocks, given):
        bm, bn, bk, warps, stages = blocks
        launches = table(Launch({"BM": bm, "BN": bn, "BK": bk}, warps=warps, stages=stages), "any")

        def call():
            toeplitz.LAUNCHES = launches
            return toeplitz.toeplitz_convolution(*given[:4])

        return call

    def of_short(blocks, given):
        bt, bd, warps = blocks
        launches = table(Launch({"BT": bt, "BD": bd}, warps=warps), "by channel", "few", "many")

        def call():
            short.LAUNCHES = launches
            return short.short_convolution(*given, by_channel=True)[0]

        return call

    with torch.inference_mode():
        whole, half, narrow = inputs(2048), inputs(512), inputs(2048, 64)
        for given, name in ((whole, "T 2048"), (half, "T 512"), (narrow, "T 2048, 64 taps")):
            x, _, gate, skip, filters = given
            exact = gate.double() * (long_convolution_reference(x.double(), filters.double()) + skip.double() * x.double())
            for blocks in TOEPLITZ if given is whole else TOEPLITZ[:1] + TOEPLITZ[5:6]:
                call = of_toeplitz(blocks, given)
                try:
                    error = float((call().double() - exact).norm() / exact.norm())
                    if not error < 4e-3:
                        failed.append((blocks, error))
                    cases[f"toeplitz {name} {blocks}"] = call
                except Exception as problem:  # noqa: BLE001
                    failed.append((blocks, str(problem)[:80]))
            del exact
        wide = torch.randn(8, 2048, 3072, device="cuda").bfloat16()
        taps, bias = torch.randn(3, 3072, device="cuda").bfloat16(), torch.randn(3072, device="cuda").bfloat16()
        for blocks in SHORT:
            call = of_short(blocks, (wide, taps, bias))
            call()
            cases[f"short, by channel {blocks}"] = call
        rows, weight = torch.randn(8, 2048, 1024, device="cuda").bfloat16(), torch.randn(3072, 1024, device="cuda").bfloat16()
        cases["projection to 3,072, rows"] = lambda: F.linear(rows, weight)
        cases["projection to 3,072, by channel"] = lambda: weight @ rows.flatten(0, 1).mT
        torch.cuda.synchronize()
        reply({"failed": failed})
        sys.stdin.readline()
        found = {}
        for name, call in cases.items():
            found[name] = round(do_bench(call, warmup=10, rep=40, return_mode="median"), 4)
        reply(found)


if __name__ == "__main__":
    if sys.argv[1] in ("worker", "sweep"):
        sys.path.pop(0)  # this script's folder
        globals()[sys.argv[1]](sys.argv[2])
    else:
        main(*(os.path.abspath(each) for each in sys.argv[1:4]), sys.argv[4])
