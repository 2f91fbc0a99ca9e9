# make demo   train through every codec on four workers and write a report
# make test   all tests            make check  ruff and mypy
# make bench  speed of the codecs  make docs   the documentation site
# Every target sets up .venv by itself; `make venv` does only that.

PYTHON ?= python3
BIN := .venv/bin
EXTRAS := report,docs,dev,accelerate,transformers,lightning,tensorboard
CODECS := -c none -c fp16 -c qsgd:bits=4 -c qsgd:bits=2,block=128 -c qsgd:bits=4,wire=zstd

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
	$(BIN)/gradwire train --task mnist-cnn --workers 4 $(CODECS) --report demo-report

test: venv
	$(BIN)/pytest

check: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: venv
	$(BIN)/gradwire bench -c qsgd:bits=4 -c qsgd:bits=2,block=128 -c qsgd:bits=8 \
		-c qsgd:bits=4,wire=zstd -c qsgd:levels=1,norm=l2,wire=elias -c fp16 -c none \
		-c dqsg -c dqsg:bits_per_value=2.0 -c global-qsgd -c global-qsgd:dither=subtractive -c fft

docs: venv
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf .venv demo-report site
