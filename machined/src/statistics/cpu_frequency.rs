//! Frequencies of the processors (Documentation/admin-guide/pm/cpufreq.rst). Most virtual machines have no such information.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use instar_api::machine::CpuFreqStats;

const PROCESSORS: &str = "/sys/devices/system/cpu";

/// Lists the frequencies of the processors that the kernel knows them of, in order.
pub fn cpu_frequencies() -> anyhow::Result<Vec<CpuFreqStats>> {
    below(Path::new(PROCESSORS)).with_context(|| format!("list {PROCESSORS}"))
}

fn below(processors: &Path) -> std::io::Result<Vec<CpuFreqStats>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(processors)?.flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("cpu"));
        let Some(number) = number.and_then(|number| number.parse::<u32>().ok()) else {
            continue;
        };
        let directory = entry.path().join("cpufreq");
        if !directory.exists() {
            continue;
        }
        let attribute = |file: &str| {
            let text = fs::read_to_string(directory.join(file)).unwrap_or_default();
            text.trim().to_owned()
        };
        let frequency = |file: &str| attribute(file).parse().unwrap_or_default();
        let stats = CpuFreqStats {
            current_frequency: frequency("scaling_cur_freq"),
            minimum_frequency: frequency("cpuinfo_min_freq"),
            maximum_frequency: frequency("cpuinfo_max_freq"),
            governor: attribute("scaling_governor"),
        };
        found.push((number, stats));
    }
    found.sort_by_key(|(number, _)| *number);
    Ok(found.into_iter().map(|(_, stats)| stats).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn processors_are_in_their_order() {
        let scratch = tempfile::tempdir().unwrap();
        for (cpu, frequency) in [("cpu10", "3"), ("cpu2", "2")] {
            let directory = scratch.path().join(cpu).join("cpufreq");
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("scaling_cur_freq"), format!("{frequency}\n")).unwrap();
            fs::write(directory.join("scaling_governor"), "powersave\n").unwrap();
        }
        fs::create_dir_all(scratch.path().join("cpu3")).unwrap();
        fs::create_dir_all(scratch.path().join("cpufreq")).unwrap();
        let found = below(scratch.path()).unwrap();
        let frequencies: Vec<u64> = found.iter().map(|stats| stats.current_frequency).collect();
        assert_eq!(frequencies, [2, 3]);
        assert_eq!(found[0].governor, "powersave");
    }
}
