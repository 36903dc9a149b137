//! The methods that only read: by instarctl, by plain calls, and by a client that learns them from the node.

mod apid;
mod clients;
mod files;
mod machine;
mod nodes;
mod reflection;
mod secrets;
mod support;
mod workloads;

use anyhow::{Context as _, Result, ensure};
use instar_tests::{
    Greeter, Grpcio, Instarctl, Node, Outcome, Registry, Scratch, Test, chapters,
    plan_with_greeter, tests,
};
use serde_json::Value;
use tonic::{Status, Streaming};

use self::apid::apid_has_given_everything_up;
use self::clients::clients_are_served;
use self::files::its_files_are_shown;
use self::machine::the_machine_is_shown;
use self::nodes::several_nodes_may_be_named;
use self::reflection::the_node_teaches_its_methods;
use self::secrets::{readers_see_less, secrets_stay};
use self::support::support_collects_what_there_is;
pub(crate) use self::support::unpack_texts;
use self::workloads::what_it_runs_is_shown;
use crate::PATIENCE;

pub(crate) fn tests() -> Vec<Test> {
    tests![methods_that_look_show_the_node_and_none_of_its_secrets]
}

/// One boot serves all chapters: none changes the objects of another.
async fn methods_that_look_show_the_node_and_none_of_its_secrets(scratch: Scratch) -> Outcome {
    let grpcio = Grpcio::ready(&scratch)?;
    let asked = AskedNode::boot(scratch).await?;
    chapters![
        the_machine_is_shown(&asked),
        what_it_runs_is_shown(&asked),
        its_files_are_shown(&asked),
        clients_are_served(&asked),
        apid_has_given_everything_up(&asked.node),
        support_collects_what_there_is(&asked),
        secrets_stay(&asked.node, &asked.greeter),
        readers_see_less(&asked.node),
        several_nodes_may_be_named(&asked.node),
        the_node_teaches_its_methods(&grpcio, &asked.node),
    ]
    .await
}

/// A node with a greeter, and its clients.
struct AskedNode {
    scratch: Scratch,
    registry: Registry,
    node: Node,
    greeter: Greeter,
    instarctl: Instarctl,
}

impl AskedNode {
    async fn boot(scratch: Scratch) -> Result<Self> {
        let registry = Registry::start(&scratch)?;
        let plan = plan_with_greeter(&scratch, &registry, |config| config)?;
        let node = plan.memory_mib(512).blank_disk()?.boot().await?;
        let greeter = Greeter::of(&node)?;
        node.wait_until("the greeter answers", PATIENCE, async || greeter.greets())
            .await?;
        Ok(Self {
            instarctl: Instarctl::of(&node, &scratch)?,
            scratch,
            registry,
            node,
            greeter,
        })
    }

    /// Runs a command of instarctl; returns its JSON, one value per line.
    async fn lines(&self, arguments: &[&str]) -> Result<Vec<Value>> {
        let in_json = [&["--output", "json"], arguments].concat();
        let said = self.instarctl.run(&in_json).await?;
        ensure!(said.code == Some(0), "{arguments:?}: {said:?}");
        said.output
            .lines()
            .map(|line| serde_json::from_str(line).context("not JSON"))
            .collect()
    }

    /// Runs a command; returns the one value of its JSON.
    async fn one(&self, arguments: &[&str]) -> Result<Value> {
        let mut lines = self.lines(arguments).await?;
        ensure!(lines.len() == 1, "{arguments:?}: {lines:?}");
        Ok(lines.remove(0))
    }

    /// Returns the names in the output of `ls`.
    async fn names(&self, arguments: &[&str]) -> Result<Vec<String>> {
        let lines = self.lines(arguments).await?;
        let name = |line: &Value| text(&line["relative_name"]).to_owned();
        Ok(lines.iter().map(name).collect())
    }

    /// Checks that a command is refused with these words.
    async fn refuses(&self, arguments: &[&str], words: &str) -> Outcome {
        let said = self.instarctl.run(arguments).await?;
        ensure!(said.code != Some(0), "{arguments:?}: {said:?}");
        let complaint = said.complaint;
        ensure!(complaint.contains(words), "{arguments:?}: {complaint}");
        Ok(())
    }
}

/// Returns a JSON string, or an empty text.
fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns the members of a JSON array, or none.
fn members(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Returns the member of an array whose field has this value.
fn member<'a>(array: &'a Value, field: &str, says: &str) -> Result<&'a Value> {
    let found = members(array).iter().find(|one| one[field] == says);
    found.with_context(|| format!("none has the {field} {says}: {array}"))
}

async fn all<T>(stream: Result<tonic::Response<Streaming<T>>, Status>) -> Result<Vec<T>, Status> {
    let mut stream = stream?.into_inner();
    let mut messages = Vec::new();
    while let Some(message) = stream.message().await? {
        messages.push(message);
    }
    Ok(messages)
}
