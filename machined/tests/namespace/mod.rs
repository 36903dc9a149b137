//! Runs a test's body in namespaces of its own, so that it changes nothing on this machine.

use std::{env, process::Command};

const MARK: &str = "INSTAR_TEST_IN_NAMESPACE";

/// Runs `body` in this process if the process is in new namespaces already; else starts this very test again in new ones.
///
/// An ordinary user needs sudo without a password for it; else the test fails and says so.
pub(crate) fn isolated(test: &str, namespaces: &[&str], body: impl FnOnce()) {
    if env::var_os(MARK).is_some() {
        return body();
    }
    let is_root = rustix::process::geteuid().is_root();
    let as_root: &[&str] = if is_root { &[] } else { &["sudo", "-n"] };
    let marked = format!("{MARK}=1");
    let mut command = as_root.iter().copied().chain(["env", &marked, "unshare"]);
    let program = command.next().expect("a program");
    let run = Command::new(program)
        .args(command)
        .args(namespaces)
        .arg("--")
        .arg(env::current_exe().expect("the path of this test"))
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .output()
        .unwrap_or_else(|error| {
            panic!("{program} does not start: {error}; unshare (package util-linux) and, for ordinary users, sudo are needed")
        });
    let (out, err) = (
        String::from_utf8_lossy(&run.stdout),
        String::from_utf8_lossy(&run.stderr),
    );
    assert!(
        run.status.success(),
        "{test} failed ({}); it runs as root, by sudo without a password where need be\n{out}\n{err}",
        run.status
    );
    assert!(out.contains("1 passed"), "{test} did not run: {out}");
}

/// Runs a program and returns its output. If the program fails, the test fails.
#[allow(dead_code, reason = "not every file of tests runs programs")]
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let done = Command::new(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{program} does not start: {error}"));
    let err = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{program} {arguments:?}: {err}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// Runs a future on a runtime like machined's.
#[allow(dead_code, reason = "not every file of tests needs one")]
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(future)
}
