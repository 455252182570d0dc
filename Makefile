# Everything from nothing but make and Python 3.11, 3.12 or 3.13. `make help` lists the targets.
#   make run ARGS="--for 60s --verify"       options of `mlops-pipeline up`
#   make test ARGS="tests/sinks -k retention"    arguments of pytest
#   make PYTHON=python3.13 setup             another Python than the first fit one

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
FIT := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null && $$p -c '$(FIT)' && { echo $$p; break; }; done 2>/dev/null)
UV = $(shell sed -n '/^name = "uv"$$/{n;s/version = "\(.*\)"/\1/p;}' uv.lock)
SYNC := env -u VIRTUAL_ENV UV_PROJECT_ENVIRONMENT=$(VENV) $(BIN)/uv sync --frozen --extra all --quiet

.PHONY: help setup run test check format bench format-check lint types contracts dead-code packaging

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1 # /p' $(MAKEFILE_LIST) | awk -F' # ' '{printf "make %-13s %s\n", $$1, $$2}'

setup: $(READY) ## .venv with everything but torch and unsloth; does nothing when nothing changed

$(READY): pyproject.toml uv.lock
	@$(BIN)/python -c '$(FIT)' 2>/dev/null || { \
		[ -n "$(PYTHON)" ] || { echo "setup: needs Python 3.11, 3.12 or 3.13; name it with make PYTHON=..." >&2; exit 1; }; \
		echo "setup: making $(VENV) with $$($(PYTHON) --version)"; \
		$(PYTHON) -m venv --clear $(VENV) || { \
			echo "setup: this Python makes no environments (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 1; }; }
	@$(BIN)/uv --version >/dev/null 2>&1 || { \
		echo "setup: fetching uv"; \
		$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null; \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV); }
	@echo "setup: installing what uv.lock names (600 MB; a minute or two the first time)"
	@$(SYNC)
	@touch $(READY)
	@echo "setup: ready"

# In a terminal Ctrl-C interrupts make, too, which then fails. So there the pipeline gets a job of its own (-m), which
# receives Ctrl-C alone, and the exit code is its own.
run: setup ## eight simulated nodes through broker, stream and sink, live; Ctrl-C ends it; ARGS="--for 60s --verify"
	@echo "run: starting; Ctrl-C ends it"
	@case $$(ps -o stat= -p $$$$ 2>/dev/null) in \
	*+*) exec bash -mc '"$$@"; exit $$?' run $(BIN)/mlops-pipeline up --simulate 8 $(ARGS) ;; \
	*) exec $(BIN)/mlops-pipeline up --simulate 8 $(ARGS) ;; \
	esac

test: setup ## all tests; those that need servers are skipped without Java or Go; ARGS="tests/sinks -k retention"
	@bash tests/services/kafka.sh install || [ $$? = 4 ]
	@bash tests/services/servers.sh install all || [ $$? = 4 ]
	@echo "test: running pytest, two tests at a time; ARGS=\"-n 0\" for one"
	@$(BIN)/python -m pytest -n 2 $(ARGS)

check: format-check lint types contracts dead-code packaging ## format, lint, types, imports, dead code, packaging
	@echo "check: all good"

format: setup ## format the code and mend what the linter can
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix

bench: setup ## measure; each figure beside a floor of the same run
	@for b in benchmarks/*.py; do echo "bench: $$b"; $(BIN)/python $$b $(ARGS) || exit 1; done

format-check: setup
	@echo "check: format"
	@$(BIN)/ruff format --check --quiet

lint: setup
	@echo "check: lint"
	@$(BIN)/ruff check --quiet

types: setup
	@echo "check: types, mypy"
	@$(BIN)/mypy --no-error-summary
	@echo "check: types, pyright"
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

contracts: setup
	@echo "check: who imports whom"
	@$(BIN)/lint-imports --no-logo

dead-code: setup
	@echo "check: dead code"
	@$(BIN)/vulture

packaging: setup
	@echo "check: packaging"
	@bash tests/packaging.sh $(BIN)
