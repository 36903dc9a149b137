//! The load of a node: figures and their courses.

use instar_base::byte_size::human;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::widgets::{Paragraph, Sparkline};

use crate::known::Node;
use crate::series::Series;
use crate::terminal::Look;

/// Rows of figures in two columns.
pub(super) const ROWS: u16 = 4;
/// Columns of a figure's name and value.
const TEXT_WIDTH: u16 = 22;

/// A figure.
struct Figure<'a> {
    name: &'static str,
    value: String,
    /// Its samples over time, and its highest possible value if there is one.
    course: Option<(&'a Series, Option<u64>)>,
}

impl<'a> Figure<'a> {
    fn percent(name: &'static str, series: &'a Series) -> Self {
        let value = series.last().map(|percent| format!("{percent:.1} %"));
        Self {
            name,
            value: value.unwrap_or_else(|| "-".to_owned()),
            course: Some((series, Some(100))),
        }
    }

    fn rate(name: &'static str, series: &'a Series) -> Self {
        let value = series
            .last()
            .map(|bytes| format!("{}/s", human(bytes.round() as u64)));
        Self {
            name,
            value: value.unwrap_or_else(|| "-".to_owned()),
            course: Some((series, None)),
        }
    }

    fn words(name: &'static str, value: Option<String>) -> Self {
        Self {
            name,
            value: value.unwrap_or_else(|| "-".to_owned()),
            course: None,
        }
    }
}

/// The figures with a course.
fn courses(node: &Node) -> [Figure<'_>; 6] {
    [
        Figure::percent("CPU", &node.cpu),
        Figure::percent("Memory", &node.memory_used),
        Figure::rate("Net in", &node.received.series),
        Figure::rate("Net out", &node.sent.series),
        Figure::rate("Disk read", &node.read.series),
        Figure::rate("Disk write", &node.written.series),
    ]
}

/// Draws the figures in this many columns, each with a course of one row.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, node: &Node, columns: usize, look: Look) {
    let block = look.part("load");
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let average = node
        .load
        .as_ref()
        .map(|load| format!("{:.2} {:.2} {:.2}", load.load1, load.load5, load.load15));
    let memory = node.memory.as_ref().map(|memory| {
        let bytes = |kib: u64| human(kib.saturating_mul(1024));
        let used = memory.memtotal.saturating_sub(memory.memavailable);
        format!("{} of {}", bytes(used), bytes(memory.memtotal))
    });
    let [cpu, used, received, sent, read, written] = courses(node);
    let figures = [
        cpu,
        used,
        Figure::words("In use", memory),
        Figure::words("Average", average),
        received,
        sent,
        read,
        written,
    ];
    let rows = figures.len().div_ceil(columns);
    let areas = Layout::horizontal(vec![Constraint::Fill(1); columns])
        .spacing(1)
        .split(inner);
    for (column, figures) in areas.iter().zip(figures.chunks(rows)) {
        for (figure, row) in figures.iter().zip(column.rows()) {
            draw_row(frame, row, figure, look);
        }
    }
}

fn draw_row(frame: &mut Frame<'_>, row: Rect, figure: &Figure<'_>, look: Look) {
    let Some((series, most)) = figure.course else {
        let text = format!("{:<10} {}", figure.name, figure.value);
        frame.render_widget(Paragraph::new(text), row);
        return;
    };
    let [text, course] =
        Layout::horizontal([Constraint::Length(TEXT_WIDTH), Constraint::Min(0)]).areas(row);
    let words = format!("{:<10}{:>11}", figure.name, figure.value);
    frame.render_widget(Paragraph::new(words), text);
    frame.render_widget(sparkline(series, most, course.width, look), course);
}

/// Draws the courses as graphs that share the area.
pub(super) fn draw_graphs(frame: &mut Frame<'_>, area: Rect, node: &Node, look: Look) {
    let rows = Layout::vertical([Constraint::Fill(1); 3]).split(area);
    for (row, pair) in rows.iter().zip(courses(node).chunks(2)) {
        let columns = Layout::horizontal([Constraint::Fill(1); 2])
            .spacing(1)
            .split(*row);
        for (column, figure) in columns.iter().zip(pair) {
            let block = look.part(format!("{} {}", figure.name, figure.value));
            let inner = block.inner(*column);
            frame.render_widget(block, *column);
            if let Some((series, most)) = figure.course {
                frame.render_widget(sparkline(series, most, inner.width, look), inner);
            }
        }
    }
}

fn sparkline(series: &Series, most: Option<u64>, width: u16, look: Look) -> Sparkline<'static> {
    let course = Sparkline::default()
        .data(series.tail(usize::from(width)))
        .bar_set(look.bars())
        .style(look.graph());
    match most {
        Some(most) => course.max(most),
        None => course,
    }
}
