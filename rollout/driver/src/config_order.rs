//! Brings a changed config to one node, and back.
//!
//! ```text
//!  asked what it would do ── live ──► tries it ── ready for a time, over new connections, and heard by others ──► told to keep it
//!          │                             └─ not ready in time ─► told to go back; by itself if it cannot be told
//!          └── takes a reboot ──► takes it and reboots ── ready with it in time
//! ```
//!
//! The decision: the node itself ends a trial that nobody confirms, so a config that cuts it off brings no truck to it. A config that takes a
//! reboot has no such way back: a node that stays away is named, and the rollout stops.

use std::time::Duration;

use instar_api::machine::apply_configuration_request::Mode;
use instar_api::machine::{ApplyConfiguration, ApplyConfigurationRequest};
use instar_client::{
    CONFIG_IN_FORCE, CONFIG_KEPT, Failure, FailureKind, Node, Standing, config_failure, read_config,
};
use instar_rollout::{Action, Condition, MachineName, Seconds};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep, timeout};

use crate::answers::fact;
use crate::config_change::{ConfigChange, NodeConfigStore, NodeConfigs, says_the_same};

/// Timeout of a call that brings a config: containers that differ are stopped and started within it.
const TAKES: Duration = Duration::from_secs(300);
/// Timeout of one look at a node that proves itself.
const LOOK: Duration = Duration::from_secs(10);
/// The pause between two of them.
const PAUSE: Duration = Duration::from_secs(1);
/// The part of a trial that is left for telling the node to keep its config, or to go back.
const RESERVE: Duration = Duration::from_secs(10);

/// How a node takes a changed config.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// Time after which a node that was not told to keep the config goes back by itself.
    pub limit: Seconds,
    /// How long a node has to be ready with the config before it keeps it.
    pub steady: Seconds,
    /// Whether a node may reboot for what only a boot applies.
    pub may_reboot: bool,
}

/// The surroundings of the change of one node's config: the way to the node, and all that a program does beside the calls of the node.
pub trait ConfigSite {
    /// Connects to the node anew.
    fn connect(&self) -> impl Future<Output = Result<Node, Failure>>;

    /// Makes way for a change, which the node would carry out like this. It is called each time before a node is asked to change.
    fn make_way(&mut self, would: &ApplyConfiguration)
    -> impl Future<Output = Result<(), Failure>>;

    /// Whether the node may be asked to change now: another program may have taken over meanwhile. It is called right before the request.
    ///
    /// # Errors
    /// It may not; says why.
    fn may_ask(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// A mark of the node's last word to others, such as its cluster: each word to them gives another mark. None if nobody else is asked.
    ///
    /// # Errors
    /// They say that it is not well, or cannot be asked; says why.
    fn heard(&self) -> impl Future<Output = Result<Option<String>, String>>;

    /// Takes a line about a step.
    fn note(&mut self, text: &str);
}

/// The change of one node's config, as the engine has decided on it.
#[derive(Debug)]
pub struct ConfigOrder<C, S> {
    /// The action of the engine.
    pub action: Action,
    /// The node.
    pub node: Node,
    /// The change.
    pub change: ConfigChange,
    /// How the node takes it.
    pub trial: Trial,
    /// The time that the node has to be ready after a boot.
    pub limit: Duration,
    /// The previous configs.
    pub configs: C,
    /// Its surroundings.
    pub site: S,
}

/// The answer of a node to a dry run of its changed config; none if it has the change. It checks the whole config.
///
/// # Errors
/// It would refuse it, or a call failed.
pub async fn asked(
    node: &Node,
    name: &MachineName,
    change: &ConfigChange,
) -> Result<Option<ApplyConfiguration>, Failure> {
    let kept = read_config(node, CONFIG_KEPT).await?;
    let changed = change.applied_to(name, &kept)?;
    if says_the_same(&kept, &changed) {
        return Ok(None);
    }
    let request = ApplyConfigurationRequest {
        data: changed.into_bytes(),
        mode: Mode::Auto.into(),
        dry_run: true,
        ..ApplyConfigurationRequest::default()
    };
    apply(node, request).await.map(Some)
}

async fn apply(
    node: &Node,
    request: ApplyConfigurationRequest,
) -> Result<ApplyConfiguration, Failure> {
    let mut machine = node.machine();
    let call = machine.apply_configuration(node.request(request));
    let reply = timeout(TAKES, call).await;
    let reply = reply.map_err(|_| {
        let why = format!("it has not taken the config within {} s", TAKES.as_secs());
        Failure::new(FailureKind::TimedOut, why)
    })?;
    let reply = reply.map_err(|status| node.explain(config_failure(status.code()), status))?;
    node.only(reply.into_inner().messages)
}

impl Trial {
    /// Whether a node that is ready at once proves itself in time.
    pub fn can_be_passed(self) -> bool {
        self.steady.0 + 2 * RESERVE.as_secs() <= self.limit.0
    }

    /// The failure of a node that would have to reboot, if it may not.
    pub fn forbids(self, would: &ApplyConfiguration) -> Option<Failure> {
        let is_forbidden = would.mode() == Mode::Reboot && !self.may_reboot;
        let why = || format!("it would have to reboot: {}", would.mode_details.trim_end());
        is_forbidden.then(|| Failure::new(FailureKind::Refused, why()))
    }
}

impl<C: NodeConfigStore, S: ConfigSite> ConfigOrder<C, S> {
    /// Carries it out. A node that was asked to change, and has proved itself, keeps its new config at the end.
    ///
    /// # Errors
    /// The node refused or failed, or could not be reached.
    pub async fn carry_out(&mut self) -> Result<(), Failure> {
        match self.action.clone() {
            Action::Prepare(_) => self.check().await,
            Action::Switch(_) => self.change().await,
            Action::Return(_) => self.go_back().await,
        }
    }

    /// The configs of a node in this very change.
    async fn known(&self, name: &MachineName) -> Result<Option<NodeConfigs>, Failure> {
        let known = self.configs.known(name).await?;
        Ok(known.filter(|known| known.change == self.change.release()))
    }

    async fn check(&self) -> Result<(), Failure> {
        let asked = asked(&self.node, self.action.machine(), &self.change).await;
        asked.map(|_| ())
    }

    async fn change(&mut self) -> Result<(), Failure> {
        let name = &self.action.machine().clone();
        let before = read_config(&self.node, CONFIG_KEPT).await?;
        let known = self.known(name).await?;
        if known.is_some_and(|known| says_the_same(&before, &known.after)) {
            return self.prove_after_a_boot(&before).await;
        }
        let after = self.change.applied_to(name, &before)?;
        let change = self.change.release();
        let configs = NodeConfigs {
            change,
            before,
            after,
        };
        // Before anything is asked: whoever goes on after a crash finds the way back.
        self.configs.keep(name, &configs).await?;
        self.bring(&configs.before, &configs.after).await
    }

    async fn go_back(&mut self) -> Result<(), Failure> {
        let name = &self.action.machine().clone();
        let refused = |why: &str| Failure::new(FailureKind::Refused, why.to_owned());
        let known = self.known(name).await?;
        let known = known.ok_or_else(|| refused("its previous config is not known"))?;
        let kept = read_config(&self.node, CONFIG_KEPT).await?;
        if says_the_same(&kept, &known.before) {
            return Ok(());
        }
        if !says_the_same(&kept, &known.after) {
            return Err(refused(
                "its config was changed meanwhile; it is left as it is",
            ));
        }
        self.bring(&known.after, &known.before).await
    }

    /// From one config to another, by a trial, or by a reboot where it takes one.
    async fn bring(&mut self, from: &str, to: &str) -> Result<(), Failure> {
        let would = self.send(to, Mode::Auto, true).await?;
        if let Some(forbidden) = self.trial.forbids(&would) {
            return Err(forbidden);
        }
        self.site.make_way(&would).await?;
        // That may have taken minutes.
        self.still_keeps(from).await?;
        self.site.may_ask()?;
        match would.mode() {
            Mode::Reboot => {
                self.site.note("takes the config, and reboots");
                self.send(to, Mode::Auto, false).await?;
                self.prove_after_a_boot(to).await
            }
            _ => self.try_out(from, to).await,
        }
    }

    /// A config that was given to the node since its own was read stays: the node is asked anew, from there.
    async fn still_keeps(&self, config: &str) -> Result<(), Failure> {
        let kept = read_config(&self.node, CONFIG_KEPT).await?;
        match says_the_same(&kept, config) {
            true => Ok(()),
            false => Err(Failure::new(
                FailureKind::Unreachable,
                "somebody has changed its config meanwhile; it is asked anew",
            )),
        }
    }

    async fn try_out(&mut self, from: &str, to: &str) -> Result<(), Failure> {
        let limit = Duration::from_secs(self.trial.limit.0);
        self.site.note("tries the config");
        let began = Instant::now();
        // The config may cut the answer off: then the looks below tell what became of it.
        if let Ok(Err(failure)) = timeout(limit, self.send(to, Mode::Try, false)).await {
            match failure.kind() {
                FailureKind::Unreachable => {}
                // The node may have the config in force, and has done a part of it: its trial goes on.
                kind @ (FailureKind::Failed | FailureKind::TimedOut) => {
                    let how = self.end_trial(from).await;
                    return Err(Failure::new(kind, format!("{}; {how}", failure.chain())));
                }
                _ => return Err(failure),
            }
        }
        match self.prove(to, began + limit.saturating_sub(RESERVE)).await {
            Ok(node) => {
                self.site.note("is ready with the config, and keeps it");
                send(&node, to, Mode::NoReboot, false, self.trial).await?;
                Ok(())
            }
            Err(why) => {
                let how = self.end_trial(from).await;
                Err(Failure::new(FailureKind::Failed, format!("{why}; {how}")))
            }
        }
    }

    /// Ends a trial that was not passed: the node has its previous config again. Says what became of it.
    async fn end_trial(&self, before: &str) -> &'static str {
        let look = async {
            let node = self.site.connect().await?;
            let kept = read_config(&node, CONFIG_KEPT).await?;
            Ok::<_, Failure>((node, kept))
        };
        // Its own trial ends if no call reaches it.
        let by_itself = "it goes back to its previous config by itself";
        let Ok(Ok((node, kept))) = timeout(LOOK, look).await else {
            return by_itself;
        };
        if !says_the_same(&kept, before) {
            return "somebody has changed its config meanwhile; that one is left as it is";
        }
        match send(&node, before, Mode::NoReboot, false, self.trial).await {
            Ok(_) => "it has its previous config again",
            Err(_) => by_itself,
        }
    }

    async fn prove_after_a_boot(&self, config: &str) -> Result<(), Failure> {
        let proved = self.prove(config, Instant::now() + self.limit).await;
        let failed = |why| Failure::new(FailureKind::Failed, why);
        proved.map(|_| ()).map_err(failed)
    }

    /// Waits until the node has been ready with this config for a time, each look over a new connection, and others have heard from it in that time.
    /// Returns the last connection.
    async fn prove(&self, config: &str, until: Instant) -> Result<Node, String> {
        let mut steady: Option<Steady> = None;
        loop {
            let looked = timeout(LOOK, self.is_ready_with(config)).await;
            let seen = looked.unwrap_or_else(|_| Err("it does not answer".to_owned()));
            let now = Instant::now();
            let why = match seen {
                Ok((node, mark)) => {
                    let steady = steady.get_or_insert_with(|| Steady {
                        since: now,
                        mark: mark.clone(),
                    });
                    let time = Duration::from_secs(self.trial.steady.0);
                    match steady.lacks(mark.as_deref(), now, time) {
                        None => return Ok(node),
                        Some(why) => why.to_owned(),
                    }
                }
                Err(why) => {
                    steady = None;
                    why
                }
            };
            if now >= until {
                return Err(format!("with the new config {why}"));
            }
            sleep(PAUSE).await;
        }
    }

    /// The connection, and the mark of what others hear of the node.
    async fn is_ready_with(&self, config: &str) -> Result<(Node, Option<String>), String> {
        let away = |failure: Failure| format!("it does not answer: {}", failure.chain());
        let node = self.site.connect().await.map_err(away)?;
        let standing = Standing::of(&node).await.map_err(away)?;
        match fact(&standing).condition {
            Condition::Ready => {}
            Condition::NotReady(why) => return Err(format!("it is not ready: {why}")),
            Condition::Busy => return Err("it is busy".to_owned()),
            Condition::Away(why) | Condition::Gone(why) => {
                return Err(format!("it does not answer: {why}"));
            }
        }
        let heard = self.site.heard().await;
        let mark = heard.map_err(|why| format!("it is not ready: {why}"))?;
        let in_force = read_config(&node, CONFIG_IN_FORCE).await.map_err(away)?;
        match says_the_same(&in_force, config) {
            true => Ok((node, mark)),
            false => Err("another config is in force".to_owned()),
        }
    }

    async fn send(
        &self,
        config: &str,
        mode: Mode,
        dry_run: bool,
    ) -> Result<ApplyConfiguration, Failure> {
        send(&self.node, config, mode, dry_run, self.trial).await
    }
}

/// A time in which each look found the node ready.
struct Steady {
    /// When it began.
    since: Instant,
    /// The mark of what others had heard of the node by then.
    mark: Option<String>,
}

impl Steady {
    /// The proof that the node still lacks. `mark`: that of now.
    fn lacks(&self, mark: Option<&str>, now: Instant, time: Duration) -> Option<&'static str> {
        if now < self.since + time {
            return Some("it was not ready for long enough");
        }
        // Word of before does not count: others believe it for a time, whatever became of the node.
        let is_silent = mark.is_some() && mark == self.mark.as_deref();
        is_silent.then_some("the cluster has not heard from it since: can it reach its API server?")
    }
}

async fn send(
    node: &Node,
    config: &str,
    mode: Mode,
    dry_run: bool,
    trial: Trial,
) -> Result<ApplyConfiguration, Failure> {
    let request = ApplyConfigurationRequest {
        data: config.as_bytes().to_vec(),
        mode: mode.into(),
        dry_run,
        try_mode_timeout: Duration::from_secs(trial.limit.0).try_into().ok(),
    };
    apply(node, request).await
}

#[cfg(test)]
mod tests;
