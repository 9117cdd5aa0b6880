# Every target sets up what it needs in .venv: the versions in scripts/pins*.txt, each file checked by its SHA-256 hash.
# WHEELS= (empty) also takes source archives, checked alike, for a platform that a package has no wheel for.
PYTHON   ?= python3
VENV     := .venv
BIN      := $(VENV)/bin
PIP      := $(BIN)/python -m pip --disable-pip-version-check -q
WHEELS   ?= --only-binary :all:
INSTALL  := $(PIP) install --require-hashes $(WHEELS)
PINS     := scripts/pins.txt
DEV_PINS := scripts/pins-dev.txt
COMPILE  := $(VENV)/pins/bin/uv pip compile -q --universal --python-version 3.11 --upgrade --no-strip-extras --generate-hashes \
            --only-binary :all: --no-emit-index-url --custom-compile-command 'make pins'

.DEFAULT_GOAL := help
.PHONY: help hooks run test test-unit picture test-clients test-suites soak check format bench bench-parts profile clean pins sbom audit messages reference changelog docs zipapp coverage

help:  ## Show this list
	@awk 'BEGIN {FS = ":.*##"} /^[a-z-]+:.*##/ {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/run.stamp  ## Set up and start the gateway (ARGS="--port 9000" for its options)
	@$(BIN)/gateway serve $(ARGS)

# What was compiled is kept, whatever the environment says: every process of a test would compile the project anew.
test test-unit test-clients test-suites soak bench-parts check: export PYTHONDONTWRITEBYTECODE =

test: $(VENV)/dev.stamp  ## Set up and run all tests (ARGS="-k name" for pytest's options)
	@$(BIN)/python -m pytest $(ARGS)

test-unit: $(VENV)/dev.stamp  ## Run the tests that open no socket
	@$(BIN)/python -m pytest -m unit $(addprefix tests/,domain formats providers routing auth proxy test_errors.py test_parsing.py) $(ARGS)

coverage: $(VENV)/dev.stamp  ## Run all tests, and fail if too few branches of what money depends on are covered
	@$(BIN)/python -m pytest --cov=gateway.domain --cov=gateway.formats --cov=gateway.billing --cov-branch --cov-fail-under=98 $(ARGS)

picture: $(VENV)/dev.stamp  ## Take the README's picture of the console (ARGS="--to FILE")
	@$(BIN)/python scripts/screenshot.py $(ARGS)

test-clients: $(VENV)/dev.stamp  ## Run real clients through a gateway; installs them (ARGS="codex litellm" for some)
	@$(BIN)/python -m scripts.run_clients $(ARGS)

test-suites: $(VENV)/dev.stamp  ## Run the libraries' own tests through a gateway; fetches them (ARGS="openai --spec FILE")
	@$(BIN)/python -m scripts.run_suites $(ARGS)

soak: $(VENV)/dev.stamp  ## Run the long load and crash tests, and the properties on many examples (four hours)
	@EXAMPLES=400 $(if $(ARGS),,GATEWAY_TEST_LOAD_MINUTES=120) $(BIN)/python -m pytest --numprocesses=0 --timeout=0 -m "soak or hypothesis" $(ARGS)

check: $(VENV)/dev.stamp  ## Lint, types, import floors and sizes
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/deptry gateway
	$(BIN)/python -m pytest -q tests/architecture

bench: $(VENV)/dev.stamp  ## Measure beside nginx and a bare relay, some ten minutes (ARGS="--with rolter,litellm" for other gateways, too)
	@$(BIN)/python scripts/bench.py $(ARGS)

bench-parts: $(VENV)/dev.stamp  ## Print what the parts of a request cost in CPU time, and compare them
	@$(BIN)/python -m pytest --numprocesses=0 --timeout=0 -m cost -s tests/bench $(ARGS)

profile: $(VENV)/dev.stamp  ## See where the time goes under load (ARGS="--only sse")
	@$(BIN)/python scripts/profile_relay.py $(ARGS)

hooks:  ## Let git check messages and formatting before a commit
	git config core.hooksPath scripts/hooks

format: $(VENV)/dev.stamp  ## Put the code into the project's form
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

messages: $(VENV)/dev.stamp  ## Put the console's new messages into its catalogues
	@$(BIN)/python scripts/extract_messages.py

reference: $(VENV)/dev.stamp  ## Write the generated pages of docs/reference
	@$(BIN)/python -m scripts.build_reference

changelog: $(VENV)/dev.stamp  ## Move the fragments of scripts/changes into CHANGELOG.md (VERSION=1.2.3)
	@$(BIN)/towncrier build --yes --version $(VERSION)

docs: reference  ## Write the documentation to dist/docs, as a web site
	@$(BIN)/mkdocs build --strict --quiet

# Build tools of the project itself (hatchling, editables) are pinned with what it runs on: they run at every set-up.
# The second list leaves out what the first one has.
pins:  ## Renew scripts/pins*.txt from the newest versions that pyproject.toml allows
	rm -rf $(VENV)/pins && $(PYTHON) -m venv $(VENV)/pins
	$(VENV)/pins/bin/python -m pip --disable-pip-version-check -q install --only-binary :all: uv
	printf 'hatchling\neditables\n' | $(COMPILE) pyproject.toml - -o $(PINS) > $(VENV)/pins/log
	$(COMPILE) --extra dev -c $(PINS) $$(sed -n 's/^\([A-Za-z0-9][^= []*\).*==.*/--no-emit-package \1/p' $(PINS)) \
	    pyproject.toml -o $(DEV_PINS) > $(VENV)/pins/log
	rm -rf $(VENV)/pins

zipapp: $(VENV)/dev.stamp  ## Write dist/gateway.pyz: the gateway and all it needs in one file, for this platform
	@$(BIN)/python scripts/build_zipapp.py

sbom: $(VENV)/run.stamp  ## Write dist/sbom.cdx.json: what the gateway runs on, as CycloneDX JSON
	@mkdir -p dist && $(BIN)/python scripts/supply_chain.py sbom > dist/sbom.cdx.json

audit: $(VENV)/run.stamp  ## Look for the pinned versions in advisories (ADVISORIES=file or folder, OSV JSON)
	@$(BIN)/python scripts/supply_chain.py audit $(ADVISORIES)

clean:  ## Remove what the other targets made, but not the data folder
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/base.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Setting up $(VENV) (once) ..."
	@$(PYTHON) -m venv $(VENV) || { echo "Python's venv module is missing (Debian: apt install python3-venv)"; rm -rf $(VENV); exit 1; }
	@touch $@

$(VENV)/run.stamp: $(VENV)/base.stamp pyproject.toml $(PINS)
	@$(INSTALL) -r $(PINS)
	@$(PIP) install --no-index --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp $(DEV_PINS)
	@$(INSTALL) -r $(PINS) -r $(DEV_PINS)
	@touch $@
