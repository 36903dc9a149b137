//! The present work of a machine that follows a channel, for its sequence and for people.

use std::fmt;

/// The action that follows once the record is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Nothing.
    None,
    /// Ask for the list.
    Look,
    /// Ask for the fleet's lock.
    Lock,
    /// Give the fleet's lock back.
    Unlock,
    /// Begin the upgrade.
    Switch,
    /// Go back to the version before.
    GoBack,
}

/// The event that a target waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wait {
    /// The clock is not set.
    Clock,
    /// The machine's own delay.
    Delay(u64),
    /// A pause after a refusal.
    Pause(u64, String),
    /// Its image is not here.
    Image(String),
    /// A person has to approve it.
    Approval,
    /// The window is closed.
    Window(u64),
    /// Another operation.
    Busy,
    /// The newest list.
    List,
    /// The fleet's lock.
    Lock(String),
}

/// The present work of the machine, in words for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Nothing newer is there for it. `keeps_lock`: it keeps the fleet's lock because a release has failed here that is still offered.
    UpToDate {
        /// See there.
        keeps_lock: bool,
    },
    /// A release waits.
    Waits(Wait),
    /// It switches.
    Switches,
    /// The release has to be ready for this many seconds more.
    Proves(u64),
    /// It goes back.
    Returns(String),
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wait::Clock => f.write_str("the clock was never set"),
            Wait::Delay(_) => f.write_str("this machine's own delay is not over"),
            Wait::Pause(_, why) => write!(f, "it was refused, and is tried again later: {why}"),
            Wait::Image(why) => write!(f, "its image is not here: {why}"),
            Wait::Approval => f.write_str("nobody has approved it"),
            Wait::Window(_) => f.write_str("its window is closed"),
            Wait::Busy => f.write_str("another operation is under way"),
            Wait::List => f.write_str("the list is asked for once more"),
            Wait::Lock(why) => write!(f, "the fleet's lock: {why}"),
        }
    }
}

impl Standing {
    /// The state in one word, as resources and reports show it.
    pub fn word(&self) -> &'static str {
        match self {
            Standing::UpToDate { keeps_lock: false } => "current",
            Standing::UpToDate { keeps_lock: true } => "locked",
            Standing::Waits(wait) => match wait {
                Wait::Clock => "clock",
                Wait::Delay(_) => "delay",
                Wait::Pause(..) => "refused",
                Wait::Image(_) => "fetching",
                Wait::Approval => "approval",
                Wait::Window(_) => "window",
                Wait::Busy => "busy",
                Wait::List => "list",
                Wait::Lock(_) => "lock",
            },
            Standing::Switches => "switching",
            Standing::Proves(_) => "proving",
            Standing::Returns(_) => "returning",
        }
    }

    /// The reason in a sentence; empty if the word says all.
    pub fn reason(&self) -> String {
        match self {
            Standing::UpToDate { keeps_lock: false } | Standing::Switches => String::new(),
            Standing::UpToDate { keeps_lock: true } => {
                "a release has failed here, and the machine keeps the fleet's lock until the channel withdraws or replaces it".to_owned()
            }
            Standing::Waits(wait) => wait.to_string(),
            Standing::Proves(left) => format!("it has to be ready for {left} s more"),
            Standing::Returns(why) => why.clone(),
        }
    }

    /// The moment at which the wait ends, in seconds since 1970, if that is known.
    pub fn until(&self) -> Option<u64> {
        match self {
            Standing::Waits(Wait::Delay(at) | Wait::Pause(at, _) | Wait::Window(at)) => Some(*at),
            _ => None,
        }
    }
}
