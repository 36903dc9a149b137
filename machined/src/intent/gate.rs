//! Probes that must be answered before a new version is kept.

use crate::config::MachineConfig;
use crate::upgrade::GateProbe;

/// Returns the probes of the config's gate.
pub fn gate_probes(config: &MachineConfig) -> Vec<GateProbe> {
    let probes = config.upgrade_gate.probes.iter();
    probes
        .map(|probe| GateProbe::new(probe.name.clone(), probe.target.clone(), probe.timeout))
        .collect()
}
