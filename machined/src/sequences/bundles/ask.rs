//! Asks a person at the machine whether a bundle may be used. The bundle was verified before: exactly its digest is approved.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::timeout;
use uuid::Uuid;

use super::Report;
use crate::bundles::{Answer, Event, Phase, Question};
use crate::config::AskAt;
use crate::terminals::Terminal;

/// The time that a person has.
const PATIENCE: Duration = Duration::from_secs(60);

/// Columns of the narrowest screens.
const COLUMNS: usize = 80;
/// Bytes of sentences beside a question. A serial console takes 4 KiB at once, and the digits come last.
const ROOM: usize = 3200;

/// The bundle or the files that a person is asked to approve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// The bundle: without an approval nothing of it is used.
    Bundle,
    /// Its files of extensions, as its images are good without an approval.
    Files,
}

impl Asked {
    /// The effect of a wrong digit, in words.
    fn refusal(self) -> &'static str {
        match self {
            Asked::Bundle => "A wrong digit refuses it, and so does waiting.",
            Asked::Files => {
                "A wrong digit leaves its files of extensions out, and so does waiting."
            }
        }
    }
}

/// Why a bundle is not approved though a person could be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotAnswered {
    /// The time is over.
    #[error("nobody at this machine has approved it within {} s", PATIENCE.as_secs())]
    Late,
    /// A wrong digit was typed.
    #[error("a wrong digit was typed, which refuses it")]
    Wrong,
    /// The stick is gone.
    #[error("the stick was pulled out before the question was answered")]
    Gone,
    /// There is no terminal to ask at.
    #[error(
        "nobody has approved it, and this machine has no terminal of those that BundleConfig names in `askAt`"
    )]
    NoTerminal,
}

/// Asks at these terminals, until a person has typed the digits that they show, or a wrong one, or the time is over.
///
/// # Errors
/// The bundle is not approved.
pub(super) async fn ask(
    what: Asked,
    at: &BTreeSet<AskAt>,
    report: &Report,
) -> Result<(), NotAnswered> {
    let terminals = open(at);
    if terminals.is_empty() {
        return Err(NotAnswered::NoTerminal);
    }
    report.tell(Event::Open(PATIENCE.as_secs()));
    // The first bytes of such a UUID are random.
    let [a, b, c, d, e, f, ..] = Uuid::new_v4().into_bytes();
    let question = Question::new([a, b, c, d, e, f]);
    let text = text(&report.texts(), &question, what);
    for terminal in &terminals {
        // One that fails gives no answer either.
        let _ = terminal.write(text.as_bytes());
    }
    let mut answers: FuturesUnordered<_> = terminals
        .iter()
        .map(|terminal| answer(terminal, question.clone()))
        .collect();
    let mut phases = report.watch();
    tokio::select! {
        answered = timeout(PATIENCE, answers.next()) => match answered {
            Ok(Some(Answer::Right)) => Ok(()),
            Ok(Some(Answer::Wrong)) => Err(NotAnswered::Wrong),
            Ok(Some(Answer::Open) | None) | Err(_) => Err(NotAnswered::Late),
        },
        // The sender lives in the report.
        _ = phases.wait_for(Phase::is_over) => Err(NotAnswered::Gone),
    }
}

fn open(at: &BTreeSet<AskAt>) -> Vec<Terminal> {
    let mut terminals = Vec::new();
    for place in at {
        match place {
            AskAt::Serial => terminals.extend(Terminal::serial()),
            AskAt::Screen => match Terminal::on_screen() {
                Ok(screen) => terminals.extend(screen),
                Err(error) => tracing::warn!("the screen cannot ask: {error:#}"),
            },
        }
    }
    terminals
}

/// Waits for the answer at one terminal. One that fails never answers.
async fn answer(terminal: &Terminal, mut question: Question) -> Answer {
    loop {
        let Ok(key) = terminal.key().await else {
            return std::future::pending().await;
        };
        match question.key(key) {
            Answer::Open => {}
            answer => return answer,
        }
    }
}

fn text(said: &[String], question: &Question, what: Asked) -> String {
    let said: Vec<String> = said.iter().map(|text| wrapped(text)).collect();
    format!(
        "\r\n{}\r\n\r\nTo approve exactly this bundle, type these digits within {} seconds:\r\n\r\n    {}\r\n\r\n{}\r\n",
        shortened(&said).join("\r\n"),
        PATIENCE.as_secs(),
        question.shown(),
        what.refusal()
    )
}

/// Leaves sentences out in the middle if there is no room for all: there are those about single files. The first ones say what it is and who
/// allows it, and the last ones what follows.
fn shortened(said: &[String]) -> Vec<String> {
    let length = |sentences: &[String]| -> usize { sentences.iter().map(|it| it.len() + 2).sum() };
    if length(said) <= ROOM {
        return said.to_vec();
    }
    let fits = |part: &[String]| length(part) <= ROOM / 2;
    let counts = 0..=said.len();
    let first = counts.clone().rev().find(|count| fits(&said[..*count]));
    let last = counts.rev().find(|count| fits(&said[said.len() - count..]));
    let (first, last) = (first.unwrap_or(0), last.unwrap_or(0));
    let left_out = said.len() - first - last;
    let mut shown = said[..first].to_vec();
    shown.push(format!(
        "({left_out} more: `instarctl get bundles -o yaml` has them.)"
    ));
    shown.extend_from_slice(&said[said.len() - last..]);
    shown
}

/// Breaks a sentence at spaces, so that it fits the narrowest screens.
fn wrapped(sentence: &str) -> String {
    let mut text = String::new();
    let mut column = 0;
    for word in sentence.split(' ') {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > COLUMNS {
            text.push_str("\r\n");
            column = 0;
        } else if column > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_reads_the_digits_and_what_a_wrong_one_does() {
        let question = Question::new([1, 2, 3, 4, 5, 6]);
        let said = ["The bundle has the file site.raw.".to_owned()];
        for (what, expected) in [
            (Asked::Bundle, "A wrong digit refuses it"),
            (
                Asked::Files,
                "A wrong digit leaves its files of extensions out",
            ),
        ] {
            let text = text(&said, &question, what);
            assert!(
                text.contains(&said[0]) && text.contains("123 456"),
                "{text}"
            );
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn the_digits_are_there_beside_many_files() {
        let mut said = vec!["The bundle holds 1 image: r.io/a:v1.".to_owned()];
        let file =
            |number: u32| format!("The file site-{number}.raw is kept: the config names it.");
        said.extend((0..200).map(file));
        said.push("After that, this machine is upgraded to v0.2.0.".to_owned());
        let question = Question::new([1, 2, 3, 4, 5, 6]);
        let text = text(&said, &question, Asked::Bundle);
        assert!(text.len() < 4096, "{} bytes", text.len());
        for part in [
            said[0].as_str(),
            "site-0.raw",
            " more: `instarctl",
            "site-199.raw",
            said[201].as_str(),
            "123 456",
        ] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
        assert_eq!(shortened(&said[..9]), said[..9]);
    }

    #[test]
    fn sentences_are_broken_at_spaces() {
        let (long, short) = ("x".repeat(COLUMNS - 2), "short");
        assert_eq!(wrapped(short), short);
        assert_eq!(
            wrapped(&format!("{long} {short} {short}")),
            format!("{long}\r\n{short} {short}")
        );
        assert_eq!(wrapped(&format!("a {long}")), format!("a {long}"));
    }
}
