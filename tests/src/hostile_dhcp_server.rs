//! A DHCP server (RFC 2131) at the other end of a machine's network card, which sends thousands of damaged answers
//! before the first right one of each kind.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fastrand::Rng;

/// Number of damaged answers before the first right offer, and again before the first acknowledgement.
const DAMAGED: u64 = 2000;
/// Limit on the time of damaged answers to one question, less than a client waits: a busy host sends the rest of them at the next questions.
const BURST: Duration = Duration::from_secs(2);
/// Number of copies of a right answer: the machine may still be reading damaged ones, and lose the last.
const COPIES: usize = 5;
/// Pause between two of them, so that an emulated machine loses few.
const PAUSE: Duration = Duration::from_micros(500);
/// Interval in which the thread checks whether it has to end.
const TICK: Duration = Duration::from_millis(100);

pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// Hardware address of the server, and of every other address on its network.
pub(crate) const SERVER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x77];
const SERVER_PORT: [u8; 2] = [0, 67];
const CLIENT_PORT: [u8; 2] = [0, 68];
/// Length of the headers of Ethernet, IP and UDP, bytes.
const HEADERS: usize = 14 + 20 + 8;
/// Length of the part of a frame that selects the receiving program; the client's filter passes nothing else.
const ADDRESSED: usize = 14 + 20 + 4;
pub(crate) const LONGEST_FRAME: usize = 1514;

const MESSAGE_TYPE: u8 = 53;
pub(crate) const DISCOVER: u8 = 1;
pub(crate) const OFFER: u8 = 2;
const REQUEST: u8 = 3;
pub(crate) const ACK: u8 = 5;

/// The server, until this value is dropped.
#[derive(Debug)]
pub struct HostileDhcpServer {
    damaged: Arc<AtomicU64>,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl HostileDhcpServer {
    /// The address that the server offers at last, with the length of the network's prefix.
    pub const OFFERED: &'static str = "10.77.0.2/24";

    /// Starts a server for a card whose frames QEMU sends to the socket `cable`, and takes at the port `card` of
    /// 127.0.0.1.
    pub fn start(cable: UdpSocket, card: u16) -> Result<Self> {
        cable.set_read_timeout(Some(TICK))?;
        let damaged = Arc::new(AtomicU64::new(0));
        let end = Arc::new(AtomicBool::new(false));
        let ends = end.clone();
        let mut serving = Serving {
            cable,
            card,
            dice: Rng::with_seed(0x4865_6c6c_6f21_0001),
            damaged: damaged.clone(),
        };
        let thread = std::thread::Builder::new().spawn(move || serving.until(&ends));
        Ok(Self {
            damaged,
            end,
            thread: Some(thread.context("cannot start a thread")?),
        })
    }

    /// Number of damaged answers sent so far.
    pub fn damaged(&self) -> u64 {
        self.damaged.load(Ordering::Relaxed)
    }
}

impl Drop for HostileDhcpServer {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has printed why.
            let _ = thread.join();
        }
    }
}

/// The server's thread.
struct Serving {
    cable: UdpSocket,
    card: u16,
    dice: Rng,
    damaged: Arc<AtomicU64>,
}

impl Serving {
    fn until(&mut self, end: &AtomicBool) {
        let mut newer = None;
        while !end.load(Ordering::Relaxed) {
            let Some(question) = newer.take().or_else(|| self.next_question()) else {
                continue;
            };
            self.torment(&question);
            // Questions of meanwhile: nobody waits for an answer to an older one.
            newer = self.newest_question();
            let is_other = |newer: &Question| newer.kind != question.kind;
            if newer.as_ref().is_some_and(is_other) {
                continue;
            }
            let asked = newer.take().unwrap_or(question);
            if self.sent() >= asked.damaged_before() {
                self.answer(&asked);
            }
        }
    }

    /// Waits for a question for a moment.
    fn next_question(&self) -> Option<Question> {
        let mut frame = [0; LONGEST_FRAME];
        let (length, _) = self.cable.recv_from(&mut frame).ok()?;
        Question::of(&frame[..length])
    }

    /// The last one of the questions that have come already.
    fn newest_question(&self) -> Option<Question> {
        let (mut frame, mut newest) = ([0; LONGEST_FRAME], None);
        self.cable.set_nonblocking(true).ok()?;
        while let Ok((length, _)) = self.cable.recv_from(&mut frame) {
            newest = Question::of(&frame[..length]).or(newest);
        }
        self.cable.set_nonblocking(false).ok()?;
        newest
    }

    /// Sends the damaged answers that are to come before the right one, as far as there is time.
    fn torment(&mut self, question: &Question) {
        let (offer, began) = (question.answer(OFFER), Instant::now());
        while self.sent() < question.damaged_before() && began.elapsed() < BURST {
            // A damaged answer that still acknowledges would end the exchange early.
            let damaged = damage(&offer, &mut self.dice);
            if !is_acknowledgement(&damaged) {
                self.send(&damaged);
                self.damaged.fetch_add(1, Ordering::Relaxed);
            }
            sleep(PAUSE);
        }
    }

    fn answer(&self, question: &Question) {
        let answer = match question.kind {
            DISCOVER => question.answer(OFFER),
            _ => question.answer(ACK),
        };
        for _ in 0..COPIES {
            self.send(&answer);
            sleep(PAUSE);
        }
    }

    fn send(&self, frame: &[u8]) {
        // A frame that cannot be sent is lost, as on a cable.
        let _ = self.cable.send_to(frame, (Ipv4Addr::LOCALHOST, self.card));
    }

    fn sent(&self) -> u64 {
        self.damaged.load(Ordering::Relaxed)
    }
}

/// A client's request.
pub(crate) struct Question {
    pub(crate) kind: u8,
    transaction: [u8; 4],
    client: [u8; 6],
}

impl Question {
    pub(crate) fn of(frame: &[u8]) -> Option<Self> {
        let is_for_us = frame.get(12..14)? == [8, 0]
            && *frame.get(23)? == 17
            && frame.get(36..38)? == SERVER_PORT;
        let message = frame.get(HEADERS..).filter(|_| is_for_us)?;
        let mut options = message.get(240..)?;
        let kind = loop {
            match options {
                [MESSAGE_TYPE, 1, kind @ (DISCOVER | REQUEST), ..] => break *kind,
                [_, length, rest @ ..] => options = rest.get(usize::from(*length)..)?,
                _ => return None,
            }
        };
        Some(Self {
            kind,
            transaction: message.get(4..8)?.try_into().ok()?,
            client: message.get(28..34)?.try_into().ok()?,
        })
    }

    /// Number of damaged answers since the beginning that have to come before a right answer.
    fn damaged_before(&self) -> u64 {
        match self.kind {
            DISCOVER => DAMAGED,
            _ => 2 * DAMAGED,
        }
    }

    /// Returns the whole frame, with each option that a client could know.
    pub(crate) fn answer(&self, kind: u8) -> Vec<u8> {
        let (server, seconds) = (SERVER.octets(), |seconds: u32| seconds.to_be_bytes());
        let mut message = vec![2, 1, 6, 0];
        message.extend(self.transaction);
        message.extend([0; 8]);
        message.extend(CLIENT.octets());
        message.extend(server);
        message.extend([0; 4]);
        message.extend(self.client);
        message.resize(236, 0);
        message.extend([0x63, 0x82, 0x53, 0x63]);
        let options: [(u8, &[u8]); 16] = [
            (MESSAGE_TYPE, &[kind]),
            (54, &server),
            (51, &seconds(3600)),
            (58, &seconds(1800)),
            (59, &seconds(3150)),
            (1, &[255, 255, 255, 0]),
            (3, &server),
            (6, &[server, server].concat()),
            (12, b"offered"),
            (15, b"example.com"),
            (26, &[5, 0xDC]),
            (28, &[10, 77, 0, 255]),
            (42, &server),
            (43, &[1, 2, 3, 4]),
            (56, b"welcome"),
            (121, &[24, 10, 88, 0, 10, 77, 0, 1, 0, 10, 77, 0, 1]),
        ];
        for (code, value) in options {
            message.extend([code, value.len() as u8]);
            message.extend(value);
        }
        message.push(255);
        self.frame(&message)
    }

    fn frame(&self, message: &[u8]) -> Vec<u8> {
        let length = |headers: usize| ((message.len() + headers) as u16).to_be_bytes();
        let mut ip = vec![0x45, 0];
        ip.extend(length(20 + 8));
        ip.extend([0, 0, 0, 0, 64, 17, 0, 0]);
        ip.extend(SERVER.octets());
        ip.extend([255; 4]);
        let sum = checksum(&ip);
        ip[10..12].copy_from_slice(&sum);
        let mut frame = self.client.to_vec();
        frame.extend(SERVER_MAC);
        frame.extend([8, 0]);
        frame.extend(ip);
        frame.extend(SERVER_PORT);
        frame.extend(CLIENT_PORT);
        frame.extend(length(8));
        // No checksum.
        frame.extend([0, 0]);
        frame.extend(message);
        frame
    }
}

/// Returns the checksum of an IP header (RFC 1071).
fn checksum(header: &[u8]) -> [u8; 2] {
    let words = header.chunks_exact(2);
    let sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    let folded = (sum & 0xFFFF) + (sum >> 16);
    (!(folded as u16)).to_be_bytes()
}

/// Whether a frame acknowledges, wherever a decoder may find the option.
fn is_acknowledgement(frame: &[u8]) -> bool {
    frame
        .windows(3)
        .any(|option| option[0] == MESSAGE_TYPE && option[2] == ACK)
}

/// Changes, removes, repeats and adds bytes, but none of those that bring the frame through the client's filter.
fn damage(frame: &[u8], dice: &mut Rng) -> Vec<u8> {
    let mut frame = frame.to_vec();
    for _ in 0..dice.usize(1..6) {
        // Mostly in the message, and mostly in its options.
        let from = [HEADERS + 240, HEADERS + 240, HEADERS, 14][dice.usize(..4)];
        let at = dice.usize(from.min(frame.len() - 1)..frame.len());
        match dice.u8(..6) {
            0 => frame[at] = dice.u8(..),
            1 => frame[at] = [0, 1, 0x7F, 0x80, 0xFF][dice.usize(..5)],
            2 => frame.truncate(at.max(ADDRESSED)),
            3 => {
                let piece: Vec<u8> = (0..dice.usize(..64)).map(|_| dice.u8(..)).collect();
                frame.splice(at..at, piece);
            }
            4 => {
                let end = (at + dice.usize(..32)).min(frame.len());
                let again = frame[at..end].to_vec();
                frame.splice(at..at, again);
            }
            _ => {
                let end = (at + dice.usize(..32)).min(frame.len());
                frame.drain(at..end);
            }
        }
        frame.truncate(LONGEST_FRAME);
    }
    frame.resize(frame.len().max(ADDRESSED), 0);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[20..22].copy_from_slice(&[0, 0]);
    frame[23] = 17;
    frame
}
