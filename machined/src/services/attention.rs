//! How far services are looked after that an earlier machined left running.

/// Each level has what the ones before it have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) enum Attention {
    /// They run, and are shown.
    #[default]
    Nothing,
    /// Their output is read: nobody knows when they can be looked after, and a program stops at its next word once its pipe is full.
    Output,
    /// They are adopted, or ended and started.
    All,
}
