//! Draws what the node says about sticks and bundles, above every page: a person with a stick reads nothing else.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use crate::known::Node;
use crate::terminal::Look;

/// The sentences, broken into lines at spaces. None without a bundle.
pub(super) fn lines(node: &Node, width: u16, look: Look) -> Vec<String> {
    let sentences = node.bundles.iter().flatten();
    sentences
        .flat_map(|sentence| broken(&look.text(sentence), usize::from(width)))
        .collect()
}

/// Height of the part: as much as it needs, but at most two thirds of the screen. Nothing without a bundle.
pub(super) fn height(lines: &[String], screen: u16) -> Constraint {
    let wanted = match lines.len() {
        0 => 0,
        count => u16::try_from(count + 1).unwrap_or(u16::MAX),
    };
    Constraint::Length(wanted.min(screen / 3 * 2))
}

/// Draws the lines; the last ones if there is not room for all: they say what to do.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, lines: Vec<String>, look: Look) {
    if lines.is_empty() {
        return;
    }
    let rows = usize::from(area.height).saturating_sub(1);
    let skipped = lines.len().saturating_sub(rows);
    let shown: Vec<Line<'_>> = lines.into_iter().skip(skipped).map(Line::from).collect();
    frame.render_widget(
        Paragraph::new(shown).block(look.part("bundle of images")),
        area,
    );
}

/// Breaks a sentence into lines. A word that is longer than a line is cut.
pub(super) fn broken(sentence: &str, width: usize) -> Vec<String> {
    let width = width.max(10);
    let mut lines = vec![String::new()];
    for word in sentence.split(' ') {
        for (piece, text) in pieces(word, width).into_iter().enumerate() {
            let Some(last) = lines.last_mut() else {
                continue;
            };
            let gap = usize::from(!last.is_empty());
            if piece > 0 || last.chars().count() + gap + text.chars().count() > width {
                lines.push(text);
            } else {
                last.push_str(if gap == 1 { " " } else { "" });
                last.push_str(&text);
            }
        }
    }
    lines
}

fn pieces(word: &str, width: usize) -> Vec<String> {
    let characters: Vec<char> = word.chars().collect();
    let pieces = characters.chunks(width);
    pieces.map(|piece| piece.iter().collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_broken_at_spaces() {
        for (sentence, expected) in [
            ("", vec![""]),
            ("short", vec!["short"]),
            ("one two three", vec!["one two", "three"]),
            ("0123456789abcd x", vec!["0123456789", "abcd x"]),
        ] {
            assert_eq!(broken(sentence, 10), expected);
        }
    }
}
