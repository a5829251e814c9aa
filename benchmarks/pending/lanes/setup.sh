# sourced: packages and a copy of the tree; once per machine
export PYTHONPATH=/tmp/site:/tmp/tree PYTHONUNBUFFERED=1 OMP_NUM_THREADS=4 TORCHINDUCTOR_COMPILE_THREADS=5 HF_HUB_OFFLINE=1
export TRITON_CACHE_DIR=/tmp/cache/triton TORCHINDUCTOR_CACHE_DIR=/tmp/cache/inductor
if [ ! -e /tmp/ready ]; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site .dev/*.whl || exit 9
  tar xzf .dev/lm_eval.tgz -C /tmp/site
  mkdir -p /tmp/tree /tmp/out/logs; tar cf - --exclude=.dev --exclude=.git . | tar xf - -C /tmp/tree
  cp -r .dev /tmp/dev; touch /tmp/ready
fi
