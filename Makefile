# dualwrite: `make demo`, `make test` and `make check` do all of their set-up themselves, once, in .venv.
PYTHON ?= python3
ROWS ?= 20000
FLIGHTS ?= 336776
PYTEST ?=
# One more than the processors that it is meant for: tests wait for brokers and databases.
WORKERS ?= 3
SECONDS ?= 3600
SEEDS ?= 5000
MINUTES ?= 10
KILLS ?= 10000
AGAINST ?= HEAD~1
PARALLEL = -n $(WORKERS) --dist loadfile --no-loadscope-reorder
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The demo needs a tenth of it, and takes what there is.
DEMO_READY := $(or $(wildcard $(READY)),$(VENV)/.ready-demo)
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input -q install
# Memory in place of the disk for what a test writes, where 8 GiB of it are free: an fsync costs nothing there.
# TMPDIR=/tmp has them on the disk.
TMPDIR ?= $(shell [ -w /dev/shm ] && [ "$$(df -kP /dev/shm | awk 'NR == 2 { print $$4 }')" -ge 8388608 ] && echo /dev/shm)
LOCK := uv pip compile -q --universal --python-version 3.10 --generate-hashes --no-emit-index-url --no-header

.PHONY: help demo spark-demo test check lint slow sim exhaustive mutation fuzz matrix soak proof compare benchmarks docs dist lowest base highest format lock clean

help:
	@echo "make demo       load real flights into SQLite and a topic through kill -9, then compare (ROWS=$(ROWS))"
	@echo "make spark-demo the same by Spark, in a stream to PostgreSQL and a topic, all of it killed (FLIGHTS=$(FLIGHTS))"
	@echo "make test       all tests but the slow ones (some minutes)"
	@echo "make slow       the slow tests: more crashes, clients and databases (half an hour)"
	@echo "make sim        the simulation of the whole: seeded crashes of applications, network, broker and database (SEEDS=$(SEEDS))"
	@echo "make exhaustive every state and history of small models of the product's pure functions (MINUTES=$(MINUTES))"
	@echo "make mutation   small changes to the code of pure rooms, which tests must notice (some ten minutes for each room);"
	@echo "                in build/mutation/; ROOMS=coordinator/rules for one of them"
	@echo "make fuzz       random input of every kind and damaged files until something is found (SECONDS=$(SECONDS));"
	@echo "                GUIDED=batches, states or inputs: guided by coverage (needs atheris)"
	@echo "make matrix     the crash matrix with real processes, until KILLS=$(KILLS) of them were killed; in build/matrix/"
	@echo "make soak       an hour of units of work under faults: nothing may grow (SECONDS=$(SECONDS)); in build/soak/"
	@echo "make proof      the simulation, the matrix and the soak, shorter, as a bundle to be checked in build/proof/"
	@echo "make compare    what a unit of work costs, beside the naive pair and the commit AGAINST=$(AGAINST)"
	@echo "make benchmarks every figure of the documentation, as one report in benchmark-report/ (hours, on an idle machine)"
	@echo "make check      ruff, mypy, the layering test and the tests of single modules"
	@echo "make lint       make check without the tests"
	@echo "make docs       the documentation's site, in site/"
	@echo "make dist       the wheel and the sdist, in dist/, checked by twine"
	@echo "make lowest     make test on the wheel and the lowest versions of all dependencies, in build/; also make base, which"
	@echo "                has the lowest of a plain installation, and make highest (needs the network)"
	@echo "make format     let ruff rewrite what it can"
	@echo "make lock       pin the newest dependencies again (needs uv)"
	@echo "make clean      remove .venv and every cache"
	@echo "PYTHON=python3.12 chooses the interpreter, PYTEST='-k name' adds options to the tests,"
	@echo "WORKERS=4 runs four of them at once."

demo: $(DEMO_READY)
	$(BIN)/dualwrite demo --rows $(ROWS)

spark-demo: $(READY)
	$(BIN)/python -m tests.spark.flights.demo --rows $(FLIGHTS)

test slow mutation matrix soak proof lowest base highest: export TMPDIR := $(or $(TMPDIR),/tmp)

test: $(READY)
	$(BIN)/python -m pytest -m "not slow" $(PARALLEL) $(PYTEST)

# These wait longer: for leases, time limits and JVMs.
slow: WORKERS = 4
slow: $(READY)
	$(BIN)/python -m pytest -m slow $(PARALLEL) $(PYTEST)

sim: $(READY)
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

exhaustive: $(READY)
	$(BIN)/python -m tests.exhaustive --minutes $(MINUTES)

mutation: $(READY)
	$(BIN)/python -m tests.mutation $(if $(ROOMS),--rooms $(ROOMS))

fuzz: $(READY)
	$(BIN)/python -m tests.fuzz$(if $(GUIDED),.guided $(GUIDED)) --seconds $(SECONDS)

matrix: $(READY)
	$(BIN)/python -m tests.matrix --kills $(KILLS)

soak: $(READY)
	$(BIN)/python -m tests.soak --seconds $(SECONDS)

# Short, unless the command line says otherwise: make proof KILLS=10000 SECONDS=3600. The matrix ends after ten minutes
# in any case, or after --matrix-seconds of python -m tests.proof.
proof: KILLS = 500
proof: SECONDS = 120
proof: SEEDS ?= 5000
proof: $(READY)
	$(BIN)/python -m tests.proof --kills $(KILLS) --soak-seconds $(SECONDS) --seeds $(SEEDS)

# A clone may lack the commit: then beside the naive pair alone.
compare: $(READY)
	$(BIN)/python -m benchmarks.compare \
		$(if $(shell git rev-parse --quiet --verify '$(AGAINST)^{commit}' 2>/dev/null),--against '$(AGAINST)')

benchmarks: $(READY)
	$(BIN)/python -m benchmarks.page

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint
	$(BIN)/python -m pytest -q tests/unit -m "not slow" $(PARALLEL) $(PYTEST)

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The wheel is built from the sdist. Both are the same bytes for the same files.
dist: $(READY)
	rm -rf dist
	$(BIN)/pyproject-build --no-isolation --outdir dist
	$(BIN)/twine check --strict dist/*

# Before --: options of the program, after it: pytest's.
lowest base highest: $(READY)
	$(BIN)/python -m tests.distribution.versions $@ $(VERSIONS) -- -m "not slow" $(PARALLEL) $(PYTEST)

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock:
	$(LOCK) requirements/build.in -o requirements/build.txt
	$(LOCK) --extra dev pyproject.toml -o requirements/dev.txt
	$(LOCK) --extra demo -c requirements/dev.txt pyproject.toml -o requirements/demo.txt

clean:
	rm -rf $(VENV) site dist build .demo .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(READY): requirements/dev.txt
$(VENV)/.ready-demo: requirements/demo.txt

# Stamped, so that it runs again only when what it installs has changed. Each begins anew, without the other's stamp.
$(READY) $(VENV)/.ready-demo: requirements/build.txt pyproject.toml dualwrite/version.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "dualwrite needs Python 3.10 or newer as $(PYTHON); choose another with make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
		{ echo "$(PYTHON) has no venv module; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "setting up $(VENV) (once)"
	@rm -f $@
	@$(PYTHON) -m venv --clear $(VENV)
	@$(PIP) --require-hashes --no-deps --only-binary :all: -r requirements/build.txt
	@$(PIP) --require-hashes --no-deps --no-build-isolation --use-pep517 -r $(filter requirements/de%,$^)
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@
