//! `make bench`: measures the numbers that Instar promises (docs/promises.md), each beside its limit.
//!
//! Times are guest instructions, one per nanosecond of the guest's clock, so that a busy host changes nothing; except
//! those of `installed`, where firmware takes part, and of `api`, which is measured on the host. The table goes to
//! standard output, the same numbers to `target/bench.json`. It fails when a limit is broken; a goal that is not
//! reached yet is printed as such. `bench memory outage` measures only these parts, and leaves that file as it is.
//! `bench images` (`make bench-images`) has a file of its own.

mod api;
mod boot;
mod dhcp_pause;
mod images;
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

/// The kernel's arguments, as in `docs/contracts.md`: the same for Instar and for the systems beside it.
const COMMAND_LINE: &str =
    "console=ttyS0 panic=10 printk.devkmsg=on cryptomgr.notests transparent_hugepage=never";
/// Memory of the machines that are compared, in MiB.
const MEMORY_MIB: u32 = 256;

/// A part that can be measured alone.
#[derive(Debug, Clone, Copy)]
enum Part {
    /// Sizes of files, and init's number of lines.
    Sizes,
    /// Rates of requests and connections.
    Api,
    /// Boot, counted in instructions.
    Boot,
    /// Memory of an idle machine.
    Memory,
    /// Outage of an upgrade and of a reboot.
    Outage,
    /// Phases of a boot, of an upgrade and of a reboot, and the pauses of containers in them.
    Swap,
    /// An installation from a CD, and an upgrade by a reboot.
    Installed,
    /// Images: pulls beside other tools, a shared base, starts without a registry; only if it is named, as it needs these tools.
    Images,
}

const PARTS: [(&str, Part); 8] = [
    ("sizes", Part::Sizes),
    ("api", Part::Api),
    ("boot", Part::Boot),
    ("memory", Part::Memory),
    ("outage", Part::Outage),
    ("swap", Part::Swap),
    ("installed", Part::Installed),
    ("images", Part::Images),
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
    let image = ImageUnderTest::first;
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
        let is_wanted = match (chosen.is_empty(), part) {
            (true, Part::Images) => false,
            (true, _) => true,
            (false, _) => chosen.iter().any(|word| word == name),
        };
        if !is_wanted {
            continue;
        }
        eprintln!("{name}");
        match part {
            Part::Sizes => sizes::measure(&image()?, &mut table)?,
            Part::Api => api::measure(&mut table)?,
            Part::Boot => boot::measure(&scratch, &image()?, &mut table)?,
            Part::Memory => runtime.block_on(memory::measure(&scratch, &image()?, &mut table))?,
            Part::Outage => runtime.block_on(outage::measure(&scratch, &image()?, &mut table))?,
            Part::Swap => runtime.block_on(swap::measure(&scratch, &image()?, &mut table))?,
            Part::Installed => {
                runtime.block_on(installed::measure(&scratch, &image()?, &mut table))?
            }
            Part::Images => runtime.block_on(images::measure(&scratch, &mut table))?,
        }
    }
    // The file is written only with all parts, as its readers expect.
    let file = match &chosen[..] {
        [] => "bench.json",
        [part] if part == "images" => "bench-images.json",
        _ => return Ok(table),
    };
    let path = target_directory().join(file);
    std::fs::write(&path, format!("{:#}\n", table.to_json()))
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(table)
}
