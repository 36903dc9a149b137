//! Processors (proc_cpuinfo(5)).

use instar_api::machine::CpuInfo;

use super::number;

/// Lists all processors.
pub fn cpu_info() -> anyhow::Result<Vec<CpuInfo>> {
    Ok(parse(&super::read("/proc/cpuinfo")?))
}

/// Parses processors that are separated by empty lines; the names of the fields are those of x86.
fn parse(text: &str) -> Vec<CpuInfo> {
    let mut processors = Vec::new();
    for block in text.split("\n\n") {
        let mut info = CpuInfo::default();
        let mut is_processor = false;
        for line in block.lines() {
            let Some((name, value)) = line.split_once(':') else {
                continue;
            };
            let value = value.trim();
            let words = || value.split_whitespace().map(str::to_owned).collect();
            let text = || value.to_owned();
            match name.trim() {
                "processor" => {
                    is_processor = true;
                    info.processor = number(Some(value));
                }
                "vendor_id" => info.vendor_id = text(),
                "cpu family" => info.cpu_family = text(),
                "model" => info.model = text(),
                "model name" => info.model_name = text(),
                "stepping" => info.stepping = text(),
                "microcode" => info.microcode = text(),
                "cpu MHz" => info.cpu_mhz = number(Some(value)),
                "cache size" => info.cache_size = text(),
                "physical id" => info.physical_id = text(),
                "siblings" => info.siblings = number(Some(value)),
                "core id" => info.core_id = text(),
                "cpu cores" => info.cpu_cores = number(Some(value)),
                "apicid" => info.apic_id = text(),
                "initial apicid" => info.initial_apic_id = text(),
                "fpu" => info.fpu = text(),
                "fpu_exception" => info.fpu_exception = text(),
                "cpuid level" => info.cpu_id_level = number(Some(value)),
                "wp" => info.wp = text(),
                // The second name is the one on ARM.
                "flags" | "Features" => info.flags = words(),
                "bugs" => info.bugs = words(),
                "bogomips" | "BogoMIPS" => info.bogo_mips = number(Some(value)),
                "clflush size" => info.cl_flush_size = number(Some(value)),
                "cache_alignment" => info.cache_alignment = number(Some(value)),
                "address sizes" => info.address_sizes = text(),
                "power management" => info.power_management = text(),
                _ => {}
            }
        }
        if is_processor {
            processors.push(info);
        }
    }
    processors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_told_apart() {
        let text = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: QEMU Virtual CPU\ncpu MHz\t\t: 2095.078\nflags\t\t: fpu de pse\n\n\
                    processor\t: 1\ncpu cores\t: 4\npower management:\n\n";
        let processors = parse(text);
        assert_eq!(processors.len(), 2);
        assert_eq!(processors[0].model_name, "QEMU Virtual CPU");
        assert_eq!(processors[0].cpu_mhz, 2095.078);
        assert_eq!(processors[0].flags, ["fpu", "de", "pse"]);
        assert_eq!((processors[1].processor, processors[1].cpu_cores), (1, 4));
    }
}
