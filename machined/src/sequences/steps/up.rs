//! The services by which the next version is judged: it is good when those that are up now are up again.
//!
//! kubelet is one of them, where the next version can bring it up by itself: with extensions that are on the disk, as the member that it
//! was. A node that has to fetch them, or to join a cluster, depends on others, and no version is taken back for these.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::base::blocking_io;
use crate::kubernetes::{KUBELET_UP, kubelet_health, member_name};
use crate::machine::{FirstPlan, Machine};
use crate::services::reach;
use crate::upgrade::UpgradeMode;
use crate::values::CheckTarget;

/// Time limit for kubelet's answer. One that is slower is not healthy, and no version is blamed for it.
const ANSWER: Duration = Duration::from_secs(3);
/// Time that the new generation has to give the node its plan (half of what is left, if that is less). After it kubelet's own answer counts:
/// what holds the plan up may be the registry or the cluster.
const PLAN: Duration = Duration::from_secs(30);
/// Time that the container has to end a kubelet whose plan has changed: that one still answers.
const RESTART: Duration = Duration::from_secs(5);
/// Interval between two looks at the node's certificate.
const LOOK: Duration = Duration::from_secs(1);

/// Returns the names of the services that are up; on a node of Kubernetes with kubelet, if it says that it is healthy.
pub(in crate::sequences) async fn up(machine: &Machine) -> Vec<String> {
    let mut up = machine.services.up();
    // Without proven extensions the next generation waits for their images, and says itself what is missing.
    if machine.node_record.get().proven.is_none() {
        return up;
    }
    if let Some(target) = kubelet(machine)
        && reach(&target, ANSWER).await.is_ok()
    {
        up.push(KUBELET_UP.to_owned());
    }
    up
}

/// Returns what was up before a caller stopped services for the next version, if it did; otherwise what is up now.
pub(in crate::sequences) async fn up_before_leaving(
    machine: &Machine,
    stopped: Option<Vec<String>>,
) -> Vec<String> {
    match stopped {
        Some(up_before) => up_before,
        None => up(machine).await,
    }
}

/// Returns where kubelet says that it is healthy, if the config has it run and say so.
fn kubelet(machine: &Machine) -> Option<CheckTarget> {
    let configured = machine.config()?;
    configured
        .config
        .kubernetes
        .as_ref()
        .and_then(kubelet_health)
}

/// Returns those of the services that can be up after an upgrade of this mode: one that erases EPHEMERAL takes the node's extensions and its
/// certificate with it.
pub(in crate::sequences) fn after(mode: UpgradeMode, mut up: Vec<String>) -> Vec<String> {
    match mode {
        UpgradeMode::Replace => up.retain(|name| name != KUBELET_UP),
        UpgradeMode::Quickest | UpgradeMode::Reboot | UpgradeMode::Kexec => {}
    }
    up
}

/// Returns the name of the member whose kubelet has to be up again; `None` if this generation cannot bring it up by itself.
pub(in crate::sequences) async fn member_at_gate(
    machine: &Machine,
    up_before: &[String],
) -> Option<String> {
    // A config that came with the version may have kubelet run no more: no plan is waited for then.
    kubelet(machine)?;
    let is_proven = machine.node_record.get().proven.is_some();
    let read = blocking_io::within(blocking_io::ANSWER, member_name).await;
    let member = read.map_err(anyhow::Error::from);
    let member = member.and_then(|member| Ok(member?));
    let member = member.unwrap_or_else(|error| {
        tracing::warn!("kubelet is not asked, its certificate cannot be read: {error:#}");
        None
    });
    required(up_before, is_proven, member)
}

/// Chooses the member whose kubelet is required, from what is on the disk.
fn required(up_before: &[String], is_proven: bool, member: Option<String>) -> Option<String> {
    let was_up = up_before.iter().any(|name| name == KUBELET_UP);
    member.filter(|_| was_up && is_proven)
}

/// Waits until the node has the plan of this generation, as far as that comes in time: before that, the kubelet of the generation before may
/// answer.
pub(in crate::sequences) async fn node_has_plan(machine: &Machine, deadline: Instant) {
    let left = deadline.saturating_duration_since(Instant::now());
    let until = Instant::now() + PLAN.min(left / 2);
    let mut plan = machine.watch_first_plan();
    // The sender lives in the machine.
    let given = timeout_at(until, plan.wait_for(Option::is_some))
        .await
        .is_ok();
    if !given {
        tracing::warn!("the node has no plan of this version yet: kubelet's answer counts");
        return;
    }
    if *plan.borrow() == Some(FirstPlan::AsBefore) {
        return;
    }
    sleep_until(deadline.min(Instant::now() + RESTART)).await;
}

/// Waits until the node is that member no more: it joins anew, as another node or in another cluster, and its kubelet is up only once the
/// cluster has let it in.
pub(in crate::sequences) async fn membership_ends(member: &str) {
    loop {
        let now = blocking_io::within(blocking_io::ANSWER, member_name).await;
        // One that cannot be read may be there.
        if let Ok(Ok(now)) = now
            && now.as_deref() != Some(member)
        {
            return;
        }
        sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn kubelet_is_required_where_this_machine_can_bring_it_up_by_itself() {
        let (with, without) = (&["web", KUBELET_UP][..], &["web"][..]);
        for (before, is_proven, member, expected) in [
            (with, true, Some("worker-1"), Some("worker-1")),
            // EPHEMERAL was erased: by an upgrade, or by a reset under a staged version.
            (with, false, None, None),
            // Its extensions have to be fetched.
            (with, false, Some("worker-1"), None),
            // It has to join.
            (with, true, None, None),
            (without, true, Some("worker-1"), None),
        ] {
            let member = member.map(str::to_owned);
            let found = required(&names(before), is_proven, member.clone());
            assert_eq!(
                found.as_deref(),
                expected,
                "{before:?} {is_proven} {member:?}"
            );
        }
    }

    #[test]
    fn a_kubelet_whose_data_goes_is_not_required() {
        let up = || names(&["web", KUBELET_UP]);
        for mode in [
            UpgradeMode::Quickest,
            UpgradeMode::Reboot,
            UpgradeMode::Kexec,
        ] {
            assert_eq!(after(mode, up()), up(), "{mode:?}");
        }
        assert_eq!(after(UpgradeMode::Replace, up()), ["web"]);
    }
}
