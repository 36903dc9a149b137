//! `make bench`: what Instar promises in numbers (docs/promises.md), each beside its limit.
//!
//! Times are guest instructions, one per nanosecond of the guest's clock, so that a busy host changes nothing; but for those in
//! `installed`, where firmware takes part, and in `api`, which is measured on the host. The table goes to standard output, the same numbers to `target/bench.json`. It fails
//! when a limit is broken; a goal that is not reached yet is printed as such. `bench memory outage` measures only these parts, and leaves that file as it is.

mod api;
mod boot;
mod installed;
mod memory;
mod outage;
mod phases;
mod sizes;
mod swap;
mod table;

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use instar_tests::{ImageUnderTest, Scratch, target_directory};

use crate::table::Table;

/// The kernel's arguments, as in `docs/contracts.md`: the same for Instar and for what it is compared with.
const COMMAND_LINE: &str =
    "console=ttyS0 panic=10 printk.devkmsg=on cryptomgr.notests transparent_hugepage=never";
/// Memory of the machines that are compared.
const MEMORY_MIB: u32 = 256;

/// What can be measured alone.
#[derive(Debug, Clone, Copy)]
enum Part {
    /// Of files, and lines of init.
    Sizes,
    /// Of requests and connections.
    Api,
    /// Counted in instructions.
    Boot,
    /// Of an idle machine.
    Memory,
    /// Of an upgrade and of a reboot.
    Outage,
    /// Phases of a boot, of an upgrade and of a reboot, and what containers notice of them.
    Swap,
    /// An installation from a CD, and an upgrade by a reboot.
    Installed,
}

const PARTS: [(&str, Part); 7] = [
    ("sizes", Part::Sizes),
    ("api", Part::Api),
    ("boot", Part::Boot),
    ("memory", Part::Memory),
    ("outage", Part::Outage),
    ("swap", Part::Swap),
    ("installed", Part::Installed),
];

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
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let chosen: Vec<String> = std::env::args().skip(1).collect();
    for word in &chosen {
        let names = PARTS.map(|(name, _)| name);
        ensure!(
            names.contains(&word.as_str()),
            "there is no part {word:?}, but {}",
            names.join(", ")
        );
    }
    for (name, part) in PARTS {
        if !chosen.is_empty() && !chosen.iter().any(|word| word == name) {
            continue;
        }
        eprintln!("{name}");
        match part {
            Part::Sizes => sizes::measure(&image, &mut table)?,
            Part::Api => api::measure(&mut table)?,
            Part::Boot => boot::measure(&scratch, &image, &mut table)?,
            Part::Memory => runtime.block_on(memory::measure(&scratch, &image, &mut table))?,
            Part::Outage => runtime.block_on(outage::measure(&scratch, &image, &mut table))?,
            Part::Swap => runtime.block_on(swap::measure(&scratch, &image, &mut table))?,
            Part::Installed => {
                runtime.block_on(installed::measure(&scratch, &image, &mut table))?
            }
        }
    }
    // Whoever reads the file wants all of it.
    if !chosen.is_empty() {
        return Ok(table);
    }
    let path = target_directory().join("bench.json");
    std::fs::write(&path, format!("{:#}\n", table.to_json()))
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(table)
}
