//! The difference between two machine configs, as a value: shown by a dry run, then carried out.

use std::fmt;

use crate::config::settings::{self, Row, Setting, TakenOver};
use crate::config::{Container, MachineConfig};
use crate::containers::InForce;

/// The difference between the config in force and another one.
#[derive(Debug, Default)]
pub struct ConfigChange {
    /// Settings that are applied while the machine runs; not containers.
    pub live: Vec<&'static Row>,
    /// Settings that only a boot applies.
    pub at_boot: Vec<&'static Row>,
    /// Containers that the new config no longer has, by name.
    pub removed: Vec<String>,
    /// Containers that are new or changed, and so started, by name.
    pub started: Vec<String>,
    /// Containers that run on, but whose strategy for upgrades, or time to end, changes, by name.
    pub treated_otherwise: Vec<String>,
}

impl ConfigChange {
    /// Compares two configs.
    pub fn between(old: &MachineConfig, new: &MachineConfig) -> Self {
        let mut change = Self::default();
        let mut all_start = false;
        for row in settings::differing(old, new) {
            match row.taken_over {
                // The lists of containers below say which of them differ.
                TakenOver::ByContainers => {}
                _ if row.needs_boot(new) => change.at_boot.push(row),
                taken_over => {
                    change.live.push(row);
                    all_start |= taken_over == TakenOver::WithContainers;
                }
            }
        }
        let name = |container: &Container| container.name.to_string();
        let is_gone =
            |container: &&Container| !new.containers.iter().any(|it| it.name == container.name);
        let runs_on = |container: &&Container| {
            let mut old = old.containers.iter();
            // The services in the container of Kubernetes start again by its plan, and pods run on.
            let starts = all_start && !new.is_of_kubernetes(container);
            !starts && old.any(|it| it.runs_like(container))
        };
        let (on, started): (Vec<&Container>, _) = new.containers.iter().partition(runs_on);
        let is_other = |container: &&&Container| !old.containers.contains(container);
        change.removed = old.containers.iter().filter(is_gone).map(name).collect();
        change.treated_otherwise = on.iter().filter(is_other).map(|it| name(it)).collect();
        change.started = started.into_iter().map(name).collect();
        change
    }

    /// Returns the names of the settings that only a boot applies.
    pub fn names_at_boot(&self) -> String {
        names(&self.at_boot)
    }

    /// Names the containers of this change whose image in force does not count any more: `new` does not have them, or names another image.
    pub fn images_lost<'a>(&'a self, in_force: &InForce, new: &MachineConfig) -> Vec<&'a String> {
        let is_lost = |name: &&String| {
            let Some(image) = in_force.get(*name) else {
                return false;
            };
            let mut containers = new.containers.iter();
            !containers.any(|it| it.name.as_str() == **name && it.image == image.reference)
        };
        let names = self.removed.iter().chain(&self.started);
        names.filter(is_lost).collect()
    }

    /// Whether running containers have to be judged anew by the rules for images.
    pub fn changes_image_rules(&self) -> bool {
        let mut live = self.live.iter();
        live.any(|row| row.setting == Setting::ImageVerification)
    }

    /// Whether the machine goes on unchanged.
    pub fn is_nothing(&self) -> bool {
        let settings = [&self.live, &self.at_boot];
        settings.iter().all(|rows| rows.is_empty())
            && self.removed.is_empty()
            && self.started.is_empty()
            && self.treated_otherwise.is_empty()
    }
}

fn names(rows: &[&'static Row]) -> String {
    let names: Vec<&str> = rows.iter().map(|row| row.name).collect();
    names.join(", ")
}

impl fmt::Display for ConfigChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_nothing() {
            return f.write_str("nothing changes");
        }
        let parts = [
            ("taken over now", names(&self.live)),
            ("containers removed", self.removed.join(", ")),
            ("containers started", self.started.join(", ")),
            (
                "stops and upgrades treat these containers otherwise",
                self.treated_otherwise.join(", "),
            ),
            ("taken over by a reboot", self.names_at_boot()),
        ];
        let parts = parts.into_iter().filter(|(_, what)| !what.is_empty());
        let parts: Vec<String> = parts.map(|(how, what)| format!("{how}: {what}")).collect();
        f.write_str(&parts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config;
    use crate::containers::ImageInForce;
    use crate::values::Digest;

    const OLD: &str = include_str!("../../../config/tests/data/served-1.14.yaml");

    fn parse(text: &str) -> MachineConfig {
        config::parse(text.as_bytes()).unwrap().config
    }

    /// Returns a config with one document added or changed; the rest as it was.
    fn with(document: &str) -> MachineConfig {
        parse(&format!("{OLD}---\napiVersion: v1alpha1\n{document}"))
    }

    #[test]
    fn where_images_come_from_changes_while_the_machine_runs() {
        let old = parse(OLD);
        let mirror = with(
            "kind: RegistryMirrorConfig\nname: other.example\nendpoints: [{url: \"http://10.0.2.2:5000\"}]\n",
        );
        let change = ConfigChange::between(&old, &mirror);
        assert_eq!(change.to_string(), "taken over now: registries");
    }

    #[test]
    fn the_token_changes_while_the_machine_runs() {
        let changed = OLD.replace("token: ", "token: x");
        assert_ne!(changed, OLD);
        let change = ConfigChange::between(&parse(OLD), &parse(&changed));
        assert_eq!(
            change.to_string(),
            "taken over now: certificates of workers"
        );
    }

    #[test]
    fn settings_of_the_kernel_and_files_change_while_the_machine_runs() {
        let old = parse(OLD);
        for (changed, name) in [
            (
                OLD.replace("ip_forward: \"1\"", "ip_forward: \"0\""),
                "sysctls",
            ),
            (OLD.replace("governor: ", "governor: x"), "sysfs"),
        ] {
            assert_ne!(changed, OLD, "{name}");
            let change = ConfigChange::between(&old, &parse(&changed));
            assert_eq!(change.to_string(), format!("taken over now: {name}"));
        }
        for (document, name) in [
            ("kind: EtcFileConfig\nname: issue\n", "files below /etc"),
            ("kind: KernelModuleConfig\nname: dummy\n", "kernel modules"),
        ] {
            let change = ConfigChange::between(&old, &with(document));
            assert_eq!(change.to_string(), format!("taken over now: {name}"));
        }
    }

    /// A running process keeps the variables that it was started with.
    #[test]
    fn another_environment_starts_all_containers_again() {
        let changed = OLD.replace("http://proxy", "http://other");
        assert_ne!(changed, OLD);
        let change = ConfigChange::between(&parse(OLD), &parse(&changed));
        let expected = "taken over now: the environment; containers started: web";
        assert_eq!(change.to_string(), expected);
    }

    /// Another image behind the same name waits for its approval or its window, whatever else starts the container again.
    #[test]
    fn only_another_name_looks_an_image_up_again() {
        let old = parse(OLD);
        let [web] = old.containers.as_slice() else {
            panic!("one container");
        };
        let image = ImageInForce {
            reference: web.image.clone(),
            digest: Digest::of(b"in force"),
            index: None,
        };
        let in_force = InForce::from([("web".to_owned(), image)]);
        for (from, to, started, lost) in [
            ("http://proxy", "http://other", true, false),
            ("demo/web:v1", "demo/web:v2", true, true),
            ("name: web\nimage", "name: other\nimage", true, true),
            ("hostname: node-1", "hostname: node-2", false, false),
        ] {
            assert!(OLD.contains(from), "{from}");
            let new = parse(&OLD.replace(from, to));
            let change = ConfigChange::between(&old, &new);
            assert_eq!(!change.started.is_empty(), started, "{to}");
            let expected: &[&str] = if lost { &["web"] } else { &[] };
            assert_eq!(change.images_lost(&in_force, &new), expected, "{to}");
            // Without an image in force there is none to lose.
            assert!(change.images_lost(&InForce::new(), &new).is_empty());
        }
    }

    /// The strategy counts at the next upgrade, which reads it then.
    #[test]
    fn another_strategy_for_upgrades_starts_no_container() {
        let strategy = |strategy| {
            parse(&format!(
                "{OLD}---\napiVersion: instar.dev/v1alpha1\nkind: ContainerUpgradeConfig\nname: web\nstrategy: {strategy}\n"
            ))
        };
        let change = ConfigChange::between(&parse(OLD), &strategy("restart"));
        assert_eq!(
            change.to_string(),
            "stops and upgrades treat these containers otherwise: web"
        );
        assert!(!change.is_nothing());
        assert!(ConfigChange::between(&parse(OLD), &strategy("keep")).is_nothing());
    }

    #[test]
    fn each_change_is_told_by_its_consequence() {
        let old = parse(OLD);
        assert_eq!(
            ConfigChange::between(&old, &old).to_string(),
            "nothing changes"
        );
        let cases = [
            (
                "hostname: node-1",
                "hostname: node-2",
                "taken over now: the host name",
            ),
            (
                "installer:v0.1.0",
                "installer:v0.2.0",
                "taken over by a reboot: the disk",
            ),
            ("demo/web:v1", "demo/web:v2", "containers started: web"),
            (
                "name: web\nimage",
                "name: other\nimage",
                "containers removed: web; containers started: other",
            ),
        ];
        for (from, to, expected) in cases {
            assert!(OLD.contains(from), "{from}");
            let new = parse(&OLD.replace(from, to));
            assert_eq!(ConfigChange::between(&old, &new).to_string(), expected);
        }
    }

    const WORKER: &str = include_str!("../../../config/tests/data/1.14/worker.yaml");
    const KUBERNETES: &str = "
---
apiVersion: instar.dev/v1alpha1
kind: KubernetesConfig
image: r.example.com/kubernetes:v1
---
apiVersion: instar.dev/v1alpha1
kind: ExtensionConfig
name: kubernetes
image: r.example.com/ext/kubernetes:v1
";

    /// containerd and kubelet start again by their plan.
    #[test]
    fn another_environment_ends_no_pod() {
        let environment = |proxy| {
            format!(
                "{WORKER}{KUBERNETES}---\napiVersion: v1alpha1\nkind: EnvironmentConfig\nvariables: {{https_proxy: \"{proxy}\"}}\n"
            )
        };
        let (before, after) = ("http://proxy:3128", "http://other:3128");
        let [before, after] = [before, after].map(|proxy| parse(&environment(proxy)));
        let change = ConfigChange::between(&before, &after);
        assert_eq!(change.to_string(), "taken over now: the environment");
    }

    #[test]
    fn a_node_leaves_its_cluster_with_a_reboot() {
        let node = parse(&format!("{WORKER}{KUBERNETES}"));
        let alone = parse(WORKER);
        let joins = ConfigChange::between(&alone, &node);
        assert_eq!(
            joins.to_string(),
            "taken over now: Kubernetes, sysctls; containers started: kubernetes"
        );
        let leaves = ConfigChange::between(&node, &alone);
        assert_eq!(leaves.names_at_boot(), "Kubernetes");
    }
}
