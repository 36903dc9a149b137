//! The node's name: the host's, as Kubernetes writes names, or the one that the config gives kubelet itself.
//!
//! A name that machined has made up, because no lease has named the machine, makes no other node of a member: the lease may be late, or may
//! have run out. Such a member keeps its name until a lease or the config gives the machine another one.

use std::time::Duration;

use anyhow::Context as _;

use crate::base::blocking_io;
use crate::kubernetes::member_name;
use crate::machine::Machine;

/// Limit on the time that a node which has not joined yet waits for a lease to name it.
const LEASE: Duration = Duration::from_secs(60);

/// Returns the node's name. `waited`: for how long the node has been without one.
///
/// # Errors
/// It waits for a lease, or kubelet's certificate cannot be read.
pub(super) async fn node_name(machine: &Machine, waited: Duration) -> anyhow::Result<String> {
    let configured = machine.config();
    let kubernetes = configured
        .as_ref()
        .and_then(|it| it.config.kubernetes.as_ref());
    if let Some(own) = kubernetes.and_then(|it| it.node.own_name()) {
        return Ok(own);
    }
    let host = host_name();
    if machine.network.status().borrow().is_named() {
        return Ok(host);
    }
    let member = blocking_io::within(blocking_io::ANSWER, member_name).await?;
    let member = member.context("read kubelet's certificate")?;
    choose(host, member, waited)
        .context("the node waits for a lease of DHCP, which may name the machine")
}

/// Returns the node's name for somebody who does not wait for a lease.
///
/// # Errors
/// kubelet's certificate cannot be read.
pub(super) async fn name_now(machine: &Machine) -> anyhow::Result<String> {
    node_name(machine, LEASE).await
}

/// Returns the host's name, as Kubernetes writes names.
pub(super) fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .to_lowercase()
}

/// Chooses between the stopgap and the name of a member; `None`: the node waits.
fn choose(stopgap: String, member: Option<String>, waited: Duration) -> Option<String> {
    member.or_else(|| (waited >= LEASE).then_some(stopgap))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_keeps_its_name_while_a_lease_is_late() {
        let early = LEASE.saturating_sub(Duration::from_secs(1));
        for (member, waited, expected) in [
            (Some("worker-1"), early, Some("worker-1")),
            (Some("worker-1"), LEASE, Some("worker-1")),
            (None, early, None),
            (None, LEASE, Some("instar-bcdfgh")),
        ] {
            let member = member.map(str::to_owned);
            let found = choose("instar-bcdfgh".to_owned(), member, waited);
            assert_eq!(found.as_deref(), expected, "{waited:?}");
        }
    }
}
