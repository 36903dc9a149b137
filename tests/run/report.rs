//! The results, for people and for scripts.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use instar_tests::Outage;
use serde_json::json;

use crate::Clock;
use crate::api::Facts;

pub(crate) struct Report {
    pub(crate) endpoint: String,
    pub(crate) client_config: PathBuf,
    pub(crate) machine_config: PathBuf,
    pub(crate) before: Facts,
    pub(crate) after: Facts,
    pub(crate) outage: Outage,
    pub(crate) outage_clock: Clock,
    pub(crate) seconds_total: f64,
}

impl Report {
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let report = json!({
            "endpoint": self.endpoint,
            "client_config": self.client_config,
            "machine_config": self.machine_config,
            "version_before": self.before.version,
            "version_after": self.after.version,
            "kernel_boot_id_before": self.before.kernel_boot_id,
            "kernel_boot_id_after": self.after.kernel_boot_id,
            "generation_before": self.before.generation,
            "generation_after": self.after.generation,
            "outage_ms": self.outage_ms(),
            "outage_clock": self.outage_clock.name(),
            "seconds_total": (self.seconds_total * 10.0).round() / 10.0,
        });
        std::fs::write(path, format!("{report:#}\n"))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    fn outage_ms(&self) -> f64 {
        (self.outage.length.as_secs_f64() * 10_000.0).round() / 10.0
    }

    pub(crate) fn next_steps(&self, instarctl: &Path, greeter: &str, console: &Path) -> String {
        let instarctl = instarctl.display();
        format!(
            "The node runs on. Try:\n\
             \x20 export TALOSCONFIG={}\n\
             \x20 {instarctl} version\n\
             \x20 {instarctl} services\n\
             \x20 {instarctl} logs -f greeter      # and in another terminal: curl http://{greeter}/\n\
             \x20 {instarctl} dmesg -f\n\
             \x20 {instarctl} reboot\n\
             \x20 tail -f {}\n\
             make stop ends it, make run begins anew.",
            self.client_config.display(),
            console.display()
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { before, after, .. } = self;
        writeln!(f)?;
        writeln!(
            f,
            "version          {} -> {}",
            before.version, after.version
        )?;
        writeln!(
            f,
            "generation       {} -> {}",
            before.generation, after.generation
        )?;
        writeln!(
            f,
            "kernel boot id   {} -> {}, unchanged: no reboot",
            before.kernel_boot_id, after.kernel_boot_id
        )?;
        writeln!(
            f,
            "API away for     {:.1} ms by the {}'s clock ({} answers before, {} refused tries)",
            self.outage_ms(),
            self.outage_clock.name(),
            self.outage.answers_before,
            self.outage.failures
        )?;
        writeln!(f, "in all           {:.0} s", self.seconds_total)
    }
}
