//! kubernetes-init as the first process of a container on this machine, with shell scripts as services.
//!
//! It needs root, or sudo without a password, for namespaces and mounts.

#![allow(clippy::unwrap_used, clippy::panic)]

mod node;

use std::path::Path;

use instar_kubernetes_plan::{STOP_SECONDS, State};
use node::{Extension, Node, tell};

#[test]
fn services_start_in_their_order_with_their_variables() {
    let node = Node::new("order");
    let first = "ExecStartPre=-/bin/false\nExecStartPre=/bin/sh -c 'echo prepared >> /instar/told'\n\
        ExecStart=/bin/sh -c 'sleep 1; echo one ${WORD} >> /instar/told; exec /usr/bin/tell-ready'\nType=notify\n\
        Environment=WORD=unit\nLimitNOFILE=100\n";
    let second = format!("ExecStart={}\n", tell("two"));
    node.extension(
        Extension::new("b")
            .service("one", "", first)
            .file("usr/bin/tell-ready", node::TELL_READY),
    );
    node.extension(Extension::new("a").service("two", "After=one.service", &second));
    node.variable("one", "WORD", "plan");
    node.plan(&["a", "b"]);
    let running = node.start();
    running.until("both run", |status| {
        ["one", "two"].map(|name| status.services.get(name).map(|one| one.state))
            == [Some(State::Running); 2]
    });
    running.until("both have told", |_| {
        node.told() == ["prepared", "one plan", "two"]
    });
    let limit = running.command("one", "cat /proc/PID/limits");
    let limit = limit
        .lines()
        .find(|line| line.contains("open files"))
        .unwrap();
    assert!(limit.contains("100 "), "{limit}");
    let cgroup = running.command("one", "cat /proc/PID/cgroup");
    assert!(cgroup.contains("0::/services/one\n"), "{cgroup}");
}

#[test]
fn a_service_that_ends_starts_again_after_its_pause() {
    let node = Node::new("restart");
    let service = "ExecStart=/bin/sh -c 'echo said; echo started >> /instar/told; sleep 0.2; exit 3'\nRestart=always\nRestartSec=1\n";
    node.extension(Extension::new("a").service("one", "", service));
    node.plan(&["a"]);
    let running = node.start();
    let status = running.until("it has started three times", |status| {
        status
            .services
            .get("one")
            .is_some_and(|one| one.restarts == 2)
    });
    let one = &status.services["one"];
    assert_eq!(one.last_exit.as_deref(), Some("exited with code 3"));
    assert_eq!(one.extension, "a");
    let log = std::fs::read_to_string(node.directory().join("logs/one.log")).unwrap();
    assert!(log.starts_with("said\nsaid\n"), "{log}");
    assert!(
        running.output().contains("\none: said\n"),
        "{}",
        running.output()
    );
}

#[test]
fn a_new_plan_restarts_only_what_has_changed() {
    let node = Node::new("change");
    let shim = "ExecStart=/bin/sh -c 'setsid sleep 1000 & echo $! > /instar/shim; exec sleep 1000'\nKillMode=process\n";
    node.extension(Extension::new("containerd").service("containerd", "", shim));
    let kubelet =
        "ExecStart=/bin/sh -c 'cat /usr/share/version >> /instar/told; exec sleep 1000'\n";
    let kubernetes = |name: &str, version: &str| {
        let extension =
            Extension::new("kubernetes").service("kubelet", "After=containerd.service", kubelet);
        node.extension(extension.at(name).file("usr/share/version", version));
    };
    kubernetes("old", "1\n");
    kubernetes("new", "2\n");
    node.plan(&["containerd", "kubernetes=old"]);
    let running = node.start();
    running.until("kubelet runs", |_| node.told() == ["1"]);
    let before = running.status();
    let shim = || std::fs::read_to_string(node.directory().join("shim")).unwrap();
    let first_shim = shim();

    node.plan(&["containerd", "kubernetes=new"]);
    running.signal("HUP");
    running.until("the new kubelet runs", |_| node.told() == ["1", "2"]);
    let after = running.status();
    assert_eq!(after.services["containerd"], before.services["containerd"]);
    assert_ne!(
        after.services["kubelet"].pid,
        before.services["kubelet"].pid
    );

    // A new containerd leaves the shims of the old one alone, and an orphan of them is reaped.
    node.variable("containerd", "A", "1");
    node.plan(&["containerd", "kubernetes=new"]);
    running.signal("HUP");
    running.until("the new containerd runs", |_| shim() != first_shim);
    let shims = || running.command("kubelet", "pgrep -x sleep");
    assert_eq!(shims().lines().count(), 4, "{}", shims());
    running.command("kubelet", &format!("kill {first_shim}"));
    running.until("the orphan is reaped", |_| shims().lines().count() == 3);
    assert_eq!(
        running.status().services["kubelet"],
        after.services["kubelet"]
    );
}

#[test]
fn a_service_restarts_when_it_is_asked_to() {
    let node = Node::new("asked");
    let extension = Extension::new("a")
        .service("one", "", &format!("ExecStart={}\n", tell("one")))
        .service("two", "", &format!("ExecStart={}\n", tell("two")));
    node.extension(extension);
    node.plan(&["a"]);
    let running = node.start();
    running.until("both run", |_| node.told().len() == 2);
    let two = running.status().services["two"].clone();
    node.restart("one");
    node.plan(&["a"]);
    running.signal("HUP");
    running.until("one has started again", |_| {
        node.told().last().is_some_and(|last| last == "one")
    });
    running.until("it runs", |status| {
        let one = &status.services["one"];
        one.restarts == 1 && one.state == State::Running
    });
    assert_eq!(running.status().services["two"], two);
    // Nothing of the old one is left, not even a zombie.
    let processes = running.command("two", "ps -eo stat= -o comm=");
    let zombies = processes.lines().filter(|line| line.starts_with('Z'));
    assert_eq!(zombies.count(), 0, "{processes}");
    let sleeps = processes.lines().filter(|line| line.ends_with("sleep"));
    assert_eq!(sleeps.count(), 2, "{processes}");
}

#[test]
fn an_extension_that_cannot_be_used_is_named_and_others_run() {
    let node = Node::new("errors");
    node.extension(Extension::new("good").service(
        "one",
        "",
        &format!("ExecStart={}\n", tell("one")),
    ));
    let unserved = "ExecStart=/bin/true\nProtectSystem=strict\n";
    node.extension(Extension::new("bad").service("two", "", unserved));
    let missing = "ExecStart=/usr/bin/no-such-program\nEnvironmentFile=/etc/none\n";
    node.extension(Extension::new("odd").service("three", "", missing));
    node.plan(&["good", "bad", "odd", "gone"]);
    let running = node.start();
    running.until("the good one runs", |_| node.told() == ["one"]);
    let status = running.until("the odd one has failed", |status| {
        status
            .services
            .get("three")
            .is_some_and(|three| three.state == State::Ended)
    });
    let errors = status.errors.join("\n");
    assert!(
        errors.contains("bad: two.service:5: ProtectSystem= is not served"),
        "{errors}"
    );
    assert!(
        errors.contains("gone is not there: /instar/trees/gone is no directory"),
        "{errors}"
    );
    assert_eq!(
        status.services["three"].error.as_deref(),
        Some("cannot read the file of variables /etc/none: No such file or directory (os error 2)")
    );
    // A plan that is not valid changes nothing.
    node.write_plan("{");
    running.signal("HUP");
    let status = running.until("the plan is refused", |status| status.errors.len() == 1);
    assert_eq!(status.services["one"].state, State::Running);
    assert!(
        status.errors[0].contains("plan.json"),
        "{:?}",
        status.errors
    );
}

#[test]
fn a_stop_ends_services_in_the_opposite_order_and_then_everything() {
    let node = Node::new("stop");
    let service = |name: &str| {
        format!(
            "ExecStart=/bin/sh -c 'trap \"echo {name} ends >> /instar/told; exit\" TERM; while :; do sleep 0.1; done'\nKillMode=process\n"
        )
    };
    let stubborn =
        "ExecStart=/bin/sh -c 'trap \"\" TERM; setsid sleep 1000 & wait'\nKillMode=mixed\n";
    let extension = Extension::new("a")
        .service("containerd", "", &service("containerd"))
        .service("kubelet", "After=containerd.service", &service("kubelet"))
        .service(
            "leaves-some",
            "",
            "ExecStart=/bin/sh -c 'setsid sleep 1000 & setsid sleep 1000 &'\nKillMode=process\n",
        )
        .service("stubborn", "After=nothing.service", stubborn);
    node.extension(extension);
    node.plan(&["a"]);
    let running = node.start();
    running.until("all run", |status| {
        let states = status
            .services
            .values()
            .filter(|one| one.state == State::Running);
        states.count() == 3
    });
    let started = std::time::Instant::now();
    let code = running.stop();
    let lasted = started.elapsed().as_secs();
    assert_eq!(code, Some(0));
    // The stubborn one is killed within the time that machined gives.
    assert!((7..=STOP_SECONDS).contains(&lasted), "{lasted} s");
    assert_eq!(node.told(), ["kubelet ends", "containerd ends"]);
}

#[test]
fn kubelet_ends_its_pods_before_anything_else_ends() {
    let node = Node::new("shutdown");
    // It stands for the program of the base, which this machine does not have: pods need two seconds.
    let teller = "#!/bin/sh\ntrap 'sleep 2; echo pods have ended >> /instar/told; exit 0' USR1\n/usr/bin/tell-ready &\n\
        while :; do sleep 0.1; done\n";
    let kubelet = format!(
        "ExecStart=/bin/sh -c 'trap \"echo kubelet ends >> /instar/told; exit 0\" TERM; {}; while :; do sleep 0.1; done'\n",
        "echo kubelet starts >> /instar/told"
    );
    node.base("usr/lib/instar/logind", teller);
    node.extension(
        Extension::new("a")
            .service("kubelet", "", &kubelet)
            .file("usr/bin/tell-ready", node::TELL_READY),
    );
    node.shutdown_seconds(20);
    node.plan(&["a"]);
    let running = node.start();
    running.until("kubelet runs", |_| node.told() == ["kubelet starts"]);
    let started = std::time::Instant::now();
    assert_eq!(running.stop(), Some(0));
    let lasted = started.elapsed().as_secs();
    assert!((2..20).contains(&lasted), "{lasted} s");
    let told = ["kubelet starts", "pods have ended", "kubelet ends"];
    assert_eq!(node.told(), told);
}

#[test]
fn it_runs_only_as_the_first_process() {
    let program = Path::new(env!("CARGO_BIN_EXE_kubernetes-init"));
    let run = std::process::Command::new(program).output().unwrap();
    assert!(!run.status.success());
    let said = String::from_utf8(run.stdout).unwrap();
    assert!(said.contains("first process of a container"), "{said}");
}
