PYTHON ?= python3
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
BIN := .venv/bin
# Both distributions are installed in one command: alone, the second would look for the first on the package index.
PROJECTS := pyproject.toml export/serving/pyproject.toml
# TensorFlow reads its log level when Keras imports it, before a command could set it.
export TF_CPP_MIN_LOG_LEVEL ?= 2
# Each worker and each program that tests start would compile every module again if files of bytecode were off.
export PYTHONDONTWRITEBYTECODE :=
# A stamp for each Python: an environment of another one is made anew.
INSTALLED := .venv/.installed-$(VERSION)
INSTALLED_ALL := .venv/.installed-all-$(VERSION)
INSTALLED_OLDEST := .venv-oldest/.installed-$(VERSION)
INSTALLED_CORE := .venv-core/.installed-$(VERSION)
INSTALLED_TRITON := .venv-triton/.installed-$(VERSION)
INSTALLED_DOCS := .venv-docs/.installed-$(VERSION)

.PHONY: help quickstart serve test test-jax test-core test-docs test-site test-exports test-oldest test-triton test-install test-all install-published test-checkpoints test-published check import-graph reference-tables docs serve-docs screenshots serving-operations format notebooks benchmarks benchmark-tables benchmark-plots dist colab javascript javascript-cases browser-test browser-demo clean

help:  ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

# Environment, constraints, extras. Compiling every module took a third of the time, of which Python imports a quarter;
# the pip of Python 3.11 looked at all packages again for each.
define install
	$(PYTHON) -m venv $(if $(wildcard $@),,--clear) $(1)
	$(1)/bin/python -m pip install --quiet --upgrade pip
	$(1)/bin/python -m pip install --quiet --no-compile --constraint $(2) --editable ./export/serving --editable '.[$(3)]'
	@touch $@
endef

# With this set, tf2onnx optimises graphs in place: a third of a conversion is copies in case an optimiser fails.
export TF2ONNX_CATCH_ERRORS := FALSE

# Environment, which tests.
define run_tests
	$(1)/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m '$(2)'
endef
QUICK := not slow and not gpu
# The quick tests compile small models once and run them once: without optimising, and with its older code generator,
# XLA compiles a loop of generation in a fifth of the time.
COMPILE_QUICKLY := XLA_FLAGS="--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false \
	--xla_cpu_parallel_codegen_split_count=1"

$(INSTALLED): $(PROJECTS) constraints.txt
	$(call install,.venv,constraints.txt,dev)

# Three quarters of a gigabyte more, of which only the slow tests make use.
$(INSTALLED_ALL): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ./export/serving --editable '.[dev-all]'
	@touch $@

$(INSTALLED_OLDEST): $(PROJECTS) constraints-oldest.txt
	$(call install,.venv-oldest,constraints-oldest.txt,dev)

$(INSTALLED_CORE): $(PROJECTS) constraints.txt
	$(call install,.venv-core,constraints.txt,dev-core)

$(INSTALLED_DOCS): $(PROJECTS) constraints.txt
	$(call install,.venv-docs,constraints.txt,docs)

# The wheel of nvidia-pytriton has Triton's server, for Linux, and a Python backend that was built for NumPy 1, whose last
# version has wheels for Python 3.11 and 3.12.
HAS_TRITON := $(and $(filter 3.11 3.12,$(VERSION)),$(filter Linux-x86_64,$(shell uname -s)-$(shell uname -m)))

$(INSTALLED_TRITON): export/serving/pyproject.toml
	$(PYTHON) -m venv $(if $(wildcard $@),,--clear) .venv-triton
	.venv-triton/bin/python -m pip install --quiet --upgrade pip
	.venv-triton/bin/python -m pip install --quiet --no-compile 'numpy==1.26.*' nvidia-pytriton 'onnx<1.23' hypothesis \
		jsonschema libretranslatepy openai pillow pytest-xdist regex \
		--editable './export/serving[audio,chat,cpu,grpc,server,tokenizers,tracing]'
	@touch $@

quickstart: $(INSTALLED)  ## Train, evaluate, export and verify a small translator: results in runs/quickstart
	$(BIN)/keras-transformer quickstart

serve: $(INSTALLED)  ## Serve the quickstart's export over HTTP, FOLDER=… another one
	$(BIN)/keras-transformer-serve $(or $(FOLDER),runs/quickstart/export)

test: $(INSTALLED)  ## The quick tests, on TensorFlow, but those of real checkpoints
	$(COMPILE_QUICKLY) $(call run_tests,.venv,$(QUICK)) --ignore tests/checkpoints

test-jax: $(INSTALLED)  ## The quick tests of what runs on any backend, on JAX
	$(COMPILE_QUICKLY) KERAS_BACKEND=jax $(call run_tests,.venv,backend_neutral and $(QUICK))

test-core: $(INSTALLED_CORE)  ## Tests of keras-transformer-core on JAX, in an environment without TensorFlow
	$(COMPILE_QUICKLY) KERAS_BACKEND=jax $(call run_tests,.venv-core,backend_neutral and $(QUICK)) \
		tests/generation tests/layers tests/models tests/ops tests/pipelines/test_served.py \
		tests/pipelines/test_without_tensorflow.py tests/training/test_exact_resume.py
	KERAS_BACKEND=jax .venv-core/bin/python -m pytest tests/test_import.py -m 'not gpu' -k without_tensorflow

test-docs: $(INSTALLED)  ## The code of the README and of the documentation but its long pages, and the quickstart with little data
	$(COMPILE_QUICKLY) $(call run_tests,.venv,not gpu) --dist worksteal -k 'test_docs or quickstart' \
		tests/test_docs.py tests/test_recipes.py

test-exports: $(INSTALLED)  ## The slow tests of exports, and the whole quickstart
	$(call run_tests,.venv,slow and not gpu) tests/export tests/serving export/serving/tests tests/test_quickstart.py

test-oldest: $(INSTALLED_OLDEST)  ## The quick tests with the lowest supported versions, those of Colab
	$(COMPILE_QUICKLY) $(call run_tests,.venv-oldest,$(QUICK))

test-triton: $(INSTALLED_TRITON)  ## A Triton server with a model of texts, and the tests of serving with NumPy 1.26, its lowest
	$(call run_tests,.venv-triton,$(QUICK)) --hypothesis-profile ci export/serving/tests
	$(call run_tests,.venv-triton,not gpu) export/serving/tests/test_triton_server.py

test-all: $(INSTALLED_ALL)  ## Every test, on TensorFlow and what runs on any backend on JAX too, and every notebook
	$(call run_tests,.venv,not gpu)
	KERAS_BACKEND=jax $(call run_tests,.venv,backend_neutral and not gpu)
	$(MAKE) test-core notebooks
	$(if $(HAS_TRITON),$(MAKE) test-triton,@echo "make test-triton is left out: it needs Linux on x86-64 and Python 3.11 or 3.12")

check: $(INSTALLED)  ## Lint, format, vocabulary, import contract, types of the pure core and of serving, workflows
	$(BIN)/ruff check .
	$(BIN)/python tests/vocabulary.py
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/zizmor --offline --no-progress --quiet .github

import-graph: $(INSTALLED)  ## Draw which subpackages import which: docs/architecture.md
	$(BIN)/python docs/import_graph.py

reference-tables: $(INSTALLED)  ## Write the tables of options, routes and metrics: docs/reference_*.md
	$(BIN)/python docs/site/tables.py

# Material for MkDocs warns in each build of a coming release of MkDocs.
MKDOCS := NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs

docs: $(INSTALLED_DOCS)  ## Build the documentation's site: site/; links and anchors must exist
	$(MKDOCS) build --strict

serve-docs: $(INSTALLED_DOCS)  ## Show the site, and build it again after each change
	$(MKDOCS) serve --livereload

format: $(INSTALLED)  ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

serving-operations: $(INSTALLED_OLDEST)  ## List the operations of the newest TensorFlow Serving, which exports are checked for
	.venv-oldest/bin/python tests/export/cpp_runtime.py operations .venv-oldest/lib/python*/site-packages \
		| gzip -9n > keras_transformer/export/tensorflow_serving/operations.txt.gz

notebooks: $(INSTALLED)  ## Run the notebooks, JOBS=2 two at once, NOTEBOOKS=… some of them
	$(BIN)/python notebooks/run.py --jobs $(or $(JOBS),1) $(NOTEBOOKS)

benchmarks: .venv-bench/.installed  ## Measure beside KerasHub and PyTorch: results in benchmarks/results
	.venv-bench/bin/python benchmarks/train_step.py
	.venv-bench/bin/python benchmarks/training.py --cases "without XLA"
	.venv-bench/bin/python benchmarks/attention.py
	.venv-bench/bin/python benchmarks/generation.py
	$(MAKE) benchmark-tables

# Checkpoints and vocabularies that packages of the index ship, by version and hash. They are never committed.
# Environment.
define install_published
	$(1)/bin/python -m pip install --quiet --require-hashes --no-deps --requirement benchmarks/published.txt
	@touch $@
endef

.venv/.published: $(INSTALLED) benchmarks/published.txt
	$(call install_published,.venv)

.venv-bench/.published: .venv-bench/.installed benchmarks/published.txt
	$(call install_published,.venv-bench)

# A source distribution, of which only the vocabularies are extracted.
.venv-vocabularies/.extracted: benchmarks/published_sources.txt
	rm -rf $(@D)
	$(PYTHON) -m pip download --quiet --require-hashes --no-deps --no-binary :all: --dest $(@D) --requirement $<
	tar --extract --gzip --file $(@D)/*.tar.gz --directory $(@D) --wildcards '*/vendor/llama.cpp/models/ggml-vocab-*'
	rm $(@D)/*.tar.gz
	@touch $@

install-published: .venv/.published .venv-vocabularies/.extracted  ## Install real checkpoints for the tests, 230 MB

test-checkpoints: install-published  ## The quick tests of real checkpoints and vocabularies, beside the references in tests/checkpoints
	$(call run_tests,.venv,$(QUICK)) tests/checkpoints

test-published: install-published .venv-bench/.published export/javascript/dist/.compiled  ## Real checkpoints and vocabularies beside transformers, sentence-transformers and tokenizers; each precision is served
	.venv-bench/bin/python benchmarks/parity/published_checkpoints.py
	.venv-bench/bin/python benchmarks/parity/vocabularies.py .venv-vocabularies/*/vendor/llama.cpp/models
	$(call run_tests,.venv,not gpu) tests/checkpoints

benchmark-tables:  ## Write the tables of speed from benchmarks/results: README.md and docs/benchmarks.md
	$(PYTHON) benchmarks/tables.py

benchmark-plots: $(INSTALLED)  ## Draw the plots of speed from benchmarks/results: docs/images
	$(BIN)/python benchmarks/plots.py

.venv-bench/.installed: benchmarks/requirements.txt $(PROJECTS)
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --requirement benchmarks/requirements.txt \
		--editable './export/serving[server]' --editable '.[tensorflow]'
	@touch $@

dist: .venv-dist/.installed  ## Build the distributions, check them and run the wheels in clean environments
	rm -rf dist
	.venv-dist/bin/python -m build --outdir dist export/serving
	.venv-dist/bin/python -m build --outdir dist .
	.venv-dist/bin/python -m build --outdir dist kit
	.venv-dist/bin/twine check --strict dist/*
	.venv-dist/bin/python tests/platforms.py dist
	.venv-dist/bin/python tests/wheels.py dist

test-install:  ## Follow the install line of each page in a new environment, WORDS=… of some lines
	$(PYTHON) tests/install.py $(WORDS)

colab: .venv-dist/.installed  ## Check that an install replaces nothing in a runtime: FREEZE=… its pip freeze
	.venv-dist/bin/python tests/colab.py $(FREEZE)

.venv-dist/.installed:
	$(PYTHON) -m venv .venv-dist
	.venv-dist/bin/python -m pip install --quiet build twine uv
	@touch $@

JAVASCRIPT := export/javascript
JAVASCRIPT_SOURCES := $(wildcard $(addprefix $(JAVASCRIPT)/,src/*.ts src/*/*.ts tsconfig.json))

javascript: $(JAVASCRIPT)/dist/.compiled $(JAVASCRIPT)/test/cases/.extracted  ## Compile the JavaScript runtime, and compare it with Python in Node
	npm test --silent --prefix $(JAVASCRIPT)

javascript-cases: $(INSTALLED)  ## Write what the JavaScript runtime is compared with
	$(COMPILE_QUICKLY) PYTHONPATH=. $(BIN)/python $(JAVASCRIPT)/test/write_cases.py $(JAVASCRIPT)/test/cases.tar.xz

browser-test: $(JAVASCRIPT)/dist/.compiled $(JAVASCRIPT)/test/cases/.extracted  ## The same comparison in headless Chromium, and the page
	npm run browser-test --silent --prefix $(JAVASCRIPT)

browser-demo: $(JAVASCRIPT)/dist/.compiled  ## Serve a page that runs the quickstart's export in the browser, FOLDER=… another one
	node $(JAVASCRIPT)/demo/serve.js $(or $(FOLDER),runs/quickstart/export)

test-site: docs tests/site/node_modules/.installed  ## Accessibility of the site in headless Chromium, PAGE=… of some pages
	PAGE=$(PAGE) npm test --silent --prefix tests/site

tests/site/node_modules/.installed: tests/site/package.json
	npm install --silent --no-audit --no-fund --prefix tests/site
	@touch $@

screenshots: $(INSTALLED) $(JAVASCRIPT)/dist/.compiled  ## Write the guides' pictures of pages to docs/images; FOLDER=… has the guides' runs and exports
	PATH="$(CURDIR)/$(BIN):$$PATH" node docs/site/screenshots.js $(or $(FOLDER),.)

$(JAVASCRIPT)/node_modules/.installed: $(JAVASCRIPT)/package.json
	npm install --silent --no-audit --no-fund --prefix $(JAVASCRIPT)
	@touch $@

$(JAVASCRIPT)/dist/.compiled: $(JAVASCRIPT)/node_modules/.installed $(JAVASCRIPT_SOURCES)
	npm run build --silent --prefix $(JAVASCRIPT)
	@touch $@

$(JAVASCRIPT)/test/cases/.extracted: $(JAVASCRIPT)/test/cases.tar.xz
	rm -rf $(@D)
	$(PYTHON) -m tarfile -e $< $(JAVASCRIPT)/test
	@touch $@

clean:  ## Remove environments and results
	rm -rf .venv .venv-core .venv-oldest .venv-triton .venv-bench .venv-vocabularies .venv-dist .venv-docs runs dist site $(foreach folder,. export/serving kit,$(folder)/build $(folder)/*.egg-info) \
		tests/site/node_modules $(addprefix $(JAVASCRIPT)/,node_modules dist test/cases)
