//! Standard output: tables and text for people, JSON or YAML for programs.

use std::io::{self, IsTerminal as _, Write};

pub(crate) use instar_base::byte_size::human;
use instar_client::Failure;
use serde_json::Value;

use crate::terminal_text::harmless;

/// How results are shown. Progress and errors go to standard error either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Output {
    /// For people: tables, or a few words.
    #[default]
    #[value(alias = "text")]
    Table,
    /// One JSON value per line.
    Json,
    /// One YAML document per result.
    Yaml,
}

impl Output {
    /// Shows one result in the requested form.
    pub(crate) fn show(
        self,
        text: impl FnOnce() -> String,
        json: impl FnOnce() -> Value,
    ) -> Result<(), Failure> {
        match self {
            Self::Table => print_line(&text()),
            Self::Json => print_line(&json().to_string()),
            Self::Yaml => print_line(&format!("---\n{}", yaml(&json()).trim_end())),
        }
    }
}

/// A value as YAML. Every JSON value can be written as YAML; if that ever fails, JSON is YAML too.
pub(crate) fn yaml(value: &Value) -> String {
    serde_saphyr::to_string(value).unwrap_or_else(|_| value.to_string())
}

/// A timestamp of a message, in UTC.
pub(crate) fn time(at: Option<&prost_types::Timestamp>) -> String {
    at.and_then(|at| jiff::Timestamp::new(at.seconds, at.nanos).ok())
        .map_or_else(
            || "-".to_owned(),
            |at| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        )
}

/// Prints one line on standard output. A terminal obeys nothing of it.
pub(crate) fn print_line(line: &str) -> Result<(), Failure> {
    match io::stdout().is_terminal() {
        true => print_bytes(format!("{}\n", harmless(line)).as_bytes()),
        false => print_bytes(format!("{line}\n").as_bytes()),
    }
}

/// Prints one line on standard error, for people. A terminal obeys nothing of it.
pub(crate) fn tell(line: &str) {
    eprintln!("{}", harmless(line));
}

/// Writes bytes to standard output, unchanged.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)
        .and_then(|()| out.flush())
        .map_err(|error| Failure::io("cannot write to standard output", error))
}

/// Rows below a header, in columns as wide as their widest cell. A row is one line, whatever a message in it has.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = header.iter().map(|cell| cell.len()).collect();
    let in_one_line = |row: &Vec<String>| -> Vec<String> {
        let cells = row.iter();
        cells
            .map(|cell| cell.replace(['\n', '\r', '\t'], " "))
            .collect()
    };
    let rows: Vec<Vec<String>> = rows.iter().map(in_one_line).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let header: Vec<String> = header.iter().map(|cell| (*cell).to_owned()).collect();
    let line = |row: &Vec<String>| {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        cells.join("  ").trim_end().to_owned()
    };
    std::iter::once(&header)
        .chain(&rows)
        .map(line)
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_says_what_json_says() {
        let value = serde_json::json!({"node": "a", "rows": [{"size": 5, "text": "yes"}]});
        let back: Value = serde_saphyr::from_str(&yaml(&value)).unwrap_or_default();
        assert_eq!(back, value, "{}", yaml(&value));
    }

    #[test]
    fn time_is_utc() {
        let at = |seconds| prost_types::Timestamp { seconds, nanos: 5 };
        assert_eq!(time(Some(&at(1_795_262_400))), "2026-11-21T12:00:00Z");
        assert_eq!(time(Some(&at(i64::MAX))), "-");
        assert_eq!(time(None), "-");
    }

    #[test]
    fn a_message_of_several_lines_is_no_row_of_its_own() {
        let rows = [vec!["a".to_owned(), "one\nb  fine".to_owned()]];
        assert_eq!(table(&["ID", "SAID"], &rows), "ID  SAID\na   one b  fine");
    }

    #[test]
    fn columns_line_up_without_trailing_space() {
        let rows = [
            vec!["a".to_owned(), "long".to_owned()],
            vec!["bcd".to_owned(), String::new()],
        ];
        assert_eq!(table(&["ID", "STATE"], &rows), "ID   STATE\na    long\nbcd");
    }
}
