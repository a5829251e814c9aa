# A newcomer needs two commands: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Each worker of the tests, and each command that they start, compiles every module anew where none may be kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install demo test coverage numerics quantised release check pages docs clean

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch triton
	$(PIP) --editable '.[score]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --editable '.[dev]'
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP) --editable '.[docs]'
	touch $@

$(VENV)/.installed-release: $(VENV)/.installed-dev
	$(PIP) --editable '.[release]'
	touch $@

install: $(VENV)/.installed  ## the package and its dependencies, in .venv

demo: install                ## Table 1 for the shipped checkpoints, on real text
	$(BIN)/argap demo --out runs/demo

test: $(VENV)/.installed-dev ## the default suite: CPU, a worker for each core
	$(BIN)/pytest -q -n auto --dist worksteal

# Lines of kernels that Triton or numba compiles count as not run.
coverage: $(VENV)/.installed-dev ## the default suite, and the lines that it does not run
	$(BIN)/pytest -q -n auto --dist worksteal --cov

# Kernels of torch for other processors, and another number of threads: no test may depend on the last bit of a sum.
NUMERICS := tests/unit/models tests/unit/kernels tests/properties/models tests/unit/metric/test_gap.py \
            tests/unit/scoring/test_heads.py tests/unit/scoring/test_scorer.py \
            --ignore-glob='*_kernel*.py' --ignore=tests/unit/kernels/test_operator_laws.py \
            --ignore=tests/unit/models/test_speed.py --ignore=tests/unit/models/hub/test_dtypes.py \
            -k 'not compile and not bfloat16'
# torch's attention in bfloat16 takes AMX instructions, where there are any, whatever the capability asked for, and fails.
numerics: $(VENV)/.installed-dev ## the numerical tests as on older processors, with one thread and with two
	ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=1 $(BIN)/pytest -q -x -n auto --dist worksteal $(NUMERICS)
	ATEN_CPU_CAPABILITY=avx2 OMP_NUM_THREADS=2 $(BIN)/pytest -q -x -n auto --dist worksteal $(NUMERICS)

# transformers imports torchao wherever it is installed, and it prints to stderr: for its test it has a folder of its own.
quantised: $(VENV)/.installed-dev ## torchao's 8-bit weights, on a CPU
	test -d $(VENV)/torchao || $(PIP) --no-deps --target $(VENV)/torchao torchao
	PYTHONPATH=$(VENV)/torchao $(BIN)/python -W ignore -c 'import torchao.quantization'
	PYTHONPATH=$(VENV)/torchao $(BIN)/pytest -q tests/unit/test_checkpoints.py -k torchao

release: $(VENV)/.installed-release ## wheel and sdist in dist/, checked, installed in a clean environment; on a tag, it names the version
	test -z "$$(git tag --points-at HEAD)" || git tag --points-at HEAD | grep -qx "v$$($(BIN)/argap --version | cut -d' ' -f2)"
	$(BIN)/hadolint Dockerfile
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*
	$(BIN)/pytest -q -m slow tests/commands/test_packaging.py

check: $(VENV)/.installed-dev ## lint, format, types and spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/typos

pages: $(VENV)/.installed-dev ## every table, figure and page that is built from committed results
	$(BIN)/python tools/pages.py

docs: $(VENV)/.installed-docs ## the site, in site/; a broken link or reference fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build dist site *.egg-info
