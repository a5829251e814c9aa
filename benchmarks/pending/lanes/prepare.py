"""Packs the tokens of a suite; with --index builds the index."""
import sys
from pathlib import Path
from argap.suite.config import load_suite
from argap.suite.layout import Layout
from argap.suite.members import evaluation_set, training_index
from argap.train.tokens import pack_tokens
from argap.tokenizer import load_tokenizer
path = Path(sys.argv[1]); suite = load_suite(path); layout = Layout(Path("runs") / path.stem)
layout.work.mkdir(parents=True, exist_ok=True)
if "--index" in sys.argv: training_index(suite, "7m", layout)
else:
    config = suite.entries("7m")[0].config
    pack_tokens(config.data, load_tokenizer(config.tokenizer), layout.tokens); evaluation_set(suite, "7m")
print("prepared")
