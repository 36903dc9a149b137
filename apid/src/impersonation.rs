//! The roles under which a call is made: the caller's own, or the roles that it names if it may impersonate.
//!
//! Calls from another node work like this: the certificate is that node's, the roles are those of its caller.

use http::header::HeaderName;
use http::{HeaderMap, HeaderValue};
use instar_pki::Role;

/// The metadata key of the roles that a caller wants to act under.
const ACT_AS: HeaderName = HeaderName::from_static("talos-role");

/// The roles that count for a call.
pub(super) fn roles_in_force(own: &[Role], metadata: &HeaderMap) -> Vec<Role> {
    if !own.contains(&Role::Impersonator) || !metadata.contains_key(ACT_AS) {
        return own.to_vec();
    }
    let named = metadata.get_all(ACT_AS).iter();
    named
        .filter_map(|name| name.to_str().ok())
        .filter(|name| !name.is_empty())
        .map(Role::from)
        .collect()
}

/// Sets these roles for the next node, in place of any that the caller named.
pub(super) fn act_as(metadata: &mut HeaderMap, roles: &[Role]) {
    metadata.remove(ACT_AS);
    // Unknown roles grant nothing anywhere.
    let known = roles
        .iter()
        .filter(|role| !matches!(role, Role::Unknown(_)));
    for role in known {
        if let Ok(value) = HeaderValue::from_str(role.as_str()) {
            metadata.append(ACT_AS, value);
        }
    }
    // Without a value the next node would use the certificate's own role, which allows to impersonate.
    if !metadata.contains_key(ACT_AS) {
        metadata.insert(ACT_AS, HeaderValue::from_static(""));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn metadata(roles: &[&str]) -> HeaderMap {
        let mut metadata = HeaderMap::new();
        for role in roles {
            metadata.append(ACT_AS, HeaderValue::from_str(role).unwrap());
        }
        metadata
    }

    #[test]
    fn only_an_impersonator_names_its_roles() {
        let named = metadata(&["os:admin", "os:reader"]);
        let impersonator = [Role::Impersonator];
        assert_eq!(
            roles_in_force(&impersonator, &named),
            [Role::Admin, Role::Reader]
        );
        for own in [Role::Admin, Role::Reader, Role::Unknown("x".into())] {
            let own = [own];
            assert_eq!(roles_in_force(&own, &named), own);
        }
        assert_eq!(roles_in_force(&[], &named), []);
        assert_eq!(
            roles_in_force(&impersonator, &HeaderMap::new()),
            impersonator
        );
    }

    #[test]
    fn roles_arrive_as_they_were_and_what_was_claimed_does_not() {
        for own in [
            vec![Role::Reader, Role::MetaWriter],
            vec![Role::Admin],
            vec![],
        ] {
            let mut passed = metadata(&["os:admin"]);
            act_as(&mut passed, &own);
            assert_eq!(roles_in_force(&[Role::Impersonator], &passed), own);
        }
        let mut passed = metadata(&[]);
        act_as(&mut passed, &[Role::Unknown("os:Admin".into())]);
        assert_eq!(roles_in_force(&[Role::Impersonator], &passed), []);
    }
}
