# Two commands matter: `make run` sets up and does the main job, `make test` sets up and passes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet
# Tests start our program hundreds of times: without compiled files each start compiles it again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test quick test-cluster golden lint bench fuzz clean
run: $(VENV)/.run
	$(BIN)/stackmark run train/resnet50 $(ARGS)

# With STACKMARK_TEST_CLUSTER, the script of a test cluster, the tests on Kubernetes run too.
test: $(VENV)/.dev
	scripts/test-parts
	PYTHON=$(BIN)/python scripts/run-tests $(ARGS)

# After each edit: lint, types, and the tests that need neither torch nor another program. With mypy's cache warm, 90 s on two cores.
quick: lint
	$(BIN)/python -m pytest --quick -rfE -n 2 --dist loadfile $(ARGS)

# Only the tests on Kubernetes: on the cluster of $KUBECONFIG, any cluster, or the one that STACKMARK_TEST_CLUSTER starts.
test-cluster: $(VENV)/.dev
	@[ -z "$$STACKMARK_TEST_CLUSTER" ] || scripts/test-parts
	STACKMARK_TEST_KUBECONFIG=$${KUBECONFIG:-$$HOME/.kube/config} $(BIN)/python -m pytest -m cluster $(ARGS)

# Write tests/golden anew, what every command prints over stored data, and the page of commands.
golden: $(VENV)/.dev
	$(BIN)/python scripts/write_golden.py
	$(BIN)/python scripts/write_commands.py > docs/commands.md

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@# What an image's Python runs, once more for the oldest one; contracts are checked where these import them.
	$(BIN)/mypy --python-version 3.10 --follow-imports silent --cache-dir .mypy_cache/worker $(addprefix src/stackmark/,machine worker workloads)
	$(BIN)/lint-imports

bench: $(VENV)/.dev
	@for benchmark in benchmarks/*.py; do echo "== $$benchmark"; $(BIN)/python $$benchmark || exit 1; done

# For SECONDS each, all targets or TARGET: make fuzz SECONDS=600 TARGET=stream
SECONDS ?= 60
fuzz: $(VENV)/.dev
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m fuzz --seconds $(SECONDS) $(if $(TARGET),--target $(TARGET)) $(ARGS)

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	  { echo "stackmark needs Python 3.11 to 3.13; name one with: make run PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# torch is named with its exact version: an open range would resolve to the newest build there is.
$(VENV)/.run: $(VENV)/.made pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt torch==2.13.0 -e '.[torch,data]'
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	$(PIP) install -c constraints.txt -e '.[torch,data,parquet,plot,postgres,k8s,mlperf,loadgen,monitor,web,dev]'
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
