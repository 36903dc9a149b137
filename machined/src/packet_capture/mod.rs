//! Captures the packets of a link as a pcap file that grows.
//!
//! The kernel keeps unread packets in a buffer of limited size and drops the rest: a slow reader costs packets and nothing else. Packets
//! that were read are collected into larger messages, for a short time only.

mod batch;
mod filter;
mod link;
mod pcap_file;
mod vlan_tag;

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::Path;

use instar_api::machine::PacketCaptureRequest;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use crate::sys::packet_socket::{self, Received};
use crate::sys::readiness;

use batch::Batch;
pub use filter::FilterError;
use link::{Kind, Link};

/// Limit on simultaneous captures: each may hold some megabytes.
const CAPTURES: usize = 4;
static PLACES: Semaphore = Semaphore::const_new(CAPTURES);

/// Bytes that are kept of a packet if the caller names no number.
const USUAL_SNAP_LEN: u32 = 65_535;
/// Limit on the bytes that are kept of a packet, as in libpcap (MAXIMUM_SNAPLEN): other programs take a file with a higher number
/// for broken.
const LARGEST_SNAP_LEN: u32 = 262_144;

/// Why a capture could not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// No link has this name.
    #[error("there is no link {name:?}; the links are {}", .known.join(", "))]
    UnknownLink {
        /// The name.
        name: String,
        /// The names of all links.
        known: Vec<String>,
    },
    /// The link's type has no format in pcap files.
    #[error(
        "link {name} is of the hardware type {hardware} (linux/if_arp.h); captures are of Ethernet, loopback and links without a \
         link layer"
    )]
    UnservedLink {
        /// Its name.
        name: String,
        /// Its hardware type.
        hardware: u16,
    },
    /// The link is down.
    #[error("link {0} is down; capture again when it is up")]
    Down(String),
    /// The caller asked for more bytes of a packet than pcap files allow.
    #[error("snap_len is {0}; it may be up to {LARGEST_SNAP_LEN}")]
    SnapLen(u32),
    /// The filter is invalid.
    #[error("the BPF filter cannot be used")]
    Filter(#[from] FilterError),
    /// Too many captures are running.
    #[error("{CAPTURES} captures are under way, as many as may be at a time; end one of them")]
    TooMany,
    /// The kernel refused a step.
    #[error("cannot {doing} for a capture on {link}")]
    Kernel {
        /// The step.
        doing: &'static str,
        /// The link.
        link: String,
        /// The kernel's error.
        source: io::Error,
    },
}

/// A running capture, which ends when this value is dropped.
#[derive(Debug)]
pub struct Capture {
    link: Link,
    socket: AsyncFd<OwnedFd>,
    /// Buffer for one packet, as large as the kept part of it.
    buffer: Box<[u8]>,
    batch: Batch,
    /// Dropped after the socket: the next capture starts only when this one's socket is closed.
    _place: SemaphorePermit<'static>,
}

impl Capture {
    /// Starts a capture. Needs a runtime with I/O and time.
    ///
    /// # Errors
    /// See [`CaptureError`]; nothing is captured then.
    pub fn start(request: &PacketCaptureRequest) -> Result<Self, CaptureError> {
        let snap_len = snap_len(request.snap_len)?;
        let program = filter::program(&request.bpf_filter)?;
        let link = link::find(Path::new("/sys"), &request.interface)?;
        let place = PLACES.try_acquire().map_err(|_| CaptureError::TooMany)?;

        let failed = |doing| {
            let link = link.name.clone();
            move |source| CaptureError::Kernel {
                doing,
                link,
                source,
            }
        };
        let socket = packet_socket::open().map_err(failed("open a packet socket"))?;
        // All of this comes before the socket is bound to the link, so that the first packets are filtered as well.
        if !program.is_empty() {
            packet_socket::filter(&socket, &program).map_err(FilterError::Refused)?;
        }
        if link.kind == Kind::Loopback {
            packet_socket::ignore_outgoing(&socket).map_err(failed("leave out what is sent"))?;
        }
        packet_socket::bind(&socket, link.index).map_err(|error| match error.kind() {
            ErrorKind::NetworkDown => CaptureError::Down(link.name.clone()),
            _ => failed("bind a packet socket")(error),
        })?;
        if request.promiscuous {
            packet_socket::be_promiscuous(&socket, link.index)
                .map_err(failed("make the link promiscuous"))?;
        }
        // When the link goes down, the socket reports an error and nothing to read.
        let socket = readiness::watch(socket, Interest::READABLE | Interest::ERROR)
            .map_err(failed("watch a packet socket"))?;
        Ok(Self {
            batch: Batch::beginning_with(
                pcap_file::header(snap_len, link.kind.link_type()),
                Instant::now(),
            ),
            link,
            socket,
            buffer: vec![0; snap_len as usize].into_boxed_slice(),
            _place: place,
        })
    }

    /// Waits until [`Self::piece`] has bytes to send. The future may be dropped at any time: no packet is lost by it.
    ///
    /// # Errors
    /// [`CaptureError::Down`], or an unexpected error of the kernel. The capture is over then.
    pub async fn piece_is_due(&mut self) -> Result<(), CaptureError> {
        loop {
            if self.batch.is_due(Instant::now()) {
                return Ok(());
            }
            if self.take_packet()? {
                continue;
            }
            let interest = Interest::READABLE | Interest::ERROR;
            let ready = async {
                self.socket
                    .ready(interest)
                    .await
                    .map(|mut ready| ready.clear_ready())
            };
            let waited = match self.batch.due() {
                // At the timeout the batch is due.
                Some(due) => timeout_at(due, ready).await.unwrap_or(Ok(())),
                None => ready.await,
            };
            waited.map_err(|source| self.failed("wait for packets", source))?;
        }
    }

    /// Returns the next part of the file, 64 KiB at most; empty if there is none.
    pub fn piece(&mut self) -> Vec<u8> {
        self.batch.take()
    }

    /// Ends the capture. Returns the last parts of the file.
    pub fn end(mut self) -> Vec<Vec<u8>> {
        let batch = &mut self.batch;
        std::iter::from_fn(|| Some(batch.take()).filter(|piece| !piece.is_empty())).collect()
    }

    /// Adds the next packet to the batch. Returns false if there is none.
    fn take_packet(&mut self) -> Result<bool, CaptureError> {
        let received = match packet_socket::receive(self.socket.get_ref(), &mut self.buffer) {
            Ok(received) => received,
            Err(error) => {
                return match error.kind() {
                    ErrorKind::WouldBlock => Ok(false),
                    ErrorKind::NetworkDown => Err(CaptureError::Down(self.link.name.clone())),
                    _ => Err(self.failed("take a packet", error)),
                };
            }
        };
        let Received {
            length,
            original,
            at,
            tag,
        } = received;
        let packet = &self.buffer[..length];
        let batch = &mut self.batch;
        batch.add(Instant::now(), |file| match tag {
            None => pcap_file::append(file, at, original, packet),
            Some(tag) => {
                let mut tagged = vlan_tag::put_back(packet, tag);
                tagged.truncate(self.buffer.len());
                pcap_file::append(file, at, original + tag.len(), &tagged);
            }
        });
        Ok(true)
    }

    fn failed(&self, doing: &'static str, source: io::Error) -> CaptureError {
        CaptureError::Kernel {
            doing,
            link: self.link.name.clone(),
            source,
        }
    }
}

impl Drop for Capture {
    /// Logs the number of lost packets, for which the file format has no place.
    fn drop(&mut self) {
        let counts = packet_socket::counts(self.socket.get_ref()).unwrap_or_default();
        tracing::info!(
            "packet capture on {} ended: {} packets came, {} of them were lost because they were not taken in time",
            self.link.name,
            counts.packets,
            counts.dropped,
        );
    }
}

fn snap_len(asked: u32) -> Result<u32, CaptureError> {
    match asked {
        0 => Ok(USUAL_SNAP_LEN),
        1..=LARGEST_SNAP_LEN => Ok(asked),
        _ => Err(CaptureError::SnapLen(asked)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use instar_api::machine::BpfInstruction;

    fn refused(request: PacketCaptureRequest) -> CaptureError {
        Capture::start(&request).unwrap_err()
    }

    #[test]
    fn what_makes_no_sense_is_refused_before_anything_is_opened() {
        let unknown = refused(PacketCaptureRequest {
            interface: "none/such".to_owned(),
            ..PacketCaptureRequest::default()
        });
        let words = unknown.to_string();
        assert!(
            words.contains("\"none/such\"") && words.contains("lo"),
            "{words}"
        );
        assert!(matches!(
            refused(PacketCaptureRequest {
                snap_len: LARGEST_SNAP_LEN + 1,
                ..PacketCaptureRequest::default()
            }),
            CaptureError::SnapLen(_)
        ));
        assert!(matches!(
            refused(PacketCaptureRequest {
                interface: "lo".to_owned(),
                bpf_filter: vec![BpfInstruction {
                    op: 0x1_0000,
                    ..BpfInstruction::default()
                }],
                ..PacketCaptureRequest::default()
            }),
            CaptureError::Filter(_)
        ));
        assert_eq!(PLACES.available_permits(), CAPTURES);
    }

    #[test]
    fn a_packet_is_kept_whole_unless_the_caller_says_otherwise() {
        assert_eq!(snap_len(0).unwrap(), 65_535);
        assert_eq!(snap_len(1).unwrap(), 1);
        assert_eq!(snap_len(LARGEST_SNAP_LEN).unwrap(), LARGEST_SNAP_LEN);
    }
}
