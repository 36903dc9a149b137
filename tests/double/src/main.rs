//! Stands in for machined in tests of init, and misbehaves on order: it runs the script `/script` of its squashfs.
//!
//! A line is a command and its arguments. `@WORD command` runs only when init gave WORD as the reason of this start,
//! `=N command` only in the N-th generation. What the tests look for is in the kernel log as `double: …`.
//!
//! The decision: a program with a script. A machined that misbehaves on order was the other choice: the orders would be part of the product, and
//! machined does more beside them than a test of init can tell apart.
//!
//! Under the name `crun` it is no machined: it makes the whole machine hang.

mod freeze;
mod link;
mod orders;
mod report;
mod saboteur;
mod workload;

use report::report;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args();
    let is_crun = arguments.next().is_some_and(|name| name.ends_with("crun"));
    let arguments: Vec<String> = arguments.collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        _ if is_crun => freeze::everything(),
        [] => orders::run("/script"),
        ["workload"] => workload::be(false),
        ["stuck-workload"] => workload::be(true),
        ["parent", milliseconds] => orders::leave_orphan(milliseconds),
        ["saboteur", port] => saboteur::serve(port),
        ["orphan", milliseconds] => orders::be_orphan(milliseconds),
        _ => orders::be_sleeper(),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            report!("failed: {error:#}");
            ExitCode::from(99)
        }
    }
}
