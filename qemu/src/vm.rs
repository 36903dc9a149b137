//! A running machine.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use instar_base::lock::Lock as _;
use serde_json::json;

use crate::console::{Console, ConsoleLine, ConsoleMark, is_panic};
use crate::directory::{CONSOLE_SOCKET, Directory};
use crate::error::{Ended, Error, Evidence, Result};
use crate::fault::{self, WriteFault};
use crate::guest_clock;
use crate::launch::{Launched, launch};
use crate::ports::PortLease;
use crate::process::OwnedProcess;
use crate::qmp::{Qmp, QmpError};
use crate::spec::{Forward, OnPanic, VmSpec};

/// Interval between two reads of the console: far below what a person notices, and cheap.
const POLL: Duration = Duration::from_millis(20);
/// Timeout for QEMU's end after `quit`.
const QUIT_PATIENCE: Duration = Duration::from_secs(30);

/// A running machine. Dropping it kills the machine; its directory stays unless [`Vm::discard`] removes it.
#[derive(Debug)]
pub struct Vm {
    // Fields are dropped in this order: the process ends before its ports and its directory are free again.
    owner: OwnedProcess,
    qmp: Mutex<Qmp>,
    ports: Vec<Forward>,
    leases: Vec<PortLease>,
    console: Console,
    directory: Directory,
    on_panic: OnPanic,
}

impl Vm {
    /// Starts a machine in a directory of its own, which is made. The console of a machine that ended there before is
    /// kept as `console.N.log`.
    pub fn start(spec: &VmSpec, directory: &Path) -> Result<Self> {
        let directory = Directory::claim(directory)?;
        let Launched {
            owner,
            qmp,
            ports,
            leases,
        } = launch(spec, &directory)?;
        Ok(Self {
            owner,
            qmp: Mutex::new(qmp),
            ports,
            leases,
            console: directory.console(),
            directory,
            on_panic: spec.on_panic,
        })
    }

    /// Cuts the power and starts a machine of this plan in the same directory. The host's ports are the same, and stay
    /// taken meanwhile, so that clients of the machine can go on.
    pub fn power_cycle(self, spec: &VmSpec) -> Result<Self> {
        self.cut_power();
        let Self {
            ports,
            leases,
            directory,
            ..
        } = self;
        let path = directory.path().to_owned();
        drop(directory);
        let mut spec = spec.clone();
        spec.forwards = ports;
        let again = Self::start(&spec, &path)?;
        Ok(Self { leases, ..again })
    }

    /// The machine's directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// QEMU's process number.
    pub fn pid(&self) -> u32 {
        self.owner.pid()
    }

    /// The port on the host's 127.0.0.1 that leads to a port of the guest.
    pub fn host_port(&self, guest: u16) -> Result<u16> {
        let forward = self.ports.iter().find(|forward| forward.guest == guest);
        forward
            .and_then(|forward| forward.host)
            .ok_or(Error::NotForwarded(guest))
    }

    /// Returns the console's text so far.
    pub fn console(&self) -> String {
        self.console.text().unwrap_or_default()
    }

    /// Types at the serial port of a machine that [`takes keys`](VmSpec::console_takes_keys) there.
    ///
    /// # Errors
    /// The machine takes none, or somebody else is typing.
    pub fn type_at_console(&self, keys: &str) -> Result<()> {
        let socket = self.directory.socket(CONSOLE_SOCKET);
        UnixStream::connect(socket)
            .and_then(|mut stream| stream.write_all(keys.as_bytes()))
            .map_err(Error::directory(
                "type at the console in",
                self.directory.path(),
            ))
    }

    /// Marks the console's present end, for a wait on later lines.
    pub fn console_mark(&self) -> Result<ConsoleMark> {
        self.console.mark().map_err(Error::directory(
            "read the console in",
            self.directory.path(),
        ))
    }

    /// Returns the last lines of the console and of QEMU's own output.
    pub fn evidence(&self) -> Evidence {
        self.directory.evidence()
    }

    /// Waits for a line of the console that contains the text; earlier lines count as well.
    pub fn wait_for_line(&self, text: &str, within: Duration) -> Result<ConsoleLine> {
        self.wait_for_line_after(ConsoleMark::default(), text, within)
    }

    /// Waits for a line after the mark that contains the text.
    ///
    /// # Errors
    /// The timeout expired, or the line cannot come any more: the machine ended, or its kernel panicked
    /// without a plan for that.
    pub fn wait_for_line_after(
        &self,
        mut mark: ConsoleMark,
        text: &str,
        within: Duration,
    ) -> Result<ConsoleLine> {
        let until = Instant::now() + within;
        let wanted = || format!("console line with {text:?}");
        loop {
            // Checked before the console is read, so that the machine's last output is not missed.
            let ended = self.owner.ended();
            let late = Instant::now() >= until;
            let read = self.console.lines_after(mark);
            for line in read.map_err(Error::directory(
                "read the console in",
                self.directory.path(),
            ))? {
                if line.text.contains(text) {
                    return Ok(line);
                }
                if self.on_panic == OnPanic::Fail && is_panic(&line) {
                    return Err(Error::Panicked {
                        wanted: wanted(),
                        line: line.text,
                        evidence: self.evidence(),
                    });
                }
                mark = line.end;
            }
            if let Some(ended) = ended {
                return Err(Error::EndedEarly {
                    ended,
                    wanted: wanted(),
                    evidence: self.evidence(),
                });
            }
            if late {
                return Err(Error::TooLate {
                    wanted: wanted(),
                    within,
                    evidence: self.evidence(),
                });
            }
            std::thread::sleep(POLL);
        }
    }

    /// Returns how the machine ended, if it has.
    pub fn ended(&self) -> Option<Ended> {
        self.owner.ended()
    }

    /// Waits until the machine ends by itself.
    pub fn wait_for_end(&self, within: Duration) -> Result<Ended> {
        self.owner.wait(within).ok_or_else(|| Error::TooLate {
            wanted: "end of the machine".to_owned(),
            within,
            evidence: self.evidence(),
        })
    }

    /// Cuts the power: kills the process at once. Writes that the guest did not flush may be lost, except that the
    /// host's page cache survives.
    pub fn cut_power(&self) -> Ended {
        self.owner.kill()
    }

    /// Ends QEMU in order, with disks flushed; the guest does not notice.
    pub fn quit(&self) -> Result<Ended> {
        match self.qmp().execute("quit", json!({})) {
            // QEMU may close the socket before it answers.
            Ok(_) | Err(QmpError::Closed) => {}
            Err(source) => return Err(self.qmp_failed(source)),
        }
        self.wait_for_end(QUIT_PATIENCE)
    }

    /// Presses the reset button.
    pub fn reset(&self) -> Result<()> {
        self.command("system_reset")
    }

    /// Presses the power button, which asks the guest to shut down.
    pub fn press_power_button(&self) -> Result<()> {
        self.command("system_powerdown")
    }

    /// Halts the guest between two instructions.
    pub fn pause(&self) -> Result<()> {
        self.command("stop")
    }

    /// Resumes a paused guest.
    pub fn resume(&self) -> Result<()> {
        self.command("cont")
    }

    /// Fails a write to a disk that was made [`crate::Drive::breakable`]. `drive` is the disk's index in the plan, from
    /// 0. The fault replaces an earlier one.
    pub fn fail_write(&self, drive: usize, what: &WriteFault) -> Result<()> {
        fault::set(&mut self.qmp(), drive, what).map_err(|source| self.qmp_failed(source))
    }

    fn command(&self, name: &str) -> Result<()> {
        self.qmp()
            .execute(name, json!({}))
            .map(drop)
            .map_err(|source| self.qmp_failed(source))
    }

    /// Returns the guest's own time since QEMU started, in steps of a microsecond: see [`crate::Timing`] for its unit.
    /// Reading it takes the guest no time.
    ///
    /// The clock wraps every 4.7 s until the guest's kernel has enabled its HPET. After a reset of a machine older than
    /// that only differences are meaningful.
    pub fn guest_clock(&self) -> Result<Duration> {
        guest_clock::read(&mut self.qmp()).map_err(|source| self.qmp_failed(source))
    }

    /// Returns the control connection, for commands without a method here.
    pub fn qmp(&self) -> MutexGuard<'_, Qmp> {
        // Each call leaves the connection consistent, even if the caller panics.
        self.qmp.locked()
    }

    fn qmp_failed(&self, source: QmpError) -> Error {
        Error::Qmp {
            evidence: self.evidence(),
            source,
        }
    }

    /// Ends the machine at once and removes its directory, unless `INSTAR_KEEP` is set.
    pub fn discard(self) -> Result<()> {
        self.owner.kill();
        let Self {
            owner,
            qmp,
            directory,
            ..
        } = self;
        drop((owner, qmp));
        directory.remove()
    }
}
