//! The services with state and health, those with problems first.

use instar_api::machine::ServiceInfo;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::Mood;
use crate::known::Node;
use crate::terminal::Look;

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, node: &Node, look: Look) {
    let mut services: Vec<_> = node.services.iter().collect();
    services.sort_by_key(|service| health(service).1 != Mood::Bad);
    let widest = services.iter().map(|service| service.id.chars().count());
    let width = widest.max().unwrap_or(0).clamp(8, 16);
    let line = |service: &&ServiceInfo| {
        let (word, mood) = health(service);
        let last = service
            .events
            .iter()
            .flat_map(|events| &events.events)
            .last();
        let said = last.map_or("", |event| event.msg.as_str());
        Line::from(vec![
            Span::raw(format!("{:<width$.width$} ", look.text(&service.id))),
            Span::raw(format!("{:<9.9} ", service.state)),
            Span::styled(format!("{word:<5}"), look.mood(mood)),
            Span::raw(look.text(said)),
        ])
    };
    let room = usize::from(area.height.saturating_sub(1));
    let mut lines: Vec<_> = services.iter().map(line).collect();
    if lines.len() > room && room > 0 {
        let more = lines.len() - room + 1;
        lines.truncate(room - 1);
        lines.push(Line::from(format!("and {more} more")));
    }
    let title = format!("services ({})", services.len());
    frame.render_widget(Paragraph::new(lines).block(look.part(title)), area);
}

fn health(service: &ServiceInfo) -> (&'static str, Mood) {
    match &service.health {
        _ if service.state == "Failed" => ("FAIL", Mood::Bad),
        Some(health) if health.unknown => ("-", Mood::Plain),
        Some(health) if health.healthy => ("OK", Mood::Good),
        Some(_) => ("FAIL", Mood::Bad),
        None => ("-", Mood::Plain),
    }
}
