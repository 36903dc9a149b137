//! The services that an extension starts, and what it asks to be done that is not.
//!
//! ```text
//!   multi-user.target.d/*.conf   Upholds=, Wants=, Requires=  ┐
//!   multi-user.target.wants/, .upholds/, .requires/           ┴─► a service ──Wants=, SERVICE.wants/──► others of the same extension
//! ```
//!
//! Units that another target starts, a drop-in for a unit that the extension does not have, and directories of files that systemd carries out are
//! errors that name them. Files that nothing starts are fine.
//!
//! The decision: each extension is read by itself, so a drop-in for another extension's unit is an error. To apply it was the other choice:
//! whether an extension can be used would then depend on which others are there, and each of them is checked, tried and given up by itself.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use super::{MOST, Reader, Unusable};
use crate::unit::{Assignment, parse};
use crate::{ServiceUnit, Unserved};

const UNITS: &str = "usr/lib/systemd/system";
/// The target that starts services.
const TARGET: &str = "multi-user.target";
/// The settings by which a target's drop-ins, and directories beside it, start units.
const STARTING: [(&str, &str); 3] = [
    ("Upholds", "upholds"),
    ("Wants", "wants"),
    ("Requires", "requires"),
];
/// Settings of the target without an effect, as nothing here waits for it.
const OF_NO_EFFECT: [&str; 3] = ["After", "Description", "Documentation"];
/// Directories whose files systemd carries out, and nothing here.
const NOT_CARRIED_OUT: [&str; 4] = [
    "usr/local/lib/systemd/system",
    "usr/lib/modules-load.d",
    "usr/lib/sysctl.d",
    "usr/lib/tmpfiles.d",
];
/// Limit on the files of a directory that are looked at.
const MOST_FILES: usize = 1024;

impl Reader<'_> {
    /// The services that the extension starts.
    pub(super) fn services(&self, host_name: &str) -> Result<Vec<ServiceUnit>, Unusable> {
        let mut unserved = Vec::new();
        let mut waiting: VecDeque<String> = self.started_by_target(&mut unserved)?.into();
        let (mut known, mut services) = (BTreeSet::new(), Vec::new());
        while let Some(unit) = waiting.pop_front() {
            if !known.insert(unit.clone()) {
                continue;
            }
            let assignments = self.service(&unit, known.len())?;
            match ServiceUnit::of(&unit, host_name, &assignments) {
                Ok(service) => {
                    waiting.extend(self.started_by(&service, &mut unserved)?);
                    services.push(service);
                }
                Err(more) => unserved.extend(more),
            }
        }
        unserved.extend(self.of_units_elsewhere()?);
        unserved.extend(self.not_carried_out()?);
        match unserved.is_empty() {
            true => Ok(services),
            false => Err(Unusable::Unserved {
                name: self.name.clone(),
                unserved,
            }),
        }
    }

    /// The assignments of a service that is started as one of so many.
    fn service(&self, unit: &str, number: usize) -> Result<Vec<Assignment>, Unusable> {
        let missing = || Unusable::Missing {
            name: self.name.clone(),
            unit: unit.to_owned(),
        };
        if !unit.ends_with(".service") || unit.contains('/') {
            return Err(missing());
        }
        if number > MOST {
            return Err(self.too_much(Path::new(UNITS), format!("{MOST} services that it starts")));
        }
        for file in files_of(unit) {
            if let Some(text) = self.text(&Path::new(UNITS).join(&file))? {
                let mut assignments = parse(&file, &text)?;
                assignments.extend(self.drop_ins(unit)?);
                return Ok(assignments);
            }
        }
        Err(missing())
    }

    /// The units that the target starts.
    fn started_by_target(&self, unserved: &mut Vec<Unserved>) -> Result<Vec<String>, Unusable> {
        let mut started = Vec::new();
        for assignment in self.drop_ins(TARGET)? {
            let Assignment {
                section,
                key,
                value,
                place,
            } = assignment;
            let starts = STARTING.iter().any(|(known, _)| *known == key);
            if section == "Unit" && starts {
                started.extend(value.split_whitespace().map(str::to_owned));
            } else if section != "Unit" || !OF_NO_EFFECT.contains(&key.as_str()) {
                let what = format!("{key}= of {TARGET}");
                unserved.push(Unserved { place, what });
            }
        }
        for (_, kind) in STARTING {
            let directory = Path::new(UNITS).join(format!("{TARGET}.{kind}"));
            started.extend(self.entries(&directory, MOST)?);
        }
        Ok(started)
    }

    /// The services of this extension that one of its services starts. Units that it does not have are those of others, who start them.
    fn started_by(
        &self,
        service: &ServiceUnit,
        unserved: &mut Vec<Unserved>,
    ) -> Result<Vec<String>, Unusable> {
        let mut wanted = service.wants.clone();
        for owner in files_of(&service.name) {
            for (_, kind) in STARTING {
                let directory = format!("{owner}.{kind}");
                let units = self.entries(&Path::new(UNITS).join(&directory), MOST)?;
                match kind {
                    "wants" => wanted.extend(units),
                    // As in the unit itself, where such a directive is an error.
                    _ => unserved.extend(units.into_iter().map(|unit| Unserved {
                        place: format!("{directory}/{unit}"),
                        what: format!("a unit that {} {kind}", service.name),
                    })),
                }
            }
        }
        wanted.retain(|unit| self.has(unit));
        let (services, others): (Vec<_>, Vec<_>) = wanted
            .into_iter()
            .partition(|unit| unit.ends_with(".service"));
        unserved.extend(others.into_iter().map(|unit| Unserved {
            place: service.name.clone(),
            what: format!("Wants={unit}"),
        }));
        Ok(services)
    }

    /// The settings of the extension for units that it does not have: drop-ins for them, and units that they are to start.
    fn of_units_elsewhere(&self) -> Result<Vec<Unserved>, Unusable> {
        let mut unserved = Vec::new();
        for directory in self.entries(Path::new(UNITS), MOST_FILES)? {
            let Some((unit, kind)) = directory.rsplit_once('.') else {
                continue;
            };
            if unit == TARGET || self.has(unit) {
                continue;
            }
            let what = format!("of {unit}, a unit that this extension does not have,");
            if kind == "d" {
                let assignments = self.drop_ins(unit)?.into_iter();
                unserved.extend(assignments.map(
                    |Assignment {
                         key, value, place, ..
                     }| {
                        // Values of other units may be secrets.
                        let value = if unit.ends_with(".target") {
                            value
                        } else {
                            String::new()
                        };
                        let what = format!("{key}={value} {what}");
                        Unserved { place, what }
                    },
                ));
            } else if STARTING.iter().any(|(_, known)| *known == kind) {
                let units = self.entries(&Path::new(UNITS).join(&directory), MOST)?;
                unserved.extend(units.into_iter().map(|it| Unserved {
                    place: format!("{directory}/{it}"),
                    what: format!("a start {what}"),
                }));
            }
        }
        Ok(unserved)
    }

    /// Directories whose files systemd carries out.
    fn not_carried_out(&self) -> Result<Vec<Unserved>, Unusable> {
        let mut unserved = Vec::new();
        for directory in NOT_CARRIED_OUT {
            let files = self.entries(Path::new(directory), MOST_FILES)?;
            unserved.extend(files.first().map(|first| Unserved {
                place: format!("/{directory}/{first}"),
                what: format!("the directory /{directory}"),
            }));
        }
        Ok(unserved)
    }

    /// Whether the extension has this unit, or the template that it is an instance of.
    fn has(&self, unit: &str) -> bool {
        let is_file = |file: String| self.tree.join(UNITS).join(file).symlink_metadata();
        !unit.contains('/')
            && files_of(unit)
                .map(is_file)
                .any(|found| found.is_ok_and(|it| it.is_file()))
    }

    /// The assignments of a unit's drop-ins, in the order of their names. One for the instance takes the place of the template's of the
    /// same name.
    fn drop_ins(&self, unit: &str) -> Result<Vec<Assignment>, Unusable> {
        let mut files: BTreeMap<String, PathBuf> = BTreeMap::new();
        for owner in files_of(unit) {
            let directory = Path::new(UNITS).join(format!("{owner}.d"));
            for file in self.entries(&directory, MOST)? {
                let path = directory.join(&file);
                files.entry(file).or_insert(path);
            }
        }
        files.retain(|file, _| file.ends_with(".conf"));
        let mut found = Vec::new();
        for path in files.values() {
            if let Some(text) = self.text(path)? {
                let place = path.strip_prefix(UNITS).unwrap_or(path);
                found.extend(parse(&place.to_string_lossy(), &text)?);
            }
        }
        Ok(found)
    }
}

/// The files that a unit may be in: its own, and its template's (`a@b.service`, `a@.service`).
fn files_of(unit: &str) -> impl Iterator<Item = String> {
    let template = unit.split_once('@').and_then(|(prefix, rest)| {
        let (instance, kind) = rest.rsplit_once('.')?;
        (!instance.is_empty()).then(|| format!("{prefix}@.{kind}"))
    });
    [unit.to_owned()].into_iter().chain(template)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::os::unix::fs::symlink;

    use crate::{Architecture, Extension, Host};

    const SERVICE: &str = "[Service]\nExecStart=/bin/a\n";

    /// Reads an extension of these files below the directory of units; a content that begins with `->` is a link.
    fn read(files: &[(&str, &str)]) -> Result<Vec<(String, usize)>, String> {
        let tree = tempfile::tempdir().unwrap();
        let release = "/usr/lib/extension-release.d/extension-release.x";
        for (path, content) in files.iter().chain(&[(release, "ID=_any\n")]) {
            let path = match path.strip_prefix('/') {
                Some(path) => tree.path().join(path),
                None => tree.path().join(super::UNITS).join(path),
            };
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            match content.strip_prefix("->") {
                Some(to) => symlink(to, path).unwrap(),
                None => fs::write(path, content).unwrap(),
            }
        }
        let host = Host::instar("v0.1.0", Architecture::X86_64);
        let extension = Extension::read(tree.path(), &"x".parse().unwrap(), host, "node");
        let started = extension.map_err(|error| error.to_string())?.started;
        let arguments = |unit: &crate::ServiceUnit| unit.start.as_ref().unwrap().arguments.len();
        let started = started.iter();
        Ok(started
            .map(|unit| (unit.name.clone(), arguments(unit)))
            .collect())
    }

    #[test]
    fn a_service_is_started_by_the_target_or_by_another_service() {
        let target = (
            "multi-user.target.d/10.conf",
            "[Unit]\nUpholds=a.service\nAfter=a.service\n",
        );
        let wants = |unit: &'static str| {
            let text = format!("[Unit]\nWants={unit} network-online.target\n{SERVICE}");
            ("a.service", text)
        };
        type Files<'a> = &'a [(&'a str, &'a str)];
        let table: [(Files<'_>, &[&str]); 6] = [
            (&[("a.service", SERVICE), target], &["a.service"]),
            (
                &[
                    ("a.service", SERVICE),
                    ("multi-user.target.wants/a.service", "->../a.service"),
                ],
                &["a.service"],
            ),
            (
                &[
                    target,
                    ("a.service", &wants("b.service").1),
                    ("b.service", SERVICE),
                ],
                &["a.service", "b.service"],
            ),
            // Another extension has it, and starts it.
            (
                &[target, ("a.service", &wants("c.service").1)],
                &["a.service"],
            ),
            (
                &[
                    target,
                    ("a.service", SERVICE),
                    ("a.service.wants/b.service", "->../b.service"),
                    ("b.service", SERVICE),
                ],
                &["a.service", "b.service"],
            ),
            (
                &[
                    ("a.service", SERVICE),
                    ("a.socket", "[Socket]\n"),
                    ("a.timer", "[Timer]\n"),
                    ("own.target", ""),
                    ("own.target.wants/a.service", "->../a.service"),
                ],
                &[],
            ),
        ];
        for (files, expected) in table {
            let started = read(files).unwrap();
            let names: Vec<_> = started.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names, expected, "{files:?}");
        }
    }

    #[test]
    fn an_instance_is_its_template_with_the_drop_ins_of_both() {
        let drop_in = |words: &str| format!("[Service]\nExecStart=\nExecStart=/bin/a {words}\n");
        let (of_template, of_instance) = (drop_in("%i"), drop_in("%i two"));
        let target = (
            "multi-user.target.d/10.conf",
            "[Unit]\nUpholds=a@b.service\n",
        );
        let template = ("a@.service", SERVICE);
        let one = ("a@.service.d/10.conf", of_template.as_str());
        let two = ("a@b.service.d/10.conf", of_instance.as_str());
        for (files, words) in [
            (vec![target, template], 0),
            (vec![target, template, one], 1),
            (vec![target, template, one, two], 2),
        ] {
            assert_eq!(read(&files), Ok(vec![("a@b.service".to_owned(), words)]));
        }
    }

    #[test]
    fn what_nothing_would_do_is_named() {
        let target = ("multi-user.target.d/10.conf", "[Unit]\nUpholds=a.service\n");
        let service = ("a.service", SERVICE);
        for (file, content, named) in [
            (
                "kubelet.service.d/20-x.conf",
                "[Service]\nEnvironment=TOKEN=x\n",
                "kubelet.service.d/20-x.conf:2: Environment= of kubelet.service, a unit that this extension does not have, is not served",
            ),
            (
                "service.d/10.conf",
                SERVICE,
                "service.d/10.conf:2: ExecStart= of service,",
            ),
            (
                "sockets.target.d/10.conf",
                "[Unit]\nUpholds=a.socket\n",
                "sockets.target.d/10.conf:2: Upholds=a.socket of sockets.target,",
            ),
            (
                "timers.target.wants/a.timer",
                "->../a.timer",
                "timers.target.wants/a.timer: a start of timers.target,",
            ),
            (
                "multi-user.target.d/20.conf",
                "[Unit]\nConflicts=b.service\n",
                "multi-user.target.d/20.conf:2: Conflicts= of multi-user.target is not served",
            ),
            (
                "multi-user.target.wants/a.socket",
                "->../a.socket",
                "x starts a.socket, which it does not have as a service",
            ),
            (
                "a.service.requires/b.service",
                "->../b.service",
                "a.service.requires/b.service: a unit that a.service requires is not served",
            ),
            (
                "/usr/local/lib/systemd/system/b.service",
                SERVICE,
                "/usr/local/lib/systemd/system/b.service",
            ),
            (
                "/usr/lib/tmpfiles.d/a.conf",
                "",
                "the directory /usr/lib/tmpfiles.d is not served",
            ),
            ("/usr/lib/sysctl.d/a.conf", "", "/usr/lib/sysctl.d"),
            (
                "/usr/lib/modules-load.d/a.conf",
                "",
                "/usr/lib/modules-load.d",
            ),
        ] {
            let refused = read(&[target, service, (file, content)]).unwrap_err();
            assert!(refused.contains(named), "{file}: {refused}");
        }
        let wants = format!("[Unit]\nWants=a.socket\n{SERVICE}");
        let refused = read(&[target, ("a.service", &wants), ("a.socket", "")]).unwrap_err();
        assert!(
            refused.contains("Wants=a.socket is not served"),
            "{refused}"
        );
    }

    #[test]
    fn the_extensions_of_kubernetes_are_taken_as_they_are_published() {
        let published = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../tests/kubernetes/extensions"
        );
        for (name, service) in [
            ("containerd", "containerd.service"),
            ("kubernetes", "kubelet.service"),
        ] {
            let host = Host::instar("v0.1.0", Architecture::X86_64);
            let tree = std::path::Path::new(published).join(name);
            let extension = Extension::read(&tree, &name.parse().unwrap(), host, "node").unwrap();
            let names: Vec<_> = extension
                .started
                .iter()
                .map(|it| it.name.as_str())
                .collect();
            assert_eq!(names, [service]);
        }
    }
}
