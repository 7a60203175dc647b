# Two commands matter to a newcomer: `make demo` and `make test`. Each sets up what it needs in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
UV_VERSION := 0.13.8
# Tests with brokers often wait for them: four at once keep two cores busy. Those without keep a core busy each.
PYTEST := $(BIN)/python -m pytest -q --dist worksteal -n
RANDOM_KILLS := tests/fault/kafka_plugin/test_random_kills.py

# Keep compiled modules where the environment says not to: each process of Ray's would compile torch again, for seconds.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test tests test-tools setup check torture bench java dist clean help

help: ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort

demo: setup ## real Kafka, real data, two workers, one killed, two runs that share a cluster (about 4 minutes)
	$(BIN)/evenload demo

test: ## every check and, beside them, every test, against embedded brokers (about 20 minutes on 2 cores)
	@$(MAKE) --no-print-directory -j 2 check tests

tests: test-tools ## every test, without the checks
	$(PYTEST) 2 tests/unit tests/property
	$(PYTEST) 4 tests/integration tests/fault

test-tools: setup ## Chromium and promtool, which tests of the live page and of deploy/ use
	@tests/get_tools.sh $(VENV)

torture: test-tools ## every fault test three times in a row, 200 random kills, and what is long (about an hour)
	for round in 1 2 3; do \
		$(PYTEST) 3 -m "" --ignore $(RANDOM_KILLS) tests/fault || exit 1; \
	done
	$(PYTEST) 3 -m torture $(RANDOM_KILLS) tests/integration

setup: $(STAMP) ## the environment in .venv, exact versions from constraints.txt

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv==$(UV_VERSION)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --group test --editable '.[load,train,collector,governor,local]'
	@touch $@

check: setup ## format, lint, types, import directions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup ## is it true? tables on the terminal, JSON and SVG in benchmarks/results/
	$(BIN)/python -m benchmarks

java: ## the jar of java/ as it is released, and its tests; takes a JDK (11 or later) and Maven, as nothing else does
	mvn --quiet --batch-mode --file java/pom.xml clean verify

dist: setup java ## what is released: sdist and wheel in dist/, with the jar that Maven has built
	cp java/target/evenload-kafka-*.jar evenload/jvm/evenload-kafka.jar
	$(BIN)/uv build --quiet; status=$$?; rm evenload/jvm/evenload-kafka.jar; exit $$status

clean: ## the environment, caches and the embedded cluster of this folder
	-[ ! -x $(BIN)/evenload ] || $(BIN)/evenload down
	rm -rf java/target evenload/jvm/evenload-kafka.jar
	rm -rf $(VENV) .evenload demo-report .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist *.egg-info
