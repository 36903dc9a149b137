//! The machine's identity by the config and the network: authorities, names, and the control plane to ask.

use std::collections::BTreeSet;

use anyhow::Context as _;

use crate::config::MachineConfig;
use crate::network::NetworkStatus;
use crate::trust::{Authorities, ControlPlane, Names};

/// Returns where the machine gets its certificate, if it cannot sign one.
pub(super) fn control_plane(config: &MachineConfig) -> Option<ControlPlane> {
    let is_without = config.trust.ca_key.is_none();
    let (host, token) = (config.control_plane_host.clone()?, config.token.clone()?);
    is_without.then_some(ControlPlane { host, token })
}

/// Returns the authorities whose clients are let in, DER; the machine's own first.
pub(super) fn accepted(authorities: &Authorities) -> anyhow::Result<Vec<Vec<u8>>> {
    let mut accepted =
        vec![instar_pki::certificate_from_pem(&authorities.ca).context("machine.ca.crt")?];
    for pem in &authorities.accepted {
        accepted.push(instar_pki::certificate_from_pem(pem).context("machine.acceptedCAs")?);
    }
    Ok(accepted)
}

/// Returns the names by which the machine is known on the network.
pub(super) fn names(status: &NetworkStatus) -> Names {
    let hostname = status.hostname.clone();
    Names {
        addresses: status.ip_addresses().collect(),
        hostnames: BTreeSet::from_iter((!hostname.is_empty()).then_some(hostname)),
    }
}
