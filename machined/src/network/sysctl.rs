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

/// Has a card take router advertisements also while the machine forwards packets, as it does for pods. By default the kernel then ignores
/// them, and drops the default routes that it had from them. A value that somebody has set stays.
pub(super) fn listen_to_routers(procfs: &Path, card: &str) -> io::Result<()> {
    let path = procfs
        .join("sys/net/ipv6/conf")
        .join(card)
        .join("accept_ra");
    match fs::read_to_string(&path) {
        Ok(value) if value.trim() == "1" => fs::write(&path, "2"),
        Ok(_) => Ok(()),
        // The kernel runs without IPv6, or the card is just gone.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
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
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_the_usual_setting_for_router_advertisements_is_changed() {
        let procfs = tempfile::tempdir().unwrap();
        let conf = procfs.path().join("sys/net/ipv6/conf");
        for (card, before, after) in [("eth0", "1\n", "2"), ("eth1.5", "0\n", "0\n")] {
            fs::create_dir_all(conf.join(card)).unwrap();
            fs::write(conf.join(card).join("accept_ra"), before).unwrap();
            listen_to_routers(procfs.path(), card).unwrap();
            let set = fs::read_to_string(conf.join(card).join("accept_ra")).unwrap();
            assert_eq!(set, after, "{card}");
        }
        listen_to_routers(procfs.path(), "gone").unwrap();
    }

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
