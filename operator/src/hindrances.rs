//! Why orders to nodes could not be carried out. Such a failure may pass, so it is none of the node, and the order is given again until the node's
//! time is over; then the last reason is told.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The last reason of each node of a pool, by its name.
#[derive(Clone, Default)]
pub(crate) struct Hindrances(Rc<RefCell<BTreeMap<String, String>>>);

impl Hindrances {
    pub(crate) fn note(&self, node: &str, why: String) {
        self.0.borrow_mut().insert(node.to_owned(), why);
    }

    pub(crate) fn forget(&self, node: &str) {
        self.0.borrow_mut().remove(node);
    }

    pub(crate) fn of(&self, node: &str) -> Option<String> {
        self.0.borrow().get(node).cloned()
    }
}
