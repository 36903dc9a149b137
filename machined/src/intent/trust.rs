//! The authorities that the API trusts, and the key with which the node signs its own certificate.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use instar_pki::CertificateAuthority;
use tokio::sync::watch;
use tokio::time::Instant;

use super::granted_certificate::keep_granted;
use super::known_identity::{accepted, control_plane, names};
use super::node_certificate::warn_of_the_end;
use super::remember_trust::authorities;
use crate::config::{MachineConfig, MachineType, MetricsReaders};
use crate::kubernetes::trial::Readiness;
use crate::kubernetes::{ClusterNode, KubernetesFact, cluster_nodes};
use crate::left_sockets::{LeftSockets, Socket};
use crate::machine::{Configured, Machine};
use crate::network::NetworkStatus;
use crate::trust::{
    AskControlPlane, Authorities, ControlPlane, ForWorkers, KeepIdentity, Keys, Maintenance,
    MetricsSpec, Names, Trust, follow_metrics, follow_workers, own_names,
};

/// Pause before the port for workers is opened again after a failure, or while addresses are missing.
const PORT_AGAIN: Duration = Duration::from_secs(2);
/// Limit on the time that the port for workers stays closed for the sake of addresses from DHCP.
const ADDRESSES: Duration = Duration::from_secs(30);

/// Starts the tasks that keep apid's identity in step with the machine config and the network.
pub fn keep_identity(machine: &Arc<Machine>) -> Keys {
    let (trust_sender, trust) = watch::channel(None);
    let (names_sender, names) = watch::channel(known_names(&machine.network.status().borrow()));
    let (identity_sender, identity) = watch::channel(None);
    let (self_check_sender, self_check) = watch::channel(None);

    let (mut config, mut maintenance) = (machine.watch_config(), machine.maintenance());
    let ask = AskControlPlane {
        trust: trust.clone(),
        names: names.clone(),
        granted: machine.granted_certificate.clone(),
        pinned: machine.pinned_key.clone(),
    };
    let (mut ask, follower, start) = (Some(ask), machine.clone(), Instant::now());
    let mut keeps_granted = false;
    crate::base::task::spawn(async move {
        loop {
            let configured = config.borrow_and_update().clone();
            let without = maintenance.borrow_and_update().clone();
            let of_config = configured.as_ref().map(|configured| &configured.config);
            let signs = of_config.is_some_and(signs_for_workers);
            let is_time = knows_its_addresses(&follower.network.status().borrow(), start.elapsed());
            let left = &follower.left_sockets;
            close_unnamed(left, of_config);
            let is_done = follow_workers(&follower.workers_port, left, signs && is_time)
                & (is_time || !signs)
                & follow_metrics(&follower.metrics_port, left, of_config.and_then(metrics));
            // These tasks stay, and rest while the config has the authority's key.
            if !keeps_granted && is_without_key(of_config, &without) {
                keeps_granted = true;
                crate::base::task::spawn(keep_granted(follower.clone()));
                crate::base::task::spawn(warn_of_the_end(follower.clone()));
            }
            if of_config.and_then(control_plane).is_some()
                && let Some(ask) = ask.take()
            {
                crate::base::task::spawn(ask.run());
            }
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
                // An apid of before this machined may have the port for a moment.
                () = tokio::time::sleep(PORT_AGAIN), if !is_done => Ok(()),
            };
            if changed.is_err() {
                return;
            }
        }
    });
    crate::base::task::spawn(follow_names(machine.network.status(), names_sender));
    crate::base::task::spawn(
        KeepIdentity {
            trust,
            names,
            identity: identity_sender,
            self_check: self_check_sender,
            own: machine.own_certificates.clone(),
            pinned: machine.pinned_key.clone(),
            granted: machine.granted_certificate.subscribe(),
        }
        .run(),
    );
    Keys {
        identity,
        self_check,
    }
}

/// Closes the sockets of the generation before that the config does not name; without a config nobody knows.
fn close_unnamed(left: &LeftSockets, config: Option<&MachineConfig>) {
    let Some(config) = config else {
        return;
    };
    if !signs_for_workers(config) {
        left.close(Socket::Workers);
    }
    if metrics(config).is_none() {
        left.close(Socket::Metrics);
    }
}

/// Keeps the names for the certificate in step with the network.
async fn follow_names(
    mut network: watch::Receiver<NetworkStatus>,
    to: watch::Sender<Option<Names>>,
) {
    while network.changed().await.is_ok() {
        let next = Some(names(&network.borrow_and_update()));
        to.send_if_modified(|old| {
            let changed = *old != next;
            *old = next;
            changed
        });
    }
}

/// Whether the machine knows its authority, and has not got the key.
fn is_without_key(config: Option<&MachineConfig>, without: &Maintenance) -> bool {
    match (config, without) {
        (Some(config), _) => config.trust.ca_key.is_none(),
        (None, Maintenance::Authorities(remembered)) => remembered.key.is_none(),
        (None, Maintenance::Open | Maintenance::Closed(_)) => false,
    }
}

fn trust_of(configured: Option<&Configured>, without: &Maintenance) -> anyhow::Result<Trust> {
    match (configured, without) {
        (Some(Configured { config, .. }), _) => trust_in(
            &authorities(config),
            control_plane(config),
            endpoint(config),
        ),
        (None, Maintenance::Open) => Ok(Trust::Maintenance),
        (None, Maintenance::Closed(_)) => Ok(Trust::Closed),
        (None, Maintenance::Authorities(remembered)) => trust_in(remembered, None, None),
    }
}

/// Checks whether the API can be served with the config's authorities.
pub(super) fn check(config: &MachineConfig) -> anyhow::Result<()> {
    trust_in(&authorities(config), control_plane(config), None).map(drop)
}

/// Returns the name of the cluster's endpoint if this machine is one that answers there: workers reach it by that name.
fn endpoint(config: &MachineConfig) -> Option<&str> {
    let host = config.control_plane_host.as_deref();
    host.filter(|_| signs_for_workers(config))
}

/// Whether the machine signs certificates for those without the authority's key.
fn signs_for_workers(config: &MachineConfig) -> bool {
    config.machine_type == MachineType::ControlPlane
        && config.trust.ca_key.is_some()
        && config.token.is_some()
}

/// Whether certificates can be signed for others: nobody gets one for an address of this machine, which therefore has to know its own. A
/// link that gets no lease in time keeps no worker waiting.
fn knows_its_addresses(status: &NetworkStatus, since_start: Duration) -> bool {
    let is_examined = *status != NetworkStatus::default();
    (is_examined && status.without_lease.is_empty()) || since_start >= ADDRESSES
}

/// Returns where metrics are served.
fn metrics(config: &MachineConfig) -> Option<MetricsSpec> {
    let metrics = config.metrics?;
    Some(MetricsSpec {
        listen: metrics.listen,
        with_tls: metrics.readers == MetricsReaders::Certificate,
    })
}

/// Returns what the machine signs for workers with; None if it signs nothing. Waits a few seconds at most, for the cluster's members.
///
/// # Errors
/// The config's authority is unusable.
pub async fn for_workers(machine: &Machine) -> anyhow::Result<Option<ForWorkers>> {
    let configured = machine.config();
    let config = configured.as_ref().map(|configured| &configured.config);
    let Some(config) = config.filter(|config| signs_for_workers(config)) else {
        return Ok(None);
    };
    let (Some(token), Some(key)) = (&config.token, &config.trust.ca_key) else {
        return Ok(None);
    };
    let members = members(machine, config).await;
    let authority = CertificateAuthority::from_pem(&config.trust.ca, key.expose());
    let names = names(&machine.network.status().borrow());
    let mut extra = config.trust.cert_sans.clone();
    extra.extend(config.control_plane_host.clone());
    let mut accepted = vec![config.trust.ca.as_str()];
    accepted.extend(config.trust.accepted_cas.iter().map(String::as_str));
    Ok(Some(ForWorkers {
        authority: Box::new(authority.context("machine.ca")?),
        accepted: accepted.join("\n"),
        token: token.clone(),
        own: own_names(&names, &extra),
        members,
    }))
}

/// Returns the names and addresses of each member of the control plane that the cluster knows. It is asked while this machine is ready in it: no worker
/// waits for a cluster that does not run yet.
async fn members(machine: &Machine, config: &MachineConfig) -> Vec<BTreeSet<String>> {
    let kubernetes = config.kubernetes.as_ref();
    let Some(kubernetes) = kubernetes.filter(|it| it.control_plane.is_some()) else {
        return Vec::new();
    };
    let facts = machine.store.list::<KubernetesFact>();
    let mut facts = facts.iter();
    if facts.any(|(_, fact)| fact.readiness == Readiness::Ready) {
        let cluster = kubernetes.cluster.endpoint.to_string();
        let asking = cluster_nodes(kubernetes);
        if let Err(error) = machine.known_nodes.refresh(&cluster, asking).await {
            tracing::debug!("certificates of workers: {error:#}");
        }
    }
    of_control_plane(machine.known_nodes.get())
}

fn of_control_plane(nodes: Vec<ClusterNode>) -> Vec<BTreeSet<String>> {
    let nodes = nodes.into_iter().filter(|node| node.is_control_plane);
    let names_of = |node: ClusterNode| {
        let addresses = node.addresses.iter();
        let addresses = addresses.map(|it| it.to_canonical().to_string());
        addresses.chain([node.name]).collect()
    };
    nodes.map(names_of).collect()
}

fn trust_in(
    authorities: &Authorities,
    control_plane: Option<ControlPlane>,
    endpoint: Option<&str>,
) -> anyhow::Result<Trust> {
    let authority = authorities
        .key
        .as_ref()
        .map(|key| CertificateAuthority::from_pem(&authorities.ca, key))
        .transpose()
        .context("machine.ca")?;
    if authority.is_none() && control_plane.is_none() {
        tracing::warn!(
            "the machine has no CA key: until its request is signed (instarctl fleet sign), clients can only pin its fingerprint"
        );
    }
    let mut extra_names = authorities.names.clone();
    extra_names.extend(endpoint.map(str::to_owned));
    Ok(Trust::Configured {
        authority: authority.map(Box::new),
        control_plane,
        accepted: accepted(authorities)?,
        extra_names,
    })
}

/// Returns the authorities whose clients are let in, DER.
pub fn accepted_authorities(config: &MachineConfig) -> anyhow::Result<Vec<Vec<u8>>> {
    accepted(&authorities(config))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_the_control_plane_are_known_by_name_and_address() {
        let node = |name: &str, address: [u8; 4], is_control_plane| ClusterNode {
            name: name.to_owned(),
            firmware_id: String::new(),
            addresses: vec![address.into()],
            is_control_plane,
            version: "v0.1.0".to_owned(),
        };
        let nodes = vec![
            node("plane-2", [10, 0, 0, 2], true),
            node("worker", [10, 0, 0, 7], false),
        ];
        let expected = ["10.0.0.2", "plane-2"].map(str::to_owned).into();
        assert_eq!(of_control_plane(nodes), [expected]);
    }

    #[test]
    fn nobody_gets_a_certificate_before_the_machine_knows_its_own_addresses() {
        let examined = |without: &[&str]| NetworkStatus {
            hostname: "plane".to_owned(),
            without_lease: without.iter().map(|link| (*link).to_owned()).collect(),
            ..NetworkStatus::default()
        };
        let early = ADDRESSES - Duration::from_millis(1);
        for (status, since_start, expected) in [
            (NetworkStatus::default(), Duration::ZERO, false),
            (examined(&["eth0"]), Duration::ZERO, false),
            (examined(&["eth0"]), early, false),
            (examined(&["eth0"]), ADDRESSES, true),
            (examined(&[]), Duration::ZERO, true),
        ] {
            let found = knows_its_addresses(&status, since_start);
            assert_eq!(found, expected, "{status:?} after {since_start:?}");
        }
    }
}
