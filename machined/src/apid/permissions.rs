//! Which role may call which method: one table, default deny.
//!
//! A method that is not in the table is for `os:admin` alone, so a new one is never open by mistake.

use instar_pki::Role;

use super::identity::Mode;

/// Everyone with a role that may look.
const READERS: &[Role] = &[Role::Admin, Role::Operator, Role::Reader];
/// Those who may stop and start things.
const OPERATORS: &[Role] = &[Role::Admin, Role::Operator];
/// The rest.
const ADMINS: &[Role] = &[Role::Admin];

/// Methods by who may call them. A service's name followed by `/*` stands for all its methods.
const TABLE: &[(&[Role], &[&str])] = &[
    (
        READERS,
        &[
            "/machine.MachineService/CPUFreqStats",
            "/machine.MachineService/CPUInfo",
            "/machine.MachineService/Containers",
            "/machine.MachineService/DiskStats",
            "/machine.MachineService/DiskUsage",
            "/machine.MachineService/Dmesg",
            "/machine.MachineService/Events",
            "/machine.MachineService/Hostname",
            "/machine.MachineService/ImageList",
            "/machine.MachineService/List",
            "/machine.MachineService/LoadAvg",
            "/machine.MachineService/Logs",
            "/machine.MachineService/LogsContainers",
            "/machine.MachineService/Memory",
            "/machine.MachineService/Mounts",
            "/machine.MachineService/Netstat",
            "/machine.MachineService/NetworkDeviceStats",
            "/machine.MachineService/Processes",
            "/machine.MachineService/ServiceList",
            "/machine.MachineService/Stats",
            "/machine.MachineService/SystemStat",
            "/machine.MachineService/Version",
            "/machine.ImageService/List",
            "/machine.StorageService/Statfs",
            "/storage.StorageService/Disks",
            "/time.TimeService/Time",
            "/time.TimeService/TimeCheck",
            "/cluster.ClusterService/HealthCheck",
            "/inspect.InspectService/*",
            "/cosi.resource.State/Get",
            "/cosi.resource.State/List",
            "/cosi.resource.State/Watch",
        ],
    ),
    (
        OPERATORS,
        &[
            "/machine.MachineService/ImagePull",
            "/machine.MachineService/PacketCapture",
            "/machine.MachineService/Reboot",
            "/machine.MachineService/Restart",
            "/machine.MachineService/ServiceRestart",
            "/machine.MachineService/ServiceStart",
            "/machine.MachineService/ServiceStop",
            "/machine.MachineService/Shutdown",
            "/machine.ImageService/Pull",
        ],
    ),
];

/// What anybody may do to a node that has no config yet, beside what readers may.
const MAINTENANCE: &[&str] = &["/machine.MachineService/ApplyConfiguration"];

/// Whether a caller with these roles may call the method (a full path, `/package.Service/Method`).
pub fn may_call(method: &str, roles: &[Role], mode: Mode) -> bool {
    (mode == Mode::Maintenance && MAINTENANCE.contains(&method))
        || allowed_roles(method)
            .iter()
            .any(|role| roles.contains(role))
}

fn allowed_roles(method: &str) -> &'static [Role] {
    TABLE
        .iter()
        .find(|(_, methods)| methods.iter().any(|pattern| matches(pattern, method)))
        .map_or(ADMINS, |(roles, _)| roles)
}

fn matches(pattern: &str, method: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(service) => method.starts_with(service),
        None => pattern == method,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_is_open_to_the_roles_of_its_row_only() {
        let cases = [
            ("/machine.MachineService/Version", [true, true, true, false]),
            ("/machine.MachineService/Reboot", [true, true, false, false]),
            (
                "/machine.MachineService/Upgrade",
                [true, false, false, false],
            ),
            ("/machine.MachineService/Read", [true, false, false, false]),
            (
                "/machine.MachineService/Unheard",
                [true, false, false, false],
            ),
            (
                "/inspect.InspectService/ControllerRuntimeDependencies",
                [true, true, true, false],
            ),
        ];
        for (method, expected) in cases {
            let seen = [Role::Admin, Role::Operator, Role::Reader, Role::EtcdBackup]
                .map(|role| may_call(method, &[role], Mode::Normal));
            assert_eq!(seen, expected, "{method}");
            assert!(
                !may_call(method, &[], Mode::Normal),
                "{method} without a role"
            );
        }
    }

    #[test]
    fn without_a_config_anyone_may_bring_one_and_change_nothing_else() {
        let anyone = [Role::Reader];
        assert!(may_call(
            "/machine.MachineService/ApplyConfiguration",
            &anyone,
            Mode::Maintenance
        ));
        assert!(!may_call(
            "/machine.MachineService/ApplyConfiguration",
            &anyone,
            Mode::Normal
        ));
        assert!(!may_call(
            "/machine.MachineService/Upgrade",
            &anyone,
            Mode::Maintenance
        ));
    }
}
