# `make help` lists the targets. Everything is installed into .venv, nothing outside this folder.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SITE := _build/html
PORT ?= 8000
# Between the tries of linkcheck-external, in seconds.
PAUSE ?= 60
# Further options for audit, such as AUDIT='-s osv' to ask another service.
AUDIT ?=
# To leave out the check of the bill of materials, which takes most of its time: SBOM=--no-validate
SBOM ?= --validate
# -W: a warning is an error; --keep-going: show them all first; -n: a dangling reference is a warning.
SPHINXOPTS ?= -W --keep-going -n

# Its further options are in lychee.toml.
LYCHEE = $(BIN)/lychee --root-dir $(CURDIR)/$(SITE)

.DEFAULT_GOAL := help
.PHONY: help setup html test lint linkcheck linkcheck-external linklist compare bench bench-gate gallery-sync scenario urls readme browser screenshot lock audit sbom reliability serve clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  PYTHON=python3.12 make html  chooses the interpreter for a new .venv"

setup: $(VENV)/.installed

# Each step that can fail on a fresh machine says in one line what to do about it.
# Hashes are checked of all but torch, which differs from machine to machine; see SECURITY.md.
$(VENV)/.installed: requirements.lock requirements.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || \
	    { echo "make: no '$(PYTHON)' here; install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "make: $$($(PYTHON) --version) is too old; install Python 3.11 or newer, or name one: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	    { echo "make: $(PYTHON) has no venv module; on Debian or Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "Installing into $(VENV) (a few minutes the first time) ..."
	@$(PYTHON) -m venv $(VENV)
	@sh .ci/with-progress $(VENV)/install.log sh -ec '\
	    $(BIN)/python -m pip install --require-hashes --only-binary :all: -r requirements.lock; \
	    $(BIN)/python -m pip install --no-build-isolation -r requirements.txt -e ".[dev]"' || \
	    { grep -m1 '^ERROR' $(VENV)/install.log; \
	      echo "make: packages could not be installed; check the network or the package index, then run make again (log: $(VENV)/install.log)"; exit 1; }
	@touch $@

html: setup browser  ## run the demos on real ranks and build the site
	@$(BIN)/python -m sphinx -b html $(SPHINXOPTS) -d _build/doctrees . $(SITE)
	@echo "Open $(CURDIR)/$(SITE)/index.html"

test: setup browser  ## run the tests
	@$(BIN)/python -m pytest

lint: setup  ## style, types, spelling and RST
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/codespell
	@$(BIN)/sphinx-lint intermediate_source *.rst

linkcheck: html  ## links, anchors, pictures and downloads of the built site, offline
	@$(LYCHEE) --offline $(SITE)

# lychee asks again a host that has had too many requests, but not one that fails for a moment.
linkcheck-external: html  ## the links to other hosts too, for those with a network
	@again() { echo "Looking again in $$1 s ..."; sleep $$1; $(LYCHEE) $(SITE); }; \
	$(LYCHEE) $(SITE) || again $(PAUSE) || again $(PAUSE)

linklist: html  ## list the links to other hosts
	@$(LYCHEE) --dump $(SITE) | grep '^http' | sort -u

compare: setup  ## right and wrong answers beside torchfrtrace, on made dumps (_build/compare)
	@$(BIN)/python -m benchmarks.compare

bench: setup  ## speed beside torchfrtrace and plain reading (some minutes; benchmarks/results.json)
	@$(BIN)/python -m benchmarks.bench

bench-gate: setup  ## fail if 512 ranks take more than 1.2 times as long as plain reading
	@$(BIN)/python -m benchmarks.bench --gate 1.2

serve: html  ## build, then serve the site on PORT (8000)
	@$(BIN)/python -m http.server --bind 127.0.0.1 --directory $(SITE) $(PORT)

gallery-sync: setup  ## copy the section that records the job into every gallery script
	@PYTHONPATH=src $(BIN)/python -m site_build.recorded_job

scenario: setup  ## begin a page of the hang gallery: make scenario NAME=my_hang
	@PYTHONPATH=src $(BIN)/python -m site_build.scenario "$$NAME"

urls: setup browser  ## build, and add new pages and anchors to the list of published URLs
	@$(BIN)/python -m sphinx -b html $(SPHINXOPTS) -D published_urls_add=1 -d _build/doctrees . $(SITE)

readme: html  ## put the output of the build's own run into the README
	@PYTHONPATH=src $(BIN)/python -m site_build.readme

# The names are those that site_build.browser looks for.
browser:  ## install Debian's Chromium, for pictures and tests of pages, where there is none
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do \
	    command -v $$name >/dev/null && exit 0; \
	done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "Installing Chromium ..."; \
	    sh .ci/with-progress "$$(mktemp)" sh -c \
	        'apt-get update -q && apt-get install -y -q --no-install-recommends chromium' && exit 0; \
	fi; \
	echo "make: no Chromium here: pages are built without their screenshots, and tests of pages are skipped; install Chromium or Chrome to have both"

screenshot: html  ## take the README's screenshot anew (needs Chromium)
	@PYTHONPATH=src $(BIN)/python -c 'from site_build.browser import main; main()' $(SITE)/index.html _static/screenshot.png

lock: setup  ## write requirements.lock anew, after a change of requirements.txt or pyproject.toml
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-build \
	    --no-emit-package torch --system-certs --custom-compile-command 'make lock' --extra dev \
	    requirements.txt pyproject.toml --output-file requirements.lock

# Without --strict a package that could not be looked up would count as one without vulnerabilities.
# pip-audit takes either hashes or none, and torch has none.
audit: setup  ## look for known vulnerabilities of what is installed, for those with a network
	@log=$$(mktemp); { sed -e '/--hash=/d' -e 's/ \\$$//' requirements.lock; grep '^torch==' requirements.txt; } | \
	$(BIN)/pip-audit --strict --no-deps --disable-pip --progress-spinner off $(AUDIT) -r /dev/stdin 2>$$log && grep '^No known' $$log || \
	    { grep '^Found' $$log || echo "make: nothing was audited: the vulnerability service is not reachable, or does not know a package (log: $$log)"; exit 1; }

# Of what .pth files lead to, which is this folder, -S leaves out all: else the project, installed in
# it to be edited, would be a package of its own beside itself, with the folder as its address.
sbom: setup  ## list what .venv holds as a bill of materials (_build/sbom.json, CycloneDX)
	@mkdir -p _build
	@PYTHONPATH=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
	    $(BIN)/cyclonedx-py environment -S --pyproject pyproject.toml --mc-type application \
	    --output-reproducible $(SBOM) -o _build/sbom.json $(BIN)/python

reliability: setup browser  ## hostile files, made jobs, injected faults, builds in a row (long; benchmarks/reliability)
	@for part in hostile random_jobs injected_faults builds; do \
	    $(BIN)/python -m benchmarks.reliability.$$part || exit; \
	done

clean:  ## remove everything the build made, but not .venv
	@rm -rf _build intermediate
