//! Prometheus's own parser of its text format, in its Python client.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::python::python_with;

/// Its packages.
const PACKAGES: [&str; 1] = ["prometheus-client==0.21.1"];
/// Prints a line for each sample: the family's type, the sample's name, its labels and its value.
const PROGRAM: &str = "
import sys
from prometheus_client.parser import text_string_to_metric_families as families
for family in families(sys.stdin.read()):
    for sample in family.samples:
        labels = ','.join(f'{k}={v}' for k, v in sorted(sample.labels.items()))
        print(family.type, sample.name, '{' + labels + '}', sample.value)
";

/// Parses a page and returns a line for each sample: `counter instar_x_total {a=b} 1.0`.
pub fn parse_metrics(page: &str) -> Result<Vec<String>> {
    let python = python_with("prometheus-client", &PACKAGES)?;
    let mut child = Command::new(python)
        .args(["-c", PROGRAM])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run Python")?;
    let input = child.stdin.take().context("no standard input")?;
    { input }.write_all(page.as_bytes())?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "the page is not in the format");
    let lines = String::from_utf8(output.stdout)?;
    Ok(lines.lines().map(str::to_owned).collect())
}
