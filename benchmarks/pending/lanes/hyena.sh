#!/usr/bin/env bash
# OLD, NEW: trees of argap; OUT: a folder for the JSON; PYTHON: the interpreter (default: python). At most 80 s on one H200.
set -u
HERE=$(cd "$(dirname "$0")" && pwd)
PYTHON=${PYTHON:-python}
OUT=${OUT:-.}
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
started=$SECONDS
# 1. The tests on the GPU, while the workers of 2 start and compile.
(
  cd "$NEW" && PYTHONPATH=$NEW:/tmp/site timeout 75 "$PYTHON" -m pytest -q -p no:cacheprovider tests/kernels/test_toeplitz_convolution.py \
    -k "(dtype1 and (256 or 400 or 384)) or same_bits or mixer or hook" >"$OUT/hyena-tests.txt" 2>&1
  echo "exit $?" >>"$OUT/hyena-tests.txt"
) &
tests=$!
# 2. Whole models in pairs, then the launches.
timeout 115 "$PYTHON" "$HERE/hyena_pairs.py" "$OLD" "$NEW" "$OUT/hyena.json" $tests
wait $tests
echo "--- tests"
tail -n 6 "$OUT/hyena-tests.txt"
echo "$((SECONDS - started)) s"
