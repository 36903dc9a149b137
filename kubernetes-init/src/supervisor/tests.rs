#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use instar_extension::{Command, KillMode, Restart, ServiceKind, ServiceUnit};
use instar_kubernetes_plan::State;

use super::{Event, Supervisor};
use crate::service::{Action, Service};
use crate::shutdown;

fn service(name: &str, after: &[&str]) -> Service {
    Service {
        name: name.to_owned(),
        unit: ServiceUnit {
            name: format!("{name}.service"),
            after: after.iter().map(|name| format!("{name}.service")).collect(),
            restart: Restart::Always,
            restart_pause: Duration::from_secs(10),
            ..ServiceUnit::default()
        },
        ..Service::default()
    }
}

fn command(may_fail: bool) -> Command {
    Command {
        may_fail,
        program: "/bin/true".to_owned(),
        arguments: Vec::new(),
    }
}

/// A supervisor, and a clock that stands still.
struct Bench {
    supervisor: Supervisor,
    now: Instant,
}

impl Bench {
    fn with(services: &[Service]) -> (Self, Vec<Action>) {
        let mut bench = Bench {
            supervisor: Supervisor::default(),
            now: Instant::now(),
        };
        let actions = bench.event(Event::Planned(services.to_vec()));
        (bench, actions)
    }

    fn event(&mut self, event: Event) -> Vec<Action> {
        self.supervisor.decide(event, self.now)
    }

    fn ends(&mut self, name: &str, success: bool) -> Vec<Action> {
        self.event(Event::ProcessEnded {
            name: name.to_owned(),
            success,
        })
    }

    fn is_empty(&mut self, name: &str) -> Vec<Action> {
        self.event(Event::Empty(name.to_owned()))
    }

    fn after(&mut self, seconds: u64) -> Vec<Action> {
        self.now += Duration::from_secs(seconds);
        self.event(Event::Tick)
    }

    fn state(&self, name: &str) -> State {
        let mut services = self.supervisor.services();
        services
            .find(|life| life.service().name == name)
            .unwrap()
            .shown()
    }
}

fn start(name: &str) -> Action {
    Action::Start(name.to_owned())
}

fn terminate_all(name: &str) -> Action {
    Action::TerminateAll(name.to_owned())
}

#[test]
fn services_start_in_their_order() {
    // By name kubelet would be second, and the agent first.
    let services = [
        service("agent", &["kubelet"]),
        service("containerd", &["network"]),
        service("kubelet", &["containerd"]),
    ];
    let (_, actions) = Bench::with(&services);
    assert_eq!(
        actions,
        [start("containerd"), start("kubelet"), start("agent")]
    );
}

#[test]
fn a_service_waits_for_one_that_says_when_it_is_ready() {
    let mut containerd = service("containerd", &[]);
    containerd.unit.kind = ServiceKind::Notify;
    let services = [containerd, service("kubelet", &["containerd"])];
    let (mut bench, actions) = Bench::with(&services);
    assert_eq!(actions, [start("containerd")]);
    assert_eq!(bench.state("kubelet"), State::Waiting);
    assert_eq!(
        bench.event(Event::Ready("containerd".to_owned())),
        [start("kubelet")]
    );
    // A second word changes nothing.
    assert_eq!(bench.event(Event::Ready("containerd".to_owned())), []);

    let (mut bench, _) = Bench::with(&services);
    // One that does not get ready in time has been tried: kubelet starts, as it may do without.
    assert_eq!(
        bench.after(90),
        [terminate_all("containerd"), start("kubelet")]
    );
    assert_eq!(bench.ends("containerd", false), []);
    assert_eq!(bench.is_empty("containerd"), []);
    assert_eq!(bench.state("containerd"), State::Pausing);
    assert_eq!(bench.after(10), [start("containerd")]);
}

#[test]
fn commands_run_before_the_start_one_after_the_other() {
    let mut agent = service("agent", &[]);
    agent.unit.start_pre = vec![command(true), command(false)];
    let (mut bench, actions) = Bench::with(std::slice::from_ref(&agent));
    let prepare = |number| Action::Prepare("agent".to_owned(), number);
    assert_eq!(actions, [prepare(0)]);
    assert_eq!(bench.ends("agent", false), [prepare(1)], "it may fail");
    assert_eq!(bench.ends("agent", true), [start("agent")]);

    let (mut bench, _) = Bench::with(&[agent]);
    bench.ends("agent", true);
    assert_eq!(bench.ends("agent", false), [terminate_all("agent")]);
    bench.is_empty("agent");
    assert_eq!(bench.state("agent"), State::Pausing);
    assert_eq!(bench.after(10), [prepare(0)]);
    assert_eq!(bench.after(90), [terminate_all("agent")], "it is late");
}

#[test]
fn an_end_is_followed_as_the_unit_says() {
    for (restart, success, state) in [
        (Restart::Always, true, State::Pausing),
        (Restart::Always, false, State::Pausing),
        (Restart::OnFailure, true, State::Ended),
        (Restart::OnFailure, false, State::Pausing),
        (Restart::No, true, State::Ended),
        (Restart::No, false, State::Ended),
    ] {
        let mut agent = service("agent", &[]);
        agent.unit.restart = restart;
        let (mut bench, _) = Bench::with(&[agent]);
        assert_eq!(bench.ends("agent", success), [terminate_all("agent")]);
        assert_eq!(bench.state("agent"), State::Stopping);
        assert_eq!(bench.is_empty("agent"), []);
        assert_eq!(bench.state("agent"), state, "{restart:?} {success}");
        assert_eq!(bench.after(9), []);
        let started = bench.after(1) == [start("agent")];
        assert_eq!(started, state == State::Pausing, "{restart:?} {success}");
    }
}

#[test]
fn a_stop_ends_the_processes_that_the_unit_names() {
    let name = || "agent".to_owned();
    for (mode, told, after_the_main_one, too_late) in [
        (
            KillMode::ControlGroup,
            Action::TerminateAll(name()),
            vec![],
            Action::KillAll(name()),
        ),
        (
            KillMode::Process,
            Action::TerminateMain(name()),
            vec![Action::Forget(name())],
            Action::KillMain(name()),
        ),
        (
            KillMode::Mixed,
            Action::TerminateMain(name()),
            vec![Action::KillAll(name())],
            Action::KillAll(name()),
        ),
    ] {
        let mut agent = service("agent", &[]);
        agent.unit.kill_mode = mode;
        let (mut bench, _) = Bench::with(std::slice::from_ref(&agent));
        assert_eq!(
            bench.event(Event::Planned(vec![])),
            std::slice::from_ref(&told)
        );
        assert_eq!(bench.ends("agent", true), after_the_main_one, "{mode:?}");

        let (mut bench, _) = Bench::with(&[agent]);
        assert_eq!(bench.event(Event::Planned(vec![])), [told]);
        assert_eq!(bench.after(14), []);
        assert_eq!(bench.after(1), [too_late], "{mode:?}");
        assert_eq!(bench.after(1000), [], "once is enough");
    }
}

#[test]
fn containers_outlive_the_service_that_started_them() {
    let mut containerd = service("containerd", &[]);
    containerd.unit.kill_mode = KillMode::Process;
    let (mut bench, _) = Bench::with(&[containerd]);
    assert_eq!(bench.ends("containerd", false), []);
    assert_eq!(bench.state("containerd"), State::Pausing);
    assert_eq!(bench.after(10), [start("containerd")]);
}

#[test]
fn a_service_that_does_not_last_pauses_longer_each_time() {
    let mut agent = service("agent", &[]);
    agent.unit.restart_pause = Duration::from_millis(100);
    agent.unit.kill_mode = KillMode::Process;
    let (mut bench, _) = Bench::with(&[agent]);
    let pause = |bench: &mut Bench| {
        bench.ends("agent", false);
        let pause = bench.supervisor.deadline().unwrap() - bench.now;
        bench.now += pause;
        assert_eq!(bench.event(Event::Tick), [start("agent")]);
        pause.as_millis()
    };
    let pauses: Vec<u128> = (0..9).map(|_| pause(&mut bench)).collect();
    let doubled = [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000];
    assert_eq!(pauses, doubled);
    bench.after(60);
    assert_eq!(pause(&mut bench), 100, "it has lasted");
}

#[test]
fn a_new_plan_restarts_only_the_changed_services() {
    let old = [
        service("containerd", &[]),
        service("kubelet", &["containerd"]),
    ];
    let (mut bench, _) = Bench::with(&old);
    assert_eq!(bench.event(Event::Planned(old.to_vec())), []);
    let mut new = old.clone();
    new[1].environment.insert("A".to_owned(), "2".to_owned());
    assert_eq!(
        bench.event(Event::Planned(new.to_vec())),
        [terminate_all("kubelet")]
    );
    assert_eq!(bench.event(Event::Planned(new.to_vec())), [], "once");
    assert_eq!(bench.ends("kubelet", true), []);
    assert_eq!(bench.is_empty("kubelet"), [start("kubelet")], "no pause");
    assert_eq!(bench.supervisor.service("kubelet"), Some(&new[1]));
    // The same for one that pauses: it starts at once.
    bench.ends("kubelet", false);
    bench.is_empty("kubelet");
    assert_eq!(bench.state("kubelet"), State::Pausing);
    assert_eq!(
        bench.event(Event::Planned(old.to_vec())),
        [start("kubelet")]
    );
}

#[test]
fn a_service_that_is_planned_again_while_it_ends_starts_again() {
    let agent = service("agent", &[]);
    let (mut bench, _) = Bench::with(std::slice::from_ref(&agent));
    assert_eq!(
        bench.event(Event::Planned(vec![])),
        [terminate_all("agent")]
    );
    assert_eq!(bench.event(Event::Planned(vec![agent])), []);
    bench.ends("agent", true);
    assert_eq!(bench.is_empty("agent"), [start("agent")]);
}

#[test]
fn everything_ends_in_the_opposite_order() {
    let services = [
        service("containerd", &[]),
        service("kubelet", &["containerd"]),
        service("agent", &["kubelet"]),
    ];
    let (mut bench, _) = Bench::with(&services);
    // One that has no process is passed over.
    bench.ends("agent", false);
    bench.is_empty("agent");
    assert_eq!(
        bench.event(Event::Stop(Duration::ZERO)),
        [terminate_all("kubelet")]
    );
    assert_eq!(
        bench.event(Event::Planned(services.to_vec())),
        [],
        "too late"
    );
    assert_eq!(bench.ends("kubelet", true), []);
    assert_eq!(bench.is_empty("kubelet"), [terminate_all("containerd")]);
    assert_eq!(bench.after(15), [Action::KillAll("containerd".to_owned())]);
    assert_eq!(bench.ends("containerd", false), []);
    assert_eq!(bench.is_empty("containerd"), [Action::Finish]);
    assert_eq!(bench.event(Event::Stop(Duration::ZERO)), []);
    assert_eq!(
        Supervisor::default().decide(Event::Stop(Duration::ZERO), bench.now),
        [Action::Finish]
    );
}

/// containerd, kubelet, and the service that tells kubelet of a shutdown, which runs if `is_ready`.
fn node_with_teller(is_ready: bool) -> Bench {
    let mut services = vec![
        service("containerd", &[]),
        service("kubelet", &["containerd"]),
    ];
    shutdown::add(&mut services, Duration::from_secs(30));
    let (mut bench, actions) = Bench::with(&services);
    assert_eq!(actions, [start(shutdown::NAME)], "all others wait for it");
    if is_ready {
        let actions = bench.event(Event::Ready(shutdown::NAME.to_owned()));
        assert_eq!(actions, [start("containerd"), start("kubelet")]);
    }
    bench
}

const POD_TIME: Duration = Duration::from_secs(30);

#[test]
fn kubelet_is_told_first_and_has_its_time() {
    let announce = Action::AnnounceShutdown(shutdown::NAME.to_owned());
    let mut bench = node_with_teller(true);
    assert_eq!(
        bench.event(Event::Stop(POD_TIME)),
        std::slice::from_ref(&announce)
    );
    assert_eq!(bench.event(Event::Stop(POD_TIME)), [], "once");
    assert_eq!(
        bench.ends("containerd", false),
        [terminate_all("containerd")]
    );
    assert_eq!(bench.is_empty("containerd"), []);
    assert_eq!(bench.after(20), [], "nothing starts again");
    // All pods have ended.
    assert_eq!(
        bench.ends(shutdown::NAME, true),
        [terminate_all(shutdown::NAME), terminate_all("kubelet")]
    );

    let mut bench = node_with_teller(true);
    assert_eq!(bench.event(Event::Stop(POD_TIME)), [announce]);
    assert_eq!(bench.supervisor.deadline(), Some(bench.now + POD_TIME));
    assert_eq!(bench.after(29), []);
    assert_eq!(
        bench.after(1),
        [terminate_all("kubelet")],
        "its time is over"
    );
}

#[test]
fn nobody_is_told_if_pods_have_no_time_or_the_teller_does_not_run() {
    let mut bench = node_with_teller(true);
    assert_eq!(
        bench.event(Event::Stop(Duration::ZERO)),
        [terminate_all("kubelet")]
    );
    let mut bench = node_with_teller(false);
    assert_eq!(
        bench.event(Event::Stop(POD_TIME)),
        [terminate_all(shutdown::NAME)]
    );
}
