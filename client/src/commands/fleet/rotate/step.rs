//! The next step of a rotation, decided from what is true of the client configuration and of each node: a value without side effects. Nothing is
//! remembered, so whoever starts again after a kill comes to the same step.
//!
//! ```text
//!  client        trust both ──────────► show the new one ─────────────────────────────► trust the new one alone
//!                     │                    ▲        │                                      ▲
//!                     │   all nodes accept │        │                 all nodes have       │
//!                     ▼                    │        ▼                 dropped the old one  │
//!  each node      accept the new one ──────┘     issue by the new one ─ sign ─┐            │
//!                                                                             │ all show   │
//!                                                                             ▼ it         │
//!                                                                       drop the old one ──┘
//! ```
//!
//! A node that is away, and was not left, stops the rotation before the next arrow that leads to the client or to "drop".

use std::collections::BTreeMap;

use instar_rollout::MachineName;

/// One of the two authorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Authority {
    Old,
    New,
}

/// The facts about the client configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Client {
    /// The authorities whose nodes it believes.
    pub(super) trusts_old: bool,
    pub(super) trusts_new: bool,
    /// The authority of its own certificate.
    pub(super) shows: Authority,
}

/// Who signs a node's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Signer {
    /// The node has the authority's key.
    Itself,
    /// A control plane, which the node asks.
    ControlPlane,
    /// The person who rotates.
    Person,
}

/// The facts about a node that answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Seen {
    /// `machine.ca` of its config, whose clients it lets in.
    pub(super) own: Authority,
    /// Whether `machine.acceptedCAs` has the other one.
    pub(super) accepts_other: bool,
    /// Whether clients that trust the new authority alone can verify it.
    pub(super) shows_new: bool,
    pub(super) signer: Signer,
}

/// The state of a node now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fact {
    /// It does not answer, for this reason.
    Away(String),
    Here(Seen),
}

/// A change of the client configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientChange {
    TrustBoth,
    ShowNew,
    TrustNewAlone,
}

/// A change of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeChange {
    /// The new authority is put into `acceptedCAs`.
    Accept,
    /// The new authority is put into `machine.ca`, the old one into `acceptedCAs`.
    Issue,
    /// The person signs the node's request.
    Sign,
    /// The old authority is taken out of `acceptedCAs`.
    Drop,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Client(ClientChange),
    Node(MachineName, NodeChange),
    /// Nothing can be done before these nodes come back, or get their certificates: each with the reason.
    Wait(Vec<(MachineName, String)>),
    Done,
}

impl Seen {
    fn accepts_new(self) -> bool {
        self.own == Authority::New || self.accepts_other
    }

    fn accepts_old(self) -> bool {
        self.own == Authority::Old || self.accepts_other
    }

    fn after(mut self, change: NodeChange) -> Self {
        match change {
            NodeChange::Accept => self.accepts_other = true,
            NodeChange::Issue => {
                (self.own, self.accepts_other) = (Authority::New, true);
                self.shows_new |= self.signer != Signer::Person;
            }
            NodeChange::Sign => self.shows_new = true,
            NodeChange::Drop => self.accepts_other = false,
        }
        self
    }
}

/// Decides the next step. `nodes` are all but those that are left behind.
pub(super) fn next(client: Client, nodes: &BTreeMap<MachineName, Fact>) -> Step {
    if !client.trusts_new {
        return Step::Client(ClientChange::TrustBoth);
    }
    if let Some(step) = change(nodes, NodeChange::Accept, |seen| !seen.accepts_new()) {
        return step;
    }
    if let Some(wait) = wait(nodes) {
        return wait;
    }
    if client.shows == Authority::Old {
        return Step::Client(ClientChange::ShowNew);
    }
    for (issues, signer) in [
        // Control planes come first: others ask them for certificates.
        (true, Signer::Itself),
        (true, Signer::ControlPlane),
        (true, Signer::Person),
        (false, Signer::Person),
    ] {
        let what = match issues {
            true => NodeChange::Issue,
            false => NodeChange::Sign,
        };
        let is_due = |seen: Seen| match issues {
            true => seen.own == Authority::Old,
            false => seen.own == Authority::New && !seen.shows_new,
        };
        let step = change(nodes, what, |seen| seen.signer == signer && is_due(seen));
        if let Some(step) = step {
            return step;
        }
    }
    if let Some(wait) = wait_for_certificates(nodes) {
        return wait;
    }
    if let Some(step) = change(nodes, NodeChange::Drop, Seen::accepts_old) {
        return step;
    }
    match client.trusts_old {
        true => Step::Client(ClientChange::TrustNewAlone),
        false => Step::Done,
    }
}

/// The facts after a step, if nothing else happens. A node that gets its certificate by itself has it at once.
pub(super) fn after(
    (mut client, mut nodes): (Client, BTreeMap<MachineName, Fact>),
    step: &Step,
) -> (Client, BTreeMap<MachineName, Fact>) {
    match step {
        Step::Client(ClientChange::TrustBoth) => client.trusts_new = true,
        Step::Client(ClientChange::ShowNew) => client.shows = Authority::New,
        Step::Client(ClientChange::TrustNewAlone) => client.trusts_old = false,
        Step::Node(name, change) => {
            if let Some(Fact::Here(seen)) = nodes.get_mut(name) {
                *seen = seen.after(*change);
            }
        }
        Step::Wait(_) | Step::Done => {}
    }
    (client, nodes)
}

/// The change of the first node for which it is due.
fn change(
    nodes: &BTreeMap<MachineName, Fact>,
    what: NodeChange,
    is_due: impl Fn(Seen) -> bool,
) -> Option<Step> {
    nodes.iter().find_map(|(name, fact)| match fact {
        Fact::Here(seen) if is_due(*seen) => Some(Step::Node(name.clone(), what)),
        _ => None,
    })
}

/// The nodes that are away, if there are any.
fn wait(nodes: &BTreeMap<MachineName, Fact>) -> Option<Step> {
    let away = nodes.iter().filter_map(|(name, fact)| match fact {
        Fact::Away(why) => Some((name.clone(), why.clone())),
        Fact::Here(_) => None,
    });
    let away: Vec<_> = away.collect();
    (!away.is_empty()).then_some(Step::Wait(away))
}

fn wait_for_certificates(nodes: &BTreeMap<MachineName, Fact>) -> Option<Step> {
    let waiting = nodes.iter().filter_map(|(name, fact)| match fact {
        Fact::Here(seen) if !seen.shows_new => {
            let why = match seen.signer {
                Signer::ControlPlane => "its control plane has not signed its new certificate yet",
                Signer::Itself | Signer::Person => "it does not show its new certificate yet",
            };
            Some((name.clone(), why.to_owned()))
        }
        _ => None,
    });
    let waiting: Vec<_> = waiting.collect();
    (!waiting.is_empty()).then_some(Step::Wait(waiting))
}

#[cfg(test)]
mod tests;
