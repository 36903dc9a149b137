//! The roles of callers.

use std::fmt;

/// A role, named in an Organization value of a client certificate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Everything.
    Admin,
    /// Reads, reboots, restarts services.
    Operator,
    /// Reads everything that is not secret.
    Reader,
    /// Takes snapshots of etcd.
    EtcdBackup,
    /// Verifies image signatures.
    ImageVerifier,
    /// Writes META keys.
    MetaWriter,
    /// Upgrades the node, and reads as a reader does.
    Upgrader,
    /// Acts under roles that it names itself.
    Impersonator,
    /// A name that is not known here. Grants nothing.
    Unknown(String),
}

impl Role {
    /// Its name on the wire.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Admin => "os:admin",
            Self::Operator => "os:operator",
            Self::Reader => "os:reader",
            Self::EtcdBackup => "os:etcd:backup",
            Self::ImageVerifier => "os:image:verifier",
            Self::MetaWriter => "os:meta:writer",
            Self::Upgrader => "os:upgrader",
            Self::Impersonator => "os:impersonator",
            Self::Unknown(name) => name,
        }
    }
}

impl From<&str> for Role {
    fn from(name: &str) -> Self {
        match name {
            "os:admin" => Self::Admin,
            "os:operator" => Self::Operator,
            "os:reader" => Self::Reader,
            "os:etcd:backup" => Self::EtcdBackup,
            "os:image:verifier" => Self::ImageVerifier,
            "os:meta:writer" => Self::MetaWriter,
            "os:upgrader" => Self::Upgrader,
            "os:impersonator" => Self::Impersonator,
            name => Self::Unknown(name.to_owned()),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether these roles allow everything: those of an administrator, or of another node, which may call on behalf of one.
pub fn may_all(roles: &[Role]) -> bool {
    let administrators = [Role::Admin, Role::Impersonator];
    roles.iter().any(|role| administrators.contains(role))
}

/// Formats roles as a comma-separated list, to pass them on to another process. Unknown ones are left out: they grant nothing, and a comma
/// in their name would make two of one.
pub fn roles_to_list(roles: &[Role]) -> String {
    let known = roles
        .iter()
        .filter(|role| !matches!(role, Role::Unknown(_)));
    known.map(Role::as_str).collect::<Vec<_>>().join(",")
}

/// Parses a list of [`roles_to_list`].
pub fn roles_from_list(list: &str) -> Vec<Role> {
    list.split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(Role::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        for name in [
            "os:admin",
            "os:operator",
            "os:reader",
            "os:etcd:backup",
            "os:image:verifier",
            "os:meta:writer",
            "os:upgrader",
            "os:impersonator",
        ] {
            let role = Role::from(name);
            assert!(!matches!(role, Role::Unknown(_)), "{name}");
            assert_eq!(role.as_str(), name);
        }
        assert_eq!(Role::from("OS:ADMIN"), Role::Unknown("OS:ADMIN".into()));
    }

    #[test]
    fn a_comma_in_an_unknown_name_grants_nothing() {
        let roles = [Role::from("x,os:admin"), Role::Reader];
        assert_eq!(roles_from_list(&roles_to_list(&roles)), [Role::Reader]);
    }

    #[test]
    fn administrators_and_other_nodes_may_do_everything() {
        assert!(may_all(&[Role::Reader, Role::Admin]));
        assert!(may_all(&[Role::Impersonator]));
        assert!(!may_all(&[Role::Operator, Role::Reader]));
        assert!(!may_all(&[]));
    }

    #[test]
    fn no_roles_pass_as_no_roles() {
        assert!(roles_from_list(&roles_to_list(&[])).is_empty());
    }
}
