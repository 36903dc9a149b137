//! Memory (proc_meminfo(5)).

use instar_api::machine::MemInfo;

/// Reads the machine's memory figures, in KiB.
pub fn memory() -> anyhow::Result<MemInfo> {
    Ok(parse(&super::read("/proc/meminfo")?))
}

fn parse(text: &str) -> MemInfo {
    let mut info = MemInfo::default();
    for line in text.lines() {
        let Some((name, rest)) = line.split_once(':') else {
            continue;
        };
        let Some(value) = rest
            .split_whitespace()
            .next()
            .and_then(|value| value.parse().ok())
        else {
            continue;
        };
        let field = match name {
            "MemTotal" => &mut info.memtotal,
            "MemFree" => &mut info.memfree,
            "MemAvailable" => &mut info.memavailable,
            "Buffers" => &mut info.buffers,
            "Cached" => &mut info.cached,
            "SwapCached" => &mut info.swapcached,
            "Active" => &mut info.active,
            "Inactive" => &mut info.inactive,
            "Active(anon)" => &mut info.activeanon,
            "Inactive(anon)" => &mut info.inactiveanon,
            "Active(file)" => &mut info.activefile,
            "Inactive(file)" => &mut info.inactivefile,
            "Unevictable" => &mut info.unevictable,
            "Mlocked" => &mut info.mlocked,
            "SwapTotal" => &mut info.swaptotal,
            "SwapFree" => &mut info.swapfree,
            "Dirty" => &mut info.dirty,
            "Writeback" => &mut info.writeback,
            "AnonPages" => &mut info.anonpages,
            "Mapped" => &mut info.mapped,
            "Shmem" => &mut info.shmem,
            "Slab" => &mut info.slab,
            "SReclaimable" => &mut info.sreclaimable,
            "SUnreclaim" => &mut info.sunreclaim,
            "KernelStack" => &mut info.kernelstack,
            "PageTables" => &mut info.pagetables,
            "CommitLimit" => &mut info.commitlimit,
            "Committed_AS" => &mut info.committedas,
            "VmallocTotal" => &mut info.vmalloctotal,
            "VmallocUsed" => &mut info.vmallocused,
            "VmallocChunk" => &mut info.vmallocchunk,
            "HardwareCorrupted" => &mut info.hardwarecorrupted,
            "AnonHugePages" => &mut info.anonhugepages,
            "ShmemHugePages" => &mut info.shmemhugepages,
            "ShmemPmdMapped" => &mut info.shmempmdmapped,
            "HugePages_Total" => &mut info.hugepagestotal,
            "HugePages_Free" => &mut info.hugepagesfree,
            "HugePages_Rsvd" => &mut info.hugepagesrsvd,
            "HugePages_Surp" => &mut info.hugepagessurp,
            "Hugepagesize" => &mut info.hugepagesize,
            "DirectMap4k" => &mut info.directmap4k,
            "DirectMap2M" => &mut info.directmap2m,
            "DirectMap1G" => &mut info.directmap1g,
            _ => continue,
        };
        *field = value;
    }
    info
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_go_to_their_fields() {
        let info = parse(
            "MemTotal:  1024 kB\nActive(anon): 5 kB\nHugePages_Total: 2\nNew: 1 kB\nbroken\n",
        );
        assert_eq!(
            (info.memtotal, info.activeanon, info.hugepagestotal),
            (1024, 5, 2)
        );
    }
}
