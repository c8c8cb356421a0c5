# `make demo` and `make test` do everything on a machine that has git, make and Python 3.11 with its venv module.
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
SHELL := /bin/sh

SUPPORTED := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))
find_python = $(shell for python in $(1); do \
	"$$python" -c '$(SUPPORTED)' >/dev/null 2>&1 && { echo "$$python"; break; }; done)

# The oldest Python that is supported and here; PYTHON=… chooses another.
PYTHON ?= $(call find_python,python3.11 python3.12 python3.13 python3)
# The newest one here, on the path or installed by pyenv or uv: the fast suite runs on it too.
NEWEST ?= $(call find_python,python3.13 $(wildcard $(HOME)/.pyenv/versions/3.13.*/bin/python3.13) \
	$(wildcard $(HOME)/.local/share/uv/python/cpython-3.13*/bin/python3.13) \
	python3.12 $(wildcard $(HOME)/.pyenv/versions/3.12.*/bin/python3.12))

VENV := .venv
PIP_INSTALL = python -m pip install -qq --disable-pip-version-check -c requirements.lock
LOCKED := pyproject.toml requirements.lock Makefile

# Nothing that is run from here sends anything anywhere, or touches the Prefect state of the person who runs it.
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export DO_NOT_TRACK := 1
DEMO_PREFECT_HOME := $(CURDIR)/demo/prefect
CKPT = $(VENV)/bin/ckpt

# torch from PyPI brings gigabytes of CUDA libraries; TORCH_INDEX=… names another place for its CPU build.
TORCH_INDEX ?=

# A process for each core, as far as four: each starts Prefect servers of its own. A file's tests stay together, which share what is dear.
PARALLEL_PYTEST := pytest -n auto --maxprocesses=4 --dist loadfile
FAST := not paddle and not gpu and not hf and not e2e and not fanout and not deployments and not browser
# For the environments that have one extra and not NiceGUI, which the dashboard's tests import.
WITHOUT_DASHBOARD := --ignore=tests/dashboard
# Debian's own browser; BROWSER=… names another place.
BROWSER ?= /usr/bin/chromium

.PHONY: help demo up test test-oldest test-newest test-fanout test-paddle test-gpu test-sign test-hf test-deployments test-browser test-browser-short screenshots e2e e2e-short lint format types contracts bench faults lock clean

help:
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

demo: $(VENV)/runtime.stamp ## the whole lifecycle on the small Llama run that ships with the tests
	@echo "What the trainer left in tests/data/llama-run:"
	@$(CKPT) versions tests/data/llama-run
	@echo
	@echo "The newest is verified, merged, validated and published by the Prefect flow, which starts a server of its own first:"
	@PREFECT_HOME=$(DEMO_PREFECT_HOME) $(CKPT) run tests/data/llama-run demo/registry --name llama --flow
	@echo
	@release=$$($(CKPT) resolve demo/registry llama) && echo "A serving job mounts $$release, which holds:" && ls -l "$$release/"
	@echo
	@echo "Every byte of it, read again:"
	@$(CKPT) validate demo/registry/llama/latest

up: $(VENV)/runtime.stamp ## run the pipeline of CONFIG (ckpt.yaml): Prefect's server, a worker and the watcher, until Ctrl-C
	$(CKPT) up $(or $(CONFIG),ckpt.yaml)

test: test-oldest test-newest ## the fast suite, on the oldest Python with coverage, and on the newest one here what needs no Prefect server

test-oldest: $(VENV)/dev.stamp
	$(VENV)/bin/$(PARALLEL_PYTEST) -m "$(FAST)" --cov --cov-report=
	@$(VENV)/bin/coverage report --include='ckptcore/rules/*,ckptcore/formats/*' --fail-under=95

ifeq ($(NEWEST),)
test-newest:
	@echo "No Python 3.12 or 3.13 here: the suite ran on the oldest alone."
else
test-newest: .venv-newest/dev.stamp
	.venv-newest/bin/$(PARALLEL_PYTEST) -m "$(FAST) and not prefect_server"
endif

e2e: $(VENV)/dev.stamp ## pipelines with a real server, worker and events: 40 minutes; CKPT_SOAK_VERSIONS=50
	$(VENV)/bin/pytest -m e2e tests/e2e

# On the newest Python: with Prefect, the suite runs on the oldest.
NEWEST_VENV := $(if $(NEWEST),.venv-newest,$(VENV))

e2e-short: $(NEWEST_VENV)/dev.stamp ## … its short part, on the newest Python here: one pipeline from end to end, with a kill
	$(NEWEST_VENV)/bin/pytest -m "e2e and not soak and not kills" tests/e2e

test-fanout: $(VENV)/dev.stamp ## merges on Dask clusters whose processes are killed: some minutes, as root all of it
	$(VENV)/bin/pytest -m fanout

test-paddle: .venv-paddle/dev.stamp ## the cross-check against Paddle itself (CPU wheel)
	.venv-paddle/bin/pytest -m paddle $(WITHOUT_DASHBOARD)

# Paddle for GPUs is not on the public index; GPU_PYTHON=… is one that has it, with the extra `dev`.
GPU_PYTHON ?= .venv-paddle/bin/python

test-gpu: $(if $(filter .venv-paddle/%,$(GPU_PYTHON)),.venv-paddle/dev.stamp) ## slots, checks and Paddle's loader on a GPU, or on the CPU where there is none
	$(GPU_PYTHON) -m pytest -m gpu tests/gpu -v -s

test-sign: .venv-sign/dev.stamp ## signatures against model-signing's own command
	.venv-sign/bin/pytest -m sign $(WITHOUT_DASHBOARD)

test-hf: .venv-hf/dev.stamp ## a release in transformers (downloads it and torch's CPU build into `.venv-hf`)
	.venv-hf/bin/pytest -m hf $(WITHOUT_DASHBOARD)

test-deployments: .venv-deployments/dev.stamp ## deployments/ against Compose, Kubernetes and Prefect's workers for both, Docker and Slurm
	.venv-deployments/bin/pytest tests/deployments

test-browser: $(VENV)/dev.stamp ## the dashboard in a real browser (Debian's chromium), actions against a real server
	CKPT_BROWSER=$(BROWSER) $(VENV)/bin/pytest -m browser tests/dashboard

test-browser-short: $(VENV)/dev.stamp ## … without the pipeline that takes minutes
	CKPT_BROWSER=$(BROWSER) $(VENV)/bin/pytest -m "browser and not e2e" tests/dashboard

screenshots: $(VENV)/dev.stamp ## docs/images/*.png anew, from a pipeline that is made for them
	CKPT_BROWSER=$(BROWSER) $(VENV)/bin/python -m tests.dashboard.screenshots

lint: $(VENV)/dev.stamp ## ruff: rules and formatting
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

format: $(VENV)/dev.stamp ## let ruff mend what it can
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

types: $(VENV)/dev.stamp ## mypy, strict
	$(VENV)/bin/mypy

contracts: $(VENV)/dev.stamp ## the direction of imports
	$(VENV)/bin/lint-imports

bench: $(VENV)/dev.stamp ## merge against cp, Paddle and torch; prints a table, writes bench-results.json
	$(VENV)/bin/python -m tests.bench

faults: $(VENV)/dev.stamp ## every fault at every file-system call; writes the table in docs/reliability.md (root, strace, ~30 min)
	$(VENV)/bin/python -m tests.faults

lock: ## write requirements.lock anew; pins stay unless pyproject.toml or UPGRADE=1 moves them
	@scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && $(PYTHON) -m venv "$$scratch" && \
	"$$scratch/bin/python" -m pip install -qq --disable-pip-version-check uv && \
	"$$scratch/bin/uv" pip compile --quiet --universal --python-version 3.11 --extra dev --extra paddle --extra sign --extra deployments \
		--extra dask --extra dashboard --extra otel \
		--no-annotate --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' \
		$(if $(UPGRADE),--upgrade) -o requirements.lock pyproject.toml

clean: ## remove everything that was made here
	rm -rf .venv .venv-newest .venv-paddle .venv-sign .venv-hf .venv-deployments demo build dist .coverage bench-results.json
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find ckptcore flows tasks tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Virtual environments. A stamp is younger than the files that say what to install, or the install is repeated.
# $(call make_venv,DIRECTORY,PYTHON)
define make_venv
	@test -n "$(2)" || { echo "No Python 3.11, 3.12 or 3.13 with venv and ensurepip found. On Debian or Ubuntu:" \
		"apt-get install python3.11 python3.11-venv. Or say where it is: make PYTHON=/path/to/python3.11 …" >&2; exit 1; }
	@echo "Installing into $(1), with $(2): about a minute"
	@test -x $(1)/bin/pip || $(2) -m venv --clear $(1)
endef

$(VENV)/runtime.stamp: $(LOCKED)
	$(call make_venv,$(VENV),$(PYTHON))
	@$(VENV)/bin/$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/dev.stamp: $(LOCKED)
	$(call make_venv,$(VENV),$(PYTHON))
	@$(VENV)/bin/$(PIP_INSTALL) -e '.[dev,dask,dashboard,otel]'
	@touch $(VENV)/runtime.stamp $@

.venv-newest/dev.stamp: $(LOCKED)
	$(call make_venv,.venv-newest,$(NEWEST))
	@.venv-newest/bin/$(PIP_INSTALL) -e '.[dev,dask,dashboard,otel]'
	@touch $@

.venv-paddle/dev.stamp: $(LOCKED)
	$(call make_venv,.venv-paddle,$(PYTHON))
	@.venv-paddle/bin/$(PIP_INSTALL) -e '.[dev,paddle]'
	@touch $@

.venv-sign/dev.stamp: $(LOCKED)
	$(call make_venv,.venv-sign,$(PYTHON))
	@.venv-sign/bin/$(PIP_INSTALL) -e '.[dev,sign]'
	@touch $@

.venv-hf/dev.stamp: $(LOCKED)
	$(call make_venv,.venv-hf,$(PYTHON))
	@.venv-hf/bin/$(PIP_INSTALL) $(TORCH_INDEX) -e '.[dev,hf]'
	@touch $@

.venv-deployments/dev.stamp: $(LOCKED)
	$(call make_venv,.venv-deployments,$(PYTHON))
	@.venv-deployments/bin/$(PIP_INSTALL) -e '.[dev,deployments]'
	@touch $@
