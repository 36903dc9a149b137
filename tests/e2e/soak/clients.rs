//! Clients that stay attached while the versions change, and what they noticed of it.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use instar_tests::{
    Calling, FollowedProgram, GREETER, Greeter, HeldConnection, Instarctl, Node, Outage,
    OutageProbe, Outcome, Scratch, SteadyCalls,
};

use crate::PATIENCE;

/// A container for a connection that is held.
pub(super) const HELD: &str = "held";
pub(super) const HELD_PORT: u16 = 8081;
/// The words that `events` shows at the end of each boot of a generation.
const BOOTED: &str = "action=stop sequence=boot";
/// Words of the first line of machined's log.
const INTRODUCED: &str = "as generation ";

/// From one reboot to the next.
pub(super) struct Clients {
    /// One channel: a new connection for each call would cost the machine more than its upgrades do, and `no_call_fails` has these.
    calls: SteadyCalls,
    held: HeldConnection,
    events: FollowedProgram,
    log_of_machined: FollowedProgram,
    log_of_greeter: FollowedProgram,
    /// The words that the greeter was asked to print.
    words: Vec<String>,
}

impl Clients {
    /// Attaches all clients.
    pub(super) async fn attach(node: &Node, scratch: &Scratch) -> anyhow::Result<Self> {
        let instarctl = Instarctl::of(node, scratch)?;
        let mut events = instarctl.follow(&["events", "--tail", "-1"])?;
        let mut log_of_machined = instarctl.follow(&["logs", "-f", "machined"])?;
        let mut log_of_greeter = instarctl.follow(&["logs", "-f", GREETER])?;
        hear(&mut events, BOOTED)?;
        hear(&mut log_of_machined, INTRODUCED)?;
        hear(&mut log_of_greeter, "listening on port")?;
        Ok(Self {
            calls: SteadyCalls::over(node.way_in(node.identity())?.connect().await?),
            held: HeldConnection::open(node.guest_port(HELD_PORT)?)?,
            events,
            log_of_machined,
            log_of_greeter,
            words: Vec::new(),
        })
    }

    /// After a change of generations each stream has told of the new one.
    pub(super) fn have_heard_of(&mut self, node: &Node, turn: usize) -> Outcome {
        hear(&mut self.events, BOOTED)?;
        hear(&mut self.log_of_machined, INTRODUCED)?;
        let word = format!("/said-in-turn-{turn} ");
        Greeter::of(node)?.get(word.trim_end())?;
        hear(&mut self.log_of_greeter, &word)?;
        self.words.push(word);
        Ok(())
    }

    /// No call that was sent failed, no connection was lost or refused, no line is missing or told twice.
    pub(super) async fn detach(self) -> Outcome {
        judge(&self.calls.end().await?)?;
        let held = self.held.close()?;
        println!(
            "a connection to {HELD}: {} answers, {} lost, kept from running for {:.1} ms at most",
            held.answers,
            held.lost,
            held.pause.as_secs_f64() * 1000.0
        );
        ensure!(held.lost == 0 && held.answers > 0, "{held:?}");
        said_once_each(self.log_of_greeter.heard(), &self.words)
    }
}

/// The changes of the version for which there may be one call that the client had not sent: a busy host stops the client in that moment now and
/// then, in 2 of 33 changes beside another machine and compilers. A node that picks bad moments comes to more. `no_call_fails` allows none.
const CHANGES_FOR_AN_UNSENT_CALL: usize = 5;

/// Nobody is attached during a reboot, so no failure of a call that was sent has an excuse.
fn judge(calling: &Calling) -> Outcome {
    println!("calls over one channel: {calling}");
    let are_few = calling.unsent * CHANGES_FOR_AN_UNSENT_CALL <= calling.versions;
    ensure!(
        calling.refused == 0 && calling.failed.len() == calling.unsent && are_few,
        "calls of Version failed: {calling}: {:#?}",
        calling.failed
    );
    Ok(())
}

/// The log has the words that the greeter was asked to print, once each and in their order.
fn said_once_each(log: &[String], words: &[String]) -> Outcome {
    let said = log
        .iter()
        .filter_map(|line| line.find("/said-in-turn-").map(|at| &line[at..]));
    // The log on the disk has the words of before the last reboot, too.
    let is_earlier = |said: &&str| words.first().is_some_and(|word| !said.starts_with(word));
    let said: Vec<_> = said.skip_while(is_earlier).collect();
    let is_all = said.len() == words.len();
    let mut pairs = said.iter().zip(words);
    ensure!(
        is_all && pairs.all(|(said, word)| said.starts_with(word)),
        "{said:#?}, and not {words:#?}"
    );
    Ok(())
}

fn hear(stream: &mut FollowedProgram, words: &str) -> Outcome {
    stream.wait_for(words, PATIENCE, |line| line.contains(words))?;
    Ok(())
}

/// Asks the old version over one connection until the new one answers.
pub(super) async fn probe(node: &Node) -> anyhow::Result<OutageProbe> {
    let channel = node.way_in(node.identity())?.connect().await?;
    let begun = Instant::now();
    let mut probe = OutageProbe::start(
        move || {
            let channel = channel.clone();
            async move { instar_tests::version_over(channel).await }
        },
        move || Ok(begun.elapsed()),
    );
    probe.warm().await?;
    Ok(probe)
}

/// How long the API was away in each upgrade, and each upgrade took to readiness, by the host's clock. The guest's clock is the same
/// here: this machine does not count instructions as those of `make bench` do, which are slower. So a busy host shows in these times.
#[derive(Default)]
pub(super) struct Times {
    failures: u32,
    away: Vec<Duration>,
    to_ready: Vec<Duration>,
}

impl Times {
    pub(super) fn note(&mut self, outage: &Outage, to_ready: Duration) {
        self.failures += outage.failures;
        self.away.push(outage.length);
        self.to_ready.push(to_ready);
    }

    /// Prints the percentiles so far, for a run that is cut short has to tell something too.
    pub(super) fn print(&self) -> Outcome {
        println!("{} calls of who measured that failed", self.failures);
        for (what, times) in [
            ("the API was away, by the host's clock, for", &self.away),
            ("from the call to ready, by that clock", &self.to_ready),
        ] {
            let mut times = times.clone();
            times.sort();
            let at = |share: usize| times.get((times.len() * share).div_ceil(100).max(1) - 1);
            let [half, most] = [50, 99].map(|share| at(share).map(Duration::as_millis));
            let (half, most) = half.zip(most).context("there was no upgrade")?;
            println!("{what}, of {}: p50 {half} ms, p99 {most} ms", times.len());
        }
        Ok(())
    }
}
