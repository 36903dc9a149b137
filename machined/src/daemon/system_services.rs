//! The list of the machine's own services. The boot needs nothing else for a new entry.

use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::sequences::{Absence, Moment, SystemService};
use crate::{apid_service, console};

/// Returns the whole list. `listener`: the API's listening socket.
pub(super) fn list(listener: OwnedFd) -> Vec<SystemService> {
    vec![
        SystemService {
            name: apid_service::NAME,
            define: Box::new(|machine| apid_service::definition(machine, listener).map(Some)),
            starts: Moment::WithNetwork,
            awaited: Some(Duration::from_secs(60)),
            absence: Absence::Error,
            gain: format!("the API answers on port {}", instar_api::PORT),
            // A little longer than apid's own wait for its calls.
            last_answers: Some(Duration::from_secs(2)),
        },
        SystemService {
            name: console::NAME,
            // Returns None on a machine without a screen.
            define: Box::new(console::definition),
            starts: Moment::OnceReachable,
            awaited: None,
            // A machine whose API answers needs no screen.
            absence: Absence::Warning,
            gain: "the dashboard is on the screen; Alt+F1 shows these messages".to_owned(),
            last_answers: None,
        },
    ]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::values::system_process;

    #[test]
    fn the_boot_waits_for_callers_and_for_nothing_else() {
        let listener = std::fs::File::open("/dev/null").unwrap().into();
        let list = list(listener);
        let rows: Vec<_> = list
            .iter()
            .map(|entry| {
                let seconds = entry.awaited.map(|limit| limit.as_secs());
                (entry.name, entry.starts, seconds, entry.absence)
            })
            .collect();
        assert_eq!(
            rows,
            [
                ("apid", Moment::WithNetwork, Some(60), Absence::Error),
                ("dashboard", Moment::OnceReachable, None, Absence::Warning),
            ]
        );
        // A container of this name would share its log and state.
        assert!(
            list.iter()
                .all(|entry| system_process::ALL.contains(&entry.name))
        );
        assert!(list[0].last_answers.is_some() && list[1].last_answers.is_none());
        // `make bench`, `make run` and tests look for this line.
        assert_eq!(list[0].gain, "the API answers on port 50000");
    }
}
