"""Steps/s of a sweep's group: transforms, products, compiled layers."""
import json, os, sys, time
from dataclasses import replace
from pathlib import Path
import torch
import argap.kernels.long_convolution as lc
from argap.synthetics.cuda_graph import TrainerGroup
from argap.synthetics.loop import _matmul_precision
from argap.synthetics.sweep import load_sweep
from argap.synthetics.supervision import supervision
from argap.synthetics.trainer import Trainer
dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")
steps = 200 if dev.type == "cuda" else 3
product = lc.LONGEST_PRODUCT
budget = float(sys.argv[1]); start = time.time(); rows = []
cases = [("figure6-small", "hyena", 64, 256), ("figure2-published", "base_conv", 128, 128), ("figure2-published", "hyena", 128, 64), ("figure2-filters-small", "base_conv_autocorrelation", 256, 128),
         ("deltanet-figure2-small", "mamba", 128, 512), ("deltanet-figure2-small", "retnet", 128, 512), ("figure6-small", "attention", 64, 256), ("figure2-published", "base_conv", 512, 128), ("deltanet-figure2-small", "delta_net", 128, 512)]
for suite, name, width, length in cases:
    sweep = load_sweep(Path(f"suites/mqar/{suite}.yaml"))
    group = next((g for g in sweep.groups() if g[0].name == name and g[0].width == width and g[0].length == length), None)
    if group is None: print("none", suite, name, width, length); continue
    group = [replace(c, train_examples=20000, epochs=max(1, c.epochs)) for c in group]
    data = supervision(group[0], "train").to(dev)
    for variant in ("fft", "products", "compiled", "compiled fft"):
        if time.time() - start > budget: break
        if variant in ("products", "compiled fft") and name in ("mamba", "retnet", "attention", "delta_net"): continue
        lc.LONGEST_PRODUCT = 0 if "fft" in variant else product
        try:
            torch.compiler.reset()
            with _matmul_precision(dev):
                t0 = time.time()
                trainers = [Trainer(c, data, dev, compiled="compiled" in variant) for c in group]
                g = TrainerGroup(trainers)
                for _ in range(10 if dev.type == "cuda" else 1): g.step()
                if dev.type == "cuda": torch.cuda.synchronize()
                first = time.time() - t0; t0 = time.time()
                for _ in range(steps): g.step()
                if dev.type == "cuda": torch.cuda.synchronize()
                ms = (time.time() - t0) / steps * 1e3
            mem = torch.cuda.max_memory_allocated() / 1e9 if dev.type == "cuda" else 0
            rows.append(dict(suite=suite, model=name, width=width, length=length, group=len(group), variant=variant, ms=ms, start_s=first, loss=float(trainers[-1].loss), gb=mem, graph=g.graph is not None))
            print(f"{suite} {name} w{width} N{length} x{len(group)}: {variant} {ms:.2f} ms a step, start {first:.1f} s, loss {float(trainers[-1].loss):.4f}, graph {g.graph is not None}", flush=True)
        except Exception as e:
            print("FAILED", suite, name, variant, type(e).__name__, str(e)[:300], flush=True)
        trainers = g = None
        if dev.type == "cuda": torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats()
out = os.environ.get("RESULT", "/tmp/sweepprofile.json")
json.dump(rows, open(out, "w"), indent=1)
