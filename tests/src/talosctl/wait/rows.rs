//! Every recorded situation, played by a server that keeps to a script, in virtual time, with the client's reaction to
//! each.
//!
//! Times are milliseconds after the action, which the client requests at 0.

use std::cell::Cell;
use std::future::pending;

use tokio::time::{Instant, sleep_until};

use super::*;

/// The client's `--timeout`.
const TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// The client gives a silent link up after this time: a PING after 10 s, and 5 s for its answer.
const UNTIL_NOTICED: i64 = 15_000;

const ACTOR: &str = "7c5a8f0e-5d0f-4f5e-9d3e-0d9c0f6a2b11";

/// The way in which an outage of the API begins for a connected client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Away {
    Unavailable,
    EndOfStream,
    Silent,
}

/// The server's behaviour, and the requests that it got.
struct Script {
    begun: Cell<Option<Instant>>,
    events: Vec<(i64, Fields)>,
    away: Option<(i64, i64, Away)>,
    replays: bool,
    says_hello: bool,
    boot_id_changes: i64,
    read: Code,
    subscribe: Code,
    action: Result<Option<&'static str>, Code>,
    disks: (i64, Code),
    acted: Cell<bool>,
}

/// Later than any wait of the client.
const NEVER: i64 = i64::MAX;

impl Script {
    fn new() -> Self {
        Self {
            begun: Cell::new(None),
            events: Vec::new(),
            away: None,
            replays: true,
            says_hello: true,
            boot_id_changes: NEVER,
            read: Code::Ok,
            subscribe: Code::Ok,
            action: Ok(Some(ACTOR)),
            disks: (NEVER, Code::Unavailable),
            acted: Cell::new(false),
        }
    }

    fn event(mut self, at: i64, event: Fields) -> Self {
        self.events.push((at, event));
        self
    }

    fn away(self, from: i64, until: i64) -> Self {
        self.away_as(from, until, Away::Unavailable)
    }

    fn away_as(mut self, from: i64, until: i64, how: Away) -> Self {
        self.away = Some((from, until, how));
        self
    }

    fn boot_id_changes(mut self, at: i64) -> Self {
        self.boot_id_changes = at;
        self
    }

    fn begin(&self) -> Instant {
        self.begun.get().unwrap_or_else(|| {
            self.begun.set(Some(Instant::now()));
            Instant::now()
        })
    }

    fn now(&self) -> i64 {
        i64::try_from(self.begin().elapsed().as_millis()).unwrap()
    }

    async fn until(&self, at: i64) {
        let after = Duration::from_millis(u64::try_from(at).unwrap_or_default());
        sleep_until(self.begin() + after).await;
    }

    /// Returns an error while the server is away.
    async fn reached(&self) -> Result<(), Status> {
        match self.away {
            Some((from, until, how)) if (from..until).contains(&self.now()) => {
                if how == Away::Silent {
                    self.until((self.now() + UNTIL_NOTICED).min(until)).await;
                }
                match self.now() >= until {
                    true => Ok(()),
                    false => Err(Status::unavailable("nobody there")),
                }
            }
            _ => Ok(()),
        }
    }
}

fn answer(code: Code) -> Result<(), Status> {
    match code {
        Code::Ok => Ok(()),
        code => Err(Status::new(code, "as the script says")),
    }
}

impl<'a> Server for &'a Script {
    type Events = Stream<'a>;

    async fn events(&self, tail: i64) -> Result<Stream<'a>, Status> {
        self.reached().await?;
        answer(self.subscribe)?;
        let now = self.now();
        // A server that was away has lost its earlier events.
        let since = match self.away {
            Some((_, until, how)) if now >= until && how != Away::EndOfStream => until,
            _ => i64::MIN,
        };
        let from = match tail {
            -1 if self.replays => since,
            _ => now,
        };
        let events = self.events.iter().filter(|(at, _)| *at >= from).cloned();
        let hello = self.says_hello.then(|| (now, Fields::none()));
        let ends = self.away.filter(|(from, _, _)| *from >= now);
        Ok(Stream {
            script: self,
            left: hello.into_iter().chain(events).collect(),
            ends,
        })
    }

    async fn boot_id(&self) -> Result<String, Status> {
        self.reached().await?;
        answer(self.read)?;
        let changed = self.now() >= self.boot_id_changes;
        Ok(if changed { "after" } else { "before" }.to_owned())
    }

    async fn act(&self) -> Result<Option<String>, Status> {
        self.acted.set(true);
        let answer = self.action.map_err(|code| Status::new(code, "not now"))?;
        Ok(answer.map(str::to_owned))
    }

    async fn disks_without_certificate(&self) -> Result<(), Status> {
        let (from, code) = self.disks;
        match self.now() >= from {
            true => answer(code),
            false => Err(Status::unavailable("a certificate is required")),
        }
    }
}

struct Stream<'a> {
    script: &'a Script,
    left: std::collections::VecDeque<(i64, Fields)>,
    ends: Option<(i64, i64, Away)>,
}

impl Events for Stream<'_> {
    async fn next(&mut self) -> Result<Option<Fields>, Status> {
        let next = self.left.front().map_or(NEVER, |(at, _)| *at);
        if let Some((from, _, how)) = self.ends
            && next >= from
        {
            let noticed = if how == Away::Silent {
                UNTIL_NOTICED
            } else {
                0
            };
            self.script.until(from + noticed).await;
            return match how {
                Away::EndOfStream => Ok(None),
                Away::Unavailable | Away::Silent => Err(Status::unavailable("the link is down")),
            };
        }
        let Some((at, event)) = self.left.pop_front() else {
            return pending().await;
        };
        self.script.until(at).await;
        Ok(Some(event))
    }
}

fn event(actor: &str, name: &str, payload: &Fields) -> Fields {
    let data = Fields::none()
        .text(1, &format!("{EVENT_TYPES}{name}"))
        .message(2, payload);
    Fields::none()
        .message(2, &data)
        .text(3, "id")
        .text(4, actor)
}

fn stage(stage: i64, ready: bool) -> Fields {
    let status = Fields::none().number(1, ready.into());
    let payload = Fields::none().number(1, stage).message(2, &status);
    event("", "MachineStatusEvent", &payload)
}

fn ready() -> Fields {
    stage(4, true)
}

fn services_stop() -> Fields {
    event(
        ACTOR,
        "TaskEvent",
        &Fields::none().text(1, "stopAllServices"),
    )
}

fn sequence(name: &str) -> Fields {
    event(
        ACTOR,
        "SequenceEvent",
        &Fields::none().text(1, name).number(2, 1),
    )
}

fn sequence_failed(name: &str, why: &str) -> Fields {
    let payload = Fields::none()
        .text(1, name)
        .message(3, &Fields::none().text(2, why));
    event(ACTOR, "SequenceEvent", &payload)
}

/// Runs the wait; returns the ending and its time.
async fn follow(script: &Script, goal: Goal, check: Check, first: First) -> (Ending, i64) {
    let mut told = Vec::new();
    let waited = act_and_wait(&script, goal, check, first, &mut told);
    let ending = tokio::time::timeout(TIMEOUT, waited).await;
    (ending.unwrap_or(Ending::Late), script.now())
}

async fn reboot(script: &Script) -> (Ending, i64) {
    follow(script, Goal::Ready, Check::BootId, First::Events).await
}

async fn reset_with_reboot(script: &Script) -> (Ending, i64) {
    let check = Check::MaintenanceOrBootId;
    follow(script, Goal::ServicesStop, check, First::Events).await
}

/// A link that drops, and a machine that comes back three seconds later.
fn reboots() -> Script {
    Script::new().away(500, 3200)
}

#[tokio::test(start_paused = true)]
async fn a_reboot_with_a_fresh_history_is_done() {
    let back = reboots().boot_id_changes(500).event(4000, ready());
    let (ending, at) = reboot(&back).await;
    assert_eq!(ending, Ending::Done);
    assert!((4000..5500).contains(&at), "{at}");
}

#[tokio::test(start_paused = true)]
async fn readiness_from_before_the_return_is_found_in_the_history_alone() {
    let mut back = reboots().boot_id_changes(500).event(3250, ready());
    assert_eq!(reboot(&back).await.0, Ending::Done);
    back = reboots().boot_id_changes(500).event(3250, ready());
    back.replays = false;
    // The client comes back within the second after the event.
    assert_eq!(reboot(&back).await.0, Ending::Late);
}

#[tokio::test(start_paused = true)]
async fn the_boot_id_of_before_is_no_reboot() {
    let back = reboots().event(4000, ready());
    assert_eq!(reboot(&back).await.0, Ending::Late);
    let stays = Script::new().event(500, ready());
    assert_eq!(reboot(&stays).await.0, Ending::Late);
}

#[tokio::test(start_paused = true)]
async fn a_short_absence_is_done_without_an_own_stop_or_with_readiness_long_after_it() {
    let short = || Script::new().away(500, 600).boot_id_changes(500);
    let (ending, at) = reboot(&short().event(600, ready())).await;
    assert_eq!(ending, Ending::Done);
    assert!(at < 2000, "{at}");
    let late = short().event(400, services_stop()).event(2500, ready());
    assert_eq!(reboot(&late).await.0, Ending::Done);
}

#[tokio::test(start_paused = true)]
async fn a_short_absence_after_an_own_stop_is_missed() {
    let missed = Script::new()
        .boot_id_changes(500)
        .event(400, services_stop())
        .away(500, 600)
        .event(600, ready());
    assert_eq!(reboot(&missed).await.0, Ending::Late);
}

#[tokio::test(start_paused = true)]
async fn without_a_drop_readiness_and_another_boot_id_are_enough() {
    let soft = Script::new().boot_id_changes(400).event(500, ready());
    let (ending, at) = reboot(&soft).await;
    assert_eq!(ending, Ending::Done);
    assert!(at <= 1000, "{at}");
}

#[tokio::test(start_paused = true)]
async fn readiness_within_a_second_of_an_own_stop_is_missed_and_later_is_not() {
    for stop in [services_stop, || sequence("reboot")] {
        let soft = |at: i64| {
            Script::new()
                .boot_id_changes(400)
                .event(400, stop())
                .event(at, ready())
        };
        assert_eq!(reboot(&soft(1300)).await.0, Ending::Late);
        assert_eq!(reboot(&soft(3400)).await.0, Ending::Done);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_is_taken_up_with_its_history() {
    for how in [Away::Unavailable, Away::EndOfStream] {
        let ended = Script::new()
            .boot_id_changes(400)
            .away_as(500, 501, how)
            .event(501, ready());
        assert_eq!(reboot(&ended).await.0, Ending::Done, "{how:?}");
    }
    // An earlier event counts as well: the boot id alone decides.
    let older = Script::new()
        .event(-5000, ready())
        .away_as(500, 501, Away::EndOfStream)
        .boot_id_changes(9000);
    let (ending, at) = reboot(&older).await;
    assert_eq!(ending, Ending::Done);
    assert!((9000..10_500).contains(&at), "{at}");
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_while_an_own_stop_is_waited_out_is_not_noticed() {
    let missed = Script::new()
        .boot_id_changes(400)
        .event(400, services_stop())
        .away(700, 800)
        .event(900, ready());
    assert_eq!(reboot(&missed).await.0, Ending::Late);
}

#[tokio::test(start_paused = true)]
async fn who_may_not_read_the_boot_id_is_content_with_readiness() {
    let mut stays = Script::new().event(500, ready());
    stays.read = Code::PermissionDenied;
    assert_eq!(reboot(&stays).await.0, Ending::Done);
}

#[tokio::test(start_paused = true)]
async fn a_boot_id_that_cannot_be_read_keeps_the_action_back() {
    for code in [Code::Unimplemented, Code::NotFound, Code::Unavailable] {
        let mut broken = Script::new();
        broken.read = code;
        let (ending, at) = reboot(&broken).await;
        assert!(matches!(ending, Ending::Failed(_)), "{ending:?}");
        assert!(at == 0 && !broken.acted.get());
    }
}

#[tokio::test(start_paused = true)]
async fn without_readiness_it_waits() {
    let never = reboots().boot_id_changes(500).event(4000, stage(4, false));
    assert_eq!(reboot(&never).await.0, Ending::Late);
}

#[tokio::test(start_paused = true)]
async fn events_that_are_refused_keep_nothing_back_and_are_waited_for() {
    for code in [Code::Unimplemented, Code::PermissionDenied] {
        let mut deaf = Script::new().boot_id_changes(400).event(500, ready());
        deaf.subscribe = code;
        assert_eq!(reboot(&deaf).await.0, Ending::Late);
        assert!(deaf.acted.get());
    }
}

#[tokio::test(start_paused = true)]
async fn an_action_that_is_refused_ends_it() {
    for code in [Code::FailedPrecondition, Code::Unavailable] {
        let mut busy = Script::new().event(500, ready());
        busy.action = Err(code);
        let (ending, at) = reboot(&busy).await;
        assert!(matches!(ending, Ending::Failed(ref why) if why.contains("not now")));
        assert_eq!(at, 0);
    }
    let mut empty = Script::new();
    empty.action = Ok(None);
    let said = Ending::Failed("no messages returned".to_owned());
    assert_eq!(reboot(&empty).await, (said, 0));
}

#[tokio::test(start_paused = true)]
async fn the_first_event_is_lost_where_there_is_no_hello() {
    let soft = || {
        let mut soft = Script::new().boot_id_changes(400);
        soft.says_hello = false;
        soft
    };
    assert_eq!(reboot(&soft().event(500, ready())).await.0, Ending::Late);
    let second = soft().event(500, stage(1, false)).event(600, ready());
    assert_eq!(reboot(&second).await.0, Ending::Done);
}

#[tokio::test(start_paused = true)]
async fn an_actor_without_an_id_works() {
    let mut nobody = Script::new()
        .boot_id_changes(400)
        .event(
            400,
            event("", "PhaseEvent", &Fields::none().text(1, "stop")),
        )
        .event(500, ready());
    nobody.action = Ok(Some(""));
    assert_eq!(reboot(&nobody).await.0, Ending::Done);
}

#[tokio::test(start_paused = true)]
async fn an_own_sequence_that_fails_ends_it_unless_it_is_a_reboot() {
    let fails = Script::new().event(700, sequence_failed("upgrade", "no space"));
    let said = Ending::Failed("no space".to_owned());
    assert_eq!(reboot(&fails).await, (said, 700));
    let waits = Script::new().event(700, sequence_failed("reboot", "no space"));
    assert_eq!(reboot(&waits).await.0, Ending::Late);
}

#[tokio::test(start_paused = true)]
async fn an_event_of_an_unknown_type_ends_it() {
    let strange = Script::new().event(300, event("", "NewsEvent", &Fields::none()));
    assert!(matches!(reboot(&strange).await, (Ending::Failed(_), 300)));
}

#[tokio::test(start_paused = true)]
async fn silence_is_noticed_after_fifteen_seconds() {
    let silent = Script::new()
        .away_as(500, 30_500, Away::Silent)
        .boot_id_changes(500)
        .event(30_500, ready());
    let (ending, at) = reboot(&silent).await;
    assert_eq!(ending, Ending::Done);
    assert!((30_500..33_000).contains(&at), "{at}");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_is_done_when_services_stop_and_never_without() {
    // A stop of the services counts for any actor.
    let others = event("", "TaskEvent", &Fields::none().text(1, "stopAllServices"));
    for stop in [services_stop(), others] {
        let off = Script::new().event(400, stop).away(500, NEVER);
        let ending = follow(&off, Goal::ServicesStop, Check::Nothing, First::Events).await;
        assert_eq!(ending, (Ending::Done, 400));
    }
    let off = Script::new().away(500, NEVER);
    let (ending, _) = follow(&off, Goal::ServicesStop, Check::Nothing, First::Events).await;
    assert_eq!(ending, Ending::Late);
}

#[tokio::test(start_paused = true)]
async fn what_is_told_before_the_subscription_is_lost() {
    let quick = |at: i64| Script::new().event(at, services_stop()).away(500, NEVER);
    let wait = async |script: &Script, first| {
        follow(script, Goal::ServicesStop, Check::Nothing, first)
            .await
            .0
    };
    assert_eq!(wait(&quick(-1), First::Action).await, Ending::Late);
    assert_eq!(wait(&quick(300), First::Action).await, Ending::Done);
}

#[tokio::test(start_paused = true)]
async fn a_reset_is_done_in_normal_mode_with_another_boot_id() {
    let back = reboots().event(400, services_stop()).boot_id_changes(3500);
    let (ending, at) = reset_with_reboot(&back).await;
    assert_eq!(ending, Ending::Done);
    assert!((3500..5000).contains(&at), "{at}");
}

#[tokio::test(start_paused = true)]
async fn a_reset_is_done_in_maintenance_mode_once_it_lists_disks_to_anybody() {
    let maintenance = |code: Code| {
        let mut script = Script::new().event(400, services_stop()).away(500, NEVER);
        script.disks = (3500, code);
        script
    };
    let (ending, at) = reset_with_reboot(&maintenance(Code::Ok)).await;
    assert_eq!(ending, Ending::Done);
    assert!((3500..5000).contains(&at), "{at}");
    for code in [Code::Unimplemented, Code::PermissionDenied] {
        let ending = reset_with_reboot(&maintenance(code)).await.0;
        assert_eq!(ending, Ending::Late, "{code:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_lets_anybody_in_looks_like_maintenance_mode_before_anything_happened() {
    let mut lax = Script::new().event(400, services_stop());
    lax.disks = (0, Code::Ok);
    assert_eq!(reset_with_reboot(&lax).await, (Ending::Done, 400));
}
