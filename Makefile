# Everything a developer or a CI job runs. Needs Python 3.11 or newer with venv and pip; all else lands in .venv.

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed.stamp
INSTALL_LOG := $(VENV)/install.log

# PYTHON=/path/to/python chooses the interpreter; otherwise the newest tested one that works is taken.
PYTHON ?=
PYTEST_ARGS ?=
# How long `make chaos` lets faults happen, and which seed decides them.
MINUTES ?= 2
SEED ?=
# One process per core, but not so many that the servers they start crowd each other out.
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal --durations 5

# What a shell or a CI image may have set for other projects would send our packages elsewhere or import theirs.
unexport PIP_PREFIX PIP_TARGET PYTHONHOME PYTHONPATH
export PIP_USER := 0
export PIP_NO_INPUT := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help install check fmt test test-fast simulate chaos chaos-mutations demo reference lock build clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED) ## Make .venv and install the project with its development tools, as locked

check: $(INSTALLED) ## Lint, formatting, types, the import rings, and that the documents tell the truth
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@$(BIN)/python -m pytest -q -n 2 tests/unit/test_docs.py

fmt: $(INSTALLED) ## Format the code and sort its imports
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: $(INSTALLED) ## Run every test
	@$(PYTEST) $(PYTEST_ARGS)

test-fast: $(INSTALLED) ## Run the unit and contract tests that take no more than seconds
	@$(PYTEST) -m "not slow" tests/unit tests/contract $(PYTEST_ARGS)

chaos: $(INSTALLED) ## Kill, freeze and cut off real processes at random for MINUTES (2), by a SEED or any, then judge what is left
	@$(BIN)/python -m tests.chaos.round --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

chaos-mutations: $(INSTALLED) ## Put known defects into copies of the package, and require that chaos finds each
	@$(BIN)/python -m tests.chaos.mutants

simulate: $(INSTALLED) ## Play SEEDS=1000 worlds in which everything fails, on all cores; SEED=123 plays and prints one
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),1000) --first $(or $(FIRST),0))

demo: $(INSTALLED) ## Run the example sweep (HumanEval, 492 trials) with two workers, from start to report
	@state=$$(mktemp -d) && trap 'rm -rf "$$state"' EXIT && trap 'exit 130' HUP INT TERM && \
		$(BIN)/statem-dist sweep run runbooks/humaneval.sweep.yaml --workers 2 --state-dir "$$state"

reference: $(INSTALLED) ## Write the made part of docs/api.md anew from the service
	$(BIN)/python -m statem_api.reference docs/api.md

lock: ## Write requirements.lock anew from the bounds in pyproject.toml
	@$(make_venv)
	@$(BIN)/python -m pip install 'pip-tools>=7.5,<8' 'hatchling>=1.27,<2' $(or_show_log)
	CUSTOM_COMPILE_COMMAND='make lock' $(BIN)/python -m piptools compile --upgrade --quiet --no-build-isolation \
		--all-extras --strip-extras --no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
		--output-file requirements.lock pyproject.toml

build: $(INSTALLED) ## Build the sdist and the wheel into dist/
	$(BIN)/python -m build --no-isolation

clean: ## Remove .venv and what builds and tests leave behind (never a .statem directory: that is your data)
	rm -rf $(VENV) dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The lock comes first: it brings the build backend, so that nothing is fetched past it for the build.
$(INSTALLED): pyproject.toml requirements.lock
	@$(make_venv)
	@echo "Installing into $(VENV); the first time this takes a minute."
	@$(BIN)/python -m pip install -r requirements.lock $(or_show_log)
	@$(BIN)/python -m pip install --no-build-isolation -c requirements.lock -e '.[agui,demo,dev,flower]' $(or_show_log)
	@touch $@

# Ends a command whose output is of interest only if it fails.
or_show_log = >$(INSTALL_LOG) 2>&1 || { cat $(INSTALL_LOG) >&2; exit 1; }

# Keeps a .venv that works and replaces one that does not (half made, or its Python has gone).
define make_venv
if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	for candidate in $(or $(PYTHON),python3.13 python3.12 python3.11 python3); do \
		"$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && break; \
		candidate=; \
	done; \
	if [ -z "$$candidate" ]; then \
		echo "No Python 3.11 or newer with venv and pip among: $(or $(PYTHON),python3.13 python3.12 python3.11 python3)." >&2; \
		echo "Install one (Debian: apt-get install python3 python3-venv), or run: make PYTHON=/path/to/python" >&2; \
		exit 1; \
	fi; \
	"$$candidate" -m venv --clear $(VENV); \
fi
endef
