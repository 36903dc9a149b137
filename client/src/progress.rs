//! Shows the progress of a node while the user waits: a spinner on a terminal, a line per update elsewhere. On standard error.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use instar_client::{Progress, Update};

use crate::terminal_text::harmless;

/// The progress display of one action.
pub(crate) struct ProgressDisplay {
    node: String,
    began: Instant,
    bar: Option<ProgressBar>,
    /// The running sequence, phase and task, for the spinner.
    now: [Option<String>; 3],
}

impl ProgressDisplay {
    pub(crate) fn new(node: &str) -> Self {
        Self::with(node, ProgressBar::new_spinner)
    }

    /// The display of one of several actions that run side by side.
    pub(crate) fn beside(others: &MultiProgress, node: &str) -> Self {
        Self::with(node, || others.add(ProgressBar::new_spinner()))
    }

    fn with(node: &str, spinner: impl FnOnce() -> ProgressBar) -> Self {
        let bar = stderr().is_terminal().then(|| {
            let bar = spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix}: {msg} ({elapsed})")
            {
                bar.set_style(style);
            }
            bar.set_prefix(node.to_owned());
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        Self {
            node: node.to_owned(),
            began: Instant::now(),
            bar,
            now: Default::default(),
        }
    }

    /// Removes the spinner; printed lines stay.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn line(&self, text: &str) -> String {
        format!(
            "{}: {:>6.1} s  {}",
            self.node,
            self.began.elapsed().as_secs_f64(),
            harmless(text)
        )
    }

    fn keep(&mut self, update: &Update) {
        let (place, name, started) = match update {
            Update::Sequence { name, started } => (0, name, *started),
            Update::Phase { name, started } => (1, name, *started),
            Update::Task { name, started } => (2, name, *started),
            _ => return,
        };
        self.now[place] = started.then(|| name.clone());
        for inner in &mut self.now[place + 1..] {
            *inner = None;
        }
    }

    fn summary(&self) -> String {
        let parts: Vec<&str> = self.now.iter().flatten().map(String::as_str).collect();
        if parts.is_empty() {
            "waiting".to_owned()
        } else {
            harmless(&parts.join(" / "))
        }
    }
}

impl Progress for ProgressDisplay {
    fn note(&mut self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{}", self.line(text))),
            None => eprintln!("{}", self.line(text)),
        }
    }

    fn update(&mut self, update: &Update) {
        match (&self.bar, update) {
            // On a terminal tasks come and go on the spinner; phases stay as lines once they are done.
            (
                Some(bar),
                Update::Task { .. } | Update::Phase { started: true, .. } | Update::Service { .. },
            ) => {
                let bar = bar.clone();
                self.keep(update);
                bar.set_message(self.summary());
            }
            _ => {
                self.keep(update);
                self.note(&update.to_string());
                if let Some(bar) = &self.bar {
                    bar.set_message(self.summary());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_names_what_runs_now() {
        let mut progress = ProgressDisplay {
            node: String::new(),
            began: Instant::now(),
            bar: None,
            now: Default::default(),
        };
        assert_eq!(progress.summary(), "waiting");
        progress.keep(&Update::Sequence {
            name: "upgrade".into(),
            started: true,
        });
        progress.keep(&Update::Phase {
            name: "install".into(),
            started: true,
        });
        progress.keep(&Update::Task {
            name: "runInstaller".into(),
            started: true,
        });
        assert_eq!(progress.summary(), "upgrade / install / runInstaller");
        progress.keep(&Update::Phase {
            name: "install".into(),
            started: false,
        });
        assert_eq!(progress.summary(), "upgrade");
    }
}
