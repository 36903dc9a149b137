//! Shows a resource as a row of a table or as JSON.

use instar_api::cosi::resource::Resource;
use serde_json::{Value, json};

use super::kind::Kind;
use super::{content, path};
use crate::output::{table, time};

/// The change of a watched resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Happened {
    Created,
    Updated,
    Destroyed,
}

impl Happened {
    /// The sign for the column of changes.
    fn sign(self) -> &'static str {
        match self {
            Happened::Created => "+",
            Happened::Updated => "",
            Happened::Destroyed => "-",
        }
    }

    fn word(self) -> &'static str {
        match self {
            Happened::Created => "created",
            Happened::Updated => "updated",
            Happened::Destroyed => "destroyed",
        }
    }
}

/// A row of the table.
pub(super) fn cells(
    kind: &Kind,
    node: &str,
    happened: Option<Happened>,
    resource: &Resource,
) -> Vec<String> {
    let metadata = resource.metadata.clone().unwrap_or_default();
    let content = content(resource);
    let sign = happened.map(|happened| happened.sign().to_owned());
    let fixed = [
        node.to_owned(),
        metadata.namespace,
        kind.singular().to_owned(),
        metadata.id,
        metadata.version,
    ];
    let columns = kind
        .columns()
        .iter()
        .map(|column| path::cell(&column.json_path, &content));
    sign.into_iter().chain(fixed).chain(columns).collect()
}

/// Everything that the node sent about the resource.
pub(super) fn json(node: &str, happened: Option<Happened>, resource: &Resource) -> Value {
    let metadata = resource.metadata.clone().unwrap_or_default();
    let mut shown = json!({
        "node": node,
        "metadata": {
            "namespace": metadata.namespace,
            "type": metadata.r#type,
            "id": metadata.id,
            "version": metadata.version.parse::<u64>().map_or(Value::Null, Value::from),
            "owner": metadata.owner,
            "phase": metadata.phase,
            "created": time(metadata.created.as_ref()),
            "updated": time(metadata.updated.as_ref()),
        },
        "spec": content(resource),
    });
    if !metadata.annotations.is_empty() {
        shown["metadata"]["annotations"] = json!(metadata.annotations);
    }
    if let Some(happened) = happened {
        shown["event"] = happened.word().into();
    }
    shown
}

/// A table whose rows come one after the other: columns grow with the rows.
pub(super) struct Rows {
    header: Vec<String>,
    widths: Vec<usize>,
}

impl Rows {
    pub(super) fn new(kind: &Kind, watched: bool) -> Self {
        let fixed = ["NODE", "NAMESPACE", "TYPE", "ID", "VERSION"].map(str::to_owned);
        let columns = kind
            .columns()
            .iter()
            .map(|column| column.name.to_uppercase());
        let sign = watched.then(|| "*".to_owned());
        let header: Vec<String> = sign.into_iter().chain(fixed).chain(columns).collect();
        Self {
            widths: header.iter().map(String::len).collect(),
            header,
        }
    }

    /// All rows at once.
    pub(super) fn table(&self, rows: &[Vec<String>]) -> String {
        let header: Vec<&str> = self.header.iter().map(String::as_str).collect();
        table(&header, rows)
    }

    /// The header line.
    pub(super) fn header(&mut self) -> String {
        self.line(&self.header.clone())
    }

    /// The line of a row.
    pub(super) fn line(&mut self, cells: &[String]) -> String {
        let padded = cells.iter().zip(&mut self.widths).map(|(cell, width)| {
            *width = (*width).max(cell.chars().count());
            format!("{cell:<width$}", width = *width)
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    }
}
