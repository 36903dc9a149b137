//! The descriptors that init keeps for machined, by name.

use crate::failure::{Result, fail};
use instar_init_protocol::{ErrorCode, FdName, MAX_KEPT, Scope};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// At most [`MAX_KEPT`] of them.
#[derive(Default)]
pub(crate) struct Kept(BTreeMap<FdName, (Scope, OwnedFd)>);

impl Kept {
    /// Keeps one; it replaces one of the same name.
    pub(crate) fn keep(&mut self, name: FdName, scope: Scope, descriptor: OwnedFd) -> Result<()> {
        if self.0.len() == MAX_KEPT && !self.0.contains_key(&name) {
            let text = format_args!("{MAX_KEPT} descriptors are kept already");
            return fail(ErrorCode::TooManyKept, text);
        }
        self.0.insert(name, (scope, descriptor));
        Ok(())
    }

    /// Lets one go.
    pub(crate) fn drop(&mut self, name: &FdName) -> Result<()> {
        match self.0.remove(name) {
            Some(_) => Ok(()),
            None => {
                let text = format_args!("nothing is kept under the name '{name}'");
                fail(ErrorCode::NotKept, text)
            }
        }
    }

    /// Lets go what ends with the generation.
    pub(crate) fn end_generation(&mut self) {
        self.0.retain(|_, (scope, _)| *scope == Scope::Machine);
    }

    /// The names, in the order of [`Self::descriptors`].
    pub(crate) fn names(&self) -> Vec<FdName> {
        self.0.keys().cloned().collect()
    }

    /// The descriptors, in the order of [`Self::names`].
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.0.values().map(|(_, fd)| fd.as_fd()).collect()
    }
}

#[cfg(test)]
mod tests;
