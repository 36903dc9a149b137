//! The numbers, their limits, and the two forms of their output.

use std::fmt;

use serde_json::{Map, Value};

/// The limit of a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Limit {
    AtMost(f64),
    AtLeast(f64),
    /// No limit: the number is only reported.
    None,
}

impl Limit {
    /// Returns a promise with a stricter goal.
    pub(crate) fn with_goal(self, goal: Limit) -> Bounds {
        Bounds {
            promise: self,
            goal,
        }
    }

    fn holds(self, value: f64) -> bool {
        match self {
            Limit::AtMost(limit) => value <= limit,
            Limit::AtLeast(limit) => value >= limit,
            Limit::None => true,
        }
    }

    /// Describes a broken limit.
    fn missed(self) -> &'static str {
        match self {
            Limit::AtLeast(_) => "below the limit",
            _ => "over the limit",
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::None => Ok(()),
            Limit::AtMost(limit) => write!(f, "at most {limit}"),
            Limit::AtLeast(limit) => write!(f, "at least {limit}"),
        }
    }
}

/// A limit that is wanted and not promised: missing it is no failure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Goal(pub(crate) Limit);

/// A number's promise, and its goal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Bounds {
    promise: Limit,
    goal: Limit,
}

impl From<Limit> for Bounds {
    fn from(promise: Limit) -> Self {
        promise.with_goal(Limit::None)
    }
}

impl From<Goal> for Bounds {
    fn from(Goal(goal): Goal) -> Self {
        Limit::None.with_goal(goal)
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Row {
    name: String,
    value: f64,
    bounds: Bounds,
}

impl Row {
    fn holds(&self) -> bool {
        self.bounds.promise.holds(self.value)
    }
}

/// All numbers, in the order of their measurement.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Table {
    rows: Vec<Row>,
}

impl Table {
    /// Adds a number; its name ends with the unit.
    pub(crate) fn add(&mut self, name: &str, value: f64, bounds: impl Into<Bounds>) {
        self.rows.push(Row {
            name: name.to_owned(),
            value,
            bounds: bounds.into(),
        });
    }

    /// Whether no limit is broken.
    pub(crate) fn holds(&self) -> bool {
        self.rows.iter().all(Row::holds)
    }

    /// Returns one flat object of numbers.
    pub(crate) fn to_json(&self) -> Value {
        let numbers = self.rows.iter().map(|row| {
            // Whole numbers are written without a fraction.
            let value = match row.value.fract() == 0.0 {
                true => Value::from(row.value as i64),
                false => Value::from((row.value * 1000.0).round() / 1000.0),
            };
            (row.name.clone(), value)
        });
        Value::Object(numbers.collect::<Map<_, _>>())
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.rows {
            let value = format!("{:.3}", row.value);
            let value = value.trim_end_matches('0').trim_end_matches('.');
            let Bounds { promise, goal } = row.bounds;
            let verdict = if row.holds() { "" } else { "   BROKEN" };
            let goal = match (goal, goal.holds(row.value)) {
                (Limit::None, _) => String::new(),
                (goal, true) => format!("   goal: {goal}, reached"),
                (goal, false) => format!("   goal: {goal}, {}", goal.missed()),
            };
            let line = format!("{:<36}{value:>14}   {promise}{verdict}{goal}", row.name);
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_breaks_and_a_goal_is_missed() {
        let promised = Limit::AtMost(300.0).with_goal(Limit::AtMost(100.0));
        for (value, bounds, holds, said) in [
            (
                90.0,
                promised,
                true,
                "at most 300   goal: at most 100, reached",
            ),
            (
                200.0,
                promised,
                true,
                "at most 300   goal: at most 100, over the limit",
            ),
            (
                301.0,
                promised,
                false,
                "at most 300   BROKEN   goal: at most 100, over the limit",
            ),
            (
                0.5,
                Goal(Limit::AtLeast(0.6)).into(),
                true,
                "goal: at least 0.6, below the limit",
            ),
            (0.5, Limit::AtLeast(0.5).into(), true, "at least 0.5"),
            (7.0, Limit::None.into(), true, "7"),
        ] {
            let mut table = Table::default();
            table.add("number", value, bounds);
            assert_eq!(table.holds(), holds, "{table}");
            assert!(table.to_string().trim_end().ends_with(said), "{table}");
        }
    }

    #[test]
    fn the_file_has_numbers_alone() {
        let mut table = Table::default();
        table.add("bytes", 17.0, Limit::None);
        table.add("ratio", 1.23456, Goal(Limit::AtMost(1.0)));
        assert_eq!(table.to_json().to_string(), r#"{"bytes":17,"ratio":1.235}"#);
    }
}
