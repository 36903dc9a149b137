//! Prometheus's text format, version 0.0.4.

use std::fmt::Write as _;

/// A kind of metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Only grows, and begins anew with its source.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// Labels of a sample.
pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];

/// A page under construction.
#[derive(Default)]
pub(super) struct Page(String);

impl Page {
    /// Begins a family of samples; all of them follow before the next one.
    pub(super) fn family(&mut self, name: &'static str, kind: Kind, help: &str) -> Family<'_> {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        // Writing to a string cannot fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        Family {
            name,
            page: &mut self.0,
        }
    }

    /// The page.
    pub(super) fn into_text(self) -> String {
        self.0
    }
}

/// A family of samples.
pub(super) struct Family<'a> {
    name: &'static str,
    page: &'a mut String,
}

impl Family<'_> {
    /// Adds a sample.
    pub(super) fn sample(&mut self, labels: Labels<'_>, value: impl Into<Value>) -> &mut Self {
        self.page.push_str(self.name);
        for (number, (name, text)) in labels.iter().enumerate() {
            self.page.push(if number == 0 { '{' } else { ',' });
            // Writing to a string cannot fail.
            let _ = write!(self.page, "{name}=\"");
            for character in text.chars() {
                match character {
                    '\\' => self.page.push_str("\\\\"),
                    '"' => self.page.push_str("\\\""),
                    '\n' => self.page.push_str("\\n"),
                    other => self.page.push(other),
                }
            }
            self.page.push('"');
        }
        if !labels.is_empty() {
            self.page.push('}');
        }
        // As above.
        let _ = match value.into() {
            Value::Whole(value) => writeln!(self.page, " {value}"),
            Value::Fraction(value) => writeln!(self.page, " {value}"),
        };
        self
    }
}

/// The value of a sample.
pub(super) enum Value {
    Whole(u64),
    Fraction(f64),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Value::Whole(value)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Value::Whole(value.into())
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Value::Fraction(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_in_the_format() {
        let mut page = Page::default();
        page.family("instar_up", Kind::Gauge, "Whether it runs.")
            .sample(&[], true);
        page.family("instar_x_total", Kind::Counter, "Some.")
            .sample(&[("a", "q\"\\\n"), ("b", "2")], 7_u64)
            .sample(&[], 0.25);
        assert_eq!(
            page.into_text(),
            "# HELP instar_up Whether it runs.\n# TYPE instar_up gauge\ninstar_up 1\n\
             # HELP instar_x_total Some.\n# TYPE instar_x_total counter\n\
             instar_x_total{a=\"q\\\"\\\\\\n\",b=\"2\"} 7\ninstar_x_total 0.25\n"
        );
    }
}
