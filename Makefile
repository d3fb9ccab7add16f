# Every target sets up what it needs: a virtual environment in .venv with the package and its tools.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FAST := tests --ignore=tests/browser $(foreach name,build bench deploy docs docs_commands docs_errors docs_site fuzz runtime ddp studies witnesses,--ignore=tests/test_$(name).py)
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.ready
PIP := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test test-fast test-browser lint bench docs sanitize clean

demo: $(INSTALLED)
	$(BIN)/uotpool demo

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --ignore=tests/browser

# The library alone: no experiments, no compilers, exporters, documentation or fuzzing.
test-fast: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(FAST)

# Pages in a real browser. Where there is none, each test is reported as skipped: not run.
test-browser: $(READY)
	sh tests/browser/install.sh
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/browser

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m bench

# Strictly: a link or an anchor that leads nowhere is an error.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "The site is in out/site: open out/site/index.html, or with search: $(BIN)/python -m http.server -d out/site"

# The kernel tests with the sanitizers of GCC. Python is built without them, so they are loaded before it, and with them
# libstdc++, whose exceptions (torch throws some) they must see. Python leaks by itself.
sanitize: SANITIZED := build/sanitize
sanitize: $(READY)
	$(BIN)/cmake -S . -B $(SANITIZED) -DUOTPOOL_SANITIZE=ON -DUOTPOOL_WERROR=ON -DCMAKE_CXX_COMPILER=$(CXX)
	$(BIN)/cmake --build $(SANITIZED) --parallel 2
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 OMP_NUM_THREADS=1 \
	UOTPOOL_LIBRARY="$(CURDIR)/$(SANITIZED)/libuotpool_native.so" $(BIN)/python -m pytest --capture=sys tests/kernels

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build src/uotpool/backends/cpu/*.so

# What the demo needs: the two packages, with the kernels built into src/uotpool/backends/cpu/. Not in an isolated
# environment, which is a new one each time and would make CMake start over: only what changed in csrc/ is compiled again.
$(INSTALLED): pyproject.toml experiments/pyproject.toml constraints.txt CMakeLists.txt $(wildcard csrc/*)
	@echo "setting up $(VENV): 1.4 GB and some three minutes if it is new"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) scikit-build-core cmake ninja hatchling editables
	$(PIP) --no-build-isolation --config-settings=cmake.define.UOTPOOL_WERROR=ON --editable . --editable ./experiments
	touch $@

# What developers need beside it: the requirements of the extras alone, as the packages themselves are installed.
$(READY): $(INSTALLED)
	@echo "setting up the development tools: 1.2 GB and some two minutes more if they are new"
	$(PIP) $$($(BIN)/python tools/requirements.py dev explore images ray)
	touch $@
