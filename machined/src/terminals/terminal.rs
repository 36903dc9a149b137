//! A terminal while a question is asked on it: keys come one by one and are not shown. Everything is as before when it is dropped.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::io::{Errno, read, write};
use rustix::termios::{
    LocalModes, OptionalActions, QueueSelector, Termios, tcflush, tcgetattr, tcsetattr,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::screen;
use crate::sys::{readiness, virtual_terminal};

/// Number of the virtual terminal for questions. The kernel's messages have the first, and the dashboard has the second.
const QUESTIONS: u8 = 3;
/// Clears the screen and begins at its top.
const CLEAR: &[u8] = b"\x1b[2J\x1b[H";

/// A terminal with a question.
pub struct Terminal {
    device: AsyncFd<OwnedFd>,
    before: Termios,
    /// The screen, and the terminal that it showed.
    screen: Option<(File, u8)>,
}

impl Terminal {
    /// Brings a terminal of its own to the front of the machine's screen. None if there is no screen.
    ///
    /// # Errors
    /// The terminal cannot be opened, or not be shown.
    pub fn on_screen() -> anyhow::Result<Option<Self>> {
        if !screen::exists()? {
            return Ok(None);
        }
        let shown = screen::shown().unwrap_or(1);
        let mut terminal = Terminal::open(&format!("tty{QUESTIONS}"))?;
        let console = File::open("/dev/tty0")?;
        virtual_terminal::show(&console, QUESTIONS)?;
        terminal.screen = Some((console, shown));
        terminal.write(CLEAR)?;
        Ok(Some(terminal))
    }

    /// Opens the serial consoles of the kernel's command line. One that cannot be opened is left out.
    pub fn serial() -> Vec<Self> {
        let active = std::fs::read_to_string("/sys/class/tty/console/active").unwrap_or_default();
        let names = serial_consoles(&active);
        names
            .iter()
            .filter_map(|name| Terminal::open(name).ok())
            .collect()
    }

    fn open(name: &str) -> io::Result<Self> {
        let flags = libc::O_NOCTTY | libc::O_NONBLOCK;
        let path = Path::new("/dev").join(name);
        let mut options = File::options();
        let device = options
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(path)?;
        let before = tcgetattr(&device)?;
        let mut now = before.clone();
        now.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        tcsetattr(&device, OptionalActions::Now, &now)?;
        // Keys from before the question are no answer.
        tcflush(&device, QueueSelector::IFlush)?;
        Ok(Terminal {
            device: readiness::watch(device.into(), Interest::READABLE)?,
            before,
            screen: None,
        })
    }

    /// Writes text. A terminal that takes no more loses the rest: it is not waited for.
    ///
    /// # Errors
    /// The terminal failed.
    pub fn write(&self, mut text: &[u8]) -> io::Result<()> {
        while !text.is_empty() {
            match write(self.device.get_ref(), text) {
                Ok(count) => text = text.get(count..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Waits for the next key.
    ///
    /// # Errors
    /// The terminal failed.
    pub async fn key(&self) -> io::Result<u8> {
        loop {
            let mut ready = self.device.readable().await?;
            let mut key = [0];
            match read(self.device.get_ref(), &mut key) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => return Ok(key[0]),
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A terminal that failed is left as it is.
        let _ = tcflush(self.device.get_ref(), QueueSelector::IFlush);
        let _ = tcsetattr(self.device.get_ref(), OptionalActions::Now, &self.before);
        // The person may have chosen another one meanwhile.
        if let Some((console, before)) = &self.screen
            && screen::shown() == Some(QUESTIONS)
        {
            // The screen was there a minute ago; without it nobody sees the rest.
            let _ = self.write(CLEAR);
            let _ = virtual_terminal::show(console, *before);
        }
    }
}

/// The names of the consoles that are no virtual terminals.
fn serial_consoles(active: &str) -> Vec<String> {
    let is_virtual = |name: &str| {
        let number = name.strip_prefix("tty").unwrap_or("x");
        number.bytes().all(|byte| byte.is_ascii_digit())
    };
    let names = active.split_ascii_whitespace();
    names
        .filter(|name| !is_virtual(name))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_terminals_are_no_serial_consoles() {
        assert_eq!(serial_consoles("tty0 ttyS0 hvc0\n"), ["ttyS0", "hvc0"]);
        assert!(serial_consoles("tty1").is_empty());
    }
}
