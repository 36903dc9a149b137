//! The loop: it waits for signals, output and the next deadline, tells the supervisor, and carries out its actions.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use instar_kubernetes_plan::{LOGS, LONGEST_SHUTDOWN, PLAN, STATUS, STOP_SECONDS};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use crate::cgroups::Cgroups;
use crate::ending;
use crate::extensions::{Outcome, System, Used, read_plan};
use crate::layers::Layers;
use crate::output::say;
use crate::processes::Processes;
use crate::reboot::Required;
use crate::report::Report;
use crate::service::Action;
use crate::shutdown;
use crate::signals::Signals;
use crate::supervisor::{Event, Supervisor};

/// Limit on a wait: the processes that a service has left are looked for.
const LOOK: Duration = Duration::from_secs(1);
/// Limit on the ends of all services, in their order, after kubelet's time for its pods; then everything ends at once.
const ALL_SERVICES: Duration = Duration::from_secs(5);
/// The end is over before machined kills the container.
const _: () = assert!(ALL_SERVICES.as_secs() + ending::GRACE.as_secs() < STOP_SECONDS);

/// All that the loop holds.
#[derive(Debug)]
pub(crate) struct Container {
    directory: PathBuf,
    signals: Signals,
    layers: Layers,
    used: Vec<Used>,
    supervisor: Supervisor,
    processes: Processes,
    report: Report,
    required: Required,
    /// For how long kubelet may end pods before everything ends.
    shutdown: Duration,
    /// The time at which the ends of services are not waited for any more.
    stop_by: Option<Instant>,
}

impl Container {
    pub(crate) fn new(
        directory: &Path,
        signals: Signals,
        layers: Layers,
        cgroups: Option<Cgroups>,
    ) -> Self {
        Container {
            directory: directory.to_owned(),
            signals,
            layers,
            used: Vec::new(),
            supervisor: Supervisor::default(),
            processes: Processes::new(cgroups, directory.join(LOGS)),
            report: Report::new(directory.join(STATUS)),
            required: Required::new(),
            shutdown: Duration::ZERO,
            stop_by: None,
        }
    }

    /// The status that machined reads.
    pub(crate) fn report(&mut self) -> &mut Report {
        &mut self.report
    }

    /// Runs services until everything is to end, and all of them have.
    pub(crate) fn run(mut self) {
        let mut events = VecDeque::from_iter(self.read_plan());
        loop {
            let is_over = self.carry_out(&mut events);
            self.report.required_is_shown(self.required.show());
            self.report
                .write(self.supervisor.services(), &self.processes);
            if is_over
                || self
                    .stop_by
                    .is_some_and(|stop_by| stop_by <= Instant::now())
            {
                break;
            }
            self.await_news();
            events.extend(self.news());
        }
        ending::end_everything(&self.signals, &mut self.processes);
        self.report
            .write(self.supervisor.services(), &self.processes);
    }

    /// Waits for something to read, until the next deadline or for a second.
    fn await_news(&self) {
        let until = self.supervisor.deadline();
        let left = until.map_or(LOOK, |until| {
            until.saturating_duration_since(Instant::now())
        });
        let timeout = Timespec::try_from(left.min(LOOK)).ok();
        let descriptors = self.processes.descriptors();
        let mut waiting: Vec<PollFd<'_>> = descriptors
            .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN))
            .collect();
        waiting.push(PollFd::new(&self.signals, PollFlags::IN));
        // The result does not matter: everything is looked at anyway.
        let _ = poll(&mut waiting, timeout.as_ref());
    }

    /// All that has happened.
    fn news(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        let came = self.signals.take();
        if came.new_plan {
            events.extend(self.read_plan());
        }
        if came.reboot {
            say("a pod asks for a reboot of the machine");
            self.report.reboot_asked();
        }
        if came.stop && self.stop_by.is_none() {
            say("everything ends, as the machine asked for it");
            self.stop_by = Some(Instant::now() + self.shutdown + ALL_SERVICES);
            events.push(Event::Stop(self.shutdown));
        }
        events.extend(self.processes.listen().into_iter().map(Event::Ready));
        while let Some(reaped) = self.processes.reap() {
            if let Some(end) = reaped {
                // The end of a command before the start is worth a word only if it failed.
                if !end.success || !self.supervisor.is_preparing(&end.name) {
                    self.report.ended(&end.name, end.text, end.success);
                }
                let (name, success) = (end.name, end.success);
                events.push(Event::ProcessEnded { name, success });
            }
        }
        events.push(Event::Tick);
        events
    }

    /// Tells the supervisor what has happened, and does what it says. True: all services have ended for good.
    fn carry_out(&mut self, events: &mut VecDeque<Event>) -> bool {
        while let Some(event) = events.pop_front() {
            for action in self.supervisor.decide(event, Instant::now()) {
                if action == Action::Finish {
                    return true;
                }
                events.extend(self.perform(action));
            }
            if events.is_empty() {
                let left = self
                    .supervisor
                    .services()
                    .filter(|life| life.leaves_others());
                let names = left.map(|life| life.service().name.clone());
                let empty = names.filter(|name| self.processes.is_empty(name));
                events.extend(empty.map(Event::Empty));
            }
        }
        false
    }

    /// Performs an action. A process that could not be started counts as one that ended.
    fn perform(&mut self, action: Action) -> Option<Event> {
        let processes = &mut self.processes;
        let (name, done) = match &action {
            Action::Prepare(name, command) => {
                let service = self.supervisor.service(name)?;
                (name, processes.prepare(service, *command))
            }
            Action::Start(name) => {
                say(&format!("{name}: starts"));
                (name, processes.start_main(self.supervisor.service(name)?))
            }
            Action::AnnounceShutdown(name) => {
                say("kubelet is told, and ends its pods");
                (name, processes.signal_main(name, Signal::USR1))
            }
            Action::TerminateMain(name) => (name, processes.signal_main(name, Signal::TERM)),
            Action::TerminateAll(name) => (name, processes.terminate_all(name)),
            Action::KillMain(name) => (name, processes.signal_main(name, Signal::KILL)),
            Action::KillAll(name) => (name, processes.kill_all(name)),
            Action::Forget(name) => {
                processes.forget(name);
                self.report.forget(name);
                return None;
            }
            Action::Finish => return None,
        };
        let error = done.err()?;
        self.report.failed(name, &error);
        let is_start = matches!(action, Action::Prepare(..) | Action::Start(_));
        is_start.then(|| Event::ProcessEnded {
            name: name.clone(),
            success: false,
        })
    }

    /// Reads the plan, and puts its extensions over the base. A plan that cannot be carried out changes nothing.
    fn read_plan(&mut self) -> Option<Event> {
        let plan = match read_plan(&self.directory.join(PLAN)) {
            Ok(Some(plan)) => plan,
            Ok(None) => return None,
            Err(error) => {
                self.report.plan_has(vec![format!("{error:#}")]);
                return None;
            }
        };
        // Another version of the OS may run since the last plan: its machined has rewritten the file.
        let mut outcome = Outcome::of(&plan, &self.used, &System::read());
        self.required.is(plan.reboot_required);
        let put = self.layers.put(&outcome.trees());
        if let Err(error) = &put {
            outcome.errors.push(format!("{error:#}"));
        }
        self.report.plan_has(outcome.errors);
        put.ok()?;
        self.used = outcome.used;
        if let Some(seconds) = plan.shutdown_seconds {
            self.shutdown = Duration::from_secs(seconds.min(LONGEST_SHUTDOWN));
            shutdown::add(&mut outcome.services, self.shutdown);
        }
        Some(Event::Planned(outcome.services))
    }
}
