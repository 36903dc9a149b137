//! The descriptors that init keeps for machined, by name.

use crate::failure::{Failure, Result};
use instar_init_protocol::{ErrorCode, FdName, MAX_KEPT, Scope};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

struct Entry {
    name: FdName,
    scope: Scope,
    descriptor: OwnedFd,
}

/// At most [`MAX_KEPT`] of them.
#[derive(Default)]
pub(crate) struct Kept(Vec<Entry>);

impl Kept {
    /// Keeps one; it replaces one of the same name.
    pub(crate) fn keep(&mut self, name: FdName, scope: Scope, descriptor: OwnedFd) -> Result<()> {
        let entry = Entry {
            name,
            scope,
            descriptor,
        };
        let room = self.0.len() < MAX_KEPT;
        match self.0.iter_mut().find(|kept| kept.name == entry.name) {
            Some(kept) => *kept = entry,
            None if room => self.0.push(entry),
            None => {
                let text = format_args!("{MAX_KEPT} descriptors are kept already");
                return Err(Failure::new(ErrorCode::TooManyKept, text));
            }
        }
        Ok(())
    }

    /// Lets one go.
    pub(crate) fn drop(&mut self, name: &FdName) -> Result<()> {
        let before = self.0.len();
        self.0.retain(|kept| kept.name != *name);
        if self.0.len() == before {
            return Err(Failure::new(
                ErrorCode::NotKept,
                format_args!("nothing is kept under the name '{name}'"),
            ));
        }
        Ok(())
    }

    /// Lets go what ends with the generation.
    pub(crate) fn end_generation(&mut self) {
        self.0.retain(|kept| kept.scope == Scope::Machine);
    }

    /// The names, in the order of [`Self::descriptors`].
    pub(crate) fn names(&self) -> Vec<FdName> {
        self.0.iter().map(|kept| kept.name.clone()).collect()
    }

    /// The descriptors, in the order of [`Self::names`].
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().map(|kept| kept.descriptor.as_fd()).collect()
    }
}

#[cfg(test)]
mod tests;
