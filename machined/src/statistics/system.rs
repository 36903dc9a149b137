//! The kernel's counters since it started (proc_stat(5)).

use instar_api::machine::{CpuStat, SoftIrqStat, SystemStat};

use super::number;

/// Reads processor time, interrupts and processes.
pub fn system_stat() -> anyhow::Result<SystemStat> {
    let ticks = rustix::param::clock_ticks_per_second();
    Ok(parse(&super::read("/proc/stat")?, ticks as f64))
}

fn parse(text: &str, ticks_per_second: f64) -> SystemStat {
    let mut stat = SystemStat::default();
    for line in text.lines() {
        let mut fields = line.split_ascii_whitespace();
        let name = fields.next().unwrap_or_default();
        match name {
            "cpu" => stat.cpu_total = Some(cpu(fields, ticks_per_second)),
            "intr" => {
                stat.irq_total = number(fields.next());
                stat.irq = fields.map(|count| number(Some(count))).collect();
            }
            "ctxt" => stat.context_switches = number(fields.next()),
            "btime" => stat.boot_time = number(fields.next()),
            "processes" => stat.process_created = number(fields.next()),
            "procs_running" => stat.process_running = number(fields.next()),
            "procs_blocked" => stat.process_blocked = number(fields.next()),
            "softirq" => {
                stat.soft_irq_total = number(fields.next());
                stat.soft_irq = Some(soft_irq(fields));
            }
            name if name.starts_with("cpu") => stat.cpu.push(cpu(fields, ticks_per_second)),
            _ => {}
        }
    }
    stat
}

fn cpu<'a>(mut ticks: impl Iterator<Item = &'a str>, ticks_per_second: f64) -> CpuStat {
    let mut seconds = || number::<f64>(ticks.next()) / ticks_per_second;
    CpuStat {
        user: seconds(),
        nice: seconds(),
        system: seconds(),
        idle: seconds(),
        iowait: seconds(),
        irq: seconds(),
        soft_irq: seconds(),
        steal: seconds(),
        guest: seconds(),
        guest_nice: seconds(),
    }
}

fn soft_irq<'a>(mut counts: impl Iterator<Item = &'a str>) -> SoftIrqStat {
    let mut count = || number(counts.next());
    SoftIrqStat {
        hi: count(),
        timer: count(),
        net_tx: count(),
        net_rx: count(),
        block: count(),
        block_io_poll: count(),
        tasklet: count(),
        sched: count(),
        hrtimer: count(),
        rcu: count(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn ticks_become_seconds() {
        let stat = parse(
            "cpu  200 0 50 1000 1 2 3 4 5 6\ncpu0 100 0 25 500\ncpu1 100 0 25 500\nintr 77 1 0 2\nctxt 9\n\
             btime 1790000000\nprocesses 11\nprocs_running 2\nprocs_blocked 1\nsoftirq 10 1 2 3 4 5 6 7 8 9 10\nnew 1\n",
            100.0,
        );
        let total = stat.cpu_total.unwrap();
        assert_eq!(
            (total.user, total.idle, total.guest_nice),
            (2.0, 10.0, 0.06)
        );
        assert_eq!(stat.cpu.len(), 2);
        assert_eq!((stat.irq_total, stat.irq.as_slice()), (77, &[1, 0, 2][..]));
        assert_eq!(stat.boot_time, 1_790_000_000);
        assert_eq!((stat.process_running, stat.process_blocked), (2, 1));
        assert_eq!(stat.soft_irq.unwrap().rcu, 10);
    }
}
