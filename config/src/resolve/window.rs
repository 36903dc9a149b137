//! Windows: the hours in which the machine may do something.

use super::super::{
    model::{TimeOfDay, UtcOffset, Weekday, Window},
    section::Section,
};

/// The window of a document: `Some(None)` if it has none. `None`: the window is wrong, which has been reported.
pub(super) fn of(document: &Section<'_>) -> Option<Option<Window>> {
    match document.section("window") {
        Some(section) => window(&section).map(Some),
        None => Some(None),
    }
}

fn window(section: &Section<'_>) -> Option<Window> {
    let days = section.parsed_list::<Weekday>("days");
    let offset = section.parsed::<UtcOffset>("utcOffset").unwrap_or_default();
    let (start, length) = (
        section.required::<TimeOfDay>("start")?,
        section.duration("length")?,
    );
    let window = Window::new(start, length, days, offset);
    window
        .inspect_err(|error| section.wrong_field("length", error))
        .ok()
}
