//! Input and output of the disks (Documentation/admin-guide/iostats.rst).

use std::path::Path;

use instar_api::machine::{DiskStat, DiskStats};

use super::number;

/// Reads the counters of each block device, and their sum over whole disks: a disk's counters include its partitions'.
pub fn disk_stats() -> anyhow::Result<DiskStats> {
    let class = Path::new("/sys/class/block");
    let is_partition = |name: &str| class.join(name).join("partition").exists();
    Ok(parse(&super::read("/proc/diskstats")?, is_partition))
}

fn parse(text: &str, is_partition: impl Fn(&str) -> bool) -> DiskStats {
    let devices: Vec<DiskStat> = text.lines().filter_map(device).collect();
    let mut total = DiskStat::default();
    for device in devices.iter().filter(|device| !is_partition(&device.name)) {
        for (sum, count) in counters(&mut total)
            .into_iter()
            .zip(counters(&mut device.clone()))
        {
            *sum += *count;
        }
    }
    DiskStats {
        metadata: None,
        total: Some(total),
        devices,
    }
}

/// Parses a line: major and minor number, name, counters.
fn device(line: &str) -> Option<DiskStat> {
    let mut fields = line.split_ascii_whitespace().skip(2);
    let mut device = DiskStat {
        name: fields.next()?.to_owned(),
        ..DiskStat::default()
    };
    for counter in counters(&mut device) {
        *counter = number(fields.next());
    }
    Some(device)
}

/// Lists the counters in the order of the file.
fn counters(device: &mut DiskStat) -> [&mut u64; 15] {
    [
        &mut device.read_completed,
        &mut device.read_merged,
        &mut device.read_sectors,
        &mut device.read_time_ms,
        &mut device.write_completed,
        &mut device.write_merged,
        &mut device.write_sectors,
        &mut device.write_time_ms,
        &mut device.io_in_progress,
        &mut device.io_time_ms,
        &mut device.io_time_weighted_ms,
        &mut device.discard_completed,
        &mut device.discard_merged,
        &mut device.discard_sectors,
        &mut device.discard_time_ms,
    ]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn partitions_count_once() {
        let stats = parse(
            " 254 0 vda 5 1 40 2 3 0 24 1 0 3 3 1 2 3 4 0 0\n 254 1 vda1 4 0 32 1 3 0 24 1 0 2 2\n",
            |name| name == "vda1",
        );
        assert_eq!(stats.devices.len(), 2);
        assert_eq!(stats.devices[0].discard_time_ms, 4);
        assert_eq!(stats.devices[1].discard_time_ms, 0);
        let total = stats.total.unwrap();
        assert_eq!((total.read_completed, total.write_sectors), (5, 24));
    }
}
