# make demo   train through every codec on four workers and write a report
# make test   all tests            make check  ruff and mypy
# make bench  speed, on links too  make docs   the documentation site
# Every target sets up .venv by itself; `make venv` does only that.

PYTHON ?= python3
BIN := .venv/bin
EXTRAS := report,bench,docs,dev,accelerate,transformers,lightning,tensorboard
CODECS := -c none -c fp16 -c bf16 -c qsgd:bits=4 -c qsgd:bits=2,block=128 -c qsgd:bits=4,wire=zstd \
	-c dqsg -c ndqsg -c global-qsgd -c global-qsgd:dither=exponential -c fft \
	-c gradiveq:energy=0.8,warmup_steps=10,train_steps=30

.DEFAULT_GOAL := help
.PHONY: help venv demo test check bench docs clean

help:
	@sed -n 's/^# //p' Makefile

venv: .venv/.stamp

.venv/.stamp: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRAS)]"
	touch $@

demo: venv
	$(BIN)/gradwire train --task mnist-cnn --workers 4 --steps 100 $(CODECS) --report demo-report

test: venv
	$(BIN)/pytest

check: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: venv
	$(BIN)/gradwire bench
	$(BIN)/python benchmarks/links.py --quick

docs: venv
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf .venv demo-report site
