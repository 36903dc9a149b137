//! The numbers, their limits, and the two forms in which they are shown.

use std::fmt;

use serde_json::{Map, Value};

/// What a number may be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Limit {
    AtMost(f64),
    AtLeast(f64),
    /// Reported only.
    None,
}

#[derive(Debug, Clone, PartialEq)]
struct Row {
    name: String,
    value: f64,
    limit: Limit,
}

impl Row {
    fn holds(&self) -> bool {
        match self.limit {
            Limit::AtMost(limit) => self.value <= limit,
            Limit::AtLeast(limit) => self.value >= limit,
            Limit::None => true,
        }
    }
}

/// All of them, in the order in which they were measured.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Table {
    rows: Vec<Row>,
}

impl Table {
    /// Adds a number; its name ends with the unit.
    pub(crate) fn add(&mut self, name: &str, value: f64, limit: Limit) {
        self.rows.push(Row {
            name: name.to_owned(),
            value,
            limit,
        });
    }

    /// Whether no limit is broken.
    pub(crate) fn holds(&self) -> bool {
        self.rows.iter().all(Row::holds)
    }

    /// One flat object of numbers.
    pub(crate) fn to_json(&self) -> Value {
        let numbers = self.rows.iter().map(|row| {
            // Whole numbers without a fraction, as they were counted.
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
            let limit = match row.limit {
                Limit::None => String::new(),
                Limit::AtMost(limit) => format!("at most {limit}"),
                Limit::AtLeast(limit) => format!("at least {limit}"),
            };
            let verdict = if row.holds() { "" } else { "   BROKEN" };
            writeln!(f, "{:<34}{value:>14}   {limit}{verdict}", row.name)?;
        }
        Ok(())
    }
}
