//! The content of the screen, and its changes by keys.

use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::known::{Node, Update};
use crate::log::LogName;

/// A page: the part of a node that is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Page {
    /// A selection of everything.
    #[default]
    Summary,
    /// Load and processes.
    Monitor,
    /// A log alone.
    Log,
}

/// The action that follows a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// None: nothing has changed.
    Nothing,
    /// Draw the changes.
    Draw,
    /// Paint every cell: the serial line garbled some.
    Repaint,
    /// End the dashboard.
    Quit,
}

/// The content of the screen.
#[derive(Debug)]
pub(crate) struct Screen {
    pub(crate) nodes: Vec<Node>,
    /// The index of the node that is shown.
    pub(crate) current: usize,
    pub(crate) page: Page,
    /// The log that is shown.
    pub(crate) log: LogName,
    /// Number of lines of the log below the last one shown.
    pub(crate) behind: usize,
    /// Number of processes above the first one shown.
    pub(crate) skipped: usize,
    /// Time since the dashboard began.
    pub(crate) now: Duration,
    /// Rows of the scrolling list at the last drawing: the length of a page.
    pub(crate) rows: usize,
}

impl Screen {
    /// A screen for nodes with these names; there must be at least one.
    pub(crate) fn new(names: impl IntoIterator<Item = String>) -> Self {
        Self {
            nodes: names.into_iter().map(Node::new).collect(),
            current: 0,
            page: Page::default(),
            log: LogName::Kernel,
            behind: 0,
            skipped: 0,
            now: Duration::ZERO,
            rows: 1,
        }
    }

    /// The node that is shown.
    pub(crate) fn node(&self) -> &Node {
        &self.nodes[self.current]
    }

    /// Applies an update of a node. Returns whether it can be seen.
    pub(crate) fn apply(&mut self, index: usize, at: Duration, update: Update) -> bool {
        self.now = at;
        let seen = match &update {
            Update::LogLines(name, lines) if index == self.current && *name == self.log => {
                // The shown lines stay where they are.
                if self.behind > 0 {
                    self.behind += lines.len();
                }
                true
            }
            Update::LogBegins(name) if index == self.current && *name == self.log => {
                self.behind = 0;
                true
            }
            Update::LogLines(..) | Update::LogBegins(_) => false,
            // The header shows the state of every node.
            Update::Reached | Update::Lost(_) => true,
            _ => index == self.current,
        };
        if let Some(node) = self.nodes.get_mut(index) {
            node.apply(at, update);
        }
        seen
    }

    /// Handles a key.
    pub(crate) fn press(&mut self, key: KeyEvent) -> Asked {
        if key.kind == KeyEventKind::Release {
            return Asked::Nothing;
        }
        let half = (self.rows / 2).max(1);
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            match key.code {
                KeyCode::Char('c') => return Asked::Quit,
                KeyCode::Char('l') => return Asked::Repaint,
                KeyCode::Char('u') => self.up(half),
                KeyCode::Char('d') => self.down(half),
                KeyCode::Char('b') => self.up(self.rows),
                KeyCode::Char('f') => self.down(self.rows),
                _ => return Asked::Nothing,
            }
            return Asked::Draw;
        }
        match key.code {
            KeyCode::Char('q') => return Asked::Quit,
            KeyCode::Char('1') | KeyCode::F(1) => self.page = Page::Summary,
            KeyCode::Char('2') | KeyCode::F(2) => self.page = Page::Monitor,
            KeyCode::Char('3') | KeyCode::F(3) => self.page = Page::Log,
            KeyCode::Left | KeyCode::Char('h') => self.turn_to(self.nodes.len() - 1),
            KeyCode::Right | KeyCode::Char('l') => self.turn_to(1),
            KeyCode::Tab => self.turn_log(1),
            KeyCode::BackTab => self.turn_log(self.node().log_names().len() - 1),
            KeyCode::Up | KeyCode::Char('k') => self.up(1),
            KeyCode::Down | KeyCode::Char('j') => self.down(1),
            KeyCode::PageUp => self.up(self.rows),
            KeyCode::PageDown => self.down(self.rows),
            KeyCode::Home | KeyCode::Char('g') => self.up(usize::MAX),
            KeyCode::End | KeyCode::Char('G') => self.down(usize::MAX),
            _ => return Asked::Nothing,
        }
        Asked::Draw
    }

    /// The service whose log is to be followed on a node; `None` unless that node is shown.
    pub(crate) fn wanted_log(&self, index: usize) -> Option<&str> {
        match &self.log {
            LogName::Service(id) if index == self.current => Some(id),
            _ => None,
        }
    }

    fn turn_to(&mut self, steps: usize) {
        self.current = (self.current + steps) % self.nodes.len();
        (self.behind, self.skipped) = (0, 0);
        // Another node may have other services.
        if !self.node().log_names().contains(&self.log) {
            self.log = LogName::Kernel;
        }
    }

    fn turn_log(&mut self, steps: usize) {
        let names = self.node().log_names();
        let now = names.iter().position(|name| *name == self.log);
        let next = (now.unwrap_or(0) + steps) % names.len();
        if let Some(name) = names.into_iter().nth(next) {
            self.log = name;
            self.behind = 0;
        }
    }

    fn up(&mut self, rows: usize) {
        match self.page {
            Page::Monitor => self.skipped = self.skipped.saturating_sub(rows),
            Page::Summary | Page::Log => {
                let lines = self.node().logs.get(&self.log);
                let most = lines.map_or(0, |log| log.lines().len().saturating_sub(1));
                self.behind = self.behind.saturating_add(rows).min(most);
            }
        }
    }

    fn down(&mut self, rows: usize) {
        match self.page {
            Page::Monitor => {
                let most = self.node().processes.len().saturating_sub(1);
                self.skipped = self.skipped.saturating_add(rows).min(most);
            }
            Page::Summary | Page::Log => self.behind = self.behind.saturating_sub(rows),
        }
    }
}

#[cfg(test)]
mod tests {
    use instar_api::machine::ServiceInfo;

    use super::*;

    fn screen() -> Screen {
        let mut screen = Screen::new(["one".to_owned(), "two".to_owned()]);
        let service = |id: &str| ServiceInfo {
            id: id.into(),
            ..ServiceInfo::default()
        };
        screen.apply(
            0,
            Duration::ZERO,
            Update::Services(vec![service("web"), service("apid")]),
        );
        screen
    }

    fn press(screen: &mut Screen, code: KeyCode) -> Asked {
        screen.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn lines(count: usize) -> Update {
        Update::LogLines(LogName::Kernel, vec!["x".into(); count])
    }

    #[test]
    fn q_and_control_c_quit_and_unknown_keys_do_nothing() {
        let mut screen = screen();
        assert_eq!(press(&mut screen, KeyCode::Char('q')), Asked::Quit);
        let control = |letter| KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL);
        assert_eq!(screen.press(control('c')), Asked::Quit);
        assert_eq!(screen.press(control('l')), Asked::Repaint);
        assert_eq!(press(&mut screen, KeyCode::Char('x')), Asked::Nothing);
    }

    #[test]
    fn nodes_go_round() {
        let mut screen = screen();
        press(&mut screen, KeyCode::Left);
        assert_eq!(screen.node().name, "two");
        press(&mut screen, KeyCode::Char('l'));
        assert_eq!(screen.node().name, "one");
    }

    #[test]
    fn the_log_of_a_service_is_wanted_of_the_node_that_is_shown() {
        let mut screen = screen();
        assert_eq!(screen.wanted_log(0), None);
        press(&mut screen, KeyCode::Tab);
        assert_eq!(screen.wanted_log(0), Some("apid"));
        assert_eq!(screen.wanted_log(1), None);
        press(&mut screen, KeyCode::BackTab);
        press(&mut screen, KeyCode::BackTab);
        assert_eq!(screen.wanted_log(0), Some("web"));
        // The other node has no such service.
        press(&mut screen, KeyCode::Right);
        assert_eq!(screen.log, LogName::Kernel);
    }

    #[test]
    fn what_is_read_stays_in_place_while_lines_come() {
        let mut screen = screen();
        screen.rows = 10;
        assert!(screen.apply(0, Duration::ZERO, lines(100)));
        press(&mut screen, KeyCode::PageUp);
        assert_eq!(screen.behind, 10);
        screen.apply(0, Duration::ZERO, lines(5));
        assert_eq!(screen.behind, 15);
        press(&mut screen, KeyCode::Home);
        assert_eq!(screen.behind, 104);
        press(&mut screen, KeyCode::End);
        assert_eq!(screen.behind, 0);
        screen.apply(0, Duration::ZERO, lines(5));
        assert_eq!(screen.behind, 0);
    }

    #[test]
    fn what_nobody_sees_is_not_drawn() {
        let mut screen = screen();
        let of_web = Update::LogLines(LogName::Service("web".into()), vec!["x".into()]);
        assert!(!screen.apply(0, Duration::ZERO, of_web));
        assert!(!screen.apply(1, Duration::ZERO, lines(1)));
        assert!(screen.apply(1, Duration::ZERO, Update::Lost("gone".into())));
    }
}
