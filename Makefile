# Every target makes the set-up it needs. `make` alone lists them.

PYTHON := .venv/bin/python
CUPILOT := .venv/bin/cupilot
INSTALLED := .venv/.installed

# Without compiled bytecode every process imports for twice as long.
unexport PYTHONDONTWRITEBYTECODE
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.DEFAULT_GOAL := help
.PHONY: help install demo up down doctor test test-fast test-gpu check check-deploy prompts audit format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(INSTALLED): constraints.txt pyproject.toml deploy/install.sh
	@sh deploy/install.sh
	@touch $@

install: $(INSTALLED) ## install into .venv (again only when constraints or dependencies change)

# PyTorch runs its eight pointwise calls one after the other, each through memory; a kernel fuses them.
DEMO := new_gelu
DEMO_OPTIONS := --population 4 --generations 2 --attribute 0
demo: $(INSTALLED) ## evolve a kernel through the whole service, in a minute or two; leaves the pages up
	@$(CUPILOT) up --detach
	@$(CUPILOT) evolve $(DEMO) $(DEMO_OPTIONS)
	@printf '\nits page: '; $(CUPILOT) open last --print
	@printf 'stop it with: make down\n'

up: $(INSTALLED) ## start the stack and leave it running (.cupilot)
	@$(CUPILOT) up --detach

down: ## stop that stack; its data stays
	@if [ -x $(CUPILOT) ]; then $(CUPILOT) down; fi

doctor: $(INSTALLED) ## say what this machine has and lacks
	@$(CUPILOT) doctor

# In a fixed order, so that a run can be repeated. Plain pytest shuffles, to show what leans on what. Two at a time,
# since tests wait for processes half of their time; each has servers of its own, and a file's tests stay together for
# what they share. TESTS_AT_ONCE=0: one after the other, in this process. A process that crashes ends the run: in the place
# of one that crashed, pytest-xdist begins the same file again and again, and then waits for ever.
TESTS_AT_ONCE := 2
PYTEST := $(PYTHON) -m pytest -q -rfE -p no:randomly -n $(TESTS_AT_ONCE) --max-worker-restart=0 \
	--dist loadfile --no-loadscope-reorder
test: $(INSTALLED) build/helm/DIGEST ## all tests that need no GPU
	@$(PYTEST) -m "not gpu"

test-fast: $(INSTALLED) ## unit tests, without those that start the judge, compile dozens of kernels or take seconds
	@$(PYTEST) -p no:schemathesis -m "not judge and not builds and not slow" tests/unit

test-gpu: $(INSTALLED) ## tests that need an NVIDIA GPU
	@$(PYTHON) -m pytest -q -m gpu

check: $(INSTALLED) ## lint, format check, types, and what can be said of dependencies offline
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m mypy
	@$(PYTHON) deploy/dependencies.py

# Where Helm's library cannot be had, tests of the chart are skipped.
build/helm/DIGEST: $(INSTALLED) $(shell find deploy/helm -type f)
	@sh deploy/helm/render.sh || [ $$? -eq 2 ]

check-deploy: $(INSTALLED) ## render and check the Helm chart, alert rules and dashboard (says what it could not)
	@sh deploy/helm/check.sh

prompts: $(INSTALLED) ## write what every agent is asked, for eight problems, into build/prompts
	@$(PYTHON) -m benchmarks.prompt_pages

audit: $(INSTALLED) ## known holes in what is pinned (needs the advisory database); writes build/sbom.json
	@$(PYTHON) deploy/dependencies.py --sbom build/sbom.json
	@sh deploy/audit.sh

format: $(INSTALLED) ## format the code
	@$(PYTHON) -m ruff check --fix-only --quiet .
	@$(PYTHON) -m ruff format .

clean: down ## remove what was installed and built; data in .cupilot stays
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
