//! Names of the processes of the root filesystem that have a log or a state.
//!
//! Logs and states of containers are stored by their names in the same places, so a container cannot have one of these names.

/// The program that serves the API to the network.
pub const APID: &str = "apid";

/// The dashboard on the machine's screen.
pub const DASHBOARD: &str = "dashboard";

/// The program that restores snapshots of etcd, in its container.
pub const ETCDUTL: &str = "etcdutl";

/// PID 1.
pub const INIT: &str = "init";

/// The program of an installer image, in its container.
pub const INSTALLER: &str = "installer";

/// The machine daemon.
pub const MACHINED: &str = "machined";

/// All names.
pub const ALL: [&str; 6] = [APID, DASHBOARD, ETCDUTL, INIT, INSTALLER, MACHINED];
