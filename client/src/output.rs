//! Standard output: text for people or JSON for programs.

use std::io::{self, Write};

use serde_json::Value;

use crate::failure::Failure;

/// How results are shown. Progress and errors go to standard error either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Output {
    /// For people.
    #[default]
    Text,
    /// One JSON value per line.
    Json,
}

impl Output {
    /// Shows one result, whichever form is asked for.
    pub(crate) fn show(
        self,
        text: impl FnOnce() -> String,
        json: impl FnOnce() -> Value,
    ) -> Result<(), Failure> {
        match self {
            Self::Text => print_line(&text()),
            Self::Json => print_line(&json().to_string()),
        }
    }
}

/// One line on standard output.
pub(crate) fn print_line(line: &str) -> Result<(), Failure> {
    print_bytes(format!("{line}\n").as_bytes())
}

/// Bytes on standard output, as they are.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)
        .and_then(|()| out.flush())
        .map_err(|error| Failure::io("cannot write to standard output", error))
}

/// Rows below a header, in columns as wide as their widest cell.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = header.iter().map(|cell| cell.len()).collect();
    for row in rows {
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
        .chain(rows)
        .map(line)
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_without_trailing_space() {
        let rows = [
            vec!["a".to_owned(), "long".to_owned()],
            vec!["bcd".to_owned(), String::new()],
        ];
        assert_eq!(table(&["ID", "STATE"], &rows), "ID   STATE\na    long\nbcd");
    }
}
