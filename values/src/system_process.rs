//! Names of the processes of the root filesystem that have a log or a state of their own.
//!
//! Logs and states of containers are found by their names in the same places, so a container cannot have one of these.

/// The program that strangers talk to.
pub const APID: &str = "apid";

/// The pages on the machine's screen.
pub const DASHBOARD: &str = "dashboard";

/// PID 1.
pub const INIT: &str = "init";

/// The program of an installer image, in its container.
pub const INSTALLER: &str = "installer";

/// The machine daemon.
pub const MACHINED: &str = "machined";

/// All of them.
pub const ALL: [&str; 5] = [APID, DASHBOARD, INIT, INSTALLER, MACHINED];
