//! Carries the network's news to other parts: refused settings to the machine's problems, time servers of leases to the clock.

use std::net::IpAddr;
use std::sync::Arc;

use crate::machine::Machine;
use crate::store::Problem;
use crate::{intent, status};

/// The name among the machine's problems. "network" is that of the config's step, which succeeds as soon as the network knows the config;
/// whether the kernel takes it shows later.
const PROBLEM: &str = "network settings";
/// Limit on the refused settings that a problem names.
const MOST_NAMED: usize = 5;

/// Follows the network for as long as machined runs.
pub(super) async fn follow(machine: Arc<Machine>) {
    let mut status = machine.network.status();
    loop {
        let (refused, leased) = {
            let status = status.borrow_and_update();
            (reason(&status.problems), status.time_servers.clone())
        };
        match refused {
            Some(reason) => status::note_problem(&machine, PROBLEM, &reason),
            None => machine.store.remove::<Problem>(PROBLEM),
        }
        ask_leased(&machine, &leased);
        if status.changed().await.is_err() {
            return;
        }
    }
}

/// Has a clock that asks servers ask those of the leases, if the config names none. A clock that asks nobody is left alone: its config says
/// so, or the boot's step is still to come.
fn ask_leased(machine: &Machine, leased: &[IpAddr]) {
    if machine.clock.servers().is_empty() {
        return;
    }
    if let Some(configured) = machine.config() {
        let spec = intent::time(&configured.config, leased);
        machine.clock.set_spec(spec);
    }
}

/// Puts the network's problems into one line; none if there are none.
fn reason(problems: &[String]) -> Option<String> {
    let named = problems.get(..MOST_NAMED).unwrap_or(problems);
    let mut reason = named.join("; ");
    if problems.len() > named.len() {
        reason.push_str(&format!("; and {} more", problems.len() - named.len()));
    }
    (!problems.is_empty()).then_some(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_settings_are_one_problem() {
        let problems: Vec<String> = (1..8)
            .map(|number| format!("cannot add route {number}"))
            .collect();
        assert_eq!(reason(&[]), None);
        assert_eq!(
            reason(&problems[..2]).as_deref(),
            Some("cannot add route 1; cannot add route 2")
        );
        let all = reason(&problems).unwrap_or_default();
        assert!(all.ends_with("cannot add route 5; and 2 more"), "{all}");
    }
}
