//! `make bench`: what Instar promises in numbers (docs/promises.md), each beside its limit.
//!
//! Times are guest instructions, one per nanosecond of the guest's clock, so that a busy host changes nothing; but for those in
//! `installed`, where firmware takes part. The table goes to standard output, the same numbers to `target/bench.json`. It fails
//! when a limit is broken. `bench memory outage` measures only these parts: `sizes`, `boot`, `memory`, `outage`, `installed`.

mod boot;
mod installed;
mod memory;
mod outage;
mod sizes;
mod table;

use std::process::ExitCode;

use anyhow::{Context, Result};
use instar_tests::{ImageUnderTest, Scratch, target_directory};

use crate::table::Table;

/// The kernel's arguments, as in `docs/contracts.md`: the same for Instar and for what it is compared with.
const COMMAND_LINE: &str =
    "console=ttyS0 panic=10 printk.devkmsg=on cryptomgr.notests transparent_hugepage=never";
/// Memory of the machines that are compared.
const MEMORY_MIB: u32 = 256;

fn main() -> ExitCode {
    match measure() {
        Ok(table) => {
            println!("\n{table}");
            if table.holds() {
                ExitCode::SUCCESS
            } else {
                eprintln!("a limit is broken");
                ExitCode::FAILURE
            }
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn measure() -> Result<Table> {
    let scratch = Scratch::make("bench")?;
    let image = ImageUnderTest::first()?;
    let mut table = Table::default();
    let chosen: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |part: &str, what: &str| {
        let wanted = chosen.is_empty() || chosen.iter().any(|word| word == part);
        if wanted {
            eprintln!("{part}: {what}");
        }
        wanted
    };
    if wanted("sizes", "of files, and lines of init") {
        sizes::measure(&image, &mut table)?;
    }
    if wanted("boot", "counted in instructions") {
        boot::measure(&scratch, &image, &mut table)?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    if wanted("memory", "of an idle machine") {
        runtime.block_on(memory::measure(&scratch, &image, &mut table))?;
    }
    if wanted("outage", "of an upgrade and of a reboot") {
        runtime.block_on(outage::measure(&scratch, &image, &mut table))?;
    }
    if wanted(
        "installed",
        "an installation from a CD, and an upgrade by a reboot",
    ) {
        runtime.block_on(installed::measure(&scratch, &image, &mut table))?;
    }
    let path = target_directory().join("bench.json");
    std::fs::write(&path, format!("{:#}\n", table.to_json()))
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(table)
}
