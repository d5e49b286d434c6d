# make demo: install, train a small Mask R-CNN on generated pictures, evaluate it
# make test: install, run the test suite
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEMO := output/demo
KERNELS := setup.py $(shell find csrc -type f)

.PHONY: install demo test lint format docs clean

install: $(INSTALLED)

$(VENV)/.dependencies: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install "torch>=2.11" torchvision "setuptools>=77" wheel ninja
	touch $@

# Not isolated, so that the kernels are built against the torch that runs them and only once.
$(INSTALLED): $(VENV)/.dependencies $(KERNELS)
	$(BIN)/python -m pip install --no-build-isolation --editable ".[dev]"
	touch $@

# The sheet of detections is the last file that a run writes.
demo: $(DEMO)/detections.png
	@echo "The demo's results are in $(DEMO)/: evaluation.json, curves.png, detections.png, ..."
	@cat $(DEMO)/evaluation.json

$(DEMO)/detections.png: configs/demo_shapes.yaml | $(INSTALLED)
	$(BIN)/python tools/train_net.py --config configs/demo_shapes.yaml --resume OUTPUT_DIR $(DEMO)

test: $(INSTALLED)
	$(BIN)/python -m pytest

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf build detlite/*.so *.egg-info output/demo
