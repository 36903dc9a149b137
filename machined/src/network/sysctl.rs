//! The few kernel settings that the network needs, set the same way on every start.

use std::{fs, io, path::Path};

/// The API's port. An outgoing connection that took this port while machined restarts would keep the API from it.
const RESERVED_PORT: u16 = 50_000;

/// Sets the settings below `procfs`. They are all below `net`, which init's fingerprint of the machine leaves out.
pub(super) fn prepare(procfs: &Path) -> io::Result<()> {
    let ipv4 = procfs.join("sys/net/ipv4");
    let ports = ipv4.join("ip_local_reserved_ports");
    let reserved = fs::read_to_string(&ports)?;
    if let Some(with_ours) = reserve(reserved.trim(), RESERVED_PORT) {
        fs::write(&ports, with_ours)?;
    }
    // Without it, the kernel removes a new address together with an old one of the same subnet.
    fs::write(ipv4.join("conf/all/promote_secondaries"), "1")
}

/// Returns the list with `port` added; none if it is in there already. The format is `80,1000-2000`.
fn reserve(list: &str, port: u16) -> Option<String> {
    let covers = |range: &str| {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        matches!((low.parse::<u16>(), high.parse::<u16>()), (Ok(low), Ok(high)) if (low..=high).contains(&port))
    };
    if list.split(',').any(covers) {
        return None;
    }
    Some(if list.is_empty() {
        port.to_string()
    } else {
        format!("{list},{port}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_added_to_what_is_reserved() {
        assert_eq!(reserve("", 50000).as_deref(), Some("50000"));
        assert_eq!(
            reserve("80,1000-2000", 50000).as_deref(),
            Some("80,1000-2000,50000")
        );
        assert_eq!(reserve("80,50000", 50000), None);
        assert_eq!(reserve("49999-50001", 50000), None);
    }
}
