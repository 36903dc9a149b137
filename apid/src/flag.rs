//! A flag that can be set once; a connection and its calls share it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The flag. Clones share its state.
#[derive(Clone, Default)]
pub(super) struct Flag(Arc<AtomicBool>);

impl Flag {
    pub(super) fn is_so(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
