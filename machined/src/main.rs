//! machined, apid and the dashboard on the console: one program, told apart by the name that it is started under, so that they
//! share their pages.

use std::process::ExitCode;

use machined::values::system_process;
use machined::{apid, console, daemon};

fn main() -> ExitCode {
    // It only makes the start cheaper, so a failure does not matter.
    let _ = machined::sys::text::read_singly();
    let name = std::env::args_os().next().unwrap_or_default();
    let outcome = match std::path::Path::new(&name)
        .file_name()
        .and_then(|name| name.to_str())
    {
        Some(system_process::APID) => apid::run(),
        Some(system_process::DASHBOARD) => console::run(),
        _ => daemon::run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error:#}", name.to_string_lossy());
            ExitCode::FAILURE
        }
    }
}
