# Everything runs in .venv; each target sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO := runs/demo
PUBLISHED := $(filter-out results/wikitext2_par/%,$(wildcard results/*/seed1111))
CODE := src tests $(wildcard benchmarks)

.PHONY: setup demo check test soak lint format docs screenshots bench bundle references clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "sparing needs Python 3.11 or newer; set PYTHON=..."; exit 2; }
	@echo "Installing into $(VENV): some gigabytes, a few minutes"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

demo: setup
	rm -rf $(DEMO)
	$(BIN)/sparing train quickstart --out $(DEMO)
	$(BIN)/sparing evaluate $(DEMO) --split valid
	$(BIN)/sparing evaluate $(DEMO) --split test
	$(BIN)/sparing generate $(DEMO) --prompt 'def ' --length 400 --temperature 0.7
	$(BIN)/sparing plot $(DEMO)

# The fast tier, some minutes: lint, types, and all tests but the stories
check: lint
	$(BIN)/python -m pytest -m 'not story and not soak and not gpu' -n 2

test: setup
	$(BIN)/python -m pytest -m 'not soak and not gpu' -n 2

soak: setup
	$(BIN)/python -m pytest -m 'soak' -n 2

lint: setup
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

docs: setup
	$(BIN)/python docs/generate_files.py

# The pictures of docs/page.md; needs chromium and chromedriver
screenshots: setup
	$(BIN)/python docs/take_screenshots.py

bench: setup
	$(BIN)/sparing bench train
	$(BIN)/sparing bench generate

# make bundle RUN=runs/small: its best weights become the model that comes with the package
bundle: setup
	$(BIN)/python -c 'import sys; from pathlib import Path; from sparing.runs import bundled, folder; \
	  bundled.bundle(folder.open_run(Path(sys.argv[1])))' $(RUN)

# The published runs in results/ become what `sparing verify` compares with
references: setup
	$(BIN)/python -c 'import sys; from pathlib import Path; from sparing.runs import folder, reference; \
	  [reference.write_reference(folder.open_run(Path(run))) for run in sys.argv[1:]]' $(PUBLISHED)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
