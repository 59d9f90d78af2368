# Everything runs from a clean checkout with only python3 (with venv) and make: each target builds .venv by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

# What is tested and measured starts hundreds of processes: each would compile Relay anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-real faults check bench picture format wheel clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(VENV)/.ready ## build .venv with Relay and the tools to work on it

$(VENV)/.ready: pyproject.toml
	@echo "installing Relay into $(VENV) (once, a minute or so)" >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' 2>$(VENV)/pip.log \
	  || { cat $(VENV)/pip.log >&2; exit 1; }
	@touch $@

demo: venv ## real training live: commander, three agents, one killed on the way (ARGS="--headless --seconds 60 --json")
	@$(BIN)/relay-tui demo $(ARGS)

test: venv ## the test suite
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder $(ARGS)

test-real: venv .venv-real/.ready ## real trainers killed and resumed under the agent: torch, HF, TRL, PEFT, Lightning, …
	TEST_REAL=1 $(BIN)/python -m pytest tests/real -n 2 $(ARGS)

.venv-real/.ready: tests/real/requirements.txt
	@echo "installing the real trainers into .venv-real (once, some minutes, about 2 GB)" >&2
	@test -x .venv-real/bin/python || $(PYTHON) -m venv .venv-real
	@.venv-real/bin/python -m pip install --quiet --disable-pip-version-check -r $< 2>.venv-real/pip.log \
	  || { cat .venv-real/pip.log >&2; exit 1; }
	@touch $@

faults: venv ## 20,000 simulated worlds of faults, and the bugs planted in them (ARGS="--seeds 1-1000")
	$(BIN)/python -m tests.faults --bugs
	$(BIN)/python -m tests.faults --seeds 1-20000 --jobs 2 $(ARGS)
	$(BIN)/python -m tests.faults.hub_kills --rounds 200
	$(BIN)/python -m tests.faults.store_kills --rounds 200
	$(BIN)/python -m tests.faults.pull_kills --rounds 200

check: venv ## ruff, mypy, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: venv ## speed beside yardsticks, in minutes (ARGS=--json, ARGS="--only line ingest")
	@$(BIN)/python -m tests.bench $(ARGS)

picture: venv ## draw docs/*.svg anew: the dashboard over the demo
	@$(BIN)/python -m tests.picture

format: venv ## let ruff put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: venv ## build the wheel into dist/
	$(BIN)/python -m build --wheel

clean: ## remove what was built
	rm -rf $(VENV) .venv-real dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
