//! Traffic of the network devices (proc_pid_net(5), `dev`).

use instar_api::machine::{NetDev, NetworkDeviceStats};

use super::number;

/// Reads the counters of each device, and their sum.
pub fn network_device_stats() -> anyhow::Result<NetworkDeviceStats> {
    Ok(parse(&super::read("/proc/net/dev")?))
}

fn parse(text: &str) -> NetworkDeviceStats {
    let devices: Vec<NetDev> = text.lines().filter_map(device).collect();
    let mut total = NetDev::default();
    for device in &devices {
        for (sum, count) in counters(&mut total)
            .into_iter()
            .zip(counters(&mut device.clone()))
        {
            *sum += *count;
        }
    }
    NetworkDeviceStats {
        metadata: None,
        total: Some(total),
        devices,
    }
}

/// Parses a line. The two lines of headings have no colon.
fn device(line: &str) -> Option<NetDev> {
    let (name, counts) = line.split_once(':')?;
    let mut device = NetDev {
        name: name.trim().to_owned(),
        ..NetDev::default()
    };
    let mut counts = counts.split_ascii_whitespace();
    for counter in counters(&mut device) {
        *counter = number(counts.next());
    }
    Some(device)
}

/// Lists the counters in the order of the file.
fn counters(device: &mut NetDev) -> [&mut u64; 16] {
    [
        &mut device.rx_bytes,
        &mut device.rx_packets,
        &mut device.rx_errors,
        &mut device.rx_dropped,
        &mut device.rx_fifo,
        &mut device.rx_frame,
        &mut device.rx_compressed,
        &mut device.rx_multicast,
        &mut device.tx_bytes,
        &mut device.tx_packets,
        &mut device.tx_errors,
        &mut device.tx_dropped,
        &mut device.tx_fifo,
        &mut device.tx_collisions,
        &mut device.tx_carrier,
        &mut device.tx_compressed,
    ]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn devices_are_summed() {
        let stats = parse(
            "Inter-|   Receive   |  Transmit\n face |bytes packets|bytes packets\n\
             \x20   lo: 10 1 0 0 0 0 0 2 10 1 0 0 0 0 0 0\n  eth0:100 5 0 3 0 0 0 0 200 6 0 0 0 0 0 9\n",
        );
        assert_eq!(stats.devices.len(), 2);
        let eth0 = &stats.devices[1];
        assert_eq!(
            (eth0.name.as_str(), eth0.rx_bytes, eth0.tx_bytes),
            ("eth0", 100, 200)
        );
        let total = stats.total.unwrap();
        assert_eq!(
            (total.rx_bytes, total.rx_multicast, total.tx_compressed),
            (110, 2, 9)
        );
    }
}
