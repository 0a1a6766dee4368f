.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
PROTOS := types intake dispatcher vendor_proxy aggregator
SOURCES := kernel services vendors cli tests

.PHONY: help demo judge labs test check lint protos verify-protos docs clean

help: ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

.venv/models-installed: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[models]'
	@touch $@

.venv/dev-installed: .venv/models-installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,models]'
	@touch $@

demo: .venv/installed ## set up, run the main job on scripted vendors, print the outcome
	$(BIN)/sluice demo

judge: .venv/models-installed ## judge 20 real files with the local models
	$(BIN)/sluice judge

labs: .venv/installed ## run the labs: fencing, unknown_outcome, aggregation
	$(BIN)/sluice lab fencing
	$(BIN)/sluice lab unknown_outcome
	$(BIN)/sluice lab aggregation

test: .venv/dev-installed ## set up, then run every test that needs no outside server
	$(BIN)/python -m pytest

lint: .venv/dev-installed ## format, lint, types, import contracts, protos
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint protos
	$(MAKE) verify-protos

check: lint test ## the one gate

protos: .venv/dev-installed ## generate gen/ from protos/
	PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/python -m grpc_tools.protoc -Iprotos --python_out=gen \
	  --grpc_python_out=gen --mypy_out=quiet:gen --mypy_grpc_out=quiet:gen \
	  $(PROTOS:%=mesh/v1/%.proto)

verify-protos: .venv/dev-installed ## fail when gen/ is not what protos/ generates
	rm -rf .run/gen && mkdir -p .run/gen
	PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/python -m grpc_tools.protoc -Iprotos --python_out=.run/gen \
	  --grpc_python_out=.run/gen --mypy_out=quiet:.run/gen --mypy_grpc_out=quiet:.run/gen \
	  $(PROTOS:%=mesh/v1/%.proto)
	diff -r -x __pycache__ -x __init__.py -x py.typed .run/gen gen

docs: .venv/dev-installed ## render the pages that derive from code
	$(BIN)/python docs/render_lifecycle.py > docs/lifecycle.md

clean: ## remove what was built here
	rm -rf .venv .run *.egg-info
