//! The rights of the administrator that a pool may need, and that an operator has only with the administrator's consent.

use super::Keeper;
use crate::api::{Pool, Strategy};
use crate::named::Named;
use crate::shown::Invalid;

/// A right of the administrator that a pool needs.
pub(super) struct LackedRight {
    /// The field of the pool that needs it.
    pub(super) field: &'static str,
    /// What it permits, after "may".
    pub(super) purpose: &'static str,
    /// The reason of the condition while the pool waits for the administrator's consent.
    pub(super) reason: &'static str,
}

const TO_CHANGE_CONFIGS: LackedRight = LackedRight {
    field: "configPatches",
    purpose: "change configs",
    reason: "NoConfigRights",
};
const TO_REPLACE: LackedRight = LackedRight {
    field: "strategy",
    purpose: "replace machines",
    reason: "NoReplaceRights",
};

pub(super) fn lacks_right(invalid: &Invalid) -> bool {
    [TO_CHANGE_CONFIGS, TO_REPLACE]
        .iter()
        .any(|right| right.reason == invalid.reason)
}

impl Keeper {
    /// The administrator's right that the pool needs, and this operator does not have.
    pub(super) fn lacked_right(&self, pool: &Pool, named: &Named) -> Option<LackedRight> {
        if self.cluster.has_administrators_rights() {
            return None;
        }
        match (named.config.is_some(), pool.spec.strategy) {
            (true, _) => Some(TO_CHANGE_CONFIGS),
            (false, Strategy::Replace) => Some(TO_REPLACE),
            (false, Strategy::InPlace) => None,
        }
    }
}
