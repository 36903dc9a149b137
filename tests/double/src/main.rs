//! Stands in for machined in tests of init, and misbehaves on order: it runs the script `/script` of its squashfs.
//!
//! A line is a command and its arguments. `@WORD command` runs only when init gave WORD as the reason of this start,
//! `<N command` only in a generation before the N-th. What the tests look for is printed as `double: …`.

mod link;
mod orders;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.first().map(String::as_str) {
        None => orders::run("/script"),
        Some("parent") => orders::leave_orphan(),
        Some("orphan") => orders::be_orphan(),
        Some(_) => orders::be_sleeper(),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            println!("double: failed: {error:#}");
            ExitCode::from(99)
        }
    }
}
