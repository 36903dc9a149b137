//! The facts about a node: names and values, one line each.

use instar_base::byte_size::human;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::Mood;
use super::numbers::clock;
use crate::known::{Node, stage};
use crate::terminal::Look;

/// Limit on the conditions that are shown.
const CONDITIONS: usize = 3;

/// A name, a value, and its mood.
pub(super) type Fact = (&'static str, String, Mood);

/// The known facts, the most important first: there may not be room for all.
pub(super) fn of(node: &Node) -> Vec<Fact> {
    let unknown = || "-".to_owned();
    let plain = |name, value: Option<String>| (name, value.unwrap_or_else(unknown), Mood::Plain);
    let mut facts = vec![plain("Name", node.hostname.clone())];
    let version = node
        .version
        .as_ref()
        .map(|version| format!("{} {}", version.name, version.version));
    facts.push(plain("Version", version));
    facts.push(match &node.status {
        Some(status) => {
            let state = status.status.clone().unwrap_or_default();
            let (ready, mood) = if state.ready {
                ("ready", Mood::Good)
            } else {
                ("not ready", Mood::Bad)
            };
            ("Stage", format!("{}, {ready}", stage(status)), mood)
        }
        None => plain("Stage", None),
    });
    let conditions = node.status.iter().flat_map(|status| &status.status);
    for missing in conditions.flat_map(|status| &status.unmet_conditions) {
        let text = format!("{}: {}", missing.name, missing.reason);
        facts.push(("Missing", text, Mood::Bad));
    }
    facts.extend(wrong(node));
    let addresses = Some(node.addresses.join(" ")).filter(|addresses| !addresses.is_empty());
    facts.push(plain("Addresses", addresses));
    facts.push(plain("Up", node.uptime.map(clock)));
    facts.push(plain("Generation", node.generation.clone()));
    facts.push(plain("Kernel boot", node.kernel_boot.clone()));
    facts.push(plain(
        "Secure Boot",
        node.security.as_ref().map(secure_boot),
    ));
    let disks = node.disks.iter().map(|(id, disk)| {
        let own = if node.system_disk.as_ref() == Some(id) {
            " (own)"
        } else {
            ""
        };
        format!("{id} {}{own}", human(disk.size))
    });
    let disks = Some(disks.collect::<Vec<_>>().join(", ")).filter(|disks| !disks.is_empty());
    facts.push(plain("Disks", disks));
    facts.push(plain("Processors", processors(node)));
    for told in &node.diagnostics {
        facts.push(("Told", told.clone(), Mood::Bad));
    }
    facts
}

/// The conditions that are true: one line each, the newest ones, and how many there are besides.
fn wrong(node: &Node) -> impl Iterator<Item = Fact> {
    let shown = node.conditions.iter().take(CONDITIONS).map(|condition| {
        let text = format!("{}: {}", condition.r#type, condition.message);
        ("Wrong", text, Mood::Bad)
    });
    let left = node.conditions.len().saturating_sub(CONDITIONS);
    let more = (left > 0).then(|| ("Wrong", format!("and {left} more"), Mood::Bad));
    shown.chain(more)
}

fn secure_boot(state: &instar_api::definitions::runtime::SecurityStateSpec) -> String {
    let on = if state.secure_boot { "on" } else { "off" };
    let uki = if state.booted_with_uki { ", UKI" } else { "" };
    format!("{on}{uki}")
}

fn processors(node: &Node) -> Option<String> {
    let first = node.processors.first()?;
    let speed = match node.frequency {
        Some(kilohertz) if kilohertz > 0 => format!(", {:.1} GHz", kilohertz as f64 / 1e6),
        _ => String::new(),
    };
    Some(format!(
        "{} x {}{speed}",
        node.processors.len(),
        first.model_name
    ))
}

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, node: &Node, facts: &[Fact], look: Look) {
    let line = |(name, value, mood): &Fact| {
        Line::from(vec![
            Span::styled(format!("{name:<12}"), Modifier::DIM),
            Span::styled(look.text(value), look.mood(*mood)),
        ])
    };
    let lines: Vec<_> = facts.iter().map(line).collect();
    let paragraph = Paragraph::new(lines).block(look.part(look.text(&node.name)));
    frame.render_widget(paragraph, area);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::{Duration, UNIX_EPOCH};

    use instar_api::definitions::instar::ConditionSpec;

    use super::*;
    use crate::known::{Update, Watched};

    /// The lines of a node with these conditions: the type, whether it is true, and since when.
    fn lines(conditions: &[(&str, bool, u64)]) -> Vec<String> {
        let conditions = conditions.iter().map(|(kind, status, since)| {
            let spec = ConditionSpec {
                r#type: (*kind).to_owned(),
                status: *status,
                message: format!("{kind} is wrong"),
                since: Some((UNIX_EPOCH + Duration::from_secs(*since)).into()),
                ..ConditionSpec::default()
            };
            ((*kind).to_owned(), spec)
        });
        let all: BTreeMap<_, _> = conditions.collect();
        let mut node = Node::new("n".to_owned());
        node.apply(Duration::ZERO, Update::Watched(Watched::Conditions(all)));
        let facts = of(&node).into_iter();
        let wrong = facts.filter(|(name, ..)| *name == "Wrong");
        wrong.map(|(_, text, _)| text).collect()
    }

    #[test]
    fn the_newest_three_conditions_and_a_count_are_shown() {
        let many = [
            ("A", true, 1),
            ("B", true, 5),
            ("C", false, 9),
            ("D", true, 3),
            ("E", true, 4),
            ("F", true, 2),
        ];
        assert_eq!(
            lines(&many),
            [
                "B: B is wrong",
                "E: E is wrong",
                "D: D is wrong",
                "and 2 more"
            ]
        );
        assert_eq!(lines(&many[..3]), ["B: B is wrong", "A: A is wrong"]);
        assert_eq!(lines(&[("A", false, 1)]), Vec::<String>::new());
    }
}
