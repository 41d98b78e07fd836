# Every target is complete on a fresh machine with Python 3.11, gcc, g++ and make: it sets up
# .venv first, which takes minutes once and well under a second from then on.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-rest test-all ptest test-gpu image-test bench bench-quick lint format wheel clean

PYTHON ?= $(shell for p in python3.11 python3; do $$p -c "" 2>/dev/null && { echo $$p; break; }; done)
RUN := .venv/bin/python

# For ptest: which tests, on how many ranks, started by what (gloo or mpi).
T ?= tests/parallel/torch
NP ?= 2
LAUNCHER ?= gloo

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*##/  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

setup:  ## make .venv ready (the other targets do that by themselves)
	@test -n "$(PYTHON)" || { echo "error: no Python found; install Python 3.11, or name one: make PYTHON=…" >&2; exit 1; }
	@$(PYTHON) scripts/setup_env.py

demo: setup  ## train on a slow network with none, fp16 and GlobalQSGD, and compare (4 min)
	@$(RUN) benchmarks/demo.py

test: setup  ## every feature, in ten minutes; `make test T="tests/unit -k name"` for some tests
	$(RUN) -m pytest $(if $(filter file,$(origin T)),-m "not extended",$(T))

test-rest: setup  ## what that leaves out: more ranks, MPI, elastic jobs, containers, all of CUDA
	$(RUN) -m pytest -m extended

test-all: setup  ## both
	$(RUN) -m pytest

ptest: setup  ## parallel tests: `make ptest NP=2 T="tests/parallel/torch/test_x.py -k name"`
	@$(RUN) -m tests.parallel --np $(NP) --launcher $(LAUNCHER) $(T)

test-gpu: setup  ## tests and speed on a real GPU; writes output/gpu-report.md to send back
	$(RUN) -m tests.gpu

image-test: setup  ## build the Docker image with buildah, no engine needed, and run it (root; long)
	@scripts/image_test.sh

bench: setup  ## compare compressors on virtual hosts, into docs/ (hours; goes on after a stop)
	@$(RUN) benchmarks/bench.py

bench-quick: setup  ## the headline of that, into output/, in at most ten minutes
	@$(RUN) benchmarks/bench.py --quick

lint: setup  ## ruff check, ruff format --check, mypy, hadolint
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	.venv/bin/hadolint Dockerfile

format: setup  ## let ruff repair and format what it can
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

wheel: setup  ## build the wheel into dist/
	$(RUN) -m build --wheel --no-isolation

clean:  ## remove .venv and all that was built here (finished Horovod wheels are kept)
	rm -rf .venv build dist output *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
