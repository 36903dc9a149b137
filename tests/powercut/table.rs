//! The counts as a table.

use std::fmt;

use instar_power_cuts::Kind;
use instar_tests::power_cuts::{JudgedScenario, Sample};

/// A row per stage.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    name: String,
    writes: usize,
    /// Numbers of states by kind, in the order of the kinds.
    states: [usize; 3],
    contents: usize,
    booted: usize,
    unbootable: usize,
}

impl Table {
    pub(crate) fn of(judged: &[JudgedScenario], samples: &[Sample<'_>]) -> Self {
        let row = |judged: &JudgedScenario| Row {
            name: judged.scenario.name.clone(),
            writes: judged.scenario.cuts.end() - judged.scenario.cuts.start(),
            states: Kind::ALL.map(|kind| judged.count(kind)),
            contents: judged.judged.contents,
            booted: samples
                .iter()
                .filter(|sample| sample.scenario.name == judged.scenario.name)
                .count(),
            unbootable: judged.failures().count(),
        };
        Self {
            rows: judged.iter().map(row).collect(),
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:16}{:>10}", "", "entries")?;
        for kind in Kind::ALL {
            write!(f, "{kind:>10}")?;
        }
        writeln!(f, "{:>10}{:>10}{:>12}", "contents", "booted", "unbootable")?;
        for row in &self.rows {
            write!(f, "{:16}{:>10}", row.name, row.writes)?;
            for count in row.states {
                write!(f, "{count:>10}")?;
            }
            writeln!(
                f,
                "{:>10}{:>10}{:>12}",
                row.contents, row.booted, row.unbootable
            )?;
        }
        Ok(())
    }
}
