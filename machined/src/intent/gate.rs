//! What must answer before a new version is kept.

use anyhow::Context as _;

use super::container::question;
use crate::config::MachineConfig;
use crate::upgrade::GateProbe;

/// The probes of the config's gate.
pub fn gate_probes(config: &MachineConfig) -> anyhow::Result<Vec<GateProbe>> {
    let probes = config.upgrade_gate.probes.iter().map(|probe| {
        let question = question(&probe.check)
            .with_context(|| format!("the probe {:?} of the upgrade gate", probe.name))?
            .with_context(|| format!("the probe {:?} belongs to no container", probe.name))?;
        Ok(GateProbe::new(probe.name.clone(), question, probe.timeout))
    });
    probes.collect()
}
