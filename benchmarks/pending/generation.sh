#!/bin/bash
# On one H200, in the root of the repository: bash generation.sh (OUT: where results go; LIMIT: seconds in all [150]).
# Writes $OUT/generation-tests.txt and $OUT/generation.json (each row as it is measured); prints a table last.
set -u
SECONDS=0
HERE=$(cd "$(dirname "$0")" && pwd)
LIMIT=${LIMIT:-150}
OUT=${OUT:-/tmp/generation-out}
PY=${PY:-${PYTHON:-python3}}
mkdir -p "$OUT"
export PYTHONPATH=$PWD:${PYTHONPATH:-} PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
# 1. The tests on the GPU: every mixer's graph against plain steps, bfloat16, the demo's answers.
timeout 60 $PY -m pytest -q -p no:cacheprovider -m gpu --maxfail=8 --tb=short tests/recall/test_decoding.py \
  tests/models/test_steps.py >"$OUT/generation-tests.txt" 2>&1
echo "exit $? after $SECONDS s" >>"$OUT/generation-tests.txt"
tail -n 12 "$OUT/generation-tests.txt"
# 2. The rows.
timeout $((LIMIT - SECONDS)) $PY "$HERE/generation.py" "$OUT" $((LIMIT - SECONDS - 14)) 2>&1 | tee "$OUT/generation.log"
echo "$SECONDS s"
