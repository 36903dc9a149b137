//! The descriptors that init keeps for machined, by name.

use crate::failure::{Result, fail};
use instar_init_protocol::{FdName, MAX_KEPT, Scope};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The kept descriptors, at most [`MAX_KEPT`].
#[derive(Default)]
pub(crate) struct Kept(BTreeMap<FdName, (Scope, OwnedFd)>);

impl Kept {
    /// Keeps a descriptor; it replaces one of the same name.
    pub(crate) fn keep(&mut self, name: FdName, scope: Scope, descriptor: OwnedFd) -> Result<()> {
        if self.0.len() == MAX_KEPT && !self.0.contains_key(&name) {
            return fail!(TooManyKept: "{MAX_KEPT} descriptors are kept already");
        }
        self.0.insert(name, (scope, descriptor));
        Ok(())
    }

    pub(crate) fn drop(&mut self, name: &FdName) -> Result<()> {
        match self.0.remove(name) {
            Some(_) => Ok(()),
            None => fail!(NotKept: "nothing is kept under the name '{name}'"),
        }
    }

    /// Closes the descriptors that end with the generation, and those that end with the workloads unless the workloads are kept.
    pub(crate) fn end_generation(&mut self, keep: bool) {
        self.0.retain(|_, (scope, _)| match scope {
            Scope::Generation => false,
            Scope::Workloads => keep,
            Scope::Machine => true,
        });
    }

    /// All descriptors with their names, in the same order.
    pub(crate) fn all(&self) -> (Vec<FdName>, Vec<BorrowedFd<'_>>) {
        let all = self.0.iter();
        all.map(|(name, (_, fd))| (name.clone(), fd.as_fd()))
            .unzip()
    }
}

#[cfg(test)]
mod tests;
