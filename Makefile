# The recipes people type are the ones CI runs. `make` alone lists them.
PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-seeds test test-fast test-faults test-images quality bench

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## .venv with everything pinned; quick when nothing changed
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) was not found: install Python 3.11 to 3.14." >&2; exit 1; }
	@$(PYTHON) .ci/setup.py

demo: setup ## the whole loop on this machine, e.g. DEMO_ARGS="--steps 20 --seed 3"
	@$(BIN)/python -m trainer_box.local $(DEMO_ARGS)

demo-seeds: setup ## five seeds and the frozen control, by hand
	@$(BIN)/python -m trainer_box.seeds $(DEMO_ARGS)

PYTEST := $(BIN)/python -m pytest
TWO_MODULES := -n 2 --dist loadscope --no-loadscope-reorder

# Of vLLM servers there is one at a time: each binds itself to the first core.
test: setup ## the whole suite
	@$(PYTEST) $(TWO_MODULES) -m "not vllm and not faults and not images"
	@$(PYTEST) -m "vllm and not faults and not images"

test-fast: setup ## the suite without real servers and training
	@$(PYTEST) $(TWO_MODULES) -m "not slow"

test-faults: setup ## what a run survives, with real processes: about an hour
	@$(BIN)/python -m tests.faults $(ROWS)
	@$(BIN)/python -m tests.faults.soak

test-images: setup ## the Spaces' images, built and run as Spaces run them: as root, with buildah and debootstrap
	@$(PYTEST) -o faulthandler_timeout=0 -m images tests/images

quality: setup ## lint, format, types, import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: setup ## benchmarks, each against its peers in the same run
	@$(BIN)/python -m tests.bench
