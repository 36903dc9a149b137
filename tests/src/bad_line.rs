//! A bad line between a machine's card and its network: frames are late, lost, or doubled.
//!
//! QEMU hands each direction's frames over and takes them back (`filter-redirector`, its manual), so the machine's own
//! network stack is under test.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use instar_qemu::Qmp;
use serde_json::json;

use crate::scratch::Scratch;

/// QEMU's name for the card's network.
const NETWORK: &str = "net0";
/// QEMU's names for the queues of the two directions: from the machine, and to it.
const DIRECTIONS: [&str; 2] = ["rx", "tx"];
/// Limit on the frames on the line; more are lost, as in any router.
const QUEUE: usize = 4096;
const LONGEST_FRAME: u32 = 128 << 10;
/// Interval in which a waiting frame checks whether the line is good again.
const TICK: Duration = Duration::from_millis(50);

/// The defect of the line, in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Impairment {
    /// Each frame is late by this much.
    Delay(Duration),
    /// This percentage of frames gets lost.
    Loss(u8),
    /// This percentage of frames comes twice.
    Duplication(u8),
}

impl fmt::Display for Impairment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Impairment::Delay(time) => write!(f, "frames come {time:?} late"),
            Impairment::Loss(percent) => write!(f, "{percent} % of the frames get lost"),
            Impairment::Duplication(percent) => write!(f, "{percent} % of the frames come twice"),
        }
    }
}

/// A line that is bad until [`BadLine::mend`].
#[derive(Debug)]
pub struct BadLine {
    is_mended: Arc<AtomicBool>,
}

impl BadLine {
    /// Puts the bad line between the machine's first card and its network.
    pub fn begin(qmp: &mut Qmp, scratch: &Scratch, impairment: Impairment) -> Result<Self> {
        let is_mended = Arc::new(AtomicBool::new(false));
        for direction in DIRECTIONS {
            let (frames, waiting) = sync_channel(QUEUE);
            let from_qemu = connect(qmp, scratch, &format!("{direction}-out"))?;
            let to_qemu = connect(qmp, scratch, &format!("{direction}-in"))?;
            std::thread::Builder::new().spawn(move || take(from_qemu, &frames, impairment))?;
            let ends = is_mended.clone();
            std::thread::Builder::new().spawn(move || give_back(to_qemu, &waiting, &ends))?;
            let filter = json!({
                "qom-type": "filter-redirector",
                "id": format!("bad-{direction}"),
                "netdev": NETWORK,
                "queue": direction,
                "outdev": format!("{direction}-out"),
                "indev": format!("{direction}-in"),
            });
            qmp.execute("object-add", filter)
                .context("put a bad line before the card")?;
        }
        Ok(Self { is_mended })
    }

    /// Makes the line good again. Frames on the line are lost.
    pub fn mend(self, qmp: &mut Qmp) -> Result<()> {
        self.is_mended.store(true, Ordering::Relaxed);
        for direction in DIRECTIONS {
            qmp.execute("object-del", json!({"id": format!("bad-{direction}")}))?;
            for end in ["out", "in"] {
                let socket = format!("{direction}-{end}");
                qmp.execute("chardev-remove", json!({ "id": socket }))?;
            }
        }
        Ok(())
    }
}

/// Makes QEMU's socket of this name; returns its other end.
fn connect(qmp: &mut Qmp, scratch: &Scratch, name: &str) -> Result<UnixStream> {
    let path = scratch.join(&format!("{name}.sock"));
    // A leftover of an earlier bad line of this machine, if there was one.
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).context("listen for QEMU's frames")?;
    let address = json!({"type": "unix", "data": {"path": path}});
    let backend = json!({"type": "socket", "data": {"addr": address, "server": false}});
    qmp.execute("chardev-add", json!({"id": name, "backend": backend}))?;
    Ok(listener.accept()?.0)
}

/// A frame, and the time at which it arrives.
type Waiting = (Instant, Vec<u8>);

/// Takes frames until QEMU closes its socket at the end of the bad line.
fn take(mut from_qemu: UnixStream, frames: &SyncSender<Waiting>, impairment: Impairment) {
    while let Ok(frame) = read_frame(&mut from_qemu) {
        let (delay, copies) = match impairment {
            Impairment::Delay(delay) => (delay, 1),
            Impairment::Loss(percent) => (Duration::ZERO, usize::from(!happens(percent))),
            Impairment::Duplication(percent) => (Duration::ZERO, 1 + usize::from(happens(percent))),
        };
        for _ in 0..copies {
            // A frame that does not fit the queue is lost.
            let _ = frames.try_send((Instant::now() + delay, frame.clone()));
        }
    }
}

/// Gives each frame back when its time has come.
fn give_back(mut to_qemu: UnixStream, waiting: &Receiver<Waiting>, is_mended: &AtomicBool) {
    while let Ok((when, frame)) = waiting.recv() {
        while Instant::now() < when && !is_mended.load(Ordering::Relaxed) {
            std::thread::sleep(TICK.min(when.saturating_duration_since(Instant::now())));
        }
        if is_mended.load(Ordering::Relaxed) || write_frame(&mut to_qemu, &frame).is_err() {
            return;
        }
    }
}

/// Reads one frame: its length, and its bytes (QEMU's `net/filter-mirror.c`).
fn read_frame(from: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length);
    if length > LONGEST_FRAME {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut frame = vec![0; length as usize];
    from.read_exact(&mut frame)?;
    Ok(frame)
}

fn write_frame(to: &mut UnixStream, frame: &[u8]) -> io::Result<()> {
    let length = u32::try_from(frame.len()).map_err(io::Error::other)?;
    to.write_all(&[&length.to_be_bytes(), frame].concat())
}

fn happens(percent: u8) -> bool {
    fastrand::u8(..100) < percent
}
