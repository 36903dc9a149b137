//! The interface that kubelet calls: `org.freedesktop.login1.Manager` (org.freedesktop.login1(5)), and the two calls with which any program begins on a bus
//! (D-Bus specification, "Message Bus Messages").

use std::time::Duration;

use zbus::OwnedFd;
use zbus::fdo;
use zbus::interface;

use crate::locks::Locks;

/// The path of the manager.
pub(crate) const MANAGER: &str = "/org/freedesktop/login1";
/// The interface of the manager.
pub(crate) const INTERFACE: &str = "org.freedesktop.login1.Manager";
/// The path of the bus itself.
pub(crate) const BUS: &str = "/org/freedesktop/DBus";

/// The manager of shutdowns.
#[derive(Debug)]
pub(crate) struct Manager {
    longest: Duration,
    locks: Locks,
}

impl Manager {
    /// Makes the manager for one connection; `longest` is how long a lock may delay a shutdown.
    pub(crate) fn new(longest: Duration, locks: Locks) -> Self {
        Manager { longest, locks }
    }
}

#[interface(name = "org.freedesktop.login1.Manager")]
impl Manager {
    /// A lock that delays the shutdown until its descriptor is closed.
    fn inhibit(&self, what: &str, who: &str, why: &str, mode: &str) -> fdo::Result<OwnedFd> {
        if what != "shutdown" || mode != "delay" {
            let text = format!("{what} cannot be inhibited by {mode}, only shutdown by delay");
            return Err(fdo::Error::NotSupported(text));
        }
        let lock = self.locks.add();
        let lock = lock.map_err(|error| fdo::Error::LimitsExceeded(format!("{error:#}")))?;
        println!("{who} will be told of a shutdown: {why}");
        Ok(lock.into())
    }

    /// The longest time that a lock delays a shutdown, in microseconds.
    #[zbus(property, name = "InhibitDelayMaxUSec")]
    fn inhibit_delay_max_usec(&self) -> u64 {
        u64::try_from(self.longest.as_micros()).unwrap_or(u64::MAX)
    }
}

/// The bus: there is one program behind each connection, so that names and rules for messages change nothing.
#[derive(Debug)]
pub(crate) struct Bus;

#[interface(name = "org.freedesktop.DBus")]
impl Bus {
    /// The name of the caller.
    fn hello(&self) -> &'static str {
        ":1.1"
    }

    /// Signals that the caller wants: it gets all that there are.
    fn add_match(&self, _rule: &str) {}

    /// Signals that the caller wants no more.
    fn remove_match(&self, _rule: &str) {}
}
