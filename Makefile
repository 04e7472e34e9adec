# The README's commands. Everything happens in .venv inside the checkout; each target sets up what it needs.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
ALL_INSTALLED := .venv/.all-installed

.PHONY: install demo test lint bench chromium clean

install: $(ALL_INSTALLED)

demo: $(INSTALLED)
	$(BIN)/starfc demo -o demo

test: $(INSTALLED) chromium
	$(BIN)/python -m pytest --numprocesses=auto --maxprocesses=4 --dist=worksteal --cov --cov-report=term --cov-fail-under=90

lint: $(INSTALLED)
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy

bench: $(INSTALLED)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt pynndescent
	$(BIN)/python benchmarks/knn.py

clean:
	rm -rf .venv demo bench
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

# What the demo, the tests and the lint need.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	touch $@

# The browser of the review page's tests; without it they are skipped, except in CI.
chromium:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null \
	|| (apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver) >/dev/null 2>&1 \
	|| echo "no chromium: the browser tests will be skipped"

# Every extra.
$(ALL_INSTALLED): $(INSTALLED)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[all,dev]'
	touch $@
