"""Packs tokens, windows and the index once for all suites named."""
import os, sys
from pathlib import Path
from argap.suite.config import load_suite
from argap.suite.layout import Layout
from argap.suite.members import evaluation_set, training_index
first = None
for path in sys.argv[1:]:
    suite = load_suite(Path(path)); layout = Layout(Path("runs") / Path(path).stem)
    layout.work.mkdir(parents=True, exist_ok=True)
    if first: os.symlink(first.tokens.absolute(), layout.tokens)
    evaluation_set(suite, "7m"); 
    if first:
        layout.index("7m").parent.mkdir(parents=True, exist_ok=True); os.symlink(first.index("7m").absolute(), layout.index("7m"))
    else:
        training_index(suite, "7m", layout); first = layout
print("prepared")
