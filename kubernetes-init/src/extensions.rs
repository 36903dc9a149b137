//! From a plan to services: the extensions are read and checked, and what cannot be used is named.
//!
//! An extension that cannot be used changes nothing: the one of the same name that was used before stays, with its services.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use instar_extension::{Architecture, Extension, Host, ServiceUnit};
use instar_kubernetes_plan::{LARGEST_PLAN, Plan, PlannedExtension};

use crate::service::Service;

/// An extension in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Used {
    /// Its name.
    pub(crate) name: String,
    /// The path of its tree.
    pub(crate) tree: String,
    units: Vec<ServiceUnit>,
}

/// The machine's system, which an extension may be made for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct System {
    /// `VERSION_ID` of its os-release; empty if nothing tells it.
    version: String,
    /// `SYSEXT_LEVEL`; older versions have none.
    level: Option<String>,
}

impl System {
    /// Reads it as it is now.
    pub(crate) fn read() -> Self {
        // Without the file only extensions for every system fit, and the error of each other one says what it was compared with.
        System::of(&fs::read_to_string("/etc/os-release").unwrap_or_default())
    }

    fn of(os_release: &str) -> Self {
        let field = |name: &str| {
            let fields = os_release.lines().filter_map(|line| line.split_once('='));
            let mut values = fields.filter(|(key, _)| *key == name);
            values
                .next()
                .map(|(_, value)| value.trim_matches('"').to_owned())
        };
        System {
            version: field("VERSION_ID").unwrap_or_default(),
            level: field("SYSEXT_LEVEL"),
        }
    }
}

/// The result of a plan.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// The extensions, in the order of their names.
    pub(crate) used: Vec<Used>,
    /// Their services.
    pub(crate) services: Vec<Service>,
    /// The extensions that cannot be used, with reasons.
    pub(crate) errors: Vec<String>,
}

/// Reads the plan's file; `None` if machined has not made a plan yet.
pub(crate) fn read_plan(file: &Path) -> Result<Option<Plan>> {
    if !file.try_exists().unwrap_or(true) {
        return Ok(None);
    }
    let read = || -> Result<Plan> {
        let length = fs::metadata(file)?.len();
        ensure!(
            length <= LARGEST_PLAN,
            "it has more than {LARGEST_PLAN} bytes"
        );
        Ok(serde_json::from_slice(&fs::read(file)?)?)
    };
    let plan = read().with_context(|| format!("cannot read the plan {}", file.display()))?;
    Ok(Some(plan))
}

impl Outcome {
    /// Reads the extensions of a plan, for a system.
    pub(crate) fn of(plan: &Plan, before: &[Used], system: &System) -> Self {
        let mut outcome = Outcome::default();
        for planned in &plan.extensions {
            let one = match read_extension(planned, &plan.node, system) {
                Ok(one) => Some(one),
                Err(error) => {
                    outcome.errors.push(format!("{error:#}"));
                    before
                        .iter()
                        .find(|used| used.name == planned.name)
                        .cloned()
                }
            };
            outcome.used.extend(one);
        }
        outcome.used.sort_by(|one, other| one.name.cmp(&other.name));
        outcome.collect_services(plan);
        outcome.refuse_circles();
        outcome
    }

    /// Their trees, the lowest first.
    pub(crate) fn trees(&self) -> Vec<PathBuf> {
        self.used
            .iter()
            .map(|used| PathBuf::from(&used.tree))
            .collect()
    }

    fn collect_services(&mut self, plan: &Plan) {
        for used in &self.used {
            for unit in &used.units {
                let name = unit.name.trim_end_matches(".service").to_owned();
                if let Some(other) = self.services.iter().find(|service| service.name == name) {
                    self.errors.push(format!(
                        "{} starts {}, as {} does already: the first one is used",
                        used.name, unit.name, other.extension
                    ));
                    continue;
                }
                self.services.push(Service {
                    extension: used.name.clone(),
                    tree: used.tree.clone(),
                    unit: unit.clone(),
                    environment: plan.environment.get(&name).cloned().unwrap_or_default(),
                    restarts: plan.restarts.get(&name).copied().unwrap_or_default(),
                    name,
                });
            }
        }
    }

    /// Leaves out services that could never start, as each is to start after the others.
    fn refuse_circles(&mut self) {
        let mut open: BTreeSet<&str> = self.units().collect();
        loop {
            let can_start = |name: &&str| {
                let service = self
                    .services
                    .iter()
                    .find(|service| service.unit.name == **name);
                let mut after = service.iter().flat_map(|service| &service.unit.after);
                !after.any(|unit| open.contains(unit.as_str()))
            };
            let (startable, left): (Vec<&str>, Vec<&str>) =
                open.iter().partition(|name| can_start(name));
            if startable.is_empty() {
                break;
            }
            open = left.into_iter().collect();
        }
        if open.is_empty() {
            return;
        }
        let refused: Vec<String> = open.into_iter().map(str::to_owned).collect();
        self.errors.push(format!(
            "{} cannot start, as they are to start after each other",
            refused.join(", ")
        ));
        self.services
            .retain(|service| !refused.contains(&service.unit.name));
    }

    fn units(&self) -> impl Iterator<Item = &str> {
        self.services
            .iter()
            .map(|service| service.unit.name.as_str())
    }
}

fn read_extension(planned: &PlannedExtension, node: &str, system: &System) -> Result<Used> {
    let PlannedExtension { name, tree } = planned;
    let parsed = name
        .parse()
        .with_context(|| format!("the plan's extension {name:?} has no valid name"))?;
    let host = Host {
        level: system.level.as_deref(),
        ..Host::instar(&system.version, Architecture::OWN)
    };
    let path = Path::new(tree);
    ensure!(
        path.is_dir(),
        "the extension {name} is not there: {tree} is no directory"
    );
    // machined has taken it, or has it from a version that took it.
    let extension = Extension::read_taken(path, &parsed, host, node)
        .with_context(|| format!("the extension {name} cannot be used"))?;
    Ok(Used {
        name: name.clone(),
        tree: tree.clone(),
        units: extension.started,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Makes an extension that starts services, each after others, and returns its part of a plan.
    fn extension(folder: &Path, name: &str, services: &[(&str, &str)]) -> PlannedExtension {
        let tree = folder.join(name);
        let write = |path: String, text: String| {
            let path = tree.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(
            format!("usr/lib/extension-release.d/extension-release.{name}"),
            "ID=_any\n".to_owned(),
        );
        for (service, after) in services {
            let units = "usr/lib/systemd/system";
            write(
                format!("{units}/{service}.service"),
                format!("[Unit]\nAfter={after}\n[Service]\nExecStart=/usr/bin/{service}\n"),
            );
            write(
                format!("{units}/multi-user.target.d/{service}.conf"),
                format!("[Unit]\nUpholds={service}.service\n"),
            );
        }
        PlannedExtension {
            name: name.to_owned(),
            tree: tree.display().to_string(),
        }
    }

    fn outcome(plan: &Plan, before: &[Used]) -> Outcome {
        let system = System::of("ID=instar\nVERSION_ID=v0.1.0\nSYSEXT_LEVEL=1.0\n");
        Outcome::of(plan, before, &system)
    }

    fn names(outcome: &Outcome) -> Vec<&str> {
        let names = outcome.services.iter().map(|service| service.name.as_str());
        names.collect()
    }

    #[test]
    fn a_plan_becomes_services_with_their_variables() {
        let folder = tempfile::tempdir().unwrap();
        let plan = Plan {
            extensions: vec![
                extension(
                    folder.path(),
                    "kubernetes",
                    &[("kubelet", "containerd.service")],
                ),
                extension(folder.path(), "containerd", &[("containerd", "")]),
            ],
            environment: [(
                "kubelet".to_owned(),
                [("A".to_owned(), "1".to_owned())].into(),
            )]
            .into(),
            restarts: [("containerd".to_owned(), 2)].into(),
            ..Plan::default()
        };
        let outcome = outcome(&plan, &[]);
        assert_eq!(outcome.errors, [] as [&str; 0]);
        assert_eq!(names(&outcome), ["containerd", "kubelet"]);
        assert_eq!(outcome.services[1].environment["A"], "1");
        assert_eq!(outcome.services[0].restarts, 2);
        assert!(outcome.trees()[0].ends_with("containerd"));
    }

    #[test]
    fn an_extension_for_this_system_is_used_by_its_version_or_level() {
        let folder = tempfile::tempdir().unwrap();
        let planned = extension(folder.path(), "agent", &[("agent", "")]);
        let plan = Plan {
            extensions: vec![planned.clone()],
            ..Plan::default()
        };
        let release =
            Path::new(&planned.tree).join("usr/lib/extension-release.d/extension-release.agent");
        let (old, new) = (
            "VERSION_ID=\"v0.1.0\"\n",
            "VERSION_ID=v0.2.0\nSYSEXT_LEVEL=1.0\n",
        );
        for (wants, system, fits) in [
            ("VERSION_ID=0.1.0\n", old, true),
            ("VERSION_ID=v0.1.0\n", new, false),
            ("SYSEXT_LEVEL=1.0\n", new, true),
            ("SYSEXT_LEVEL=1.0\n", old, false),
        ] {
            fs::write(&release, format!("ID=instar\n{wants}")).unwrap();
            let outcome = Outcome::of(&plan, &[], &System::of(system));
            assert_eq!(
                outcome.errors.is_empty(),
                fits,
                "{wants} {:?}",
                outcome.errors
            );
        }
    }

    #[test]
    fn an_extension_that_cannot_be_used_is_named_and_the_one_before_stays() {
        let folder = tempfile::tempdir().unwrap();
        let good = extension(folder.path(), "agent", &[("agent", "")]);
        let plan = |planned| Plan {
            extensions: vec![planned],
            ..Plan::default()
        };
        let first = outcome(&plan(good.clone()), &[]);
        let missing = PlannedExtension {
            tree: "/nowhere".to_owned(),
            ..good.clone()
        };
        let second = outcome(&plan(missing), &first.used);
        assert_eq!(
            second.errors,
            ["the extension agent is not there: /nowhere is no directory"]
        );
        assert_eq!(second.services, first.services);
        let unit = Path::new(&good.tree).join("usr/lib/systemd/system/agent.service");
        fs::write(unit, "[Service]\nExecStart=/a\nProtectSystem=strict\n").unwrap();
        let third = outcome(&plan(good), &[]);
        assert_eq!(
            third.errors,
            [
                "the extension agent cannot be used: agent: agent.service:3: ProtectSystem= is not served"
            ]
        );
        assert_eq!(names(&third), [] as [&str; 0]);
    }

    #[test]
    fn services_of_two_extensions_that_cannot_be_together_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let plan = Plan {
            extensions: vec![
                extension(folder.path(), "a", &[("one", "two.service"), ("three", "")]),
                extension(folder.path(), "b", &[("two", "one.service"), ("three", "")]),
            ],
            ..Plan::default()
        };
        let outcome = outcome(&plan, &[]);
        assert_eq!(names(&outcome), ["three"]);
        assert_eq!(
            outcome.errors,
            [
                "b starts three.service, as a does already: the first one is used",
                "one.service, two.service cannot start, as they are to start after each other",
            ]
        );
    }

    #[test]
    fn a_plan_that_cannot_be_read_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("plan.json");
        assert_eq!(read_plan(&file).unwrap(), None);
        let error = || format!("{:#}", read_plan(&file).unwrap_err());
        fs::write(&file, "{\"node\": 1").unwrap();
        assert!(error().contains("line 1"), "{}", error());
    }
}
