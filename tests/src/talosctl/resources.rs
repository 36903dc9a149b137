//! `get`: definitions of types, then resources of a type, as tables, documents and events.

use serde_json::Value;

use super::screen::{Screen, Step, Stop};
use super::session::Release;
use super::wire::Fields;
use super::{Talosctl, Words};

const DEFINITIONS: &str = "ResourceDefinitions.meta.cosi.dev";
const LIST: &str = "/cosi.resource.State/List";
const GET: &str = "/cosi.resource.State/Get";
const WATCH: &str = "/cosi.resource.State/Watch";

/// A resource that the client can use.
#[derive(Debug, Clone)]
pub(super) struct Resource {
    namespace: String,
    pub(super) id: String,
    version: String,
    pub(super) annotations: Vec<Fields>,
    /// Its specification, in protobuf.
    pub(super) encoded: Vec<u8>,
    /// The specification read from YAML.
    pub(super) spec: Value,
}

/// The client's knowledge of a type.
#[derive(Debug, Clone)]
pub(super) struct Definition {
    pub(super) kind: String,
    display: String,
    pub(super) namespace: String,
    aliases: Vec<String>,
    columns: Vec<(String, String)>,
}

impl Resource {
    /// Reads a resource; a malformed one ends the command.
    fn read(resource: Option<Fields>) -> Step<Self> {
        let bad = |what: &str| Stop::Failed(format!("a bad resource: {what}"));
        let resource = resource.ok_or_else(|| bad("none"))?;
        let metadata = resource.message_of(1).ok_or_else(|| bad("no metadata"))?;
        let spec = resource.message_of(2).ok_or_else(|| bad("no spec"))?;
        let phase = metadata.text_of(6);
        if !["running", "tearingDown"].contains(&phase.as_str()) {
            return Err(bad(&format!("the phase {phase:?}")));
        }
        let version = metadata.text_of(4);
        if version != "undefined" && version.parse::<u64>().is_err() {
            return Err(bad(&format!("the version {version:?}")));
        }
        let yaml = spec.text_of(2);
        if yaml.is_empty() {
            return Err(bad("YAML spec is not specified"));
        }
        let parsed = serde_saphyr::from_str(&yaml);
        Ok(Self {
            namespace: metadata.text_of(1),
            id: metadata.text_of(3),
            version,
            annotations: metadata.messages_of(11),
            encoded: spec.bytes_of(1).to_vec(),
            spec: parsed.map_err(|error| bad(&format!("{error}: {yaml}")))?,
        })
    }

    /// Decodes the specification from protobuf.
    pub(super) fn decoded(&self) -> Step<Fields> {
        Fields::decode(&self.encoded).map_err(|why| Stop::Failed(why.to_owned()))
    }

    fn row(&self, definition: &Definition) -> String {
        let columns = definition.columns.iter();
        let cells = columns.map(|(_, path)| cell(path, &self.spec));
        let beginning = [
            self.namespace.clone(),
            definition.display.clone(),
            self.id.clone(),
            self.version.clone(),
        ];
        let cells: Vec<String> = beginning.into_iter().chain(cells).collect();
        cells.join(" ")
    }
}

/// Returns the value at a JSON path without conditions; empty where there is none.
fn cell(path: &str, spec: &Value) -> String {
    let steps = path.trim_matches(['{', '}']).split('.');
    let mut value = spec;
    for step in steps.filter(|step| !["", "@"].contains(step)) {
        value = &value[step];
    }
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

impl Definition {
    fn read(resource: &Resource) -> Step<Self> {
        let spec = resource.decoded()?;
        let columns = spec.messages_of(6);
        let mut aliases = spec.texts_of(5);
        aliases.push(resource.id.clone());
        Ok(Self {
            kind: spec.text_of(1),
            display: spec.text_of(2),
            namespace: spec.text_of(3),
            aliases,
            columns: columns
                .iter()
                .map(|column| (column.text_of(1), column.text_of(2)))
                .collect(),
        })
    }

    pub(super) fn is_called(&self, name: &str) -> bool {
        let mut aliases = self.aliases.iter();
        aliases.any(|alias| alias.eq_ignore_ascii_case(name))
    }
}

impl Talosctl<'_> {
    /// Lists all resources of a type. Options are always sent, and empty.
    pub(super) async fn list_resources(&self, namespace: &str, kind: &str) -> Step<Vec<Resource>> {
        let asked = Fields::none()
            .text(1, namespace)
            .text(2, kind)
            .message(3, &Fields::none());
        let answers = self.session.stream(LIST, asked).await?.all().await?;
        let resources = answers.iter().map(|answer| answer.message_of(1));
        resources.map(Resource::read).collect()
    }

    pub(super) async fn definitions(&self) -> Step<Vec<Definition>> {
        // A quirk of the older release.
        let session = match (self.session.is_insecure(), self.session.release) {
            (true, Release::V1_13) => self.session.naming_an_empty_one(),
            _ => self.session.clone(),
        };
        let asking = Self { session, ..*self };
        let listed = asking.list_resources("meta", DEFINITIONS).await?;
        listed.iter().map(Definition::read).collect()
    }

    /// Finds the one type that a typed name means; fails if there are several or none.
    async fn definition(&self, name: &str) -> Step<Definition> {
        let mut found = self.definitions().await?;
        found.retain(|definition| definition.is_called(name));
        match (found.pop(), found.len()) {
            (Some(definition), 0) => Ok(definition),
            (None, _) => Err(Stop::Failed(format!("{name:?} is not registered"))),
            _ => Err(Stop::Failed(format!("{name:?} is ambiguous"))),
        }
    }

    pub(super) async fn get_resource(
        &self,
        namespace: &str,
        kind: &str,
        id: &str,
    ) -> Step<Resource> {
        let asked = Fields::none()
            .text(1, namespace)
            .text(2, kind)
            .text(3, id)
            .message(4, &Fields::none());
        let answer = self.session.call(GET, asked).await?;
        Resource::read(answer.message_of(1))
    }

    pub(super) async fn get(&self, mut words: Words<'_>, screen: &mut Screen) -> Step {
        let watches = words.flag("-w");
        let as_yaml = words.value("-o").is_some();
        let namespace = words.value("--namespace");
        self.look_at_version(screen).await?;
        let name = words.0.first().copied().unwrap_or_default();
        let id = words.0.get(1).copied();
        let definition = self.definition(name).await?;
        let namespace = namespace.unwrap_or(&definition.namespace).to_owned();
        let columns = definition.columns.iter();
        let header: Vec<&str> = columns.map(|(name, _)| name.as_str()).collect();
        if !as_yaml {
            let beginning = "NAMESPACE TYPE ID VERSION";
            screen.line(&format!("{beginning} {}", header.join(" ").to_uppercase()))?;
        }
        if watches {
            return self.watch(&definition, &namespace, id, screen).await;
        }
        let found = match id {
            Some(id) => vec![self.get_resource(&namespace, &definition.kind, id).await?],
            None => self.list_resources(&namespace, &definition.kind).await?,
        };
        for resource in found {
            match as_yaml {
                true => screen.line(&format!("{} {}", resource.id, resource.spec))?,
                false => screen.line(&resource.row(&definition))?,
            }
        }
        Ok(())
    }

    async fn watch(
        &self,
        definition: &Definition,
        namespace: &str,
        id: Option<&str>,
        screen: &mut Screen,
    ) -> Step {
        let mut events = self
            .session
            .stream(WATCH, watch(namespace, &definition.kind, id))
            .await?;
        let mut is_first = true;
        while let Some(answer) = events.next().await? {
            // The first message is passed over, whatever it holds.
            if std::mem::take(&mut is_first) {
                continue;
            }
            for event in answer.messages_of(1) {
                let mark = match event.number_of(2) {
                    0 => "+",
                    1 => "",
                    2 => "-",
                    3 | 5 => continue,
                    _ => return Err(Stop::Failed(event.text_of(4))),
                };
                let resource = Resource::read(event.message_of(1))?;
                screen.line(&format!("{mark} {}", resource.row(definition)))?;
            }
        }
        Ok(())
    }

    /// Follows resources as the dashboard does: by their protobuf. Returns the resources that exist at the start.
    pub(super) async fn watched_at_first(
        &self,
        namespace: &str,
        kind: &str,
        id: Option<&str>,
    ) -> Result<Vec<Fields>, tonic::Status> {
        let mut events = self
            .session
            .stream(WATCH, watch(namespace, kind, id))
            .await?;
        let mut is_first = true;
        let mut seen = Vec::new();
        while let Some(answer) = events.next().await? {
            if std::mem::take(&mut is_first) {
                continue;
            }
            for event in answer.messages_of(1) {
                let spec = event.message_of(1).and_then(|it| it.message_of(2));
                match event.number_of(2) {
                    0 | 2 => seen.extend(spec.and_then(|spec| spec.message_of(1))),
                    3 => return Ok(seen),
                    other => {
                        let why = format!("an event of the kind {other}: {}", event.text_of(4));
                        return Err(tonic::Status::internal(why));
                    }
                }
                if id.is_some() {
                    return Ok(seen);
                }
            }
        }
        Err(tonic::Status::unavailable("the stream ended"))
    }
}

/// Returns the request to watch a type, with its present resources first, or one resource.
fn watch(namespace: &str, kind: &str, id: Option<&str>) -> Fields {
    let asked = Fields::none().text(1, namespace).text(2, kind);
    let asked = match id {
        Some(id) => asked.text(3, id).message(4, &Fields::none()),
        None => asked.message(4, &Fields::none().number(1, 1)),
    };
    asked.number(5, 1)
}
