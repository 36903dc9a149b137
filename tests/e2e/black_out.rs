//! A site that loses its power, and finds no registry when the power is back.

use std::time::Duration;

use instar_tests::{Outcome, Registry, Scratch, Site, Test, chapters, tests};

use crate::PATIENCE;

/// Some machines start at once on one host.
const MACHINES: usize = 3;
/// Limit on the start of all of them.
const ALL_START: Duration = PATIENCE.saturating_mul(3);

pub(crate) fn tests() -> Vec<Test> {
    tests![a_site_comes_back_without_its_registry]
}

async fn a_site_comes_back_without_its_registry(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let site = Site::boot(&scratch, &registry, MACHINES, ALL_START).await?;
    chapters![all_machines_start_while_the_registry_is_silent(
        site, &registry
    )]
    .await
}

/// The registry takes connections and says nothing: a refusal would be noticed at once.
async fn all_machines_start_while_the_registry_is_silent(
    site: Site,
    registry: &Registry,
) -> Outcome {
    registry.freeze()?;
    let site = site.power_cycle(ALL_START).await?;
    println!(
        "the slowest container started {:?} after its kernel",
        site.slowest_start().await?
    );
    Ok(())
}
