//! `make powercut`: a node is installed, gets another config, is upgraded, rolled back and reset while its disk is
//! recorded; another one is upgraded without a reboot under a container that writes, and a third one pulls, removes, imports, pins and
//! collects images. Then every state of the disk that a power cut may have left is judged, and some dozens of them are really booted.
//!
//! It fails when there is a state from which the machine does not come back with its config.

mod life;
mod table;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use instar_tests::power_cuts::{JudgedScenario, Medium, Sample, Scenario, Tears, boot_samples};
use instar_tests::{Registry, Scratch};

use crate::table::Table;

/// Number of states of each stage that are booted.
const SAMPLES: usize = 7;
/// Number of failures that are shown.
const SHOWN: usize = 20;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Whether the machine comes back from every state.
fn run() -> Result<bool> {
    let scratch = Scratch::make("powercut")?;
    let registry = Registry::start(&scratch)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let began = Instant::now();
    let tell = |what: &str| eprintln!("{:4.0} s  {what}", began.elapsed().as_secs_f64());
    tell("recording an installation");
    let installation = runtime.block_on(life::install(&scratch, &registry))?;
    tell("recording a life");
    let life = runtime.block_on(life::live(&scratch, &registry, &installation.recorded))?;
    tell("recording a change of generations under a container");
    let changed = runtime.block_on(life::live_on(&scratch, &registry, &installation.recorded))?;
    tell("recording the ways of images in and out");
    let filled = runtime.block_on(life::fill_the_store(
        &scratch,
        &registry,
        &installation.recorded,
    ))?;
    let medium = Medium {
        config: installation.config,
        identity: installation.recorded.identity,
    };

    let mut judged = Vec::new();
    for scenario in installation
        .recorded
        .scenarios
        .into_iter()
        .chain(life.scenarios)
        .chain(changed.scenarios)
        .chain(filled.scenarios)
    {
        tell(&format!("judging {}", scenario.name));
        let scenario = Scenario::judge(scenario, &scratch, Tears::Everywhere)?;
        let failures = scenario.failures().count();
        tell(&format!(
            "{} states with {} contents, {failures} unbootable",
            scenario.states(),
            scenario.judged.contents
        ));
        for (state, why) in scenario.failures().take(SHOWN) {
            eprintln!("  {state}: {why}");
        }
        judged.push(scenario);
    }
    let samples: Vec<Sample<'_>> = judged.iter().flat_map(|it| it.sample(SAMPLES)).collect();
    tell(&format!("booting {} states", samples.len()));
    let failed = boot_samples(&scratch, &samples, &medium, |sample, outcome| {
        let outcome = if outcome.is_ok() { "is well" } else { "fails" };
        tell(&format!(
            "{} {outcome}: {}",
            sample.scenario.name, sample.state
        ));
    })?;
    for (sample, error) in &failed {
        eprintln!(
            "{}, {} does not boot: {error:#}",
            sample.scenario.name, sample.state
        );
    }
    tell("done");

    println!("{}", Table::of(&judged, &samples));
    let unbootable: usize = judged
        .iter()
        .map(|it: &JudgedScenario| it.failures().count())
        .sum();
    println!(
        "{} states, {unbootable} unbootable; {} booted through the firmware, {} failed",
        judged.iter().map(JudgedScenario::states).sum::<usize>(),
        samples.len(),
        failed.len()
    );
    Ok(unbootable == 0 && failed.is_empty())
}
