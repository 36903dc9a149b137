//! Manifests in the config. Their text is read here, so that a mistake in it is an error of the config, before a cluster sees it.

use serde_json::Value;

use super::{
    super::{
        MAX_CONFIG_BYTES,
        model::{Manifest, ManifestObject},
        problem::ConfigErrors,
        section::{Section, json},
        yaml,
    },
    Documents,
};

/// Limit on all objects together as JSON, in bytes: many small manifests may each have aliases that expand to much.
const MAX_OBJECTS_BYTES: usize = 2 * MAX_CONFIG_BYTES;

/// Reads the manifests, in either shape of Talos's config.
pub(super) fn manifests(documents: &Documents<'_>) -> Vec<Manifest> {
    let cluster = documents.cluster.as_ref();
    let of_cluster = cluster.map(|cluster| cluster.sections("inlineManifests"));
    let of_cluster = of_cluster.into_iter().flatten();
    let of_cluster = of_cluster.map(|(_, section)| (section, "contents"));
    let own = documents.of("KubeInlineManifestConfig");
    let own = own.map(|document| (document, "manifest"));
    let (mut manifests, mut bytes) = (Vec::new(), 0);
    for (section, field) in of_cluster.chain(own) {
        let Some(manifest) = manifest(&section, field) else {
            continue;
        };
        bytes += size(&manifest);
        if bytes > MAX_OBJECTS_BYTES {
            section.wrong(format_args!(
                "the objects of all manifests have more than {MAX_OBJECTS_BYTES} bytes: apply some of them by other means"
            ));
            break;
        }
        manifests.push(manifest);
    }
    manifests
}

fn size(manifest: &Manifest) -> usize {
    let objects = manifest.objects.iter();
    objects.map(|it| it.content.to_string().len()).sum()
}

fn manifest(section: &Section<'_>, field: &str) -> Option<Manifest> {
    let name: Option<String> = section.required("name");
    let text: Option<String> = section.required(field);
    let (name, text) = (name?, text?);
    match objects(&text) {
        Ok(objects) => Some(Manifest { name, objects }),
        Err(fault) => {
            section.wrong_field(field, format_args!("the manifest `{name}`: {fault}"));
            None
        }
    }
}

/// Reads the objects of a manifest; the error says what is wrong, and in which of its documents.
pub(in super::super) fn objects(text: &str) -> Result<Vec<ManifestObject>, String> {
    let documents = yaml::documents(text.as_bytes(), MAX_CONFIG_BYTES);
    let mut objects = Vec::new();
    for document in documents.map_err(|errors| fault_of_text(&errors))? {
        take(json(&document.root), &mut objects)
            .map_err(|fault| format!("document {}: {fault}", document.number))?;
    }
    Ok(objects)
}

/// Returns the one problem of a text that is no YAML, with its place in the manifest.
fn fault_of_text(errors: &ConfigErrors) -> String {
    let problems = errors.problems().iter().map(|problem| match problem.at {
        Some(at) => format!("{at} of the manifest: {}", problem.message),
        None => problem.message.clone(),
    });
    problems.collect::<Vec<_>>().join("; ")
}

/// Takes an object, or all of a `List`.
fn take(mut value: Value, objects: &mut Vec<ManifestObject>) -> Result<(), String> {
    if value["kind"] != "List" {
        objects.push(object(value)?);
        return Ok(());
    }
    let Value::Array(items) = value["items"].take() else {
        return Err("a `List` has the field `items`, a list of objects".to_owned());
    };
    for (number, item) in items.into_iter().enumerate() {
        take(item, objects).map_err(|fault| format!("items[{number}]: {fault}"))?;
    }
    Ok(())
}

fn object(content: Value) -> Result<ManifestObject, String> {
    if !content.is_object() {
        return Err("an object is a map of fields".to_owned());
    }
    let needed = |field| {
        let missing = || format!("the object has no `{field}`; every object needs one");
        text(&content, field)?.ok_or_else(missing)
    };
    let (api_version, kind) = (needed("apiVersion")?, needed("kind")?);
    let name = needed("metadata.name")?;
    let namespace = text(&content, "metadata.namespace")?;
    for part in api_version.splitn(2, '/') {
        check_part("apiVersion", part)?;
    }
    check_part("metadata.name", &name)?;
    if let Some(namespace) = &namespace {
        check_part("metadata.namespace", namespace)?;
    }
    Ok(ManifestObject {
        api_version,
        kind,
        namespace,
        name,
        content,
    })
}

/// Returns the text of a field; `None` if it is absent.
fn text(content: &Value, field: &str) -> Result<Option<String>, String> {
    let path = format!("/{}", field.replace('.', "/"));
    match content.pointer(&path) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(format!(
            "`{field}` must be text; write numbers and `true` in quotes"
        )),
    }
}

/// Checks a part of an object's address at the API server, by the rule of Kubernetes.
fn check_part(field: &str, part: &str) -> Result<(), String> {
    if matches!(part, "" | "." | "..") || part.contains(['/', '%']) {
        return Err(format!(
            "`{field}` is a part of the object's address: it cannot be empty, `.` or `..`, and `/` and `%` cannot be in it"
        ));
    }
    Ok(())
}
