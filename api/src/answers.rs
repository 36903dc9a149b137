//! Messages of statuses that a node's API server makes itself, and by which clients tell what has happened: the codes alone say too little. `UNAVAILABLE`
//! also comes from a node whose registry or time server is away.
//!
//! The texts do not change: clients know those of older nodes.

use std::fmt::Display;

/// The message, with `UNAVAILABLE`, at the end of a stream whose node changes to another version without a reboot.
pub const CHANGES_VERSION: &str = "this node changes to another version; ask again";

/// The begin of the message, with `PERMISSION_DENIED`, of a node that passes no calls on to others.
pub const NO_FORWARDING: &str = "no request forwarding";

/// The begin of the message, with `UNIMPLEMENTED`, for a method of the interface that the node's version leaves out; the method follows.
pub const UNSERVED: &str = "this version does not serve ";

/// The begin of the message, with `UNAVAILABLE`, of a node whose API server does not reach the rest of the same node.
pub const NO_MACHINED: &str = "machined does not answer";

/// Why a node does not reach another one that it was to pass a call on to. The code is `UNAVAILABLE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreached {
    /// The name has no address.
    NoAddress,
    /// No connection, or none that is the node's own.
    NoConnection,
    /// What is there speaks no HTTP/2.
    NoHttp2,
    /// The connection broke before the answer.
    NoAnswer,
}

impl Unreached {
    const ALL: [Self; 4] = [
        Self::NoAddress,
        Self::NoConnection,
        Self::NoHttp2,
        Self::NoAnswer,
    ];

    /// The words before the node's name, and those after it.
    fn around_name(self) -> (&'static str, &'static str) {
        match self {
            Self::NoAddress => ("no address for the node ", ""),
            Self::NoConnection => ("cannot connect to the node ", ""),
            Self::NoHttp2 => ("the node ", " speaks no HTTP/2"),
            Self::NoAnswer => ("the node ", " does not answer"),
        }
    }

    /// The begin of the message for the node with this name; the cause follows after `: `.
    pub fn of(self, node: impl Display) -> String {
        let (before, after) = self.around_name();
        format!("{before}{node}{after}")
    }

    /// Whether a message begins with these words around a name, which has no space.
    fn begins(self, message: &str) -> bool {
        let (before, after) = self.around_name();
        let Some(named) = message.strip_prefix(before) else {
            return false;
        };
        let (name, rest) = named.split_at(named.find(' ').unwrap_or(named.len()));
        !name.is_empty() && rest.starts_with(after)
    }
}

/// Whether a message of `UNAVAILABLE` says that the node that was asked is away, and not another party that it has asked itself.
pub fn is_away(message: &str) -> bool {
    message == CHANGES_VERSION
        || message.starts_with(NO_MACHINED)
        || Unreached::ALL.iter().any(|why| why.begins(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_node_that_is_away_is_recognized_with_any_name_and_cause() {
        for why in Unreached::ALL {
            for node in ["lamp-2", "10.0.0.8", "fd00::2", "::1"] {
                let message = why.of(node);
                assert!(is_away(&message), "{message}");
                let message = format!("{message}: TCP: 10.0.0.8: no answer");
                assert!(is_away(&message), "{message}");
            }
        }
        assert!(is_away(CHANGES_VERSION));
        assert!(is_away(&format!(
            "{NO_MACHINED}: connect to machined: refused"
        )));
    }

    #[test]
    fn what_a_node_says_of_others_is_none_of_it() {
        for message in [
            "",
            "the node lamp-2 has not joined",
            "the node has no disk that does not answer",
            "cannot connect to the node's registry",
            "no address for the node's time server",
            "no answer from the time server 10.0.0.9 within 5 s",
            "etcd: connection refused",
        ] {
            assert!(!is_away(message), "{message}");
        }
    }
}
