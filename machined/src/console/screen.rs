//! The machine's screen: whether the dashboard or the kernel's messages have it.

use std::fs::File;
use std::os::fd::OwnedFd;

use anyhow::Context as _;

use crate::sys::virtual_terminal;

/// Number of the terminal with the kernel's messages.
const MESSAGES: u8 = 1;
/// Number of the dashboard's terminal.
const DASHBOARD: u8 = 2;

/// Returns whether the kernel's command line leaves the screen to the messages.
pub(super) fn is_switched_off(command_line: &str) -> bool {
    let said = command_line
        .split_ascii_whitespace()
        .take_while(|word| *word != "--")
        .filter_map(|word| word.strip_prefix("instar.dashboard="));
    said.last() == Some("off")
}

/// The screen while the dashboard has it.
#[derive(Debug)]
pub(super) struct Screen {
    console: File,
}

impl Screen {
    /// Opens the dashboard's terminal and brings it to the front. The kernel's messages stay on their terminal.
    pub(super) fn take() -> anyhow::Result<(Self, OwnedFd)> {
        let terminal = open(&format!("/dev/tty{DASHBOARD}"))?;
        let console = open("/dev/tty0")?;
        virtual_terminal::send_kernel_messages_to(&console, MESSAGES)
            .context("keep the kernel's messages on their terminal")?;
        virtual_terminal::show(&console, DASHBOARD).context("show the dashboard's terminal")?;
        Ok((Screen { console }, terminal.into()))
    }

    /// Brings the kernel's messages to the front again.
    pub(super) fn give_back(&self) -> anyhow::Result<()> {
        virtual_terminal::show(&self.console, MESSAGES).context("show the messages' terminal")
    }
}

fn open(path: &str) -> anyhow::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOCTTY)
        .open(path)
        .with_context(|| format!("open {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_on_the_command_line_counts() {
        for (line, off) in [
            ("console=ttyS0", false),
            ("instar.dashboard=off quiet", true),
            ("instar.dashboard=off instar.dashboard=on", false),
            ("quiet -- instar.dashboard=off", false),
        ] {
            assert_eq!(is_switched_off(line), off, "{line}");
        }
    }
}
