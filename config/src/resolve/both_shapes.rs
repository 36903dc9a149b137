//! One concern in both of Talos's shapes.
//!
//! A section of the large document may be empty, or set only some of its fields: the document of its own then counts for the others.
//! [`super::super::conflicts`] has made sure that no field is set in both.

use std::{fmt::Display, str::FromStr};

use super::super::section::Section;

/// The section of the large document and the document of its own, if they are there.
pub(super) struct BothShapes<'a>([Option<Section<'a>>; 2]);

impl<'a> BothShapes<'a> {
    pub(super) fn new(of_large: Option<Section<'a>>, own: Option<Section<'a>>) -> Self {
        Self([of_large, own])
    }

    /// Returns the one that sets a field.
    pub(super) fn with(&self, field: &str) -> Option<&Section<'a>> {
        let mut both = self.0.iter().flatten();
        both.find(|section| section.sets(field))
    }

    /// Reads a field where it is set.
    pub(super) fn read<T>(
        &self,
        field: &str,
        read: impl FnOnce(&Section<'a>, &str) -> Option<T>,
    ) -> Option<T> {
        read(self.with(field)?, field)
    }

    /// Reads a list where it is set, each text parsed as a type; without any it is empty.
    pub(super) fn list<T>(&self, field: &str) -> Vec<T>
    where
        T: FromStr,
        T::Err: Display,
    {
        let set = self.with(field).map(|section| section.parsed_list(field));
        set.unwrap_or_default()
    }
}
