//! The kind for settings of the running kernel that come from the config.

use super::{Item, Kind, Namespace, Record, Sensitivity, Source};
use crate::kernel_settings::ParameterStatus;

/// Kernel parameters that are set, and their values before.
pub(super) const PARAMETERS: Kind = Kind {
    name: "KernelParamStatuses.runtime.talos.dev",
    singular: "KernelParamStatus",
    namespace: Namespace::Runtime,
    aliases: &["sysctls", "kernelparameters", "kernelparams"],
    columns: &[
        ("Current", "{.current}"),
        ("Default", "{.default}"),
        ("Unsupported", "{.unsupported}"),
    ],
    sensitivity: Sensitivity::Open,
    sources: &[Source::Config],
    read: |machine| {
        let parameters = machine.kernel_settings.statuses();
        Ok(parameters.into_iter().map(parameter).collect())
    },
};

fn parameter(status: ParameterStatus) -> Item {
    let record = Record::default()
        .with("current", 1, status.current.clone().unwrap_or_default())
        .with("default", 2, status.before)
        .with("unsupported", 3, status.current.is_none());
    Item::new(id(&status.parameter.to_string()), record)
}

/// Returns the id, as in Talos: the file's path with dots for slashes, `proc.sys.vm.swappiness`.
fn id(path: &str) -> String {
    let swapped = path.chars().skip(1).map(|letter| match letter {
        '/' => '.',
        '.' => '/',
        other => other,
    });
    swapped.collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_parameter_is_named_as_clients_of_talos_know_it() {
        for (path, name) in [
            ("/proc/sys/vm/swappiness", "proc.sys.vm.swappiness"),
            (
                "/proc/sys/net/ipv4/conf/eth0.5/mtu",
                "proc.sys.net.ipv4.conf.eth0/5.mtu",
            ),
        ] {
            assert_eq!(id(path), name);
        }
    }
}
