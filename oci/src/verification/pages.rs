//! The pages of a registry's list of referrers.
//!
//! An image may have hundreds of referrers that are no signatures, such as lists of packages. So the registry is first asked for bundles alone,
//! then for all of them, page by page.

use super::places;
use crate::registry::Document;

/// Limit on the pages of a list.
const MOST_PAGES: usize = 10;

/// The pages of one list, for a reader that asks for one after the other.
pub(crate) struct Pages {
    list: String,
    /// The query of the next page; an empty one is the first page of all referrers.
    next: Option<String>,
    left: usize,
}

impl Pages {
    /// The two lists to read: that of bundles alone, and that of all referrers.
    pub(crate) fn of(list: &str) -> [Pages; 2] {
        [places::of_bundles_alone(), String::new()].map(|first| Pages {
            list: list.to_owned(),
            next: Some(first),
            left: MOST_PAGES,
        })
    }

    /// The place of the next page. `None` at the end, and if the page before was not had.
    pub(crate) fn next_place(&mut self) -> Option<String> {
        self.left = self.left.checked_sub(1)?;
        let query = self.next.take()?;
        Some(match query.is_empty() {
            true => self.list.clone(),
            false => format!("{}?{query}", self.list),
        })
    }

    /// Notes a page that has come, which names the next one.
    pub(crate) fn came(&mut self, page: &Document) {
        self.next.clone_from(&page.next_page);
    }
}
