//! Whether the cluster of this machine may begin, and in which way: a pure function of the known facts.
//!
//! ```text
//!                          a new one         from a snapshot
//! no data of etcd          Empty             Restored, if a snapshot was sent
//! data, and etcd answers   refused           refused
//! data, and etcd is silent refused           Replaced, if a snapshot was sent and etcd had time to start
//! ```
//!
//! Data of an etcd that is silent are replaced, as they may be damaged beyond its start. It had its time when kubelet has been running for a
//! while: after a boot every etcd is silent at first.

use std::time::Duration;

/// The time that etcd gets from kubelet's start on, before its silence counts as damage: pulls, and the start of a large database.
const TIME_TO_START: Duration = Duration::from_secs(300);

/// The cluster that an administrator asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// A new one.
    New,
    /// That of the snapshot that was sent before.
    FromSnapshot,
}

/// etcd's data on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// There are none.
    None,
    /// They are there, and etcd answers.
    Answering,
    /// They are there, and etcd does not answer.
    Silent {
        /// For how long kubelet has been running, which starts etcd; `None` if it does not run.
        kubelet: Option<Duration>,
    },
}

/// The way in which the cluster begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BootstrapMode {
    /// etcd starts without data.
    Empty,
    /// etcd starts with the data of the snapshot.
    Restored,
    /// The same, and they take the place of damaged ones.
    Replaced,
}

/// Why the cluster does not begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is one.
    #[error("the cluster has begun already: etcd has its data on this machine")]
    Begun,
    /// There is one, and it runs.
    #[error(
        "the cluster has begun already, and its etcd answers: a snapshot does not replace it. To go back to the snapshot all the same, erase \
         its data before, with all else on EPHEMERAL: `reset --system-labels-to-wipe EPHEMERAL --reboot`"
    )]
    Running,
    /// There is one, and it may be about to run.
    #[error(
        "the cluster has begun already, and its etcd does not answer yet: it may be starting. If it is still silent {} s after kubelet's start \
         ({}), its data count as damaged, and a snapshot may replace them",
        TIME_TO_START.as_secs(),
        .kubelet.map_or_else(
            || "kubelet does not run now".to_owned(),
            |it| format!("{} s ago now", it.as_secs())
        )
    )]
    Starting {
        /// For how long kubelet has been running.
        kubelet: Option<Duration>,
    },
    /// No snapshot was sent.
    #[error(
        "no snapshot is on this machine: send it first; `bootstrap --recover-from FILE` does both"
    )]
    NoSnapshot,
}

/// Judges whether the cluster may begin.
///
/// # Errors
/// Why it may not.
pub fn judge(wanted: Wanted, data: Data, snapshot_is_here: bool) -> Result<BootstrapMode, Refused> {
    let way = match (wanted, data) {
        (Wanted::New, Data::None) => return Ok(BootstrapMode::Empty),
        (Wanted::New, _) => return Err(Refused::Begun),
        (Wanted::FromSnapshot, Data::None) => BootstrapMode::Restored,
        (Wanted::FromSnapshot, Data::Answering) => return Err(Refused::Running),
        (Wanted::FromSnapshot, Data::Silent { kubelet }) => {
            if kubelet.is_none_or(|it| it < TIME_TO_START) {
                return Err(Refused::Starting { kubelet });
            }
            BootstrapMode::Replaced
        }
    };
    match snapshot_is_here {
        true => Ok(way),
        false => Err(Refused::NoSnapshot),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case() {
        let silent = |seconds: Option<u64>| Data::Silent {
            kubelet: seconds.map(Duration::from_secs),
        };
        let starting = |seconds: Option<u64>| {
            Err(Refused::Starting {
                kubelet: seconds.map(Duration::from_secs),
            })
        };
        let (new, from) = (Wanted::New, Wanted::FromSnapshot);
        let table = [
            (new, Data::None, false, Ok(BootstrapMode::Empty)),
            (new, Data::None, true, Ok(BootstrapMode::Empty)),
            (new, Data::Answering, false, Err(Refused::Begun)),
            (new, silent(Some(9999)), true, Err(Refused::Begun)),
            (from, Data::None, true, Ok(BootstrapMode::Restored)),
            (from, Data::None, false, Err(Refused::NoSnapshot)),
            (from, Data::Answering, true, Err(Refused::Running)),
            (from, Data::Answering, false, Err(Refused::Running)),
            (from, silent(None), true, starting(None)),
            (from, silent(Some(299)), true, starting(Some(299))),
            (from, silent(Some(300)), true, Ok(BootstrapMode::Replaced)),
            (from, silent(Some(300)), false, Err(Refused::NoSnapshot)),
        ];
        for (wanted, data, snapshot_is_here, expected) in table {
            let judged = judge(wanted, data, snapshot_is_here);
            assert_eq!(judged, expected, "{wanted:?} {data:?} {snapshot_is_here}");
        }
    }

    #[test]
    fn a_refusal_says_how_to_go_on() {
        let running = Refused::Running.to_string();
        assert!(
            running.contains("--system-labels-to-wipe EPHEMERAL"),
            "{running}"
        );
        let kubelet = Some(Duration::from_secs(40));
        let starting = Refused::Starting { kubelet }.to_string();
        assert!(starting.contains("40 s ago"), "{starting}");
    }
}
