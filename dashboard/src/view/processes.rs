//! The processes, the busiest first.

use instar_base::byte_size::human;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Modifier;
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use crate::known::Process;
use crate::screen::Screen;
use crate::terminal::Look;

/// Draws the processes. Returns the number of rows.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, screen: &Screen, look: Look) -> usize {
    let processes = &screen.node().processes;
    let block = look.part(format!("processes ({})", processes.len()));
    let inner = block.inner(area);
    let header = format!(
        "{:>7} {:>6} {:>10} {:>4} {} COMMAND",
        "PID", "CPU %", "MEMORY", "THR", "S"
    );
    let mut lines = vec![Line::styled(header, Modifier::DIM)];
    let rows = usize::from(inner.height).saturating_sub(1);
    let skipped = screen.skipped.min(processes.len().saturating_sub(1));
    let row = |process: &Process| {
        let info = &process.info;
        // Kernel threads have no arguments.
        let command = if info.args.is_empty() {
            format!("[{}]", info.command)
        } else {
            info.args.clone()
        };
        Line::from(format!(
            "{:>7} {:>6.1} {:>10} {:>4} {:1.1} {}",
            info.pid,
            process.cpu,
            human(info.resident_memory),
            info.threads,
            info.state,
            look.text(&command)
        ))
    };
    lines.extend(processes.iter().skip(skipped).take(rows).map(row));
    frame.render_widget(Paragraph::new(lines).block(block), area);
    rows.max(1)
}
