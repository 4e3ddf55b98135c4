# Every target sets up what it needs in .venv; a fresh clone with Python 3.11 and pip is enough.
#
#   make demo        start the whole system on this machine, answer one prompt, stop
#   make test        everything that must hold, in the order in which a failure says most
#                    WORKERS=2 runs it in two processes; not yet shown to be reliable as a whole
#   make test-slow   long fuzzing and many ranks
#   make lint        the part of `make test` that runs no code
#   make bench       measure; results go to standard output, one JSON object a line
#   make proto       regenerate the wire code after a change of a .proto file
#   make helm-path   print the path of a helm binary on the last line; installs it if needed
#   make browser-path  print the path of a headless Chromium; installs one if needed
#   make chart       regenerate what follows from settings and boards, and lint the chart
#   make venv        only set up

PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin

# A stamp per set of extras; its name changes with what decides the content of the environment.
KEY := $(shell cat pyproject.toml constraints.txt | cksum | cut -d' ' -f1)
STAMP_LOCAL := $(VENV)/.installed-local-$(KEY)
STAMP_DEV := $(VENV)/.installed-dev-$(KEY)
STAMP_BENCH := $(VENV)/.installed-bench-$(KEY)

# One compute thread per process: ranks share the cores, and results do not depend on their number.
export OMP_NUM_THREADS ?= 1

# The order of the stages; the first failure is the message.
TESTS := $(wildcard tests/test_architecture.py tests/unit tests/contract tests/property \
	tests/golden tests/distributed tests/integration tests/charts)

# WORKERS=2 hands whole files to two processes; empty, the default, is one process, in stage order.
# A crashed worker is not replaced: with whole files the next one would run the same crash again.
WORKERS :=
SPREAD = $(if $(WORKERS),-n $(WORKERS) --dist loadfile --max-worker-restart 0)
BENCHMARKS := engine serving overlap dispatch kv_transfer balancer simulator relay telemetry

.PHONY: venv demo test test-slow lint bench proto helm-path browser-path chart clean
.DEFAULT_GOAL := test

venv: $(STAMP_DEV)

demo: $(STAMP_LOCAL)
	$(BIN)/disagg demo

test: lint
	HYPOTHESIS_PROFILE=ci $(BIN)/python -m pytest -m "not slow and not gpu" $(SPREAD) $(TESTS)

test-slow: $(STAMP_DEV)
	HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest -m "slow and not gpu" --timeout 1800 $(TESTS)

lint: $(STAMP_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python proto/generate.py --check
	$(BIN)/buf lint

bench: $(STAMP_BENCH)
	set -e; for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$name --json; done

proto: $(STAMP_DEV)
	$(BIN)/buf lint
	$(BIN)/python proto/generate.py

# HELM names a binary to use instead.
helm-path: | $(BIN)/python
	@$(BIN)/python -m charts.fetch_helm $(if $(HELM),--helm $(HELM))

browser-path: | $(BIN)/python
	@$(BIN)/python -m tests.fakes.fetch_browser

chart: $(STAMP_DEV)
	$(BIN)/python -m charts.schema
	$(BIN)/python -m charts.reference
	$(BIN)/python -m charts.dashboards
	$(BIN)/python -m charts.golden
	"$$($(BIN)/python -m charts.fetch_helm)" lint --strict charts/disagg

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; name it: make PYTHON=..." >&2; exit 3; }
	$(PYTHON) -m venv $(VENV)

# Called with the extras to install; stamps of older settings are removed first. `dev` and `bench`
# contain `local`, so its stamp is set as well.
define install
	rm -f $(VENV)/.installed-$(1)-*
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(1)]'
	touch $@ $(STAMP_LOCAL)
endef

$(STAMP_LOCAL): | $(BIN)/python
	$(call install,local)
$(STAMP_DEV): | $(BIN)/python
	$(call install,dev)
$(STAMP_BENCH): | $(BIN)/python
	$(call install,bench)
