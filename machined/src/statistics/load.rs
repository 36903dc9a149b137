//! The load: the number of processes that want to run (proc_loadavg(5)).

use instar_api::machine::LoadAvg;

use super::number;

/// Reads the averages over 1, 5 and 15 minutes.
pub fn load_average() -> anyhow::Result<LoadAvg> {
    Ok(parse(&super::read("/proc/loadavg")?))
}

fn parse(text: &str) -> LoadAvg {
    let mut fields = text.split_whitespace();
    LoadAvg {
        load1: number(fields.next()),
        load5: number(fields.next()),
        load15: number(fields.next()),
        ..LoadAvg::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_averages() {
        let load = parse("0.20 0.18 12.12 1/80 11206\n");
        assert_eq!((load.load1, load.load5, load.load15), (0.2, 0.18, 12.12));
    }
}
