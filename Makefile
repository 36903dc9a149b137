# Instar: building and testing. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# The shell that typed `make` may not have rustup's programs, and a user's not those of administrators, such as mkfs.fat.
export PATH := $(HOME)/.cargo/bin:$(PATH):/usr/sbin:/sbin

# release: small, for keeps. quick: builds faster, for a developer's loop.
PROFILE ?= release
# cloud or generic: which of Debian's kernels.
KERNEL ?= cloud
# The Debian archive for the image's packages; empty: the one that this machine's apt uses. With it goes an archive of security
# updates, which `make packages` needs.
MIRROR ?=
SECURITY_MIRROR ?=
# The date in installer images: that of the last commit, so that the same sources give the same bytes.
CREATED ?= $(shell git log -1 --format=%cI 2>/dev/null)
# More options for `image build`, such as --exact.
IMAGE_OPTIONS ?=
# Keys for Secure Boot (PK, KEK, db): made when there are none. These are for trying things out on this machine.
KEYS ?= target/keys

TARGET := x86_64-unknown-linux-musl
# Programs in machines have a standard library of their own build, without the reader of debug information that prints
# backtraces: 230 KB of each, init's limit is 512 KiB, and there is no debug information to read. Cargo calls that unstable;
# the compiler is pinned.
STD_FOR_GUESTS := RUSTC_BOOTSTRAP=1
STD_OPTIONS := -Z build-std=std,panic_abort -Z build-std-features=optimize_for_size
# Nor do they say where they were built: two checkouts give the same bytes.
TRIM_PATHS := -Z trim-paths --config 'profile.$(PROFILE).trim-paths="all"'
# A panic names its file, not its line: 5,000 places of 24 bytes, which each process that is loaded anywhere has as memory of its own.
LOCATIONS := --config 'target.$(TARGET).rustflags=["-Zlocation-detail=file"]'
# machined's functions lie in the order of a list.
LINKER := --config 'target.$(TARGET).linker="build/link-in-order"'
# Each build for guests has all of these options: cargo builds everything anew, the standard library too, when one of them changes.
FOR_GUESTS := --locked $(STD_OPTIONS) $(TRIM_PATHS) $(LOCATIONS) $(LINKER) --profile $(PROFILE) --target $(TARGET)
BUILD_FOR_GUESTS := $(STD_FOR_GUESTS) cargo build $(FOR_GUESTS)
# The version of a release: that of the workspace, and of instarctl.
VERSION := v$(shell sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
# The two versions that tests and make run upgrade between; nobody downloads them.
VERSIONS := v0.1.0 v0.2.0
# The key that signs a release's list of digests: made when there is none, for trying things out. Publish with one that you keep outside
# of target, as its other half is how users know the builder.
RELEASE_KEY ?= $(KEYS)/release.key
RELEASE_TARGETS := $(TARGET) aarch64-unknown-linux-musl
# libFuzzer sees which branches an input takes, and what it is compared with (rustc's sancov-module, clang's SanitizerCoverage).
FUZZING := -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Coverflow-checks
SECONDS ?= 60
# How many turns `make soak` takes, and how many upgrades `make no-call-fails` does.
N ?= 100
# For how many seconds `make chaos` goes on (all: until each fault has happened once, and at least ten minutes), and with which faults: all, or
# those with this in their names.
TIME ?= all
FAULTS ?=
# Which writes of an upgrade and of a pull `make ioerrors` has fail: how many, all, or FIRST-LAST.
WRITES ?= all
# One selection of packages for all that runs here: another one would compile dependencies again.
TOOLS ?= -p image -p instar-qemu -p instarctl -p instar-tests
# More of these packages to build with their programs.
TOOLS_WITH ?=

.PHONY: help
help: ## This list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20
	@echo '  Variables: PROFILE=quick builds faster, KERNEL=generic takes the kernel for servers, MIRROR=ADDRESS names a Debian archive'

.PHONY: deps
deps: ## Install what is missing here: Debian packages (sudo when not root) and Rust (for this user)
	@build/install-packages
	@build/install-rust

# By themselves: what the system's programs have of a dependency must not depend on what else is built.
.PHONY: system
system: deps ## Compile the system: init, machined, the installer; and the container that make run starts
	$(BUILD_FOR_GUESTS) -p instar-init -p machined -p installer -p greeter

.PHONY: build
build: system ## Compile all that runs in machines, static
	$(BUILD_FOR_GUESTS) -p instar-kubernetes-init -p instar-logind -p instar-machined-double
	$(BUILD_FOR_GUESTS) -p instar-channel-publisher

.PHONY: tools
tools: deps ## Compile what runs here: image, instarctl, instar-qemu, and the programs of make run and make bench
	nice cargo build --locked $(TOOLS) $(TOOLS_WITH) --bins

# Side by side, as each of the system's programs is linked by one thread. The system takes longer, so the tools get what it leaves.
.PHONY: programs
programs: deps
	@$(MAKE) --no-print-directory --jobs=2 system tools

# A version, the folder in target/image, a kernel, more options.
define build-image
    target/debug/image build --version $(1) --out target/image/$(2) --kernel $(3) --profile $(PROFILE) $(4) \
        --sign-key $(KEYS)/db.key --sign-certificate $(KEYS)/db.crt $(if $(MIRROR),--mirror $(MIRROR)) \
        $(if $(CREATED),--created $(CREATED)) $(IMAGE_OPTIONS); \
    target/debug/image media target/image/$(2) --enrol $(KEYS) $(if $(MIRROR),--mirror $(MIRROR))
endef

.PHONY: image
image: programs ## Build the images of v0.1.0 and v0.2.0 in target/image: kernel, UKI, disk, ISO, network boot, installer
	@[ -e $(KEYS)/db.auth ] || target/debug/image keys --out $(KEYS)
	@for version in $(VERSIONS); do $(call build-image,$$version,$$version,$(KERNEL)); done
	@target/debug/image firmware --out target/firmware $(if $(MIRROR),--mirror $(MIRROR))
	@target/debug/image container --binary target/$(TARGET)/$(PROFILE)/greeter --entrypoint /greeter --out target/image/greeter

# A version, the folder in target/image, kernels.
define build-kubernetes-base
    target/debug/image kubernetes-base --version $(1) --out target/image/$(2) $(3:%=--kernel %) --profile $(PROFILE) \
        $(if $(MIRROR),--mirror $(MIRROR)) $(if $(CREATED),--created $(CREATED)) $(IMAGE_OPTIONS)
endef

.PHONY: kubernetes-base
kubernetes-base: build tools ## Build the base images of Kubernetes of v0.1.0 and v0.2.0 in target/image: kubernetes-VERSION
	@for version in $(VERSIONS); do $(call build-kubernetes-base,$$version,kubernetes-$$version,$(KERNEL)); done

# A version, the folder in target/image: the client as a job of a cluster calls it, over the socket that a node makes for its pods.
define build-upgrade-image
    target/debug/image container --binary target/$(TARGET)/$(PROFILE)/instarctl --entrypoint /instarctl --out target/image/$(2) \
        --label org.opencontainers.image.version=$(1) --variable INSTAR_ENDPOINTS=unix:///host/run/instar/api.sock \
        --variable INSTAR_FAILURE_FILE=/dev/termination-log
endef

.PHONY: upgrade-image
upgrade-image: tools ## Build the image for jobs that upgrade their node: target/image/upgrade
	RUSTC_BOOTSTRAP=1 cargo build --locked $(TRIM_PATHS) --profile $(PROFILE) --target $(TARGET) -p instarctl
	@$(call build-upgrade-image,$(VERSION),upgrade)

.PHONY: operator-image
operator-image: tools ## Build the image of the operator for Kubernetes: target/image/operator
	RUSTC_BOOTSTRAP=1 cargo build --locked $(TRIM_PATHS) --profile $(PROFILE) --target $(TARGET) -p instar-operator --bin instar-operator
	@target/debug/image container --binary target/$(TARGET)/$(PROFILE)/instar-operator --entrypoint /instar-operator \
	    --out target/image/operator --label org.opencontainers.image.version=$(VERSION)

.PHONY: capi-extension-image
capi-extension-image: tools ## Build the image of the extension server for Cluster API: target/image/capi-extension
	RUSTC_BOOTSTRAP=1 cargo build --locked $(TRIM_PATHS) --profile $(PROFILE) --target $(TARGET) -p instar-operator --bin instar-capi-extension
	@target/debug/image container --binary target/$(TARGET)/$(PROFILE)/instar-capi-extension --entrypoint /instar-capi-extension \
	    --out target/image/capi-extension --label org.opencontainers.image.version=$(VERSION)

.PHONY: channel-image
channel-image: build tools ## Build the image of instar-channel, which serves the channels below /channels: target/image/channel
	@target/debug/image container --binary target/$(TARGET)/$(PROFILE)/instar-channel --entrypoint /instar-channel --out target/image/channel \
	    --argument=--folder=/channels --argument=serve --argument=--listen=0.0.0.0:8080 --label org.opencontainers.image.version=$(VERSION)

.PHONY: packages
packages: tools ## Renew image/packages, the exact Debian packages of the image, and say what has changed
	target/debug/image packages $(if $(MIRROR),--mirror $(MIRROR)) $(if $(SECURITY_MIRROR),--security-mirror $(SECURITY_MIRROR))

.PHONY: release
release: build tools ## Write the folder that users download, target/dist/VERSION: instarctl, images and media, SBOMs, signed digests
	@build/install-packages gcc-aarch64-linux-gnu libc6-dev-arm64-cross
	@build/install-rust aarch64-unknown-linux-musl
	@[ -e $(KEYS)/db.auth ] || target/debug/image keys --out $(KEYS)
	RUSTC_BOOTSTRAP=1 cargo build --locked $(TRIM_PATHS) --profile $(PROFILE) $(RELEASE_TARGETS:%=--target %) -p instarctl
	@for kernel in cloud generic; do $(call build-image,$(VERSION),release-$$kernel,$$kernel,--official); done
	@$(call build-kubernetes-base,$(VERSION),kubernetes-$(VERSION),cloud generic)
	@$(call build-upgrade-image,$(VERSION),upgrade)
	@build/release $(VERSION) $(PROFILE) $(KEYS) $(RELEASE_KEY)

.PHONY: try-release
try-release: ## Run the lines of the release's page in a root with nothing but the folder and QEMU, without a compiler
	@build/try-release target/dist/$(VERSION)

.PHONY: run
run: image ## Boot a node in QEMU, run a container on it, upgrade it without a reboot, leave it running
	@target/debug/run-node start

.PHONY: stop
stop: ## End what make run left running
	@[ ! -e target/debug/run-node ] || target/debug/run-node stop

.PHONY: cluster
cluster: image kubernetes-base ## Boot a machine that is a whole Kubernetes cluster, upgrade its OS and Kubernetes, leave it running
	@build/kubernetes-peers
	@build/kubernetes-extensions
	@target/debug/run-node start-cluster

.PHONY: fleet
fleet: image build ## Boot five machines that follow a channel: one goes first, the others follow one at a time, a bad release stops at the first
	@build/install-packages chromium chromium-driver
	@target/debug/run-node start-fleet

.PHONY: cluster-stop
cluster-stop: ## End what make cluster left running
	@[ ! -e target/debug/run-node ] || target/debug/run-node stop-cluster

.PHONY: lint
lint: deps ## Check format, lints, dependencies, and that imports run down
	@build/install-cargo-deny
	@build/install-cargo-shear
	build/check-dependencies
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo clippy --locked --workspace --test e2e --test kubernetes -- -D warnings
	cargo test --locked -p instar-rooms

.PHONY: unit
unit: deps ## Run the tests that need no virtual machine
	cargo test --locked --workspace --no-fail-fast

.PHONY: e2e
e2e: image build ## Run the tests in virtual machines
	@$(call build-image,v0.1.0,for-servers,generic)
	@build/fetch-chronyd
	@build/fetch-cosign
	@build/install-packages chromium chromium-driver
	cargo test --locked $(TOOLS) --test e2e

.PHONY: postgresql-image
postgresql-image: tools ## Build an image of PostgreSQL for tests: target/kubernetes/postgresql
	@build/install-packages postgresql-client
	@target/debug/image postgresql --out target/kubernetes/postgresql $(if $(MIRROR),--mirror $(MIRROR))

# One test at a time: each has a control plane and a machine of its own, whose pods have to be ready in time.
.PHONY: test-kubernetes
test-kubernetes: image kubernetes-base upgrade-image operator-image postgresql-image ## Run machines as nodes of a real Kubernetes cluster; builds the cluster's programs from source first
	@build/kubernetes-peers
	@build/kubernetes-extensions
	cargo build --locked $(TOOLS) -p instar-operator --bins
	cargo test --locked $(TOOLS) -p instar-operator --test kubernetes -- --test-threads=1

.PHONY: test-kubernetes-node
test-kubernetes-node: image kubernetes-base ## Run one machine as a node of a real Kubernetes cluster, and replace its OS and its Kubernetes: a part of test-kubernetes
	@build/kubernetes-peers runc etcd containerd cni kubernetes
	@build/kubernetes-extensions
	cargo test --locked $(TOOLS) --test kubernetes -- node::joins

.PHONY: test
test: deps ## Run lints, unit tests, and a quarter of the end-to-end tests, in 25 minutes; one summary at the end
	@build/test-everything

.PHONY: test-all
test-all: deps ## Run everything but test-kubernetes and the demonstrations
	@INSTAR_ALL=1 build/test-everything

.PHONY: bench
bench: image ## Measure what is promised: sizes, the API's load, boot, memory, outages
	$(BUILD_FOR_GUESTS) -p instar-api-load
	@target/debug/bench

.PHONY: bench-images
bench-images: image ## Measure pulls of images beside containerd, podman, and skopeo with umoci, and starts without a registry; needs root
	@build/install-packages containerd podman umoci skopeo runc
	$(BUILD_FOR_GUESTS) -p instar-image-load
	@target/debug/bench images

# With names, which the program of the image has not, and with addresses that QEMU's notes tell.
.PHONY: code-order
code-order: image ## Renew machined/code-order, the order of machined's functions: records those that an idle machine and a boot run
	$(STD_FOR_GUESTS) cargo rustc $(FOR_GUESTS) -p machined --bin machined -- -Cstrip=none
	@mkdir -p target/code-order
	@cp target/$(TARGET)/$(PROFILE)/machined target/code-order/machined.symbols
	@strip -o target/code-order/machined target/code-order/machined.symbols
	@$(call build-image,v0.1.0,code-order,$(KERNEL),--machined target/code-order/machined)
	@target/debug/record-code-order

.PHONY: powercut
powercut: image ## Cut the power at every write of a recorded node: all states judged, some dozens really booted
	@target/debug/powercut

.PHONY: ioerrors
ioerrors: image build ## Fail the writes of an upgrade and of a pull, one at a time, as a broken, a full and a tearing disk do: WRITES=60 spreads 60 over it, WRITES=1-60 takes the first
	INSTAR_WRITES=$(WRITES) cargo test --locked $(TOOLS) --test e2e -- io_errors::

.PHONY: soak
soak: image build ## Upgrade one node again and again under containers and clients, every tenth time to a version that fails: N=1000 times
	INSTAR_SOAK=$(N) cargo test --locked $(TOOLS) --test e2e -- soak::

.PHONY: no-call-fails
no-call-fails: image build ## Upgrade one node without a reboot N=100 times under clients of grpcio and tonic that call ten times a second: no call may fail
	INSTAR_UPGRADES=$(N) cargo test --locked $(TOOLS) --test e2e -- no_call_fails::over_upgrades

.PHONY: chaos
chaos: image build ## Do all that can go wrong to one node while its versions change, each fault once; TIME=600 ends it after so many seconds, FAULTS=registry takes some of it
	INSTAR_CHAOS=$(TIME) INSTAR_FAULTS='$(FAULTS)' cargo test --locked $(TOOLS) --test e2e -- chaos::

.PHONY: fuzz
fuzz: deps ## Look for input from the network that breaks a decoder: SECONDS=60 for each, DECODERS="uki event" for some
	@build/install-packages g++
	RUSTFLAGS='$(FUZZING)' cargo build --locked --target-dir target/fuzz --target x86_64-unknown-linux-gnu --profile quick \
	    -p instar-fuzz --bin fuzz --features libfuzzer
	cargo run --locked -p instar-fuzz --bin run-fuzzers -- target/fuzz/x86_64-unknown-linux-gnu/quick/fuzz $(SECONDS) $(DECODERS)

.PHONY: clean
clean: ## Remove what was built; packages in .cache stay
	rm -rf target
