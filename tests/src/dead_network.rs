//! A network behind a second card on which every address exists and nothing answers: every address has a hardware
//! address, so that packets are really sent, and all of them are lost. A DHCP server may be the only live machine.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use instar_base::lock::Lock as _;
use instar_qemu::{PortLease, VmSpec, lease_port};

use crate::hostile_dhcp_server::{ACK, DISCOVER, LONGEST_FRAME, OFFER, Question, SERVER_MAC};

/// Interval in which the thread checks whether it has to end.
const TICK: Duration = Duration::from_millis(100);
const ARP: [u8; 2] = [8, 6];
const IPV4: [u8; 2] = [8, 0];
const TCP: u8 = 6;
const UDP: u8 = 17;

/// The state of the DHCP server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dhcp {
    /// Gives an address, and names itself as router, resolver and time server.
    Answers,
    /// Answers nothing.
    Silent,
}

/// The addressee of a lost packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Asked {
    /// A server behind this port of TCP.
    Tcp(u16),
    /// A server behind this port of UDP: 53 names, 67 DHCP, 123 time.
    Udp(u16),
}

/// The dead network, until this value is dropped.
#[derive(Debug)]
pub struct DeadNetwork {
    cable: u16,
    card: PortLease,
    asked: Arc<Mutex<BTreeSet<Asked>>>,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl DeadNetwork {
    /// Address of a server on the network, with the port of a URL.
    pub const SERVER: &'static str = "10.77.0.1:5000";

    /// Starts a network.
    pub fn start(dhcp: Dhcp) -> Result<Self> {
        let cable = UdpSocket::bind("127.0.0.1:0").context("cannot bind a UDP port")?;
        cable.set_read_timeout(Some(TICK))?;
        let port = cable.local_addr()?.port();
        // The lease of the TCP port keeps the UDP port free as well: no other process gets the same number.
        let card = lease_port()?;
        let to = (Ipv4Addr::LOCALHOST, card.port());
        let asked = Arc::new(Mutex::new(BTreeSet::new()));
        let end = Arc::new(AtomicBool::new(false));
        let (noted, ends) = (asked.clone(), end.clone());
        let thread = std::thread::Builder::new().spawn(move || {
            let mut frame = [0; LONGEST_FRAME];
            while !ends.load(Ordering::Relaxed) {
                let Ok((length, _)) = cable.recv_from(&mut frame) else {
                    continue;
                };
                let frame = &frame[..length];
                let mut asked = noted.locked();
                asked.extend(whom(frame));
                let answer = match (Question::of(frame), dhcp) {
                    (Some(question), Dhcp::Answers) => Some(question.answer(match question.kind {
                        DISCOVER => OFFER,
                        _ => ACK,
                    })),
                    (Some(_), Dhcp::Silent) => None,
                    (None, _) => is_there(frame),
                };
                if let Some(answer) = answer {
                    // A frame that cannot be sent is lost, as on a cable.
                    let _ = cable.send_to(&answer, to);
                }
            }
        });
        Ok(Self {
            cable: port,
            card,
            asked,
            end,
            thread: Some(thread.context("cannot start a thread")?),
        })
    }

    /// Adds a card on this network to the machine.
    pub fn plug(&self, spec: VmSpec) -> VmSpec {
        let wired = format!(
            "socket,id=dead,udp=127.0.0.1:{},localaddr=127.0.0.1:{}",
            self.cable,
            self.card.port()
        );
        spec.extra_argument("-netdev")
            .extra_argument(wired)
            .extra_argument("-device")
            .extra_argument("virtio-net-pci,netdev=dead,romfile=,mac=52:54:00:12:34:99")
    }

    /// Whether a packet to this addressee got lost.
    pub fn was_asked(&self, whom: Asked) -> bool {
        let asked = self.asked.locked();
        asked.contains(&whom)
    }
}

impl Drop for DeadNetwork {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has printed why.
            let _ = thread.join();
        }
    }
}

/// Returns the addressee of a frame of IPv4 without options.
fn whom(frame: &[u8]) -> Option<Asked> {
    if frame.get(12..15)? != [IPV4[0], IPV4[1], 0x45] {
        return None;
    }
    let port = u16::from_be_bytes(frame.get(36..38)?.try_into().ok()?);
    match *frame.get(23)? {
        TCP => Some(Asked::Tcp(port)),
        UDP => Some(Asked::Udp(port)),
        _ => None,
    }
}

/// Returns the answer to a request for a hardware address (RFC 826), unless the sender asks for its own address.
fn is_there(frame: &[u8]) -> Option<Vec<u8>> {
    let (asker, wanted) = (frame.get(22..32)?, frame.get(38..42)?);
    let asks = frame.get(12..14)? == ARP && frame.get(20..22)? == [0, 1];
    if !asks || asker[6..] == *wanted || asker[6..] == [0; 4] {
        return None;
    }
    let mut answer = asker[..6].to_vec();
    answer.extend(SERVER_MAC);
    answer.extend(ARP);
    answer.extend([0, 1, 8, 0, 6, 4, 0, 2]);
    answer.extend(SERVER_MAC);
    answer.extend(wanted);
    answer.extend(asker);
    Some(answer)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn arp(sender: [u8; 4], wanted: [u8; 4]) -> Vec<u8> {
        let mut frame = vec![0xFF; 6];
        frame.extend([1; 6]);
        frame.extend(ARP);
        frame.extend([0, 1, 8, 0, 6, 4, 0, 1]);
        frame.extend([1; 6]);
        frame.extend(sender);
        frame.extend([0; 6]);
        frame.extend(wanted);
        frame
    }

    #[test]
    fn everybody_is_there() {
        let answer = is_there(&arp([10, 77, 0, 2], [10, 77, 0, 1])).unwrap();
        assert_eq!(answer[..6], [1; 6]);
        assert_eq!(answer[20..22], [0, 2]);
        assert_eq!(answer[22..28], SERVER_MAC);
        assert_eq!(answer[28..32], [10, 77, 0, 1]);
        assert_eq!(answer[38..42], [10, 77, 0, 2]);
        // A machine checks whether its address is free.
        assert!(is_there(&arp([10, 77, 0, 2], [10, 77, 0, 2])).is_none());
        assert!(is_there(&arp([0; 4], [10, 77, 0, 2])).is_none());
        assert!(is_there(&[0; 10]).is_none());
    }

    #[test]
    fn who_is_asked_is_known() {
        let mut frame = vec![0; 60];
        frame[12..15].copy_from_slice(&[8, 0, 0x45]);
        frame[23] = UDP;
        frame[36..38].copy_from_slice(&123u16.to_be_bytes());
        assert_eq!(whom(&frame), Some(Asked::Udp(123)));
        frame[23] = TCP;
        assert_eq!(whom(&frame), Some(Asked::Tcp(123)));
        assert_eq!(whom(&frame[..20]), None);
    }
}
