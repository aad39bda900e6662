# Nothing but Python 3.11+ and make is needed: every target sets up what it uses in .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: quickstart test test-slow test-multi test-gpu test-browser check format clean

quickstart: .venv/bertie ## the whole way on the text that every Python machine has
	$(BIN)/bertie quickstart

test: check ## lint, types, tests
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder --durations 25

test-slow: .venv/test ## the heavy equality tests over the shared corpora, minutes of CPU time
	$(BIN)/pytest -m slow

test-multi: .venv/test ## the heavier runs over several processes alone; make test has them too
	$(BIN)/pytest -m multi

test-gpu: .venv/test ## kernels on this machine's GPU; make test has them too, in Triton's interpreter
	$(BIN)/pytest -m gpu -n 8

test-browser: .venv/test ## the server's page in a real Chromium alone; make test has it, too
	$(BIN)/pytest -m browser

check: .venv/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build dist quickstart .mypy_cache .pytest_cache .ruff_cache

.venv/python:
	$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"bertie needs Python 3.11 or newer, this is {v[0]}.{v[1]}; try: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	touch $@

.venv/bertie: .venv/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

.venv/test: .venv/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@
