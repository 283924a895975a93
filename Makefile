# make bench   set up without developers' tools, with Transformer Engine where there is an NVIDIA GPU, measure what this machine has
# make install  set up as `make bench` does, without measuring
# make test-quick  the tests of the inner loop: no test that imports torch, starts a process or draws a picture
# make test    set up with developers' tools, run the tests for a commit: every test except those marked `thorough`
# make test-all  every test: in parallel, then, alone, the tests that measure time
# make faults  every fault of docs/faults.md, in real processes; `make test-all` runs their quick part
# make check   lint, types, layers, workflows, shell scripts, launch recipes
# make overhead  what measuring costs: the tool's loop against a bare loop (a benchmark: needs an idle machine)
# make simulate  coverage, false verdicts and power of the intervals on simulated hosts (about ten minutes)
# make prediction-errors  how far predictions are off, computed from the committed records (docs/prediction.md)
# make records  measure on this machine's GPUs what the README, the docs and the claims show (benchmarks/remeasure.yaml)
# make tables  make the tables of the README and the docs, and docs/claims.md, again from the records
# make all     check and test-all, as in CI
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEVELOPING := $(VENV)/.developing
SIDE_BY_SIDE := --numprocesses auto --maxprocesses 8 --dist worksteal
# pytest collects only these files for the serial tests.
SERIAL = $(shell grep -rl --include=test_*.py "mark.serial" tests)
# The tests start hundreds of processes, and each would compile the package and pytest's asserts again.
test test-quick test-all faults: export PYTHONDONTWRITEBYTECODE :=

.PHONY: bench install test test-quick test-all faults check overhead simulate prediction-errors records tables all clean

bench: install
	$(BIN)/fp8bench run

install: $(INSTALLED)
	bash install/transformer-engine.sh $(BIN)/python

test-quick: $(DEVELOPING)
	$(BIN)/pytest -q $(SIDE_BY_SIDE) --without-torch -m "not slow and not faults"

test: $(DEVELOPING)
	$(BIN)/pytest $(SIDE_BY_SIDE) -m "not thorough and not faults"

test-all: $(DEVELOPING)
	$(BIN)/pytest $(SIDE_BY_SIDE) -m "not serial and not faults"
	$(BIN)/pytest -m "serial and not faults" $(SERIAL)

faults: $(DEVELOPING)
	$(BIN)/pytest $(SIDE_BY_SIDE) tests/faults -m "not serial"
	$(BIN)/pytest tests/faults -m serial

check: $(DEVELOPING)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows $(wildcard .github/workflows/*.yml)
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff
	$(BIN)/zizmor --offline --quiet .github/workflows
	$(BIN)/shellcheck .ci/run .github/*.sh install/*.sh configs/launch/*.sh configs/launch/*.sbatch
	$(BIN)/kubernetes-validate --strict --quiet configs/launch/kubernetes.yaml
	$(BIN)/check-jsonschema --schemafile tests/recipes/skypilot-task.schema.json configs/launch/skypilot.yaml

overhead: $(INSTALLED)
	$(BIN)/python benchmarks/overhead.py

simulate: $(INSTALLED)
	$(BIN)/python benchmarks/simulate.py

prediction-errors: $(DEVELOPING)
	$(BIN)/python benchmarks/prediction_errors.py

records: install $(DEVELOPING)
	$(BIN)/python benchmarks/remeasure.py

tables: $(INSTALLED)
	$(BIN)/python benchmarks/tables.py
	$(BIN)/python benchmarks/claims.py

all: check test-all

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -c constraints.txt -e .
	touch $@

$(DEVELOPING): $(INSTALLED)
	$(BIN)/pip install -c constraints.txt -e '.[dev]'
	touch $@

# Removes what can be made again. Results cannot be made again, so they stay.
clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
