//! Draws what is wrong with the node, over the whole width: a message ends with what to do, and half a line has no room for it.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use super::Mood;
use super::bundles::broken;
use crate::known::Node;
use crate::terminal::Look;

/// The part of the page's height that they may take.
const SHARE: u16 = 5;

/// The lines about the conditions that are true, the newest first, for a page of this size: whole messages if there is room for all, else a
/// line for each.
pub(super) fn lines(node: &Node, page: Rect, look: Look) -> Vec<String> {
    let room = usize::from(page.height / SHARE).saturating_sub(1);
    let conditions = node.conditions.iter();
    let mut all: Vec<String> = conditions
        .map(|condition| look.text(&format!("{}: {}", condition.r#type, condition.message)))
        .collect();
    let whole = all
        .iter()
        .flat_map(|text| broken(text, usize::from(page.width)));
    let whole: Vec<String> = whole.take(room + 1).collect();
    if whole.len() <= room || all.len() == 1 {
        return whole.into_iter().take(room).collect();
    }
    let left = all.len().saturating_sub(room);
    if left > 0 {
        all.truncate(room.saturating_sub(1));
        all.push(format!("and {} more: instarctl get conditions", left + 1));
    }
    all.truncate(room);
    all
}

/// Height of the part. Nothing without a condition.
pub(super) fn height(lines: &[String]) -> Constraint {
    Constraint::Length(match lines.len() {
        0 => 0,
        count => u16::try_from(count + 1).unwrap_or(u16::MAX),
    })
}

/// Draws the lines.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, lines: Vec<String>, look: Look) {
    if lines.is_empty() {
        return;
    }
    let style = look.mood(Mood::Bad);
    let lines = lines.into_iter().map(|line| Line::styled(line, style));
    let lines: Vec<Line<'_>> = lines.collect();
    frame.render_widget(Paragraph::new(lines).block(look.part("wrong")), area);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::{Duration, UNIX_EPOCH};

    use instar_api::definitions::instar::ConditionSpec;

    use super::*;
    use crate::known::{Update, Watched};

    const ASCII: Look = Look {
        unicode: false,
        colour: false,
    };

    /// The lines of a node with these conditions, on a page of this height: the type, whether it is true, and since when.
    fn shown(conditions: &[(&str, bool, u64)], height: u16) -> Vec<String> {
        let conditions = conditions.iter().map(|(kind, status, since)| {
            let spec = ConditionSpec {
                r#type: (*kind).to_owned(),
                status: *status,
                message: "it is wrong; repair it".to_owned(),
                since: Some((UNIX_EPOCH + Duration::from_secs(*since)).into()),
                ..ConditionSpec::default()
            };
            ((*kind).to_owned(), spec)
        });
        let all: BTreeMap<_, _> = conditions.collect();
        let mut node = Node::new("n".to_owned());
        node.apply(Duration::ZERO, Update::Watched(Watched::Conditions(all)));
        lines(&node, Rect::new(0, 0, 20, height), ASCII)
    }

    #[test]
    fn messages_are_whole_if_there_is_room() {
        let (a, b) = (("A", true, 1), ("B", true, 5));
        let whole = ["A: it is wrong;", "repair it"];
        assert_eq!(shown(&[a], 22), whole);
        assert_eq!(shown(&[a], 10), whole[..1]);
        assert_eq!(
            shown(&[a, b], 25),
            ["B: it is wrong;", "repair it", whole[0], whole[1]]
        );
        assert_eq!(shown(&[("A", false, 1)], 22), Vec::<String>::new());
        assert_eq!(shown(&[a], 0), Vec::<String>::new());
    }

    #[test]
    fn without_room_each_has_a_line_and_the_rest_a_count() {
        let all = [
            ("A", true, 1),
            ("B", true, 5),
            ("C", false, 9),
            ("D", true, 3),
            ("E", true, 4),
        ];
        let line = |kind: &str| format!("{kind}: it is wrong; repair it");
        assert_eq!(shown(&all[..4], 22), ["B", "D", "A"].map(line));
        let more = "and 2 more: instarctl get conditions".to_owned();
        assert_eq!(shown(&all, 22), [line("B"), line("E"), more]);
        for height in 0..10 {
            assert!(shown(&all, height).len() <= usize::from(height));
        }
    }
}
