//! The cold start of a site whose registry does not answer, over a start with it.

use std::time::Duration;

use anyhow::Result;
use instar_tests::{Registry, Scratch, Site};

use crate::table::{Goal, Limit, Table};

const MACHINES: usize = 3;
/// Starts of each kind; the fastest counts.
const TURNS: usize = 2;
const PATIENCE: Duration = Duration::from_secs(300);

pub(super) async fn measure(scratch: &Scratch, table: &mut Table) -> Result<()> {
    let scratch = scratch.below("cold-start")?;
    let registry = Registry::start(&scratch)?;
    let site = Site::boot(&scratch, &registry, MACHINES, PATIENCE).await?;
    let (site, with) = fastest_start(site).await?;
    // It takes connections and says nothing.
    registry.freeze()?;
    let (_, without) = fastest_start(site).await?;
    let ratio = without.as_secs_f64() / with.as_secs_f64();
    table.add(
        "cold_start_without_registry_ratio",
        ratio,
        Goal(Limit::AtMost(1.2)),
    );
    for (name, time) in [("with", with), ("without", without)] {
        let milliseconds = time.as_millis() as f64;
        table.add(
            &format!("cold_start_{name}_registry_ms"),
            milliseconds,
            Limit::None,
        );
    }
    Ok(())
}

/// The time to the slowest machine's container, in the fastest of some starts.
async fn fastest_start(mut site: Site) -> Result<(Site, Duration)> {
    let mut fastest = Duration::MAX;
    for _ in 0..TURNS {
        site = site.power_cycle(PATIENCE).await?;
        fastest = fastest.min(site.slowest_start().await?);
    }
    Ok((site, fastest))
}
