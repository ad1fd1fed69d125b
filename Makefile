# The two commands a stranger needs are `make demo` and `make test`; `make help` lists the rest.

PYTHON ?= $(firstword $(notdir $(shell command -v python3.11 python3.12 python3.13)) python3.11)
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test check format docs wheel bench clean

help:  ## list what there is to make
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

setup: $(READY)  ## make .venv with everything in it (done once, reused after)

# Made anew only when what it is made from changes.
$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 to 3.13 is needed and not on the PATH (or say make PYTHON=...)"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Setting up $(VENV) (two or three minutes, once)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[report,ner,tagger,generate,hf,train,vectors,gguf,server,federated,ray,sign,docs,dev]'
	@touch $@

demo: $(READY)  ## generated dialogs -> three models, attacked -> a report to open
	@$(BIN)/python tools/demo.py demo

test: $(READY)  ## run the tests (more of them if TACIT_DATA names a folder of corpora)
	@$(BIN)/python -m pytest -n 2 --dist worksteal

check: $(READY)  ## format, lint, types, direction of imports
	@$(BIN)/ruff format --check src tests tools examples
	@$(BIN)/ruff check src tests tools examples
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(READY)  ## put the code into its format
	@$(BIN)/ruff format src tests tools examples
	@$(BIN)/ruff check --fix src tests tools examples

docs: $(READY)  ## build the documentation as a site that works offline: build/site/index.html
	@$(BIN)/python tools/commands.py
	@$(BIN)/python tools/reference.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open build/site/index.html"

wheel: $(READY)  ## build the package: build/wheel/tacit-*.whl
	@$(BIN)/python -m pip wheel -q --disable-pip-version-check --no-deps -w build/wheel .
	@ls -l build/wheel

bench: $(READY)  ## measure; figures go to docs/studies/benchmarks.md
	@$(BIN)/python tools/bench.py

clean:  ## remove everything that make made
	rm -rf $(VENV) demo build
