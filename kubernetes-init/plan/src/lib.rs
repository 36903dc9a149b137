//! The files that machined and kubernetes-init exchange, in a directory that both see (`/instar` in the container).
//!
//! ```text
//!   machined ──writes──► plan.json      Plan      what is to run; then SIGHUP to kubernetes-init
//!            ◄──reads─── status.json    Status    how each service goes
//!            ──writes──► os-release               bound over /etc/os-release of the container; rewritten in place
//!                        machine-id               bound over /etc/machine-id of the container
//!                        logs/NAME.log            the newest lines of each service, and NAME.log.1 before them
//! ```
//!
//! Both documents are replaced whole by rename: a reader sees an old or a new one, never a part. Only on a disk that is full, the status is
//! written over the old one: its reader may see a mixture for a moment, which is no JSON, and looks again. Blanks stand behind its text. Fields that
//! one side does not know are ignored, as each side may be of an older version than the other: the container lives on while machined changes.
//!
//! The decision: a plan says what is to be, and kubernetes-init finds the differences. A socket with commands was the other choice: a command
//! that is lost while machined changes would have to be sent again, and by whom would have to be known.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The directory of all of this in the container.
pub const DIRECTORY: &str = "/instar";
/// The plan's file in the directory.
pub const PLAN: &str = "plan.json";
/// The status's file in the directory.
pub const STATUS: &str = "status.json";
/// The os-release of the machine in the directory.
pub const OS_RELEASE: &str = "os-release";
/// The machine-id of the node in the directory (machine-id(5)).
pub const MACHINE_ID: &str = "machine-id";
/// The directory of logs in the directory.
pub const LOGS: &str = "logs";
/// Limit on a plan, in bytes.
pub const LARGEST_PLAN: u64 = 1 << 20;
/// The time within which kubernetes-init has ended everything after SIGTERM, without the time that kubelet has for its pods
/// ([`Plan::shutdown_seconds`]). machined kills the container a second later.
pub const STOP_SECONDS: u64 = 9;
/// Limit on the time that kubelet has for its pods, in seconds.
pub const LONGEST_SHUTDOWN: u64 = 600;

/// The extensions and services that are to run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The node's name, which units may ask for (`%H`).
    pub node: String,
    /// The extensions whose services run, in any order.
    pub extensions: Vec<PlannedExtension>,
    /// Variables over a service's own ones, by the service's name without `.service`. A changed value restarts the service.
    #[serde(default)]
    pub environment: BTreeMap<String, BTreeMap<String, String>>,
    /// How often each service was asked to restart, by its name: a changed number restarts it.
    #[serde(default)]
    pub restarts: BTreeMap<String, u64>,
    /// For how long kubelet may end its pods when everything is to end; without it pods are not told, as with a machined that knows no such
    /// time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shutdown_seconds: Option<u64>,
    /// Why a reboot of the machine waits, if one does; pods see it as the file /run/reboot-required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot_required: Option<String>,
}

/// An extension, unpacked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedExtension {
    /// Its name: that of its release file.
    pub name: String,
    /// Its tree, as a path in the container. Another content has another path.
    pub tree: String,
}

/// How it goes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The services, by their names without `.service`.
    pub services: BTreeMap<String, ServiceStatus>,
    /// Why the plan, or parts of it, are not carried out. Such a part stays as it was before.
    #[serde(default)]
    pub errors: Vec<String>,
    /// What is wrong beside the plan, all of which is carried out; an older kubernetes-init has it among the errors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Whether a pod asks for a reboot of the machine.
    #[serde(default)]
    pub reboot_asked: bool,
}

/// How one service goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// The extension that it is of.
    pub extension: String,
    /// Its state.
    pub state: State,
    /// Its main process, while there is one, by its number in the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The time of the last change of its state, in seconds since 1970.
    pub since: u64,
    /// The number of starts after the first one.
    pub restarts: u64,
    /// How its process ended the last time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_exit: Option<String>,
    /// Whether that was a success; an older kubernetes-init does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_success: Option<bool>,
    /// Why it does not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The state of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The services that start before it have not started yet.
    Waiting,
    /// Its commands before the start run, or it has not said yet that it is ready.
    Starting,
    /// It runs.
    Running,
    /// It is being ended.
    Stopping,
    /// It ended, and starts again after its pause.
    Pausing,
    /// It ended, and does not start again.
    Ended,
}

impl State {
    /// Its word, as in the status.
    pub fn word(self) -> &'static str {
        match self {
            State::Waiting => "waiting",
            State::Starting => "starting",
            State::Running => "running",
            State::Stopping => "stopping",
            State::Pausing => "pausing",
            State::Ended => "ended",
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_plan_is_read_as_the_contract_has_it() {
        let text = r#"{"node": "worker-1", "extensions": [{"name": "containerd", "tree": "/instar/images/a/rootfs"}],
            "environment": {"kubelet": {"KUBELET_EXTRA_ARGS": "--v=2"}}, "of a later version": true}"#;
        let plan: Plan = serde_json::from_str(text).unwrap();
        assert_eq!(plan.node, "worker-1");
        assert_eq!(plan.extensions[0].tree, "/instar/images/a/rootfs");
        assert_eq!(plan.environment["kubelet"]["KUBELET_EXTRA_ARGS"], "--v=2");
        assert!(plan.restarts.is_empty());
        serde_json::from_str::<Plan>(r#"{"extensions": []}"#).unwrap_err();
    }

    #[test]
    fn a_status_is_the_same_after_writing_and_reading() {
        let kubelet = ServiceStatus {
            extension: "kubernetes".to_owned(),
            state: State::Pausing,
            pid: None,
            since: 1,
            restarts: 2,
            last_exit: Some("exited with code 1".to_owned()),
            last_success: Some(false),
            error: None,
        };
        let status = Status {
            services: [("kubelet".to_owned(), kubelet)].into(),
            errors: vec!["an error".to_owned()],
            warnings: vec!["a warning".to_owned()],
            reboot_asked: true,
        };
        let text = serde_json::to_string(&status).unwrap();
        assert!(text.contains(r#""state":"pausing""#), "{text}");
        assert_eq!(serde_json::from_str::<Status>(&text).unwrap(), status);
        let of_older = text.replace(r#","last_success":false"#, "");
        let read: Status = serde_json::from_str(&of_older).unwrap();
        assert_eq!(read.services["kubelet"].last_success, None);
    }
}
