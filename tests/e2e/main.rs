//! End-to-end tests in booted machines: one file per area.
//!
//! `cargo test -p instar-tests --test e2e -- --list`, `-- upgrade`, `-- --test-threads 1`. The image under test comes from
//! `make image`. With `INSTAR_KEEP=1` every test leaves its directory under `target/e2e/`.

// A test's failure is what it asserts.
#![allow(clippy::unwrap_used, clippy::panic)]

mod boot;
mod harness;
mod init_failures;
mod peers;

use std::process::ExitCode;

fn main() -> ExitCode {
    let areas = [
        harness::tests(),
        peers::tests(),
        boot::tests(),
        init_failures::tests(),
    ];
    instar_tests::run(areas.into_iter().flatten().collect())
}
