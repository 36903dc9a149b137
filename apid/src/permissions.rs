//! Which role may call which method: one table, default deny.
//!
//! A method that is not in the table is for `os:admin` alone, so a new one is never open by mistake.

use instar_pki::Role;

use super::caller::Mode;

/// Roles that may read.
const READERS: &[Role] = &[Role::Admin, Role::Operator, Role::Reader, Role::Upgrader];
/// Roles that may stop and start things.
const OPERATORS: &[Role] = &[Role::Admin, Role::Operator];
/// Roles that may read the list of etcd's members.
const ETCD_READERS: &[Role] = &[Role::Admin, Role::Operator, Role::Reader, Role::EtcdBackup];
/// Roles that may back up all data of etcd.
const ETCD_BACKUPS: &[Role] = &[Role::Admin, Role::Operator, Role::EtcdBackup];
/// Roles that may check an image's signature.
const IMAGE_VERIFIERS: &[Role] = &[
    Role::Admin,
    Role::Operator,
    Role::Reader,
    Role::ImageVerifier,
];
/// Roles that may write the machine's META values.
const META_WRITERS: &[Role] = &[Role::Admin, Role::MetaWriter];
/// Roles that may have the node run another version.
const UPGRADERS: &[Role] = &[Role::Admin, Role::Upgrader];
const NOBODY: &[Role] = &[];
/// The role for all other methods.
const ADMINS: &[Role] = &[Role::Admin];

/// Methods by the roles that may call them. A service's name followed by `/*` stands for all its methods.
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
            "/instar.UpgradeFollowService/Status",
            "/instar.MetricsService/Read",
            "/cosi.resource.State/Get",
            "/cosi.resource.State/List",
            "/cosi.resource.State/Watch",
            "/grpc.health.v1.Health/*",
            "/grpc.reflection.v1.ServerReflection/*",
            "/grpc.reflection.v1alpha.ServerReflection/*",
        ],
    ),
    (
        OPERATORS,
        &[
            "/machine.MachineService/EtcdAlarmDisarm",
            "/machine.MachineService/EtcdDefragment",
            "/machine.MachineService/ImagePull",
            "/machine.MachineService/PacketCapture",
            "/machine.MachineService/Reboot",
            "/machine.MachineService/Restart",
            "/machine.MachineService/ServiceRestart",
            "/machine.MachineService/ServiceStart",
            "/machine.MachineService/ServiceStop",
            "/machine.MachineService/Shutdown",
            "/machine.ImageService/Pull",
            "/instar.BundleService/*",
            "/instar.ImagePinService/Pin",
            "/instar.ImagePinService/Unpin",
            "/instar.ImageUpdateService/Approve",
            "/instar.UpgradeFollowService/Approve",
            "/instar.UpgradeFollowService/Bring",
            "/instar.UpgradeFollowService/Check",
            "/instar.UpgradeFollowService/Hold",
        ],
    ),
    (
        ETCD_READERS,
        &[
            "/machine.MachineService/EtcdAlarmList",
            "/machine.MachineService/EtcdMemberList",
            "/machine.MachineService/EtcdStatus",
        ],
    ),
    (ETCD_BACKUPS, &["/machine.MachineService/EtcdSnapshot"]),
    (IMAGE_VERIFIERS, &["/machine.ImageService/Verify"]),
    (
        META_WRITERS,
        &[
            "/machine.MachineService/MetaDelete",
            "/machine.MachineService/MetaWrite",
        ],
    ),
    (
        UPGRADERS,
        &[
            "/machine.MachineService/Upgrade",
            "/instar.UpgradeService/Plan",
            "/instar.UpgradeService/Prepare",
        ],
    ),
    // Served on a port of its own alone, to callers who have no certificate yet.
    (NOBODY, &["/securityapi.SecurityService/*"]),
];

/// Methods that anybody may call on a node that has no config yet and holds no data, in addition to those of readers.
///
/// `LVMService` and `MDService` are the interface's other exceptions. They are not served, and so not opened to callers without
/// certificates.
const MAINTENANCE: &[&str] = &[
    "/instar.NodeCertificateService/Grant",
    "/instar.NodeCertificateService/Show",
    "/machine.MachineService/ApplyConfiguration",
    "/storage.StorageService/BlockDeviceWipe",
];

/// Whether machined checks the caller again once the whole request has come: for every method that changes the node or may tell its
/// secrets. The first check was made at the request's headers, and the body may come much later. Whoever wants a certificate has none that
/// could be checked; machined checks the token instead.
pub fn is_judged_again(method: &str) -> bool {
    if method == instar_api::CERTIFICATE_METHOD {
        return false;
    }
    let is_open = may_call(method, &[Role::Reader], Mode::Normal);
    !is_open || method.starts_with("/cosi.resource.State/")
}

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
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeMap;

    use prost::Message as _;
    use prost_types::FileDescriptorSet;

    use super::*;

    /// Every role that has permissions, with a letter for it.
    const ROLES: [(char, Role); 8] = [
        ('a', Role::Admin),
        ('o', Role::Operator),
        ('r', Role::Reader),
        ('e', Role::EtcdBackup),
        ('i', Role::ImageVerifier),
        ('m', Role::MetaWriter),
        ('u', Role::Upgrader),
        ('p', Role::Impersonator),
    ];

    /// The expected permissions, written down a second time: a line for each method that is not for administrators alone.
    const EXPECTED: &str = include_str!("../tests/permissions.txt");

    /// Every method of every service of the API.
    fn methods() -> Vec<String> {
        let mut methods = Vec::new();
        for encoded in [
            instar_api::FILE_DESCRIPTOR_SET,
            tonic_health::pb::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
        ] {
            for file in FileDescriptorSet::decode(encoded).unwrap().file {
                for service in &file.service {
                    let names = service.method.iter().map(|method| {
                        format!("/{}.{}/{}", file.package(), service.name(), method.name())
                    });
                    methods.extend(names);
                }
            }
        }
        methods
    }

    #[test]
    fn every_method_is_open_to_its_roles_and_to_no_others() {
        let expected: BTreeMap<&str, &str> = EXPECTED
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(|line| line.split_once(' ').unwrap())
            .collect();
        let methods = methods();
        assert!(methods.len() > 60, "{methods:#?}");
        for method in &methods {
            let seen: String = ROLES
                .iter()
                .filter(|(_, role)| may_call(method, std::slice::from_ref(role), Mode::Normal))
                .map(|(letter, _)| letter)
                .collect();
            let wanted = expected.get(method.as_str()).copied().unwrap_or("a");
            let wanted = wanted.trim_matches('-');
            assert_eq!(seen, wanted, "{method}");
            assert!(
                !may_call(method, &[], Mode::Normal),
                "{method} without a role"
            );
            let unknown = [Role::Unknown("os:Admin".to_owned())];
            assert!(!may_call(method, &unknown, Mode::Normal), "{method}");
        }
        for method in expected.keys() {
            assert!(
                methods.iter().any(|known| known == method),
                "{method} is expected, but there is none such"
            );
        }
    }

    #[test]
    fn whoever_acts_for_others_may_do_what_they_may() {
        use crate::impersonation::roles_in_force;
        let named = |role: &Role| {
            let mut metadata = http::HeaderMap::new();
            metadata.insert("talos-role", role.as_str().parse().unwrap());
            metadata
        };
        for method in methods() {
            for (_, role) in &ROLES {
                let own = std::slice::from_ref(role);
                let wanted = may_call(&method, own, Mode::Normal);
                let acting = roles_in_force(&[Role::Impersonator], &named(role));
                assert_eq!(
                    may_call(&method, &acting, Mode::Normal),
                    wanted,
                    "{method} for {role}"
                );
                // A caller without the right to impersonate gains nothing by naming roles.
                if *role != Role::Impersonator {
                    let claiming = roles_in_force(own, &named(&Role::Admin));
                    assert_eq!(
                        may_call(&method, &claiming, Mode::Normal),
                        wanted,
                        "{method} by {role}"
                    );
                }
            }
            let unnamed = roles_in_force(&[Role::Impersonator], &http::HeaderMap::new());
            assert!(!may_call(&method, &unnamed, Mode::Normal), "{method}");
        }
    }

    #[test]
    fn only_calls_that_look_are_judged_once() {
        for method in [
            "/machine.MachineService/ApplyConfiguration",
            "/machine.MachineService/Reboot",
            "/machine.MachineService/Read",
            "/cosi.resource.State/Watch",
            "/machine.MachineService/Unheard",
        ] {
            assert!(is_judged_again(method), "{method}");
        }
        assert!(!is_judged_again("/machine.MachineService/Version"));
    }

    #[test]
    fn roles_add_up() {
        let roles = [Role::Reader, Role::MetaWriter];
        assert!(may_call(
            "/machine.MachineService/Version",
            &roles,
            Mode::Normal
        ));
        assert!(may_call(
            "/machine.MachineService/MetaWrite",
            &roles,
            Mode::Normal
        ));
        assert!(!may_call(
            "/machine.MachineService/Reboot",
            &roles,
            Mode::Normal
        ));
    }

    #[test]
    fn what_is_not_in_the_table_is_for_administrators() {
        for method in [
            "/machine.MachineService/Unheard",
            "/machine.MachineService/",
            "/machine.MachineService/version",
            "/",
            "",
        ] {
            assert!(may_call(method, &[Role::Admin], Mode::Normal), "{method}");
            for role in [Role::Operator, Role::Reader, Role::MetaWriter] {
                assert!(!may_call(method, &[role], Mode::Normal), "{method}");
            }
        }
    }

    #[test]
    fn without_a_config_anyone_may_bring_one_unless_the_node_is_closed() {
        let anyone = [Role::Reader];
        for method in methods() {
            let opened = may_call(&method, &anyone, Mode::Maintenance)
                && !may_call(&method, &anyone, Mode::Normal);
            assert_eq!(opened, MAINTENANCE.contains(&method.as_str()), "{method}");
            let closed = may_call(&method, &anyone, Mode::Closed);
            assert_eq!(closed, may_call(&method, &anyone, Mode::Normal), "{method}");
        }
    }
}
