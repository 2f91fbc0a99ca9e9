# make demo   every paper's codec on four workers, 200 Mbit/s apart: who is there first?
# make test   all tests            make check  ruff, mypy, the docs, the wheel
# make bench  speed, on links too  make docs   the documentation site
# Every target sets up .venv by itself; `make venv` installs all, `make demo` what it needs.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
EXTRAS := bench,gpu,docs,dev,accelerate,transformers,lightning,tensorboard
CODECS := -c none -c qsgd:bits=2 -c dqsg -c ndqsg -c global-qsgd:bits=2 -c fft \
	-c gradiveq:warmup_steps=0,train_steps=8 -c eden -c powersgd
DEMO := $(BIN)/gradwire train --workers 4 --steps 100 --target 0.95 --eval-every 4 $(CODECS) \
	--report demo-report

.DEFAULT_GOAL := help
.PHONY: help venv demo test check bench docs clean

help:
	@sed -n 's/^# //p' Makefile

venv: .venv/.all

.venv/.gradwire: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -e .
	touch $@

.venv/.all: .venv/.gradwire
	$(PIP) -e ".[$(EXTRAS)]"
	touch $@

demo: .venv/.gradwire
	@$(DEMO) --link 200mbit || { [ $$? -eq 2 ] && \
		echo "So the workers talk over loopback, where sending costs nothing: scores and bytes" && \
		echo "are real, but the time that compression saves is hidden." && $(DEMO); }

test: venv
	$(BIN)/pytest

check: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	PYTHON=$(BIN)/python sh tests/wheel.sh

bench: venv
	$(BIN)/gradwire bench
	$(BIN)/python benchmarks/links.py --quick

docs: venv
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf .venv demo-report site
