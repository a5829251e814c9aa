# Everything a newcomer needs: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: install demo test check bench clean

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch triton
	$(PIP) --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --editable '.[dev]'
	touch $@

install: $(VENV)/.installed  ## the package and what it needs, in .venv

demo: install                ## Table 1 for the shipped checkpoints, on real text
	$(BIN)/argap demo --out runs/demo

test: $(VENV)/.installed-dev ## the default suite: CPU, under ten minutes on two cores
	$(BIN)/pytest -q

check: $(VENV)/.installed-dev ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

bench: $(VENV)/.installed-dev ## side by side with peers; prints ratios
	for f in benchmarks/*.py; do $(BIN)/python $$f || exit 1; done

clean:
	rm -rf $(VENV) build dist *.egg-info
