//! What another machine config changes, as a value: shown by a dry run, then carried out.

use std::fmt;

use crate::config::{Container, MachineConfig};

/// The difference between the config in force and another one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigChange {
    /// Settings that are taken over while the machine runs.
    pub live: Vec<&'static str>,
    /// Settings that only a boot takes over.
    pub at_boot: Vec<&'static str>,
    /// Settings that nothing applies yet, neither now nor at a boot: they are kept with the config.
    pub unserved: Vec<&'static str>,
    /// Containers that are no longer there, by name.
    pub removed: Vec<String>,
    /// Containers that are new, or other than before and so started anew, by name.
    pub started: Vec<String>,
}

impl ConfigChange {
    /// Compares two configs.
    pub fn between(old: &MachineConfig, new: &MachineConfig) -> Self {
        // Each field by name: a new one that is not listed here does not compile.
        let MachineConfig {
            machine_type,
            trust,
            token,
            hostname,
            install,
            containers,
            upgrade_gate,
            user_volumes,
            time,
            registries,
            network,
            sysctls,
            sysfs,
            kernel_modules,
            environment,
            etc_files,
            trusted_roots,
        } = old;
        let live = [
            ("the API's trust", *trust != new.trust),
            ("the host name", *hostname != new.hostname),
            ("the upgrade gate", *upgrade_gate != new.upgrade_gate),
            ("time", *time != new.time),
            ("the network", *network != new.network),
            ("user volumes", *user_volumes != new.user_volumes),
            // Every pull begins with those of the config in force.
            ("registries", *registries != new.registries),
            ("trusted roots", *trusted_roots != new.trusted_roots),
        ];
        let at_boot = [
            ("the machine's type", *machine_type != new.machine_type),
            ("the disk", *install != new.install),
        ];
        let unserved = [
            ("the token", *token != new.token),
            ("sysctls", *sysctls != new.sysctls),
            ("sysfs", *sysfs != new.sysfs),
            ("kernel modules", *kernel_modules != new.kernel_modules),
            ("the environment", *environment != new.environment),
            ("files below /etc", *etc_files != new.etc_files),
        ];
        let name = |container: &Container| container.name.to_string();
        let gone =
            |container: &&Container| !new.containers.iter().any(|it| it.name == container.name);
        Self {
            live: changed(&live),
            at_boot: changed(&at_boot),
            unserved: changed(&unserved),
            removed: containers.iter().filter(gone).map(name).collect(),
            started: new
                .containers
                .iter()
                .filter(|container| !containers.contains(container))
                .map(name)
                .collect(),
        }
    }

    /// Whether the machine goes on as it is.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

fn changed(settings: &[(&'static str, bool)]) -> Vec<&'static str> {
    let changed = settings.iter().filter(|(_, changed)| *changed);
    changed.map(|(name, _)| *name).collect()
}

impl fmt::Display for ConfigChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_nothing() {
            return f.write_str("nothing changes");
        }
        let names = |names: &[String]| names.join(", ");
        let parts = [
            ("taken over now", self.live.join(", ")),
            ("containers removed", names(&self.removed)),
            ("containers started", names(&self.started)),
            ("taken over by a reboot", self.at_boot.join(", ")),
            ("kept, not served yet", self.unserved.join(", ")),
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

    const OLD: &str = include_str!("../../tests/data/config/served-1.14.yaml");

    fn parse(text: &str) -> MachineConfig {
        config::parse(text.as_bytes()).unwrap().config
    }

    /// With one more or one other document; the rest as it was.
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

    /// Nothing applies them, so nothing is gained by a reboot.
    #[test]
    fn what_nothing_applies_takes_no_reboot() {
        let old = parse(OLD);
        for (changed, name) in [
            (OLD.replace("token: ", "token: x"), "the token"),
            (
                OLD.replace("ip_forward: \"1\"", "ip_forward: \"0\""),
                "sysctls",
            ),
            (OLD.replace("governor: ", "governor: x"), "sysfs"),
            (
                OLD.replace("http://proxy", "http://other"),
                "the environment",
            ),
        ] {
            assert_ne!(changed, OLD, "{name}");
            let change = ConfigChange::between(&old, &parse(&changed));
            assert!(change.at_boot.is_empty(), "{change}");
            assert_eq!(change.to_string(), format!("kept, not served yet: {name}"));
        }
        for (document, name) in [
            ("kind: EtcFileConfig\nname: issue\n", "files below /etc"),
            ("kind: KernelModuleConfig\nname: dummy\n", "kernel modules"),
        ] {
            let change = ConfigChange::between(&old, &with(document));
            assert_eq!(change.to_string(), format!("kept, not served yet: {name}"));
        }
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
}
