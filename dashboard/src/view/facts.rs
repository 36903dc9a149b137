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
