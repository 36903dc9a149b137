//! A program on a terminal of its own: a pseudo-terminal with an emulator behind it, which knows the screen that a
//! person would see.

use std::io::{Read as _, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result, anyhow};
use instar_base::lock::Lock as _;
use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};

/// The running program and its terminal. Dropping it ends the program.
pub struct Terminal {
    child: Owned,
    /// `None` after the reader's end.
    reader: Option<JoinHandle<()>>,
    /// Makes the next read the last one: the reader ends, and releases the terminal.
    last: Arc<AtomicBool>,
    master: Box<dyn MasterPty + Send>,
    keys: Box<dyn std::io::Write + Send>,
    shown: Arc<Mutex<Shown>>,
    settings: String,
}

/// The program's output.
struct Shown {
    emulator: vt100::Parser,
    bytes: u64,
}

impl std::fmt::Debug for Terminal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Terminal")
            .field("child", &self.child.0)
            .field("screen", &self.screen())
            .finish_non_exhaustive()
    }
}

impl Terminal {
    /// Starts a program on a terminal of this size, with only these environment variables. A terminal of size (0, 0),
    /// as a serial line reports it, is emulated as one of 80 x 24.
    pub(crate) fn start(
        words: &[std::ffi::OsString],
        variables: &[(&str, &str)],
        columns: u16,
        rows: u16,
    ) -> Result<Self> {
        let size = PtySize {
            rows,
            cols: columns,
            pixel_width: 0,
            pixel_height: 0,
        };
        let pair = native_pty_system().openpty(size)?;
        let settings = format!("{:?}", pair.master.get_termios());
        let mut command = CommandBuilder::from_argv(words.to_vec());
        command.env_clear();
        for (name, value) in variables {
            command.env(name, value);
        }
        let child = Owned(pair.slave.spawn_command(command)?);
        let mut output = pair.master.try_clone_reader()?;
        let keys = pair.master.take_writer()?;
        let (seen_columns, seen_rows) = match (columns, rows) {
            (0, 0) => (80, 24),
            known => known,
        };
        let shown = Arc::new(Mutex::new(Shown {
            emulator: vt100::Parser::new(seen_rows, seen_columns, 0),
            bytes: 0,
        }));
        let copy = Arc::clone(&shown);
        let last = Arc::new(AtomicBool::new(false));
        let is_last = Arc::clone(&last);
        let reader = std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut chunk) {
                let mut shown = copy.locked();
                shown.emulator.process(&chunk[..length]);
                shown.bytes += length as u64;
                if is_last.load(Ordering::SeqCst) {
                    return;
                }
            }
        });
        Ok(Self {
            child,
            reader: Some(reader),
            last,
            master: pair.master,
            keys,
            shown,
            settings,
        })
    }

    fn with<T>(&self, look: impl FnOnce(&Shown) -> T) -> T {
        look(&self.shown.locked())
    }

    /// Returns the screen, line by line.
    pub fn screen(&self) -> String {
        self.with(|shown| shown.emulator.screen().contents())
    }

    /// Fails with the whole screen unless this text is on it.
    pub fn shows(&self, text: &str) -> Result<()> {
        let screen = self.screen();
        anyhow::ensure!(
            screen.contains(text),
            "no {text:?} on the screen:\n{screen}"
        );
        Ok(())
    }

    /// Number of bytes that the program has written so far.
    pub fn bytes(&self) -> u64 {
        self.with(|shown| shown.bytes)
    }

    /// Types these keys.
    pub fn press(&mut self, keys: &str) -> Result<()> {
        self.keys.write_all(keys.as_bytes())?;
        Ok(self.keys.flush()?)
    }

    /// Changes the terminal's size; a signal tells the program.
    pub fn resize(&self, columns: u16, rows: u16) -> Result<()> {
        let mut shown = self.shown.locked();
        shown.emulator.screen_mut().set_size(rows, columns);
        self.master.resize(PtySize {
            rows,
            cols: columns,
            pixel_width: 0,
            pixel_height: 0,
        })
    }

    /// Takes the terminal away and leaves the program alone. The program has to draw when its size changes, to end the
    /// reader.
    pub fn hang_up(self) -> Result<WithoutTerminal> {
        self.last.store(true, Ordering::SeqCst);
        self.resize(100, 30)?;
        wait_for(self.reader)?;
        // Closing the last descriptors of our side hangs the terminal up.
        drop((self.master, self.keys));
        Ok(WithoutTerminal { child: self.child })
    }

    /// The program's process.
    pub fn pid(&self) -> Result<u32> {
        self.child.0.process_id().context("it has no process id")
    }

    /// Returns the program's exit status; fails while it still runs.
    pub fn ended(&mut self) -> Result<u32> {
        let status = self.child.0.try_wait()?;
        let status = status.ok_or_else(|| anyhow!("it still runs:\n{}", self.screen()))?;
        // No other process has the terminal open, so the reader ends after the last output.
        wait_for(self.reader.take())?;
        Ok(status.exit_code())
    }

    /// Checks that the terminal is as before the program: its settings, its first screen, a cursor.
    pub fn is_restored(&self) -> Result<()> {
        let settings = format!("{:?}", self.master.get_termios());
        anyhow::ensure!(
            settings == self.settings,
            "other settings: {settings} instead of {}",
            self.settings
        );
        let (other_screen, no_cursor) = self.with(|shown| {
            let screen = shown.emulator.screen();
            (screen.alternate_screen(), screen.hide_cursor())
        });
        anyhow::ensure!(!other_screen, "it is still on the second screen");
        anyhow::ensure!(!no_cursor, "there is no cursor");
        Ok(())
    }
}

fn wait_for(reader: Option<JoinHandle<()>>) -> Result<()> {
    match reader.map(JoinHandle::join) {
        Some(Err(_)) => Err(anyhow!("the terminal's reader failed")),
        Some(Ok(())) | None => Ok(()),
    }
}

/// A program whose terminal has gone.
#[derive(Debug)]
pub struct WithoutTerminal {
    child: Owned,
}

impl WithoutTerminal {
    /// Fails while the program still runs.
    pub fn ended(&mut self) -> Result<()> {
        let status = self.child.0.try_wait()?;
        status.map(drop).context("it still runs")
    }
}

/// A program that is killed when this value is dropped.
#[derive(Debug)]
struct Owned(Box<dyn Child + Send + Sync>);

impl Drop for Owned {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
