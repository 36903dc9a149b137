//! The sockets of IP protocols (proc_pid_net(5)), of the machine and of the network namespaces of its processes.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use instar_api::machine::ConnectRecord;
use instar_api::machine::connect_record::{Process, State, TimerActive};

use super::number;
use super::processes::pids;

/// A file of /proc/net.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Protocol {
    Tcp,
    Tcp6,
    Udp,
    Udp6,
    UdpLite,
    UdpLite6,
    Raw,
    Raw6,
}

impl Protocol {
    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Tcp6 => "tcp6",
            Self::Udp => "udp",
            Self::Udp6 => "udp6",
            Self::UdpLite => "udplite",
            Self::UdpLite6 => "udplite6",
            Self::Raw => "raw",
            Self::Raw6 => "raw6",
        }
    }

    fn has_connections(self) -> bool {
        matches!(self, Self::Tcp | Self::Tcp6)
    }
}

/// The selection of sockets by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// All of them.
    All,
    /// Sockets that are connected to a peer.
    Connected,
    /// Sockets that wait for connections or packets.
    Listening,
}

/// The selection of network namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Namespaces {
    /// The machine's own.
    Host,
    /// The namespaces of these numbers (as in `net:[4026531840]`), and the machine's own if `host` is set.
    Named {
        /// Whether to include the machine's own.
        host: bool,
        /// The numbers.
        names: Vec<String>,
    },
    /// Every namespace that a process is in.
    All,
}

/// A query for sockets.
#[derive(Debug, Clone)]
pub struct SocketQuery {
    /// Sockets in these states.
    pub shown: Shown,
    /// Sockets of these protocols.
    pub protocols: Vec<Protocol>,
    /// Sockets in these namespaces.
    pub namespaces: Namespaces,
    /// Whether to find the processes that the sockets belong to, which takes a look at every descriptor of the machine.
    pub processes: bool,
}

/// Lists the sockets that match.
pub fn sockets(query: &SocketQuery) -> anyhow::Result<Vec<ConnectRecord>> {
    let owners = if query.processes {
        owners()?
    } else {
        HashMap::new()
    };
    let mut records = Vec::new();
    for (namespace, pid) in namespaces(&query.namespaces)? {
        for protocol in &query.protocols {
            let path = format!("/proc/{pid}/net/{}", protocol.name());
            // The kernel may lack this protocol, and then has no sockets of it.
            let Ok(table) = fs::read_to_string(path) else {
                continue;
            };
            let found = parse(&table, *protocol)
                .filter(|record| is_wanted(record, *protocol, query.shown))
                .map(|record| ConnectRecord {
                    netns: namespace.clone(),
                    process: Some(owners.get(&record.inode).cloned().unwrap_or_default()),
                    ..record
                });
            records.extend(found);
        }
    }
    Ok(records)
}

/// Lists the selected namespaces: their names, each with a process whose /proc directory shows the namespace. The machine's own
/// has an empty name.
fn namespaces(wanted: &Namespaces) -> anyhow::Result<Vec<(String, String)>> {
    let own = || (String::new(), "self".to_owned());
    if *wanted == Namespaces::Host {
        return Ok(vec![own()]);
    }
    let host = number_of_namespace("self").unwrap_or_default();
    let mut others = BTreeMap::new();
    for pid in pids()? {
        let pid = pid.to_string();
        if let Some(namespace) = number_of_namespace(&pid).filter(|namespace| *namespace != host) {
            others.entry(namespace).or_insert(pid);
        }
    }
    let with_host = match wanted {
        Namespaces::Named { host, names } => {
            others.retain(|name, _| names.contains(name));
            *host
        }
        _ => true,
    };
    Ok(with_host.then(own).into_iter().chain(others).collect())
}

/// Returns the name of a process's network namespace, as [`sockets`] names it; empty if it is the machine's own, or the process is gone.
pub fn network_namespace(pid: u32) -> String {
    let of_process = number_of_namespace(&pid.to_string());
    let is_other = |number: &String| number_of_namespace("self").as_ref() != Some(number);
    of_process.filter(is_other).unwrap_or_default()
}

/// The number in `net:[…]`; None if the process is gone.
fn number_of_namespace(pid: &str) -> Option<String> {
    let link = fs::read_link(format!("/proc/{pid}/ns/net")).ok()?;
    let text = link.to_string_lossy();
    let number = text.strip_prefix("net:[")?.strip_suffix(']')?;
    Some(number.to_owned())
}

/// Maps the inodes of sockets to their processes.
fn owners() -> anyhow::Result<HashMap<u64, Process>> {
    let mut owners = HashMap::new();
    for pid in pids()? {
        // A process that has ended meanwhile has no sockets either.
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else {
            continue;
        };
        let mut name = None;
        for descriptor in descriptors.flatten() {
            let Ok(target) = fs::read_link(descriptor.path()) else {
                continue;
            };
            let inode = target.to_str().and_then(|target| {
                target
                    .strip_prefix("socket:[")?
                    .strip_suffix(']')?
                    .parse()
                    .ok()
            });
            if let Some(inode) = inode {
                let name = name.get_or_insert_with(|| {
                    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                    name.trim_end().to_owned()
                });
                owners.entry(inode).or_insert_with(|| Process {
                    pid,
                    name: name.clone(),
                });
            }
        }
    }
    Ok(owners)
}

fn is_wanted(record: &ConnectRecord, protocol: Protocol, shown: Shown) -> bool {
    let listens = if protocol.has_connections() {
        record.state() == State::Listen
    } else {
        record.state() != State::Established
    };
    match shown {
        Shown::All => true,
        Shown::Connected => !listens,
        Shown::Listening => listens,
    }
}

/// Parses a table. The first line is a heading, and an invalid line is left out.
fn parse(table: &str, protocol: Protocol) -> impl Iterator<Item = ConnectRecord> {
    table
        .lines()
        .skip(1)
        .filter_map(move |line| record(line, protocol))
}

/// Parses `sl local remote st tx:rx tr:when retransmits uid timeout inode references pointer …`, most of it hexadecimal.
fn record(line: &str, protocol: Protocol) -> Option<ConnectRecord> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (localip, localport) = address(fields.get(1)?)?;
    let (remoteip, remoteport) = address(fields.get(2)?)?;
    let state = i32::from_str_radix(fields.get(3)?, 16).ok()?;
    let (txqueue, rxqueue) = hex_pair(fields.get(4)?)?;
    let (timer, timerwhen) = hex_pair(fields.get(5)?)?;
    let field = |index: usize| fields.get(index).copied();
    let timer = TimerActive::try_from(i32::try_from(timer).ok()?).unwrap_or(TimerActive::Off);
    Some(ConnectRecord {
        l4proto: protocol.name().to_owned(),
        localip: localip.to_string(),
        localport,
        remoteip: remoteip.to_string(),
        remoteport,
        state: State::try_from(state).unwrap_or(State::Reserved).into(),
        txqueue,
        rxqueue,
        tr: timer.into(),
        timerwhen,
        retrnsmt: hex(field(6)?)?,
        uid: number(field(7)),
        timeout: number(field(8)),
        inode: number(field(9)),
        r#ref: number(field(10)),
        pointer: field(11).and_then(hex).unwrap_or_default(),
        ..ConnectRecord::default()
    })
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

fn hex_pair(text: &str) -> Option<(u64, u64)> {
    let (first, second) = text.split_once(':')?;
    Some((hex(first)?, hex(second)?))
}

/// Parses an address: words of four bytes in the processor's order, each as eight digits.
fn address(text: &str) -> Option<(IpAddr, u32)> {
    let (address, port) = text.split_once(':')?;
    let mut bytes = Vec::with_capacity(16);
    for word in address.as_bytes().chunks(8) {
        if word.len() < 8 {
            return None;
        }
        let word = u32::from_str_radix(str::from_utf8(word).ok()?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    let ip = match bytes.len() {
        4 => Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into(),
        16 => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into(),
        _ => return None,
    };
    Some((ip, u32::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const TCP: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
        \x20  0: 0100007F:C350 00000000:0000 0A 00000000:00000000 00:00000000 00000000    50        0 1234 1 ffff888003b5c000 100 0 0 10 0\n\
        \x20  1: 0F02000A:C350 0202000A:8DA2 01 00000010:00000020 02:000005DC 00000003     0        0 1235 2 0000000000000000 20 4 30 10 -1\n\
        broken\n";

    #[test]
    fn lines_become_records() {
        let records: Vec<_> = parse(TCP, Protocol::Tcp).collect();
        let [listening, connected] = records.as_slice() else {
            panic!("{records:?}")
        };
        assert_eq!(
            (listening.localip.as_str(), listening.localport),
            ("127.0.0.1", 50000)
        );
        assert_eq!(
            (listening.state(), listening.uid, listening.inode),
            (State::Listen, 50, 1234)
        );
        assert_eq!(
            (connected.remoteip.as_str(), connected.remoteport),
            ("10.0.2.2", 36258)
        );
        assert_eq!(
            (connected.txqueue, connected.rxqueue, connected.retrnsmt),
            (16, 32, 3)
        );
        assert_eq!(
            (connected.tr(), connected.timerwhen),
            (TimerActive::Keepalive, 1500)
        );
        assert!(is_wanted(listening, Protocol::Tcp, Shown::Listening));
        assert!(!is_wanted(connected, Protocol::Tcp, Shown::Listening));
        assert!(is_wanted(connected, Protocol::Tcp, Shown::Connected));
    }

    #[test]
    fn addresses_of_both_kinds() {
        let of = |text| address(text).map(|(ip, port)| format!("{ip} {port}"));
        assert_eq!(
            of("00000000000000000000000001000000:1F90").as_deref(),
            Some("::1 8080")
        );
        assert_eq!(
            of("B80D0120000000000000000001000000:0001").as_deref(),
            Some("2001:db8::1 1")
        );
        assert_eq!(of("0100007F"), None);
        assert_eq!(of("01:1"), None);
        assert_eq!(of("ä:1"), None);
    }

    #[test]
    fn namespaces_have_the_numbers_of_the_kernel() {
        let own = number_of_namespace("self").unwrap();
        assert!(own.parse::<u64>().is_ok(), "{own}");
        assert_eq!(network_namespace(std::process::id()), "");
        assert_eq!(network_namespace(u32::MAX), "");
    }

    #[test]
    fn our_own_listener_is_found_with_its_process() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = u32::from(listener.local_addr().unwrap().port());
        let query = SocketQuery {
            shown: Shown::Listening,
            protocols: vec![Protocol::Tcp],
            namespaces: Namespaces::All,
            processes: true,
        };
        let found = sockets(&query).unwrap();
        let record = found
            .iter()
            .find(|record| record.localport == port && record.netns.is_empty());
        assert_eq!(
            record.unwrap().process.as_ref().unwrap().pid,
            std::process::id()
        );
    }
}
