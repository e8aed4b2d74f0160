# Everything a developer runs. `make demo` and `make test` do all of their own set-up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := shared/proto shared/state shared/daemon services/dra-plugin services/nri-plugin services/registry
READY := $(VENV)/.ready
PLOT := build/plot

.PHONY: help venv native demo test test-containerd containerd test-cluster kill-table run-cluster cluster lint type format proto proto-check kustomize render published benchmark lock clean

help:  ## what each target does
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 18

$(READY): requirements.lock $(PACKAGES:=/pyproject.toml)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation $(PACKAGES:%=-e %)
	touch $@

venv: $(READY)  ## the virtual environment, from requirements.lock

native:  ## the C parts: mock NVML, device-client, preload library
	$(MAKE) --silent -C tests/native

demo: $(READY) native  ## the main job on a mock 8×H100 node (DEMO_RUNTIME=containerd-1.7|containerd-2|stand-in chooses)
	PYTHONPATH=tests/support:examples/demo $(BIN)/python -m vgpu_demo

test: $(READY) native  ## all tests that need neither root nor containerd
	$(BIN)/python -m pytest -m "not containerd and not cluster and not render and not published"

containerd:  ## containerd 1.7 and 2.x into a cache folder outside the tree (root, Debian 12)
	bash tests/containerd/install.sh

test-containerd: $(READY) native  ## the tests on real containerd, both versions (root, after `make containerd`)
	$(BIN)/python -m pytest -m containerd tests/containerd

cluster:  ## a Kubernetes release with etcd and CNI plugins into a cache folder, from source (K8S=1.37|1.36; needs Go)
	bash tests/cluster/build.sh

test-cluster: $(READY)  ## the tests on a real cluster (root, after `make containerd cluster`; K8S chooses the release)
	$(BIN)/python -m pytest -m cluster tests/cluster

kill-table: $(READY)  ## kill -9 of each process, ten rounds of 30 pods each, as a table (root; KILLED=kubelet for one)
	VGPU_KILL_ROUNDS=10 VGPU_KILL_PODS=30 $(BIN)/python -m pytest -m cluster tests/cluster/test_vgpu_kills.py -k "$(KILLED)"

run-cluster: $(READY)  ## a real cluster until Ctrl-C (root, after `make containerd cluster`; K8S chooses the release)
	PYTHONPATH=tests/support $(BIN)/python -m vgpu_testkit.cluster_run $(K8S)

lint: $(READY)  ## ruff, formatting, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/lint-imports

type: $(READY)  ## mypy --strict
	$(BIN)/mypy $(PACKAGES:%=%/src) tests/support examples/demo benchmarks

format: $(READY)
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format --quiet .

proto: $(READY)  ## the generated messages, from shared/proto/protos
	$(BIN)/python shared/proto/generate.py

proto-check: $(READY)  ## fails when the generated messages are stale
	$(BIN)/python shared/proto/generate.py --check

kustomize:  ## a kustomize binary into a cache folder, unless one is on PATH
	bash deploy/install_kustomize.sh

render: $(READY)  ## renders base and overlays (after `make kustomize`)
	$(BIN)/python -m pytest -m render tests/architecture

published: $(READY)  ## our interface definitions against the published ones (needs Go)
	bash tests/contract/fetch_published.sh
	$(BIN)/python -m pytest -m published tests/contract

benchmark: $(READY) native $(PLOT)/.ready  ## the budgets of a node with 500 claims, measured; results in build/benchmark
	PYTHONPATH=tests/support:benchmarks $(BIN)/python -m vgpu_benchmark build/benchmark
	$(PLOT)/bin/python benchmarks/plot.py build/benchmark/results.json build/benchmark/prepare.svg

$(PLOT)/.ready: benchmarks/requirements.lock
	$(PYTHON) -m venv $(PLOT)
	$(PLOT)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r benchmarks/requirements.lock
	touch $@

COMPILE := uv pip compile --generate-hashes --no-annotate --no-header --no-emit-index-url --no-emit-find-links \
  --universal --python-version 3.11 --quiet
lock:  ## the two lock files anew from pyproject.toml (needs uv)
	$(COMPILE) --group dev -o requirements.lock
	$(COMPILE) --group plot -o benchmarks/requirements.lock

clean:
	rm -rf $(VENV) build demo.json
