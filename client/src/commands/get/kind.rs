//! Finds the type of resource that a word means: the node knows the names of its types.

use instar_api::cosi::resource::Resource;
use instar_client::{Failure, FailureKind, Node};
use serde::Deserialize;

use super::content;

/// The namespace and type of the definitions of all types.
const META: &str = "meta";
const DEFINITIONS: &str = "ResourceDefinitions.meta.cosi.dev";

/// A type of resource, as its definition describes it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Kind {
    #[serde(rename = "type")]
    name: String,
    display_type: String,
    default_namespace: String,
    #[serde(default)]
    all_aliases: Vec<String>,
    #[serde(default)]
    print_columns: Vec<Column>,
    /// Not empty if the type is for administrators alone.
    #[serde(default)]
    sensitivity: Option<String>,
}

/// A column of the type's table.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) json_path: String,
}

impl Kind {
    /// The full name of the type.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The name of one resource of the type.
    pub(super) fn singular(&self) -> &str {
        &self.display_type
    }

    /// The namespace of the resources, unless another one is asked for.
    pub(super) fn namespace(&self) -> &str {
        &self.default_namespace
    }

    /// Whether the resources hold secrets.
    pub(super) fn is_sensitive(&self) -> bool {
        self.sensitivity
            .as_ref()
            .is_some_and(|word| !word.is_empty())
    }

    /// The columns of the type's table.
    pub(super) fn columns(&self) -> &[Column] {
        &self.print_columns
    }

    fn is_called(&self, word: &str) -> bool {
        let names = self.all_aliases.iter().chain([&self.name]);
        names
            .into_iter()
            .any(|name| name.eq_ignore_ascii_case(word))
    }
}

/// The type with this name or alias on a node.
pub(super) async fn find(node: &Node, word: &str) -> Result<Kind, Failure> {
    choose(&definitions(node).await?, word)
}

/// Every type that a node has.
pub(super) async fn all(node: &Node) -> Result<Vec<Kind>, Failure> {
    let definitions = definitions(node).await?;
    let kinds = definitions
        .iter()
        .filter_map(|resource| serde_json::from_value(content(resource)).ok());
    Ok(kinds.collect())
}

async fn definitions(node: &Node) -> Result<Vec<Resource>, Failure> {
    let doing = "cannot ask what resources there are";
    super::all(node, META, DEFINITIONS, doing).await
}

fn choose(definitions: &[Resource], word: &str) -> Result<Kind, Failure> {
    let kinds = definitions
        .iter()
        .filter_map(|resource| serde_json::from_value(content(resource)).ok());
    let mut meant: Vec<Kind> = kinds.filter(|kind: &Kind| kind.is_called(word)).collect();
    match (meant.pop(), meant.is_empty()) {
        (Some(kind), true) => Ok(kind),
        (None, _) => Err(Failure::new(
            FailureKind::Usage,
            format!("the node has no resources called {word:?}"),
        )
        .advise("`instarctl get rd` lists those that it has")),
        (Some(last), false) => {
            meant.push(last);
            let names: Vec<_> = meant.iter().map(Kind::name).collect();
            Err(Failure::new(
                FailureKind::Usage,
                format!("{word:?} may mean {}; name one of them", names.join(" or ")),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_api::cosi::resource::Spec;

    use super::*;

    fn definition(name: &str, alias: &str) -> Resource {
        let yaml = format!(
            "type: {name}\ndisplayType: X\ndefaultNamespace: runtime\naliases: []\nallAliases: [{alias}, x]\n"
        );
        Resource {
            metadata: None,
            spec: Some(Spec {
                yaml_spec: yaml,
                ..Spec::default()
            }),
        }
    }

    #[test]
    fn a_word_means_one_type() {
        let definitions = [
            definition("Lamps.test", "lamp"),
            definition("Doors.test", "door"),
        ];
        assert_eq!(choose(&definitions, "LAMP").unwrap().name(), "Lamps.test");
        assert_eq!(
            choose(&definitions, "doors.test").unwrap().name(),
            "Doors.test"
        );
        assert!(
            choose(&definitions, "x")
                .unwrap_err()
                .to_string()
                .contains("Lamps.test or Doors.test")
        );
        assert!(choose(&definitions, "window").is_err());
    }
}
