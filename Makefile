# Every target installs what it needs on a fresh Debian 12 or Ubuntu 24.04 machine:
# system packages (only those that are missing), a Python environment in .venv, and
# the C build in build/. See CONTRIBUTING for working without make.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

# Shared objects and programs that the user may choose.
PYTHON ?= python3
BUILD ?= build
JOBS ?= $(shell nproc)
SOAK_OPERATIONS ?= 1e6
SOAK_SESSIONS ?= 10000
FUZZ_RUNS ?= 0
FUZZ_SECONDS ?= 600
FUZZ_TARGET ?=
ADVISORIES ?=
GPU_OUT ?= bench/results/gpu
OUTSIDE_ARGS ?=
SOFT_ARGS ?=
OUTSIDE_PARTS ?= tests cupy
OUTSIDE_PYTHON ?= 3.12

APT_PACKAGES := gcc g++ cmake ninja-build pkg-config python3 python3-venv \
	libzmq3-dev libssl-dev liblz4-dev libzstd-dev libcmocka-dev libseccomp-dev clang libclang-rt-dev llvm \
	postgresql iproute2 curl jq

VENV := .venv
PY := $(VENV)/bin/python
# Always the versions that were tested, file by file; `make constraints` renews them.
PIP := $(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
CUPY13 := $(BUILD)/cupy13
RAY := $(BUILD)/ray
BROWSER := $(BUILD)/browser
ATHERIS := $(BUILD)/atheris
OUTSIDE := $(BUILD)/outside
PROMETHEUS := $(BUILD)/prometheus
WHEELS := $(BUILD)/wheels
TARGETS ?= x86_64-glibc aarch64-glibc x86_64-musl
CMAKE := $(shell command -v cmake || echo /usr/bin/cmake)

# Configured once; ninja notices later changes itself. CMakePresets.json has the options.
configure = test -f $(BUILD)/build.ninja || $(CMAKE) --preset release -B $(BUILD) \
	-DPython3_EXECUTABLE=$(CURDIR)/$(PY)

.PHONY: all build demo test test-c test-sanitize test-python bench bench-flood bench-messages bench-pool bench-soft wheel wheels fuzz fuzz-pack fuzz-python lint \
	test-gpu test-lands test-ray test-targets test-outside outside-archive soak soak-sessions constraints advisories browser openid prometheus try-browser try-outside try-prometheus try-ray sbom reproducible figures coverage reference docs clean system

all: build

# What other targets stand on ------------------------------------------------------

system:
	@if command -v dpkg-query >/dev/null; then \
	  missing=$$(for p in $(APT_PACKAGES); do \
	    dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || echo $$p; done); \
	  if [ -n "$$missing" ]; then \
	    echo "installing system packages:" $$missing; \
	    run=; if [ "$$(id -u)" != 0 ]; then run=sudo; fi; \
	    $$run apt-get update -q; \
	    $$run env DEBIAN_FRONTEND=noninteractive \
	      apt-get install -y -q --no-install-recommends $$missing; \
	  fi; \
	else echo "no dpkg here; these must be installed: $(APT_PACKAGES)"; fi

$(VENV)/.build: pyproject.toml constraints.txt | system
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  "gpupool needs Python 3.11 or newer; run: make PYTHON=/path/to/python3.11 ...")'
	@$(PY) .ci/needs.py --pip > $(VENV)/pip.txt
	$(PY) -m pip install --quiet --disable-pip-version-check --requirement $(VENV)/pip.txt
	@$(PY) .ci/needs.py manager > $(VENV)/needs.txt
	$(PIP) --group build --requirement $(VENV)/needs.txt
	GPUPOOL_PYTHON_ONLY=1 $(PY) -m pip install --quiet --disable-pip-version-check \
	  --no-deps --no-build-isolation --editable .
	touch $@

$(VENV)/.toolchain: $(VENV)/.build
	$(PIP) --group toolchain
	touch $@

$(VENV)/.test: $(VENV)/.toolchain
	$(PIP) --group test --group lint
	touch $@

$(VENV)/.lint: $(VENV)/.build
	$(PIP) --group lint
	touch $@

$(VENV)/.supply: $(VENV)/.build
	$(PIP) --group wheel --group supply
	touch $@

# Two builds of CuPy own the same module name, so the second lives beside the environment.
$(CUPY13)/.done: $(VENV)/.build
	rm -rf $(CUPY13)
	$(PIP) --target $(CUPY13) 'cupy-cuda13x>=13'
	touch $@

# Ray is 240 MB, and only the tests of its launcher want it.
$(RAY)/.done: $(VENV)/.build
	rm -rf $(RAY)
	$(PIP) --target $(RAY) --group ray
	touch $@

# Debian's Chromium, and what steers it (45 MB), which only the console's tests want.
$(BROWSER)/.done: | $(VENV)/.build
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || { \
	  run=; if [ "$$(id -u)" != 0 ]; then run=sudo; fi; \
	  $$run apt-get update -q && $$run env DEBIAN_FRONTEND=noninteractive \
	    apt-get -o DPkg::Lock::Timeout=300 install -y -q --no-install-recommends chromium; }
	rm -rf $(BROWSER)
	$(PIP) --target $(BROWSER) --group browser
	touch $@

browser: $(BROWSER)/.done

# A provider of OpenID Connect that others wrote (npm, 4 MB), for a test of the console.
openid:
	rm -rf $(BUILD)/openid
	npm install --silent --no-audit --no-fund --ignore-scripts --prefix $(BUILD)/openid \
	  oidc-provider@9.13.3

$(ATHERIS)/.done: $(VENV)/.build
	rm -rf $(ATHERIS)
	$(PIP) --target $(ATHERIS) --group fuzz
	touch $@

$(OUTSIDE)/packages/.done: tests/outside/packages.toml | $(VENV)/.build
	$(PY) tests/outside/packages.py --out $(OUTSIDE)/packages --only tests cupy
	touch $@

# Debian's package starts a service where it is installed: here it is unpacked, and nothing else.
$(PROMETHEUS)/.done: | system
	rm -rf $(PROMETHEUS)
	mkdir -p $(PROMETHEUS)
	cd $(PROMETHEUS) && apt-get -q download prometheus && dpkg -x prometheus_*.deb . && rm prometheus_*.deb
	touch $@

prometheus: $(PROMETHEUS)/.done

# What stands in for other machines; unpacked, too.
$(WHEELS)/root/.done: | system
	rm -rf $(WHEELS)/root
	mkdir -p $(WHEELS)/root
	cd $(WHEELS)/root && apt-get -q download musl qemu-user-static libc6-arm64-cross \
	  libgcc-s1-arm64-cross libstdc++6-arm64-cross && \
	  for package in *.deb; do dpkg -x "$$package" . && rm "$$package"; done
	touch $@

build: $(VENV)/.build
	$(configure)
	$(CMAKE) --build $(BUILD) -j $(JOBS)
	$(CMAKE) --install $(BUILD) --component gpupool --prefix $(BUILD)/stage >/dev/null

# What people run ------------------------------------------------------------------

# With a picture of the console, where a browser can be fetched.
demo: build $(VENV)/.toolchain try-browser
	@GPUPOOL_HOME=$(abspath $(BUILD)/stage) GPUPOOL_BROWSER=$(abspath $(BROWSER)) \
	  $(PY) tests/demo/demo.py --work $(BUILD)/demo $(if $(STAY),--stay)

# Some compile while others are fetched.
test:
	@$(MAKE) -j 4 build $(VENV)/.test $(CUPY13)/.done try-browser try-outside try-prometheus try-ray
	@GPUPOOL_HOME=$(abspath $(BUILD)/stage) GPUPOOL_CUPY13=$(abspath $(CUPY13)) \
	  GPUPOOL_RAY=$(abspath $(RAY)) GPUPOOL_BROWSER=$(abspath $(BROWSER)) \
	  GPUPOOL_OUTSIDE=$(abspath $(OUTSIDE)/packages) \
	  $(PY) .ci/test.py --build $(BUILD) --jobs $(JOBS)

# What tests are skipped without.
try-browser: $(VENV)/.build
	@$(MAKE) browser || \
	  echo "Chromium or Playwright could not be fetched: the console's tests in a browser are skipped"

try-outside: $(VENV)/.build
	@$(MAKE) $(OUTSIDE)/packages/.done || \
	  echo "CuPy's own tests could not be fetched from PyPI: they are skipped"

try-prometheus: | system
	@$(MAKE) prometheus || echo "Prometheus could not be fetched: tests of alerts are skipped"

try-ray: $(VENV)/.build
	@$(MAKE) $(RAY)/.done || echo "Ray could not be fetched from PyPI: its tests are skipped"

# The parts of `make test`, for while one works.
test-c: build
	@$(PY) .ci/test.py --build $(BUILD) --jobs $(JOBS) --only c

test-sanitize: build $(VENV)/.test
	@$(PY) .ci/test.py --build $(BUILD) --jobs $(JOBS) --only sanitize

test-python: build $(VENV)/.test
	@GPUPOOL_HOME=$(abspath $(BUILD)/stage) $(PY) .ci/test.py --build $(BUILD) --only python

test-gpu: build $(VENV)/.test
	@export GPUPOOL_HOME=$(abspath $(BUILD)/stage); failed=0; \
	  $(PY) tests/gpu/run.py --out $(GPU_OUT) || failed=1; \
	  $(PY) tests/gpu/ptx.py || failed=1; \
	  $(PY) tests/gpu/shares.py --out $(GPU_OUT) || failed=1; \
	  $(PY) tests/gpu/steps.py --out $(GPU_OUT) || failed=1; \
	  $(PY) tests/gpu/smi.py --out $(GPU_OUT) || failed=1; \
	  $(PY) tests/gpu/health.py --out $(GPU_OUT) || failed=1; \
	  $(PY) tests/gpu/jail.py --best --out $(GPU_OUT) || failed=1; \
  $(PY) tests/gpu/jail_two.py || failed=1; \
	  $(PY) tests/gpu/ipc.py --out $(GPU_OUT) || failed=1; \
	  $(PY) tests/gpu/two_cards.py --out $(GPU_OUT) || failed=1; \
	  $(PY) tests/gpu/gang.py --out $(GPU_OUT) || failed=1; \
	  $(PY) tests/gpu/visible.py --out $(GPU_OUT) || failed=1; \
	  $(PY) tests/gpu/mapped_delay.py || failed=1; \
	  $(PY) tests/gpu/copy_threads.py || failed=1; \
	  $(PY) tests/gpu/mig.py --out $(GPU_OUT) || failed=1; \
	  $(PY) tests/gpu/two_hosts.py --out $(GPU_OUT) || failed=1; exit $$failed

# Workers of a real Ray on soft GPUs of a pool.
test-ray: build $(RAY)/.done
	@GPUPOOL_HOME=$(abspath $(BUILD)/stage) PYTHONPATH=$(abspath $(RAY)) \
	  $(PY) -m pytest -q tests/e2e/test_ray.py

# Suites that others wrote, natively and through the pool; OUTSIDE_ARGS for tests/outside/run.py.
test-outside: build $(VENV)/.test $(OUTSIDE)/packages/.done
	@GPUPOOL_HOME=$(abspath $(BUILD)/stage) $(PY) tests/outside/run.py $(OUTSIDE_ARGS)

# The same packages in one file, for a machine with a GPU and no network.
outside-archive: $(VENV)/.build
	@$(PY) tests/outside/packages.py --out $(OUTSIDE)/carried --only $(OUTSIDE_PARTS) \
	  --python-version $(OUTSIDE_PYTHON) --archive $(OUTSIDE)/carried.tar.xz

bench: build $(VENV)/.toolchain
	@$(CMAKE) --build $(BUILD) --target bench_sockets
	@GPUPOOL_HOME=$(abspath $(BUILD)/stage) $(PY) bench/run.py \
	  --bench-sockets $$(find $(abspath $(BUILD)) -name bench_sockets -type f)

# What a neighbour notices of floods of each budget.
bench-flood: build $(VENV)/.toolchain
	@GPUPOOL_HOME=$(abspath $(BUILD)/stage) $(PY) bench/flood.py

# What a message costs the worker beside the driver, by kind.
bench-messages: build
	@$(CMAKE) --build $(BUILD) --target bench_messages
	@$$(find $(BUILD) -name bench_messages -type f) $(MESSAGES_ARGS)

# How fast the soft GPU runs kernels. Another build's bench_soft beside it, by turns:
# make bench-soft SOFT_ARGS="--against OTHER/bench_soft"
bench-soft: build $(VENV)/.toolchain
	@$(CMAKE) --build $(BUILD) --target bench_soft
	@$(PY) bench/soft.py $$(find $(BUILD) -name bench_soft -type f) $(SOFT_ARGS)

# Random operations of many threads, every byte compared; on the machine's own GPU with
# GPUPOOL_TEST_DRIVER=cuda.
soak: build $(VENV)/.toolchain
	@GPUPOOL_HOME=$(abspath $(BUILD)/stage) $(PY) tests/e2e/soak.py --operations $(SOAK_OPERATIONS)

# What the server's processes hold before and after so many short sessions.
soak-sessions: build $(VENV)/.toolchain
	@GPUPOOL_HOME=$(abspath $(BUILD)/stage) $(PY) tests/e2e/soak_sessions.py --sessions $(SOAK_SESSIONS)

# The manager alone, with up to 10,000 simulated GPUs; takes minutes.
bench-pool: $(VENV)/.lint
	@$(PY) bench/pool.py
	@$(PY) bench/queue_orders.py

lint: $(VENV)/.lint
	@$(PY) .ci/test.py --build $(BUILD) --only lint

# What the code is held to; FIGURE=long_functions lists what one of them counts.
figures: $(VENV)/.build
	@$(PY) .ci/figures.py $(if $(FIGURE),--show $(FIGURE))

# What is committed of what the spec says.
coverage: $(VENV)/.build
	PYTHONPATH=proto $(PY) -m gpgen --spec proto/spec --coverage proto/coverage.md --lock
	PYTHONPATH=proto $(PY) -m gpgen.emit_nvml --spec proto/spec_nvml --coverage proto/coverage-nvml.md
	PYTHONPATH=proto $(PY) -m gpgen.emit_nccl --spec proto/spec_nccl --coverage proto/coverage-nccl.md

# Pages made from the spec, in build/reference.
reference: build
	@$(CMAKE) --build $(BUILD) --target gp_reference

# For so long in all, one target after the other on each core; FUZZ_TARGET=worker is one alone.
# With FUZZ_RUNS, every target has to come to as many.
fuzz: $(VENV)/.build
	@$(PY) .ci/test.py --build $(BUILD) --jobs $(JOBS) --only sanitize-build
	@$(PY) .ci/fuzz.py --build $(BUILD)/sanitize --jobs $(JOBS) --only "$(FUZZ_TARGET)" \
	  --runs $(FUZZ_RUNS) --seconds $(FUZZ_SECONDS)

# What of Python reads bytes of others; so many seconds and runs are of each target.
fuzz-python: $(ATHERIS)/.done
	@PYTHONPATH=$(abspath $(ATHERIS)) $(PY) tests/python/fuzz_decoders.py --folder $(BUILD)/fuzz-python \
	  --only "$(FUZZ_TARGET)" --runs $(FUZZ_RUNS) --seconds $(FUZZ_SECONDS)

# The same for another machine, which needs no compiler: docs/fuzzing.md.
fuzz-pack: $(VENV)/.build
	@$(PY) .ci/test.py --build $(BUILD) --jobs $(JOBS) --only sanitize-build
	@$(PY) .ci/fuzz.py --build $(BUILD)/sanitize --only "$(FUZZ_TARGET)" --pack $(BUILD)/fuzz.tar.gz

# Resolves anew what pyproject.toml asks for and installs nothing; test before you commit it.
constraints: $(VENV)/.supply
	@$(PY) .ci/constraints.py

# What is known against the packages of constraints.txt; asks https://pypi.org, and fails where it
# cannot. ADVISORIES="--record FILE" there and "--recorded FILE" here where that is not in reach.
advisories: $(VENV)/.supply
	@$(PY) .ci/advisories.py $(ADVISORIES)

wheel: $(VENV)/.build
	$(PIP) --group wheel
	@$(PY) .ci/wheel.py --build $(BUILD) --out dist

# Wheels for other machines: an older glibc; arm64 and musl, without a server.
wheels: $(VENV)/.build
	$(PIP) --group wheel --group targets
	@for target in $(TARGETS); do \
	  $(PY) .ci/wheel.py --build $(BUILD) --out $(WHEELS)/$$target --target $$target; done

# Each of them in a folder of its own, named as its version.
$(WHEELS)/runtimes/.done: tests/e2e/runtimes.txt | $(VENV)/.build
	rm -rf $(WHEELS)/runtimes
	mkdir -p $(WHEELS)/runtimes
	grep '^nvidia' $< | while read -r line; do \
	  version=$${line#*==}; version=$${version%% *}; echo "$$line" > $(WHEELS)/runtimes/asked.txt; \
	  $(PY) -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
	    --target $(WHEELS)/runtimes/$$version --requirement $(WHEELS)/runtimes/asked.txt; done
	touch $@

# What they ask for, and programs with them: by qemu-user and by musl's own loader. Then programs
# with CUDA runtimes of older packages.
test-targets: build $(VENV)/.test wheels $(WHEELS)/root/.done $(WHEELS)/runtimes/.done
	@GPUPOOL_HOME=$(abspath $(BUILD)/stage) GPUPOOL_TARGETS=$(abspath $(WHEELS)) \
	  GPUPOOL_RUNTIMES=$(abspath $(WHEELS)/runtimes) \
	  $(PY) -m pytest -q tests/e2e/test_targets.py tests/e2e/test_runtimes.py

# The wheel in user lands of other distributions, which debootstrap makes (as root): up to 350 MB
# each in build/lands.
test-lands: build $(VENV)/.test
	@$(MAKE) wheels TARGETS=x86_64-glibc
	@$(PY) .ci/lands.py --build $(BUILD) --wheels $(WHEELS)/x86_64-glibc
	@GPUPOOL_HOME=$(abspath $(BUILD)/stage) GPUPOOL_TARGETS=$(abspath $(WHEELS)) \
	  GPUPOOL_LANDS=$(abspath $(BUILD)/lands) $(PY) -m pytest -q tests/e2e/test_lands.py

# The wheel and all that it brings or needs, with versions and licences (CycloneDX).
sbom: wheel $(VENV)/.supply
	@$(PY) .ci/sbom.py --build $(BUILD) --out dist

# Two builds in two folders give the same bytes.
reproducible: $(VENV)/.build
	$(PIP) --group wheel
	@$(PY) .ci/reproducible.py --build $(BUILD)

# The pages as HTML in build/docs, with pictures of the console that its tests take.
docs: build $(VENV)/.test try-browser
	@GPUPOOL_BROWSER=$(abspath $(BROWSER)) $(PY) -m pytest -q tests/python/test_console_browser.py
	@$(PY) .ci/docs.py --out $(BUILD)/docs --pictures $(BUILD)/console

clean:
	rm -rf $(BUILD) dist .venv .mypy_cache .ruff_cache .pytest_cache
