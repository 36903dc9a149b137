//! Draws a screen: a function of the known state, the terminal's size and its abilities.

mod bundles;
mod conditions;
mod facts;
mod load;
mod log;
mod numbers;
mod processes;
mod services;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::{bar, border};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph};

use crate::known::Link;
use crate::screen::{Page, Screen};
use crate::terminal::Look;

/// Width from which there is room for a third column.
const WIDE: u16 = 120;

/// Draws everything, and stores the number of rows that the scrolling list had room for.
pub(crate) fn draw(frame: &mut Frame<'_>, screen: &mut Screen, look: Look) {
    let bundles = bundles::lines(screen.node(), frame.area().width, look);
    let [head, stick, body, foot] = Layout::vertical([
        Constraint::Length(1),
        bundles::height(&bundles, frame.area().height),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(header(screen, look), head);
    bundles::draw(frame, stick, bundles, look);
    frame.render_widget(keys(screen, look), foot);
    screen.rows = match screen.page {
        Page::Summary => summary(frame, body, screen, look),
        Page::Monitor => monitor(frame, body, screen, look),
        Page::Log => log::draw(frame, body, screen, look),
    };
}

fn summary(frame: &mut Frame<'_>, area: Rect, screen: &Screen, look: Look) -> usize {
    let node = screen.node();
    let facts = facts::of(node);
    let wanted = facts.len().max(node.services.len()) + 1;
    let wrong = conditions::lines(node, area, look);
    let wrong_rows = conditions::height(&wrong);
    if area.width >= WIDE {
        let rows = [upper(wanted.max(9), area), wrong_rows, Constraint::Min(0)];
        let [top, told, below] = Layout::vertical(rows).areas(area);
        let [left, middle, right] = Layout::horizontal([
            Constraint::Fill(2),
            Constraint::Fill(2),
            Constraint::Fill(2),
        ])
        .spacing(1)
        .areas(top);
        facts::draw(frame, left, node, &facts, look);
        services::draw(frame, middle, node, look);
        load::draw(frame, right, node, 1, look);
        conditions::draw(frame, told, wrong, look);
        return log::draw(frame, below, screen, look);
    }
    let load_rows = Constraint::Length(load::ROWS + 1);
    let rows = [
        upper(wanted, area),
        load_rows,
        wrong_rows,
        Constraint::Min(0),
    ];
    let [top, load, told, below] = Layout::vertical(rows).areas(area);
    let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)])
        .spacing(1)
        .areas(top);
    facts::draw(frame, left, node, &facts, look);
    services::draw(frame, right, node, look);
    load::draw(frame, load, node, 2, look);
    conditions::draw(frame, told, wrong, look);
    log::draw(frame, below, screen, look)
}

/// Height for facts and services: as much as they need, but at most half, to leave room for the log.
fn upper(wanted: usize, area: Rect) -> Constraint {
    let wanted = u16::try_from(wanted).unwrap_or(u16::MAX);
    Constraint::Length(wanted.min(area.height / 2))
}

fn monitor(frame: &mut Frame<'_>, area: Rect, screen: &Screen, look: Look) -> usize {
    let [graphs, below] =
        Layout::vertical([Constraint::Percentage(45), Constraint::Min(0)]).areas(area);
    load::draw_graphs(frame, graphs, screen.node(), look);
    processes::draw(frame, below, screen, look)
}

/// The nodes, with the shown one marked, and the problem of the link to it.
fn header(screen: &Screen, look: Look) -> Paragraph<'static> {
    let mut spans = vec![Span::styled("instar ", Modifier::BOLD)];
    for (index, node) in screen.nodes.iter().enumerate() {
        let mark = match node.link {
            Link::Up => "",
            Link::Connecting => "?",
            Link::Away { .. } => "!",
        };
        let style = if index == screen.current {
            Style::from(Modifier::REVERSED)
        } else {
            Style::new()
        };
        spans.push(Span::styled(format!(" {}{mark} ", node.name), style));
    }
    match &screen.node().link {
        Link::Up => {}
        Link::Connecting => spans.push(Span::raw(" connecting")),
        Link::Away { since, why } => {
            let seconds = screen.now.saturating_sub(*since).as_secs();
            let text = format!(" AWAY for {seconds} s: {}", look.text(why));
            spans.push(Span::styled(text, look.mood(Mood::Bad)));
        }
    }
    Paragraph::new(Line::from(spans))
}

fn keys(screen: &Screen, look: Look) -> Paragraph<'static> {
    let (sides, upright) = if look.unicode {
        ("←→", "↑↓")
    } else {
        ("h/l", "k/j")
    };
    let page = |page: Page, text: &'static str| {
        let style = if screen.page == page {
            Style::from(Modifier::REVERSED)
        } else {
            Style::new()
        };
        Span::styled(text, style)
    };
    let rest = format!("  {sides} node  tab log  {upright} PgUp PgDn  ^L repaint");
    Paragraph::new(Line::from(vec![
        Span::raw("q quit  "),
        page(Page::Summary, "1 summary"),
        Span::raw(" "),
        page(Page::Monitor, "2 monitor"),
        Span::raw(" "),
        page(Page::Log, "3 log"),
        Span::raw(rest),
    ]))
}

/// The judgement of a value, shown by its style.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    Plain,
    Good,
    Bad,
}

impl Look {
    fn mood(self, mood: Mood) -> Style {
        match (mood, self.colour) {
            (Mood::Plain, _) => Style::new(),
            (Mood::Good, true) => Style::new().fg(Color::Green),
            (Mood::Good, false) => Style::new(),
            (Mood::Bad, true) => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
            (Mood::Bad, false) => Style::from(Modifier::BOLD),
        }
    }

    fn graph(self) -> Style {
        if self.colour {
            Style::new().fg(Color::Cyan)
        } else {
            Style::new()
        }
    }

    fn bars(self) -> bar::Set<'static> {
        if self.unicode {
            bar::NINE_LEVELS
        } else {
            bar::Set {
                full: "#",
                seven_eighths: "#",
                three_quarters: "*",
                five_eighths: "+",
                half: "=",
                three_eighths: "-",
                one_quarter: ":",
                one_eighth: ".",
                empty: " ",
            }
        }
    }

    /// Replaces characters that the terminal cannot show.
    fn text(self, text: &str) -> String {
        if self.unicode {
            text.to_owned()
        } else {
            let shown = |character: char| if character.is_ascii() { character } else { '?' };
            text.chars().map(shown).collect()
        }
    }

    /// A titled part of the screen: only a line with the title, as borders at the sides would be more characters on a slow line.
    fn part(self, title: impl Into<String>) -> Block<'static> {
        let horizontal = if self.unicode { "─" } else { "-" };
        let set = border::Set {
            top_left: horizontal,
            top_right: horizontal,
            bottom_left: horizontal,
            bottom_right: horizontal,
            vertical_left: " ",
            vertical_right: " ",
            horizontal_top: horizontal,
            horizontal_bottom: horizontal,
        };
        Block::new()
            .borders(Borders::TOP)
            .border_set(set)
            .title(Span::styled(format!(" {} ", title.into()), Modifier::BOLD))
    }
}

#[cfg(test)]
mod tests;
