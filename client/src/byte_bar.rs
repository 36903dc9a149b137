//! A progress bar over bytes, on standard error and only on a terminal: indicatif finds that out by itself.

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::Output;

/// A bar with this text beside it.
pub(crate) fn byte_bar(output: Output, text: String) -> ProgressBar {
    let bar = match output {
        Output::Table => ProgressBar::new(0),
        Output::Json | Output::Yaml => ProgressBar::hidden(),
    };
    let style = ProgressStyle::with_template("{bar:30} {bytes}/{total_bytes} {wide_msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(text);
    bar
}
