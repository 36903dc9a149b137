//! The commands that end, restart or replace a node's version: alone, or followed to their end.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use tokio::sync::Mutex;
use tonic::{Code, Status};

use super::screen::{Screen, Step, Stop};
use super::session::{Answers, Release, Session};
use super::tag::Path;
use super::wait::{Check, Ending, Events, First, Goal, Server, act_and_wait};
use super::wire::Fields;
use super::{Talosctl, Words};
use crate::identity::Identity;
use crate::node::Node;

/// `--timeout`, a third of its default. It counts the host's time, of which two boots of a node on a busy host take
/// minutes.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Timeout for a single try: a node that reboots does not answer.
const TRY: Duration = Duration::from_secs(15);
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const EVENTS: &str = "/machine.MachineService/Events";

/// A call that restarts or ends the machine, or changes its version.
#[derive(Debug, Clone)]
pub(super) struct Action {
    method: &'static str,
    asked: Fields,
    /// The field of the answer's element with the actor's id.
    actor: u32,
    goal: Goal,
    check: Check,
}

impl Action {
    /// `Reboot`; mode 1 is `powercycle`, 2 `force`.
    pub(super) fn reboot(mode: i64) -> Self {
        Self {
            method: "/machine.MachineService/Reboot",
            asked: Fields::none().number(1, mode),
            actor: 2,
            goal: Goal::Ready,
            check: Check::BootId,
        }
    }

    fn shutdown(force: bool) -> Self {
        Self {
            method: "/machine.MachineService/Shutdown",
            asked: Fields::none().number(1, force.into()),
            actor: 2,
            goal: Goal::ServicesStop,
            check: Check::Nothing,
        }
    }

    /// Upgrades by the legacy method.
    pub(super) fn upgrade(asked: Fields) -> Self {
        Self {
            method: "/machine.MachineService/Upgrade",
            asked,
            actor: 3,
            goal: Goal::Ready,
            check: Check::BootId,
        }
    }

    fn reset(asked: Fields) -> Self {
        let check = match asked.is(2) {
            true => Check::MaintenanceOrBootId,
            false => Check::Nothing,
        };
        Self {
            method: "/machine.MachineService/Reset",
            asked,
            actor: 2,
            goal: Goal::ServicesStop,
            check,
        }
    }
}

/// The client's view of one action.
#[derive(Debug, Clone)]
pub struct Followed {
    /// The ending.
    pub ending: Ending,
    /// Time from the call to the end.
    pub took: Duration,
    /// The output, one line per event.
    pub told: Vec<String>,
}

/// Upgrades and follows it; an error is a refusal, or a timeout.
pub async fn upgrade_and_follow(node: &Node, image: &str, within: Duration) -> Result<Followed> {
    let asked = Fields::none().text(1, image).number(2, 1);
    act_and_follow(node, Action::upgrade(asked), within).await
}

/// Reboots and follows it; an error is a refusal, or a timeout.
pub async fn reboot_and_follow(node: &Node, within: Duration) -> Result<Followed> {
    act_and_follow(node, Action::reboot(0), within).await
}

async fn act_and_follow(node: &Node, action: Action, within: Duration) -> Result<Followed> {
    let session = Session::open(node, node.identity(), Release::V1_14).await?;
    let tracked = Tracked::new(node, node.identity(), session, action);
    let followed = tracked.follow(First::Events, within).await;
    if let Some(status) = tracked.refusal.lock().await.take() {
        return Err(status).context("it was refused");
    }
    if followed.ending == Ending::Late {
        bail!(
            "the client still waits after {} s; it was told: {:#?}{}",
            within.as_secs(),
            followed.told,
            node.vm().evidence()
        );
    }
    Ok(followed)
}

/// An action and its node, which goes away and comes back meanwhile.
pub(super) struct Tracked<'a> {
    node: &'a Node,
    identity: &'a Identity,
    release: Release,
    action: Action,
    /// The connection, as long as it leads to the node.
    session: Mutex<Option<Session>>,
    /// The refusal of the action.
    refusal: Mutex<Option<Status>>,
}

impl<'a> Tracked<'a> {
    pub(super) fn new(
        node: &'a Node,
        identity: &'a Identity,
        session: Session,
        action: Action,
    ) -> Self {
        Self {
            node,
            identity,
            release: session.release,
            action,
            session: Mutex::new(Some(session.naming_one().within(TIMEOUT))),
            refusal: Mutex::default(),
        }
    }

    pub(super) async fn follow(&self, first: First, within: Duration) -> Followed {
        let begun = Instant::now();
        let mut told = Vec::new();
        let (goal, check) = (self.action.goal, self.action.check);
        let waited = act_and_wait(&self, goal, check, first, &mut told);
        let ending = tokio::time::timeout(within, waited).await;
        Followed {
            ending: ending.unwrap_or(Ending::Late),
            took: begun.elapsed(),
            told,
        }
    }

    async fn session(&self) -> Result<Session, Status> {
        let mut session = self.session.lock().await;
        if let Some(session) = &*session {
            return Ok(session.clone());
        }
        let open = Session::open(self.node, self.identity, self.release).await;
        let open = open.map_err(|error| Status::unavailable(format!("{error:#}")))?;
        Ok(session.insert(open.naming_one().within(TIMEOUT)).clone())
    }

    /// Calls on the present connection, or on a new one; drops a connection that does not lead to the node any more.
    async fn on_line<T>(
        &self,
        call: impl AsyncFn(Session) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let answer = tokio::time::timeout(TRY, async { call(self.session().await?).await });
        let answer = answer
            .await
            .unwrap_or_else(|_| Err(Status::unavailable("no answer")));
        if matches!(&answer, Err(status) if status.code() == Code::Unavailable) {
            self.session.lock().await.take();
        }
        answer
    }
}

impl Server for &Tracked<'_> {
    type Events = Answers;

    async fn events(&self, tail: i64) -> Result<Answers, Status> {
        let asked = Fields::none().number(1, tail);
        self.on_line(async |session| session.stream(EVENTS, asked.clone()).await)
            .await
    }

    async fn boot_id(&self) -> Result<String, Status> {
        let asked = Fields::none().text(1, BOOT_ID);
        let read = "/machine.MachineService/Read";
        let bytes = self.on_line(async |session| session.bytes(read, asked.clone()).await);
        Ok(String::from_utf8_lossy(&bytes.await?).into_owned())
    }

    async fn act(&self) -> Result<Option<String>, Status> {
        let Action { method, asked, .. } = &self.action;
        // Without a timeout, as the node pulls an image in this call.
        let session = self.session().await?;
        let answer = match session.call(method, asked.clone()).await {
            Ok(answer) => answer,
            Err(status) => {
                *self.refusal.lock().await = Some(status.clone());
                return Err(status);
            }
        };
        let elements = answer.messages_of(1);
        Ok(elements.first().map(|it| it.text_of(self.action.actor)))
    }

    async fn disks_without_certificate(&self) -> Result<(), Status> {
        let opened = tokio::time::timeout(TRY, Session::open_insecure(self.node, self.release));
        let gone = |why: String| Status::unavailable(why);
        let session = opened.await.map_err(|_| gone("no answer".to_owned()))?;
        let session = session.map_err(|error| gone(format!("{error:#}")))?;
        let session = match self.release {
            Release::V1_13 => session,
            Release::V1_14 => session.naming_one(),
        };
        let disks = session.call("/storage.StorageService/Disks", Fields::none());
        disks.await.map(drop)
    }
}

impl Events for Answers {
    async fn next(&mut self) -> Result<Option<Fields>, Status> {
        Self::next(self).await
    }
}

impl Talosctl<'_> {
    pub(super) async fn reboot(&self, mut words: Words<'_>, screen: &mut Screen) -> Step {
        let mode = words.reboot_mode();
        if words.flag("--drain") {
            self.drain().await?;
        }
        self.look_at_version(screen).await?;
        self.act(Action::reboot(mode), words, screen).await
    }

    pub(super) async fn shutdown(&self, mut words: Words<'_>, screen: &mut Screen) -> Step {
        let action = Action::shutdown(words.flag("--force"));
        self.look_at_version(screen).await?;
        self.act(action, words, screen).await
    }

    pub(super) async fn reset(&self, mut words: Words<'_>, screen: &mut Screen) -> Step {
        let graceful = !words.flag("--graceful=false");
        let mut asked = Fields::none()
            .number(1, graceful.into())
            .number(2, words.flag("--reboot").into());
        while let Some(label) = words.value("--system-labels-to-wipe") {
            asked = asked.message(3, &Fields::none().text(1, label).number(2, 1));
        }
        while let Some(disk) = words.value("--user-disks-to-wipe") {
            asked = asked.text(4, disk);
        }
        let mode = match words.value("--wipe-mode") {
            Some("system-disk") => 1,
            Some("user-disks") => 2,
            _ => 0,
        };
        self.look_at_version(screen).await?;
        self.act(Action::reset(asked.number(5, mode)), words, screen)
            .await
    }

    /// Starts the action, and waits for its end unless told not to.
    pub(super) async fn act(
        &self,
        action: Action,
        mut words: Words<'_>,
        screen: &mut Screen,
    ) -> Step {
        if words.flag("--wait=false") {
            self.session.call(action.method, action.asked).await?;
            return Ok(());
        }
        let first = match words.flag("--action-first") {
            true => First::Action,
            false => First::Events,
        };
        let tracked = Tracked::new(self.node, self.identity, self.session.clone(), action);
        let followed = tracked.follow(first, TIMEOUT).await;
        for line in &followed.told {
            screen.complain(line);
        }
        match followed.ending {
            Ending::Done => Ok(()),
            Ending::Failed(why) => Err(Stop::Failed(why)),
            Ending::Late => Err(Stop::Failed("context deadline exceeded".to_owned())),
        }
    }

    /// `upgrade -i IMAGE`: by the method that the server's version chooses.
    pub(super) async fn upgrade(&self, mut words: Words<'_>, screen: &mut Screen) -> Step {
        let image = words.value("-i").unwrap_or_default().to_owned();
        let legacy = words.flag("--legacy");
        let tag = self.version_of_server(screen).await?;
        let path = match legacy {
            true => Path::Legacy,
            false => tag.map_or(Path::Lifecycle, |tag| tag.path()),
        };
        // A drain implies the wait, so `--wait=false` is refused.
        let drains = !words.flag("--drain=false");
        if drains && words.flag("--wait=false") {
            screen.complain("--drain makes it wait");
        }
        match path {
            Path::Lifecycle => self.upgrade_in_steps(&image, drains, words, screen).await,
            // The client refuses this itself: nothing is sent.
            Path::Legacy if words.value("-m") == Some("force") => {
                Err(Stop::Failed("force is not supported".to_owned()))
            }
            Path::Legacy => {
                if !legacy {
                    screen.complain("the new upgrade API is not available");
                    self.version_of_server(screen).await?;
                }
                let asked = Fields::none()
                    .text(1, &image)
                    .number(2, words.flag("--preserve").into())
                    .number(3, words.flag("--stage").into())
                    .number(4, words.flag("--force").into())
                    .number(5, (words.value("-m") == Some("powercycle")).into());
                self.act(Action::upgrade(asked), words, screen).await
            }
        }
    }
}
