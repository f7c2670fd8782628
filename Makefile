# `make demo` and `make test` do everything themselves: environment, pinned install, then the work.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BROWSER := $(VENV)/.browser
PEERS := .venv-peers
FRAMEWORKS := .venv-frameworks
MINDSPORE := .venv-mindspore
# With `loadgroup` tests/support/scopes.py hands the long tests out one by one, then the others by their files.
# The suite stops Ray sessions of its own only. A third process computes while the others wait for Ray, S3 or a child.
JOBS ?= 3

.PHONY: compiled proto wheel image test-faults test-serve bench-serve demo test test-quick lint types docs suite test-page test-slow test-frameworks test-mindspore chaos fuzz bench-peers bench-mindspore bench-page test-pgf pictures notebooks format install clean help

help:
	@echo "Use"
	@echo "  make demo         train, compute and picture the landscapes of LeNet-5 on handwritten digits"
	@echo "  make install      the environment alone, in .venv"
	@echo "  make clean        remove the environment, the built documentation and the demo's run"
	@echo "Develop"
	@echo "  make test         lint, types, documentation, architecture and the whole suite"
	@echo "  make test-quick   what computes no landscape and needs no Ray, browser or second each: a minute, while you write"
	@echo "  make test-faults  faults and outages, each in full; CI runs it after \`make test\`"
	@echo "  make test-slow    submission for real, the whole ResNet plane, a kill and a power cut at every change of the disk"
	@echo "  make test-page    the page of \`landscape view\` in a browser: every view, every control, faults"
	@echo "  make test-serve   \`landscape serve\` on Ray Serve: curl, grpcio, load, replicas and services that are killed"
	@echo "  make test-frameworks  every example, callback and import beside PyTorch Geometric, transformers, Lightning and others themselves"
	@echo "  make test-mindspore   a training and its landscapes by MindSpore itself, imported, and each value compared"
	@echo "  make test-pgf     figures for LaTeX as PGF; needs xelatex"
	@echo "  make docs         the documentation, in build/docs/index.html"
	@echo "  make lint types   ruff and mypy alone"
	@echo "  make pictures     the pictures of the README and docs/ anew, and whether the checks say what trust.md shows; ARGS=docs/howto/trust.md"
	@echo "  make notebooks    the studies of notebooks/ executed in full, and their findings in docs/studies.md; ARGS=02 for one of them"
	@echo "  make proto        the messages of gRPC anew, after a change of cluster/serving/landscape.proto"
	@echo "  make format       let ruff format the sources"
	@echo "  make wheel        the sdist and the wheel in dist/, and the demo by that wheel in a new environment outside of here; PYTHON=python3.13"
	@echo "  make image        the image of deploy/Containerfile, by podman or docker; VARIANT=gpu"
	@echo "Measure"
	@echo "  make bench-peers  time per point of public packages and of this one; ARGS=--quick to try, ARGS=--help"
	@echo "  make bench-mindspore  time per point of MindSpore's SummaryLandscape and of this one; ARGS=--quick to try, ARGS=--help"
	@echo "  make bench-serve  points per second of many clients over the serial evaluator's, latency; ARGS=--help"
	@echo "  make bench-page   how quick the page is, with its goals; ARGS=--quick to try, ARGS=--help"
	@echo "  make chaos        a job whose workers, nodes and driver are killed; FAULTS=200 for a long one"
	@echo "  make fuzz         bad input, damaged runs and hostile packed graphs, judged by rule; N=5000 for a long one, SEED=1 for another"

install: $(READY)

# The CPU wheel of torch is taken where pip finds one (find-links); the constraints keep it from being replaced.
$(READY): pyproject.toml deploy/constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "make: needs $(PYTHON) with venv; set PYTHON=..." >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c deploy/constraints.txt -e '.[dev]'
	@touch $@

# Pictures (PNG, SVG) need a Chromium. As root on Debian it is installed; elsewhere the demo says what it leaves out.
$(BROWSER): $(READY)
	@$(BIN)/python -m cluster.commands.doctor --install
	@touch $@

demo: $(READY) $(BROWSER)
	$(BIN)/landscape demo

# The types and the documentation take a core each; the suite takes both, and shows its dots as they come.
test: $(READY) $(BROWSER) lint
	@$(MAKE) --no-print-directory --output-sync -j 2 types docs
	@$(MAKE) --no-print-directory suite

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# The messages of `landscape serve`, after a change of their file; what it writes is committed.
proto: $(READY)
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. cluster/serving/landscape.proto

# Without a network; a link that leads nowhere, or a name that a docstring spells wrongly, fails it.
docs: $(READY)
	$(BIN)/python -m sphinx -W --keep-going -n -q -b html docs build/docs

# Hundreds of processes of the tests start, and none may keep what it compiles: tests/conftest.py says why.
compiled: $(READY)
	@$(BIN)/python -m compileall -q landscape cluster

suite: $(READY) $(BROWSER) compiled
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadgroup --no-loadscope-reorder

# What takes long and protects rarely: faults and outages, each in full. CI runs it after `make test`.
test-faults: $(READY) $(BROWSER) compiled
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadgroup --no-loadscope-reorder -m faults

# For the inner loop: the rooms that compute no landscape, without Ray, browsers and most processes.
QUICK := $(addprefix tests/landscape/,core job model problem surface training evaluation/engines views/prepare) \
  $(addprefix tests/cluster/,driver runtime serving submit training) tests/notebooks tests/deploy
test-quick: $(READY)
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m "not long and not slow and not faults" --ignore tests/landscape/job/directions $(QUICK)

# Workers, nodes and the driver killed every few seconds; the result must not differ in a bit.
chaos: $(READY)
	$(BIN)/python -W ignore tests/chaos/chaos.py --faults $(or $(FAULTS),20)

# Bad input, damaged runs and impossible metadata, judged by rule. OUT keeps the results, with which a stopped run goes on.
fuzz: $(READY)
	$(BIN)/python -W ignore tests/fuzz/fuzz.py --cases $(or $(N),200) --seed $(or $(SEED),0) $(if $(OUT),--resume $(OUT))
	$(BIN)/python -W ignore tests/fuzz/fuzz_graphs.py --cases $(or $(N),200) --seed $(or $(SEED),0)

# Submission to a real Ray and Slurm, the whole ResNet plane, a driver on another machine, every single point of a crash and of a power cut.
test-slow: $(READY) compiled
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadgroup --no-loadscope-reorder -m slow

# One process: a page draws on one core and is served by another.
test-page: $(READY) $(BROWSER) compiled
	$(BIN)/python -m pytest -q -m page

# LaTeX measures the words of PGF, and most machines have none: without one this fails.
test-pgf: $(READY)
	$(BIN)/python -m pytest -q -m pgf tests/landscape/views

# Ray Serve starts for them, and is loaded and killed; what needs no Ray of `landscape serve` is in the suite.
test-serve: $(READY) compiled
	$(BIN)/python -m pytest -q -m serve tests/serving tests/browser/test_served_page.py

# On quiet cores: throughput and latency beside the serial evaluator; ARGS="--models tiny --chaos 180 --clients 200" kills.
bench-serve: $(READY) compiled
	$(BIN)/python -W ignore tests/serving/bench_serve.py $(ARGS)

# Data and models of other frameworks, in an environment of their own; where one is missing it fails. They warn of each other.
test-frameworks: $(FRAMEWORKS)/.ready
	@$(FRAMEWORKS)/bin/python -m pytest -q -W default -m frameworks tests/frameworks tests/docs/test_docs.py $(ARGS)

$(FRAMEWORKS)/.ready: tests/frameworks/requirements.txt tests/frameworks/requirements-no-deps.txt pyproject.toml deploy/constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "make: needs $(PYTHON) with venv; set PYTHON=..." >&2; exit 1; }
	test -x $(FRAMEWORKS)/bin/python || $(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check -r tests/frameworks/requirements.txt -e '.[export,page,ray,recipes,xarray]'
	$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r tests/frameworks/requirements-no-deps.txt
	@touch $@

# MindSpore trains, draws and reads in an environment of its own; where it is missing, or has no wheel, this fails.
test-mindspore: $(READY) $(MINDSPORE)/.ready
	@$(BIN)/python -m pytest -q -m mindspore tests/mindspore $(ARGS)

# Its CPU wheel, which wants other versions of numpy and protobuf than this project, and nothing of this project.
$(MINDSPORE)/.ready: tests/mindspore/requirements.txt
	@command -v $(PYTHON) >/dev/null || { echo "make: needs $(PYTHON) with venv; set PYTHON=..." >&2; exit 1; }
	test -x $(MINDSPORE)/bin/python || $(PYTHON) -m venv $(MINDSPORE)
	$(MINDSPORE)/bin/python -m pip install --quiet --disable-pip-version-check -r tests/mindspore/requirements.txt
	@touch $@

# Public packages beside this one, in an environment of their own: tests/peers/README.md.
bench-peers: $(PEERS)/.ready
	$(PEERS)/bin/python tests/peers/bench_peers.py $(ARGS)

$(PEERS)/.ready: tests/peers/requirements.txt tests/peers/requirements-no-deps.txt pyproject.toml deploy/constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "make: needs $(PYTHON) with venv; set PYTHON=..." >&2; exit 1; }
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -r tests/peers/requirements.txt -e '.[ray,recipes]'
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r tests/peers/requirements-no-deps.txt
	@touch $@

# MindSpore's SummaryLandscape beside this one, each on one core: tests/peers/README.md.
bench-mindspore: $(READY) $(MINDSPORE)/.ready
	$(BIN)/python tests/peers/bench_mindspore.py $(ARGS)

# The page in the system's Chromium, on quiet cores: medians and ratios of one run.
bench-page: $(READY) $(BROWSER) compiled
	$(BIN)/python -W ignore tests/browser/bench_page.py $(ARGS)

# Networks are trained anew: on another processor numbers may differ in the last digits. LANDSCAPE_DATA names the folder of
# CIFAR-10 and the weights of a ResNet-20, without which their pictures are left as they are.
pictures: $(READY) $(BROWSER)
	MPLBACKEND=Agg $(BIN)/python -W ignore tests/docs/draw_pictures.py $(ARGS)

# Trained networks and landscapes are kept in runs/studies: stopped, it goes on. LANDSCAPE_DATA names the folder of MNIST and CIFAR-10.
notebooks: $(READY) $(BROWSER)
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore notebooks/execute.py $(ARGS)

# The wheel is built of the sdist, so that both are whole, and installed in a folder of its own, with what the demo needs.
wheel: $(READY)
	@command -v $(PYTHON) >/dev/null || { echo "make: needs $(PYTHON) with venv; set PYTHON=..." >&2; exit 1; }
	rm -rf dist
	$(BIN)/python -c "from setuptools.build_meta import build_sdist; build_sdist('dist')" >/dev/null
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist dist/*.tar.gz
	folder=$$(mktemp -d) && trap "rm -rf $$folder" EXIT && $(PYTHON) -m venv $$folder/environment && \
	  $$folder/environment/bin/python -m pip install --quiet --disable-pip-version-check -c deploy/constraints.txt \
	    "$$(ls $(CURDIR)/dist/*.whl)[export,ray,recipes]" && \
	  cd $$folder && environment/bin/landscape --version && environment/bin/landscape demo && test -s runs/demo/report.html

# CPU_WHEELS names an index with torch without CUDA.
image:
	$$(command -v podman || command -v docker || echo podman) build -f deploy/Containerfile $(if $(CPU_WHEELS),--build-arg CPU_WHEELS=$(CPU_WHEELS)) \
	  --build-arg VARIANT=$(or $(VARIANT),cpu) -t landscape:$(or $(VARIANT),cpu) .

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(PEERS) $(FRAMEWORKS) $(MINDSPORE) build/docs dist runs/demo
	find landscape cluster notebooks tests docs -name __pycache__ -prune -exec rm -rf {} +
