//! One node's config: what the node says of the change, way is made, and the node tries the config, or goes back to that of before.
//!
//! ```text
//!  a dry run at the node ─► cordon, and a drain if the node says that pods should leave ─► tried, proved, kept; or taken back
//! ```

use std::time::Duration;

use instar_api::machine::ApplyConfiguration;
use instar_api::machine::apply_configuration_request::Mode;
use instar_client::{Failure, Node};
use instar_rollout::{Action, Report, Seconds};
use instar_rollout_driver::{ConfigChange, ConfigOrder, ConfigSite, Trial};
use tokio::time::timeout;

use crate::config_secrets::ConfigSecrets;
use crate::making_way::MakingWay;
use crate::node_lease;

/// How nodes take configs: as `instarctl fleet apply` has them do.
const TRIAL: Trial = Trial {
    limit: Seconds(120),
    steady: Seconds(10),
    may_reboot: true,
};

/// One action on one node.
pub(crate) struct Order {
    pub(crate) way: MakingWay,
    pub(crate) change: ConfigChange,
    pub(crate) configs: ConfigSecrets,
    /// The time that it has.
    pub(crate) limit: Duration,
}

impl Order {
    /// Carries it out; returns what is reported of it ([`MakingWay::reported`]).
    pub(crate) async fn carry_out(self) -> Option<Report> {
        let limit = self.limit;
        let site = &Site { way: self.way };
        let act = async {
            let node = site.connect().await?;
            let mut order = ConfigOrder {
                action: site.way.action.clone(),
                node,
                change: self.change,
                trial: TRIAL,
                limit,
                configs: self.configs,
                site,
            };
            order.carry_out().await
        };
        // A node that tries a config meanwhile goes back by itself.
        let done = timeout(limit, act).await;
        site.way.reported(done.ok()).await
    }
}

/// A node of the cluster, and its pods.
struct Site {
    way: MakingWay,
}

impl ConfigSite for &Site {
    async fn connect(&self) -> Result<Node, Failure> {
        let view = self.way.view()?;
        let cluster = &self.way.cluster;
        match &self.way.action {
            // It begins at a machine with the config that this node was given, and nowhere else.
            Action::Return(_) => cluster.connect_to_compare_configs(&view).await,
            Action::Prepare(_) | Action::Switch(_) => cluster.connect_as_administrator(&view).await,
        }
    }

    async fn make_way(&mut self, would: &ApplyConfiguration) -> Result<(), Failure> {
        // Without it no node could prove itself: a missing right is told before anything changes.
        self.last_word().await?;
        self.way.make(ends_pods(would).as_deref()).await
    }

    fn may_ask(&self) -> Result<(), Failure> {
        self.way.may_ask()
    }

    /// The cluster's word counts beside the node's own. It calls a node Ready for 40 s and more after it has heard from it: the mark is the Lease
    /// that kubelet renews every 10 s.
    async fn heard(&self) -> Result<Option<String>, String> {
        let told = |failure: Failure| failure.chain();
        if let Some(why) = self.way.view().map_err(told)?.unready {
            return Err(why);
        }
        self.last_word().await.map(Some).map_err(told)
    }

    fn note(&mut self, text: &str) {
        self.way.log(text);
    }
}

impl Site {
    async fn last_word(&self) -> Result<String, Failure> {
        node_lease::last_word(&self.way.cluster.client, &self.way.node).await
    }
}

/// Why the node's pods have to leave before, by its own word.
fn ends_pods(would: &ApplyConfiguration) -> Option<String> {
    match &would.pods {
        Some(pods) => (!pods.leave_first.is_empty()).then(|| pods.leave_first.clone()),
        // An older version says of a reboot alone. Whatever else it would do, pods may end by it.
        None if would.mode() == Mode::Reboot => Some("the machine reboots".to_owned()),
        None => Some("its version does not tell whether they would live through".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use instar_api::machine::PodsEffect;

    use super::*;

    #[test]
    fn pods_leave_unless_the_node_says_that_they_live_through() {
        let would = |mode: Mode, leave_first: Option<&str>| ApplyConfiguration {
            mode: mode.into(),
            pods: leave_first.map(|why| PodsEffect {
                leave_first: why.to_owned(),
            }),
            ..ApplyConfiguration::default()
        };
        for (would, expected) in [
            (would(Mode::NoReboot, Some("")), None),
            (
                would(Mode::NoReboot, Some("extensions change")),
                Some("extensions change"),
            ),
            // A machine without pods says that none has to leave.
            (would(Mode::Reboot, Some("")), None),
            (would(Mode::Reboot, None), Some("the machine reboots")),
            (
                would(Mode::NoReboot, None),
                Some("its version does not tell"),
            ),
        ] {
            let why = ends_pods(&would);
            let is_meant = match (&why, expected) {
                (Some(why), Some(expected)) => why.starts_with(expected),
                (why, expected) => why.is_none() && expected.is_none(),
            };
            assert!(is_meant, "{would:?}: {why:?}");
        }
    }

    #[test]
    fn the_trial_can_be_passed() {
        assert!(TRIAL.can_be_passed());
    }
}
