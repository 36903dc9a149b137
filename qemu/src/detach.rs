//! A machine that goes on after the command that started it: its owner is a copy of this program in the background.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use instar_qemu::control;

/// Timeout for the machine's answer on its control socket.
const PATIENCE: Duration = Duration::from_secs(90);

/// Runs this very command line again as `run --detached` and returns when its machine answers.
pub(crate) fn start(directory: &Path) -> Result<()> {
    if control::is_running(directory) {
        bail!(
            "a machine already runs in {}: stop it first",
            directory.display()
        );
    }
    std::fs::create_dir_all(directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let log_path = directory.join("owner.log");
    let log =
        File::create(&log_path).with_context(|| format!("cannot make {}", log_path.display()))?;
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut owner = Command::new(program)
        .arg("run")
        .args(std::env::args_os().skip(2))
        .arg("--detached")
        // Held open, this output would keep its reader waiting until the machine's end.
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .context("cannot start the machine's owner")?;
    let until = Instant::now() + PATIENCE;
    while control::command(directory, "query-status").is_err() {
        if owner
            .try_wait()
            .context("cannot watch the machine's owner")?
            .is_some()
        {
            let said = std::fs::read_to_string(&log_path).unwrap_or_default();
            bail!("the machine did not start\n{}", said.trim_end());
        }
        if Instant::now() >= until {
            bail!(
                "the machine does not answer within {} s, see {}",
                PATIENCE.as_secs(),
                directory.display()
            );
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Takes this process out of reach of Ctrl-C and of the terminal's end.
pub(crate) fn leave_terminal() -> Result<()> {
    rustix::process::setsid().context("cannot leave the terminal's session")?;
    Ok(())
}
