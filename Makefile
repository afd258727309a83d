# make demo and make test are all that a fresh machine needs: each builds its own environment in .venv first.

PYTHON ?= python3
# The interpreter of a GPU machine, with its own torch; nothing is installed into it (.ci/gpu-environment).
GPU_PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
SOURCES := rltok_rl envs agents experiments tests docs .ci
# Tests go to as many processes as there are cores, at most four; an idle process takes over tests of a busy one.
SIDE_BY_SIDE := -n auto --maxprocesses 4 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo test test-oldest test-newest check docs bench estimator-study rate-study precision-study learn soak mutants gpu-test gpu-bench format lock clean

help: ## list all targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /|/' | awk -F'|' '{printf "  make %-16s %s\n", $$1, $$2}'

demo: $(VENV)/.ready-fast ## train boundary policies in minutes, show what they learned
	$(BIN)/python -m rltok_rl.experiments.demo

test: $(VENV)/.ready-test ## run all tests, doctests included
	$(BIN)/python -m pytest $(SIDE_BY_SIDE)

# The two ends of the ranges in pyproject.toml, each in an environment of its own. torch is a build that this machine can
# have: name another one, `make test-oldest OLDEST_TORCH=2.7.0`.
PINNED_TORCH := $(shell sed -n 's/^torch==//p' constraints-cpu.txt)
OLDEST_TORCH ?= $(PINNED_TORCH)
NEWEST_TORCH ?= $(PINNED_TORCH)
# Tests of code that uses torch, TorchRL, TensorDict and Gymnasium; tests of other clients run in `make test`.
QUICK_TESTS := tests/functional tests/sampling tests/laws tests/agents tests/envs tests/objectives -k "not stable_baselines and not sb3"

test-oldest: $(VENV)-oldest/.ready ## run the quick tests on the oldest versions that are supported
	$(VENV)-oldest/bin/python -m pytest $(SIDE_BY_SIDE) $(QUICK_TESTS)

test-newest: $(VENV)-newest/.ready ## run the quick tests on the newest versions that are supported
	$(VENV)-newest/bin/python -m pytest $(SIDE_BY_SIDE) $(QUICK_TESTS)

check: $(VENV)/.ready-dev ## lint, formatting, types, doctests, import directions
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	@# mypy has to see envs, agents and experiments where they are installed: inside the package.
	@rm -rf $(VENV)/typecheck && mkdir -p $(VENV)/typecheck/rltok_rl
	@ln -s $(CURDIR)/rltok_rl/* $(CURDIR)/envs $(CURDIR)/agents $(CURDIR)/experiments $(VENV)/typecheck/rltok_rl/
	MYPYPATH=$(VENV)/typecheck $(BIN)/mypy -p rltok_rl
	$(BIN)/python -m pytest -q tests/test_doctests.py tests/test_import_direction.py

docs: $(VENV)/.ready-docs ## build the documentation, to be read from docs/_build/html/index.html
	$(BIN)/python docs/rltok_docs/options.py
	$(BIN)/python docs/rltok_docs/recipe_page.py
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -b html -c docs -d docs/_build/doctrees . docs/_build/html

bench: $(VENV)/.ready-bench ## time the fast paths against their references, as ratios
	$(BIN)/python -m rltok_rl.experiments.bench

estimator-study: $(VENV)/.ready-fast ## what each advantage estimator does to the gradient: tables and figures
	$(BIN)/python -m rltok_rl.experiments.studies.estimators out=experiments/results/estimators

rate-study: $(VENV)/.ready-fast ## how each rate control holds its target: table and figure
	$(BIN)/python -m rltok_rl.experiments.studies.rate_control --out experiments/results/rate-control

BOOKS ?= books
precision-study: $(VENV)/.ready-fast ## whether bfloat16 trains to what float32 does, on documents in BOOKS: runs and their comparison
	$(BIN)/rltok train --multirun experiment=precision data.source=$(BOOKS) resume=true
	$(BIN)/rltok report runs/precision/* --out runs/precision-report

learn: $(VENV)/.ready-fast ## whether policies find the best boundaries of languages that know theirs: table and figure
	$(BIN)/python -m rltok_rl.experiments.studies.learn other_seeds=1 out=experiments/results/learn

soak: $(VENV)/.ready-fast ## kill a run a hundred times; call functions with wild arguments 5,000 times
	$(BIN)/python -m rltok_rl.experiments.studies.soak --kills 100
	$(BIN)/python -m tests.tools.fuzz_functions --calls 5000

mutants: $(VENV)/.ready-test ## plant 436 mistakes, one at a time: which test finds each? (minutes; resumes)
	@mkdir -p runs
	$(BIN)/python -m tests.mutants --results runs/mutants.txt

# A machine with a GPU has a torch that fits it: $(VENV)-gpu uses that one as it is, and adds what is missing.
HAS_TORCH = $(GPU_PYTHON) -c 'import torch' 2> /dev/null
HAS_GPU = $(GPU_PYTHON) -c 'import torch; assert torch.cuda.is_available()' 2> /dev/null
UNSEEN_GPU = ! $(HAS_GPU) && nvidia-smi -L > /dev/null 2>&1
NAME_ANOTHER = there is a GPU, and $(GPU_PYTHON) does not see it: name an interpreter that has a CUDA build of torch with GPU_PYTHON=...

gpu-test: ## run the GPU tests, with the torch of GPU_PYTHON; without a GPU they are skipped
	@if $(UNSEEN_GPU); then echo "$(NAME_ANOTHER)"; exit 1; \
	elif $(HAS_TORCH); then .ci/gpu-environment $(GPU_PYTHON) $(VENV)-gpu -e '.[fast]' 'pytest>=8' && $(VENV)-gpu/bin/python -m pytest -m gpu; \
	else $(MAKE) --no-print-directory $(VENV)/.ready-test && $(BIN)/python -m pytest -m gpu; fi

gpu-bench: ## time the fast paths on the GPU, with the torch of GPU_PYTHON
	@if $(HAS_GPU); then .ci/gpu-environment $(GPU_PYTHON) $(VENV)-gpu-bench -e '.[bench]' && $(VENV)-gpu-bench/bin/python -m rltok_rl.experiments.bench --device cuda --out runs/gpu-bench; \
	else echo "$(GPU_PYTHON) sees no CUDA device: nothing to measure; name another interpreter with GPU_PYTHON=..."; fi

format: $(VENV)/.ready-dev ## format the sources
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

lock: ## write .ci/lock-*.txt, what continuous integration installs: versions and hashes; needs Python 3.11
	$(PYTHON) -m venv --clear $(VENV)-lock
	$(VENV)-lock/bin/python .ci/lock.py

clean: ## remove the environments and all caches
	rm -rf $(VENV) $(addprefix $(VENV)-,oldest newest gpu gpu-bench docs check test lock) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache docs/_build docs/reference/api
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)-oldest/.ready: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install --quiet -c constraints-oldest.txt torch==$(OLDEST_TORCH)
	$(VENV)-oldest/bin/python -m pip install --quiet -c constraints-oldest.txt -e '.[fast,bpe]' pytest pytest-xdist
	@touch $@

$(VENV)-newest/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)-newest
	$(VENV)-newest/bin/python -m pip install --quiet torch==$(NEWEST_TORCH)
	$(VENV)-newest/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager -e '.[fast,bpe]' pytest pytest-xdist torch==$(NEWEST_TORCH)
	@touch $@

# One stamp per set of extras, written last: an interrupted installation leaves none and is taken up again.
ifndef LOCKED
$(VENV)/.ready-%: $(VENV)/.created
	@echo "installing rltok_rl[$*] into $(VENV); the first time takes a minute or two"
	$(PIP) install --quiet --no-build-isolation -c constraints-cpu.txt -e '.[$*]'
	@touch $@
else
# With LOCKED=1, a new environment of what .ci/lock-EXTRA.txt lists, and nothing else. pip compares hashes of all that it
# downloads, torch as its CPU build, which pip must find. setuptools comes first: it builds what has no wheel, because pip
# would download another one, unhashed.
# The last step reaches no index and no folder of wheels, so it fails if the extra requires what the lock lacks.
$(VENV)/.ready-%: .ci/lock-%.txt pyproject.toml constraints-cpu.txt
	@echo "installing rltok_rl[$*] into $(VENV), with the hashes of $<; this takes a minute or two"
	$(PYTHON) -m venv --clear $(VENV)
	grep '^setuptools==' $< | $(PIP) install --quiet --require-hashes --no-deps -r /dev/stdin
	$(PIP) install --quiet --require-hashes --no-deps --no-build-isolation -r $<
	PIP_CONFIG_FILE=/dev/null PIP_FIND_LINKS= $(PIP) install --quiet --no-index --no-build-isolation -e '.[$*]' \
	    || { echo "if $< lacks a package that rltok_rl[$*] requires, write it again: make lock"; exit 1; }
	@touch $@
endif

$(VENV)/.created: pyproject.toml constraints-cpu.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(not (3, 10) <= v <= (3, 13) and f"Python 3.10 to 3.13 is needed, and $(PYTHON) is {v[0]}.{v[1]}; name another one: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet -c constraints-cpu.txt setuptools
	@# torch first and under its pin: a dependency that merely asks for torch must not choose another build.
	$(PIP) install --quiet -c constraints-cpu.txt torch
	@touch $@
