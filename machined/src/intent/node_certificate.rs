//! The certificate of a machine without the authority's key, as a person gives it: its request, the certificate's way onto the disk, and what
//! there is to say about it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;

use super::known_identity::{accepted, control_plane, names};
use super::remember_trust::authorities;
use crate::base::blocking_io;
use crate::disk::OwnedDisk;
use crate::machine::Machine;
use crate::network::Network;
use crate::trust::{self, Granted, Maintenance, NotGranted, Own, concern};

/// Interval between two warnings about the same certificate.
const WARNED_EVERY: Duration = Duration::from_secs(24 * 3600);
/// Time that a machine has to learn its addresses before its certificate is judged by them.
const SETTLED: Duration = Duration::from_secs(30);

/// A request, and the machine's need of a certificate.
pub struct ShownRequest {
    /// The request, PEM.
    pub request: String,
    /// The fingerprint of the machine's key.
    pub fingerprint: String,
    /// Whether the machine has the authority's key.
    pub signs_for_itself: bool,
    /// Whether it asks a control plane.
    pub asks_control_plane: bool,
    /// When the certificate ends that clients can verify.
    pub ends: Option<SystemTime>,
}

/// Why a certificate is not taken.
#[derive(Debug, thiserror::Error)]
pub enum GrantError {
    /// The machine signs for itself.
    #[error("this machine has its authority's key and signs for itself")]
    SignsForItself,
    /// The certificate is of no use here.
    #[error(transparent)]
    Refused(#[from] NotGranted),
    /// The disk, or the machine's key, fails.
    #[error("the machine cannot take a certificate now")]
    Failed(#[source] anyhow::Error),
}

/// A certificate that was taken.
pub struct Taken {
    /// Whether it is on the disk.
    pub is_kept: bool,
    /// When it ends.
    pub ends: SystemTime,
}

/// The issuer of the API's certificate, its end, and a warning about it.
pub struct CertificateStanding {
    /// `machine`, `control plane`, `person` or `nobody`.
    pub issued_by: &'static str,
    /// When it ends; None if nobody has issued one.
    pub ends: Option<SystemTime>,
    /// The action that it needs from a person.
    pub warning: Option<String>,
}

/// The authorities that the machine knows, and the further names of its config.
struct Known {
    /// None while the machine has nothing that names authorities.
    accepted: Option<Vec<Vec<u8>>>,
    extra: Vec<String>,
    has_key: bool,
}

fn known(machine: &Machine) -> anyhow::Result<Known> {
    let configured = machine.config();
    let of_config = configured.map(|configured| authorities(&configured.config));
    let remembered = match &*machine.maintenance().borrow() {
        Maintenance::Authorities(remembered) => Some((**remembered).clone()),
        Maintenance::Open | Maintenance::Closed(_) => None,
    };
    let Some(authorities) = of_config.or(remembered) else {
        return Ok(Known {
            accepted: None,
            extra: Vec::new(),
            has_key: false,
        });
    };
    Ok(Known {
        accepted: Some(accepted(&authorities)?),
        extra: authorities.names,
        has_key: authorities.key.is_some(),
    })
}

fn own_names(network: &Network, extra: &[String]) -> BTreeSet<String> {
    trust::own_names(&names(&network.status().borrow()), extra)
}

/// Makes a request for the certificate of this machine.
///
/// # Errors
/// The machine's key fails.
pub fn show_request(machine: &Machine) -> anyhow::Result<ShownRequest> {
    let known = known(machine)?;
    let names = names(&machine.network.status().borrow());
    let (request, key) = trust::request(&machine.pinned_key, &names, &known.extra)?;
    let configured = machine.config();
    let asks = configured.and_then(|configured| control_plane(&configured.config));
    let granted = machine.granted_certificate.borrow();
    let now = SystemTime::now();
    let good = granted.as_ref().filter(|granted| {
        let accepted = known.accepted.as_deref().unwrap_or_default();
        granted.is_good(accepted, now)
    });
    Ok(ShownRequest {
        request,
        fingerprint: instar_pki::fingerprint_of(&key.public_key_info()),
        signs_for_itself: known.has_key,
        asks_control_plane: asks.is_some(),
        ends: good.map(Granted::end),
    })
}

/// Takes a certificate (PEM), or changes nothing. `authority` (PEM) counts only while the machine knows no authority.
///
/// # Errors
/// It is refused, or cannot be kept.
pub async fn grant_certificate(
    machine: &Arc<Machine>,
    certificate: &str,
    authority: &str,
) -> Result<Taken, GrantError> {
    let known = known(machine).map_err(GrantError::Failed)?;
    if known.has_key {
        return Err(GrantError::SignsForItself);
    }
    let accepted = match known.accepted {
        Some(accepted) => accepted,
        None => vec![
            instar_pki::certificate_from_pem(authority)
                .map_err(|error| NotGranted::Unreadable(error.to_string()))?,
        ],
    };
    let all = names(&machine.network.status().borrow());
    let (_, key) =
        trust::request(&machine.pinned_key, &all, &known.extra).map_err(GrantError::Failed)?;
    let own = Own {
        key,
        names: own_names(&machine.network, &known.extra),
        accepted: &accepted,
        is_configured: machine.config().is_some(),
    };
    let granted = trust::grant(&own, certificate, SystemTime::now())?;
    let is_kept = keep(&machine.disk, &granted)
        .await
        .map_err(GrantError::Failed)?;
    let ends = granted.end();
    machine.granted_certificate.send_replace(Some(granted));
    Ok(Taken { is_kept, ends })
}

/// Writes the certificate to STATE if that is there; returns whether it was. Without it, `keep_granted` does it later.
async fn keep(disk: &OwnedDisk, granted: &Granted) -> anyhow::Result<bool> {
    let is_mounted = disk.status().borrow().var_mounted;
    let state = disk.state().map(Path::to_owned);
    let Some(state) = state.filter(|_| is_mounted) else {
        return Ok(false);
    };
    let granted = granted.clone();
    blocking_io::within(blocking_io::ANSWER, move || granted.write(&state))
        .await
        .map_err(anyhow::Error::from)
        .flatten()
        .context("the certificate cannot be kept, and is not used")?;
    Ok(true)
}

/// Tells by whom the API's certificate is.
pub fn certificate_standing(machine: &Machine) -> CertificateStanding {
    if let Some(own) = machine.own_certificates.borrow().as_ref() {
        return CertificateStanding {
            issued_by: "machine",
            ends: own.end(),
            warning: None,
        };
    }
    let known = known(machine).ok();
    let accepted = known.as_ref().and_then(|known| known.accepted.as_deref());
    let extra = known.as_ref().map_or(&[][..], |known| &known.extra);
    let granted = machine.granted_certificate.borrow();
    let now = SystemTime::now();
    let nobody = CertificateStanding {
        issued_by: "nobody",
        ends: None,
        warning: Some(
            "clients cannot verify this machine: sign its request with `instarctl fleet sign`"
                .to_owned(),
        ),
    };
    let Some(granted) = granted.as_ref() else {
        return nobody;
    };
    if !granted.is_good(accepted.unwrap_or_default(), now) {
        return nobody;
    }
    CertificateStanding {
        issued_by: match granted.is_by_hand() {
            true => "person",
            false => "control plane",
        },
        ends: Some(granted.end()),
        warning: concern(granted, &own_names(&machine.network, extra), now),
    }
}

/// Warns in the log and on the console, once a day, while a certificate that a person gave ends soon or is of no use.
pub(super) async fn warn_of_the_end(machine: Arc<Machine>) {
    let mut granted = machine.granted_certificate.subscribe();
    loop {
        tokio::time::sleep(SETTLED).await;
        granted.mark_unchanged();
        let by_hand = granted.borrow().as_ref().is_some_and(Granted::is_by_hand);
        let standing = certificate_standing(&machine);
        if let Some(warning) = standing.warning.filter(|_| by_hand) {
            tracing::warn!("{warning}");
        }
        tokio::select! {
            changed = granted.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(WARNED_EVERY) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error_chain::chain;

    #[test]
    fn a_failure_says_its_step_and_then_its_cause() {
        let error = GrantError::Failed(anyhow::anyhow!("the disk is gone"));
        let expected = "the machine cannot take a certificate now: the disk is gone";
        assert_eq!(chain(&error), expected);
    }
}
