//! The machine's screen: whether there is one, and whether the dashboard or the kernel's messages have it.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

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

/// Returns whether a screen shows the virtual terminals.
pub(super) fn exists() -> anyhow::Result<bool> {
    let class = Path::new("/sys/class/vtconsole");
    if !class.exists() {
        return Ok(false);
    }
    let listed = class
        .read_dir()
        .with_context(|| format!("list {}", class.display()))?;
    for console in listed {
        let console = console?.path();
        let read = |name: &str| {
            let path = console.join(name);
            std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
        };
        if is_screen(&read("name")?, &read("bind")?) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether a console driver shows a screen, by its name and whether terminals are bound to it (`show_name` and
/// `show_bind` of drivers/tty/vt/vt.c in the kernel's source).
///
/// `VGA+` is the text mode of a graphics card, as drivers/video/console/vgacon.c calls it. Without a card the same driver reports a
/// `*CGA`, which no machine of this architecture has had, and other kernels have a `dummy device`.
fn is_screen(name: &str, bind: &str) -> bool {
    bind.trim() == "1" && (name.contains("VGA+") || name.contains("frame buffer"))
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

    #[test]
    fn a_screen_is_text_of_a_card_or_a_framebuffer() {
        assert!(is_screen("(S) VGA+\n", "1\n"));
        assert!(is_screen("(M) frame buffer device\n", "1\n"));
        assert!(!is_screen("(M) frame buffer device\n", "0\n"));
        assert!(!is_screen("(S) dummy device\n", "1\n"));
        assert!(!is_screen("(S) *CGA\n", "1\n"));
    }
}
