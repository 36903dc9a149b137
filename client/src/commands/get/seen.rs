//! The resources that a watch has shown, so that a restarted watch shows only the changes since then.

use std::collections::BTreeMap;

use instar_api::cosi::resource::Resource;

use super::row::Happened;

/// Resources of one type in one namespace, by id.
#[derive(Default)]
pub(super) struct Seen {
    shown: BTreeMap<String, Resource>,
    /// Resources that were shown before the watch restarted, and not reported since.
    before: BTreeMap<String, Resource>,
}

impl Seen {
    /// The watch restarts: all resources are reported once more.
    pub(super) fn again(&mut self) {
        self.before.append(&mut self.shown);
    }

    /// The change to show for a reported resource, if there is one.
    pub(super) fn news(&mut self, happened: Happened, resource: &Resource) -> Option<Happened> {
        let id = id(resource);
        let before = self.before.remove(id);
        if happened == Happened::Destroyed {
            self.shown.remove(id);
            return Some(happened);
        }
        self.shown.insert(id.to_owned(), resource.clone());
        match before {
            Some(before) if is_same(&before, resource) => None,
            Some(_) => Some(Happened::Updated),
            None => Some(happened),
        }
    }

    /// All resources have been reported: returns the ones that are gone since the restart.
    pub(super) fn gone(&mut self) -> Vec<Resource> {
        std::mem::take(&mut self.before).into_values().collect()
    }
}

fn id(resource: &Resource) -> &str {
    resource.metadata.as_ref().map_or("", |known| &known.id)
}

/// Whether two resources have the same content. Versions and times begin anew with each generation.
fn is_same(one: &Resource, other: &Resource) -> bool {
    let phase = |resource: &Resource| resource.metadata.as_ref().map(|known| known.phase.clone());
    one.spec == other.spec && phase(one) == phase(other)
}

#[cfg(test)]
mod tests {
    use instar_api::cosi::resource::{Metadata, Spec};

    use super::*;

    fn resource(id: &str, yaml: &str) -> Resource {
        Resource {
            metadata: Some(Metadata {
                id: id.to_owned(),
                ..Metadata::default()
            }),
            spec: Some(Spec {
                yaml_spec: yaml.to_owned(),
                ..Spec::default()
            }),
        }
    }

    #[test]
    fn what_is_the_same_is_told_once() {
        use Happened::{Created, Destroyed, Updated};
        let mut seen = Seen::default();
        for id in ["same", "other", "gone", "ended"] {
            assert_eq!(seen.news(Created, &resource(id, "one")), Some(Created));
        }
        let ended = resource("ended", "one");
        assert_eq!(seen.news(Destroyed, &ended), Some(Destroyed));
        seen.again();
        assert_eq!(seen.news(Created, &resource("same", "one")), None);
        let other = resource("other", "two");
        assert_eq!(seen.news(Created, &other), Some(Updated));
        assert_eq!(seen.news(Created, &ended), Some(Created));
        assert_eq!(seen.gone(), [resource("gone", "one")]);
        assert_eq!(seen.news(Updated, &resource("same", "one")), Some(Updated));
    }
}
