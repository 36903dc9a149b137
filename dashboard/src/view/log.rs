//! Draws the end of a log, or the part that was scrolled to. Long lines continue in the next row.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use crate::screen::Screen;
use crate::terminal::Look;

/// Draws the log. Returns the number of its rows.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, screen: &Screen, look: Look) -> usize {
    let node = screen.node();
    let names = node.log_names();
    let place = names
        .iter()
        .position(|name| *name == screen.log)
        .unwrap_or(0)
        + 1;
    let mut title = format!("log: {} ({place} of {})", screen.log, names.len());
    if screen.behind > 0 {
        title.push_str(&format!(", {} lines below", screen.behind));
    }
    let block = look.part(look.text(&title));
    let inner = block.inner(area);
    let rows = usize::from(inner.height);
    let mut shown: Vec<Line<'static>> = Vec::new();
    if let Some(log) = node.logs.get(&screen.log) {
        for line in log.lines().iter().rev().skip(screen.behind) {
            if shown.len() >= rows {
                break;
            }
            let text = look.text(line);
            let parts = wrap(&text, usize::from(inner.width));
            shown.extend(parts.into_iter().rev().map(Line::from));
        }
    }
    shown.truncate(rows);
    shown.reverse();
    frame.render_widget(Paragraph::new(shown).block(block), area);
    rows.max(1)
}

/// Splits a line into pieces of this many columns.
fn wrap(line: &str, width: usize) -> Vec<String> {
    let mut pieces = vec![String::new()];
    let mut used = 0;
    for character in line.chars() {
        let taken = Line::from(character.to_string()).width();
        if used + taken > width.max(1) {
            pieces.push(String::new());
            used = 0;
        }
        used += taken;
        if let Some(piece) = pieces.last_mut() {
            piece.push(character);
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_as_wide_as_the_screen() {
        assert_eq!(wrap("abcdefg", 3), ["abc", "def", "g"]);
        assert_eq!(wrap("", 3), [""]);
        // Wide characters take two columns.
        assert_eq!(wrap("漢字x", 3), ["漢", "字x"]);
    }
}
