//! Whom the API believes, and with what the node signs its own certificate.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::Context as _;
use instar_pki::CertificateAuthority;
use tokio::sync::watch;

use crate::config::MachineConfig;
use crate::machine::{Configured, Machine};
use crate::network::NetworkStatus;
use crate::services::Keys;
use crate::trust::{KeepIdentity, Names, Trust};

/// Starts keeping apid's identity in step with the machine config and the network.
pub fn keep_identity(machine: &Arc<Machine>) -> Keys {
    let (trust_sender, trust) = watch::channel(None);
    let (names_sender, names) = watch::channel(known_names(&machine.network.status().borrow()));
    let (identity_sender, identity) = watch::channel(None);
    let (self_check_sender, self_check) = watch::channel(None);

    let mut config = machine.watch_config();
    tokio::spawn(async move {
        loop {
            let configured = config.borrow_and_update().clone();
            match trust_of(configured.as_deref()) {
                Ok(next) => drop(trust_sender.send_replace(Some(next))),
                Err(error) => {
                    tracing::error!("the machine config's authorities are unusable: {error:#}")
                }
            }
            if config.changed().await.is_err() {
                return;
            }
        }
    });
    let mut network = machine.network.status();
    tokio::spawn(async move {
        while network.changed().await.is_ok() {
            let next = Some(self::names(&network.borrow_and_update()));
            names_sender.send_if_modified(|old| {
                let changed = *old != next;
                *old = next;
                changed
            });
        }
    });
    tokio::spawn(
        KeepIdentity {
            trust,
            names,
            identity: identity_sender,
            self_check: self_check_sender,
        }
        .run(),
    );
    Keys {
        identity,
        self_check,
    }
}

fn trust_of(configured: Option<&Configured>) -> anyhow::Result<Trust> {
    let Some(Configured { config, .. }) = configured else {
        return Ok(Trust::Maintenance);
    };
    configured_trust(config)
}

fn configured_trust(config: &MachineConfig) -> anyhow::Result<Trust> {
    let trust = &config.trust;
    let authority = trust
        .ca_key
        .as_ref()
        .map(|key| CertificateAuthority::from_pem(&trust.ca, key.expose()))
        .transpose()
        .context("machine.ca")?;
    if authority.is_none() {
        tracing::warn!(
            "the machine config has no CA key: clients cannot verify this node, pin its fingerprint"
        );
    }
    Ok(Trust::Configured {
        authority: authority.map(Box::new),
        accepted: accepted_authorities(config)?,
        extra_names: trust.cert_sans.clone(),
    })
}

/// DER of the authorities whose clients are let in.
pub fn accepted_authorities(config: &MachineConfig) -> anyhow::Result<Vec<Vec<u8>>> {
    let trust = &config.trust;
    let mut accepted = vec![instar_pki::certificate_from_pem(&trust.ca).context("machine.ca.crt")?];
    for pem in &trust.accepted_cas {
        accepted.push(instar_pki::certificate_from_pem(pem).context("machine.acceptedCAs")?);
    }
    Ok(accepted)
}

/// None before the network has been looked at.
fn known_names(status: &NetworkStatus) -> Option<Names> {
    (*status != NetworkStatus::default()).then(|| names(status))
}

fn names(status: &NetworkStatus) -> Names {
    let hostname = status.hostname.clone();
    Names {
        addresses: status
            .addresses
            .iter()
            .map(|address| address.address.address())
            .collect(),
        hostnames: BTreeSet::from_iter((!hostname.is_empty()).then_some(hostname)),
    }
}
