//! The authorities that the API trusts, and the key with which the node signs its own certificate.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Context as _;
use instar_pki::CertificateAuthority;
use tokio::sync::watch;

use super::remember_trust::authorities;
use crate::config::MachineConfig;
use crate::machine::{Configured, Machine};
use crate::network::NetworkStatus;
use crate::trust::{Authorities, KeepIdentity, Keys, Maintenance, Names, Trust};

/// Starts the tasks that keep apid's identity in step with the machine config and the network.
pub fn keep_identity(machine: &Arc<Machine>) -> Keys {
    let (trust_sender, trust) = watch::channel(None);
    let (names_sender, names) = watch::channel(known_names(&machine.network.status().borrow()));
    let (identity_sender, identity) = watch::channel(None);
    let (self_check_sender, self_check) = watch::channel(None);

    let (mut config, mut maintenance) = (machine.watch_config(), machine.maintenance());
    crate::base::task::spawn(async move {
        loop {
            let configured = config.borrow_and_update().clone();
            let without = maintenance.borrow_and_update().clone();
            match trust_of(configured.as_deref(), &without) {
                Ok(next) => drop(trust_sender.send_replace(Some(next))),
                Err(error) => {
                    tracing::error!("the machine config's authorities are unusable: {error:#}");
                    // An API that admits no caller can still report the problem.
                    if configured.is_none() {
                        trust_sender.send_replace(Some(Trust::Closed));
                    }
                }
            }
            let changed = tokio::select! {
                changed = config.changed() => changed,
                changed = maintenance.changed() => changed,
            };
            if changed.is_err() {
                return;
            }
        }
    });
    let mut network = machine.network.status();
    crate::base::task::spawn(async move {
        while network.changed().await.is_ok() {
            let next = Some(self::names(&network.borrow_and_update()));
            names_sender.send_if_modified(|old| {
                let changed = *old != next;
                *old = next;
                changed
            });
        }
    });
    crate::base::task::spawn(
        KeepIdentity {
            trust,
            names,
            identity: identity_sender,
            self_check: self_check_sender,
            own: machine.own_certificates.clone(),
            pinned: machine.pinned_key.clone(),
        }
        .run(),
    );
    Keys {
        identity,
        self_check,
    }
}

fn trust_of(configured: Option<&Configured>, without: &Maintenance) -> anyhow::Result<Trust> {
    match (configured, without) {
        (Some(Configured { config, .. }), _) => trust_in(&authorities(config)),
        (None, Maintenance::Open) => Ok(Trust::Maintenance),
        (None, Maintenance::Closed(_)) => Ok(Trust::Closed),
        (None, Maintenance::Authorities(remembered)) => trust_in(remembered),
    }
}

/// Checks whether the API can be served with the config's authorities.
pub(super) fn check(config: &MachineConfig) -> anyhow::Result<()> {
    trust_in(&authorities(config)).map(drop)
}

fn trust_in(authorities: &Authorities) -> anyhow::Result<Trust> {
    let authority = authorities
        .key
        .as_ref()
        .map(|key| CertificateAuthority::from_pem(&authorities.ca, key))
        .transpose()
        .context("machine.ca")?;
    if authority.is_none() {
        tracing::warn!(
            "the machine has no CA key: clients cannot verify this node, pin its fingerprint"
        );
    }
    Ok(Trust::Configured {
        authority: authority.map(Box::new),
        accepted: accepted(authorities)?,
        extra_names: authorities.names.clone(),
    })
}

/// Returns the authorities whose clients are let in, DER.
pub fn accepted_authorities(config: &MachineConfig) -> anyhow::Result<Vec<Vec<u8>>> {
    accepted(&authorities(config))
}

fn accepted(authorities: &Authorities) -> anyhow::Result<Vec<Vec<u8>>> {
    let mut accepted =
        vec![instar_pki::certificate_from_pem(&authorities.ca).context("machine.ca.crt")?];
    for pem in &authorities.accepted {
        accepted.push(instar_pki::certificate_from_pem(pem).context("machine.acceptedCAs")?);
    }
    Ok(accepted)
}

/// Returns when the youngest of the config's authorities was made.
pub fn authorities_made(config: &MachineConfig) -> anyhow::Result<SystemTime> {
    let authorities = authorities(config);
    let mut youngest = SystemTime::UNIX_EPOCH;
    for pem in std::iter::once(&authorities.ca).chain(&authorities.accepted) {
        let certificate = instar_pki::certificate_from_pem(pem)?;
        youngest = youngest.max(instar_pki::validity(&certificate)?.0);
    }
    Ok(youngest)
}

/// Returns the node's names; None before the network has been examined.
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
