# make bench   set up, measure what this machine has, print the comparison
# make test    set up, run every test
# make check   lint, types, layers
# make overhead  what measuring costs: the tool's loop against a bare one (a benchmark: idle machine, no tests beside it)
# make simulate  coverage, false verdicts and power of the intervals where the truth is known (about ten minutes)
# make all     check and test, as CI does
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: bench test check overhead simulate all clean

bench: $(INSTALLED)
	$(BIN)/fp8bench run

test: $(INSTALLED)
	$(BIN)/pytest

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

overhead: $(INSTALLED)
	$(BIN)/python benchmarks/overhead.py

simulate: $(INSTALLED)
	$(BIN)/python benchmarks/simulate.py

all: check test

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -c constraints.txt -e '.[dev]'
	touch $@

# Removes what can be made again. Results cannot, so they stay.
clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
