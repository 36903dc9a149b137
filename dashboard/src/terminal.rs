//! Takes over the terminal, and restores it in any case.

use std::io::{self, Stdout, Write as _, stdout};

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, MoveTo, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
    enable_raw_mode, size,
};
use ratatui::layout::Rect;
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};

/// Default size, if the terminal's is unknown, as on a serial line. Such terminals have had it since the VT100.
const USUAL_SIZE: (u16, u16) = (80, 24);

/// The abilities of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Whether it shows more than ASCII.
    pub unicode: bool,
    /// Whether it shows colours.
    pub colour: bool,
}

impl Look {
    /// The abilities by the environment; `None` for a terminal whose cursor cannot be moved.
    ///
    /// The locale determines the character set (`LC_ALL`, `LC_CTYPE`, `LANG`, in this order); terminals from before Unicode are known by
    /// their name.
    pub fn of_environment(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let terminal = set("TERM").filter(|name| name != "dumb")?;
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
        let locale = locale.unwrap_or_default().to_ascii_lowercase();
        let utf8 = locale.ends_with("utf-8") || locale.ends_with("utf8");
        let old = ["vt100", "vt102", "vt220", "ansi", "sun", "wyse"];
        let old = old.iter().any(|name| terminal.starts_with(name));
        Some(Self {
            unicode: utf8 && !old,
            colour: !old && set("NO_COLOR").is_none(),
        })
    }
}

/// The terminal while the dashboard uses it. Restored when dropped, and when the program panics.
pub(crate) struct Taken {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Taken {
    /// Takes the terminal over.
    pub(crate) fn take() -> io::Result<Self> {
        let terminal = blank()?;
        let earlier = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            earlier(panic);
        }));
        enable_raw_mode()?;
        // From here on it is restored in any case.
        let taken = Self { terminal };
        execute!(stdout(), EnterAlternateScreen, Hide, Clear(ClearType::All))?;
        Ok(taken)
    }

    /// Draws a frame: the cells that differ from the last one.
    pub(crate) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(draw).map(|_| ())
    }

    /// Makes the next frame a whole one, in the terminal's present size.
    pub(crate) fn repaint(&mut self) -> io::Result<()> {
        self.terminal = blank()?;
        execute!(stdout(), Clear(ClearType::All))
    }
}

/// A blank terminal.
///
/// Its size is fixed and it is cleared by hand: the library would ask the terminal for its cursor's position, and not every serial line
/// answers.
fn blank() -> io::Result<Terminal<CrosstermBackend<Stdout>>> {
    let (columns, rows) = current_size();
    let options = TerminalOptions {
        viewport: Viewport::Fixed(Rect::new(0, 0, columns, rows)),
    };
    Terminal::with_options(CrosstermBackend::new(stdout()), options)
}

impl Drop for Taken {
    fn drop(&mut self) {
        give_back();
    }
}

fn current_size() -> (u16, u16) {
    match size() {
        Ok((columns, rows)) if columns > 0 && rows > 0 => (columns, rows),
        Ok(_) | Err(_) => USUAL_SIZE,
    }
}

/// Restores the terminal as far as possible: a closed one needs nothing.
fn give_back() {
    let (_, rows) = current_size();
    // A terminal without a second screen keeps the last frame; later output goes below it. It may also be closed.
    let _ = execute!(
        stdout(),
        MoveTo(0, rows.saturating_sub(1)),
        LeaveAlternateScreen,
        Show
    );
    // The terminal may be closed, which needs no action.
    let _ = disable_raw_mode();
    let _ = stdout().flush();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(variables: &[(&str, &str)]) -> Option<Look> {
        Look::of_environment(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn poor_terminals_get_ascii() {
        let of = |unicode, colour| Some(Look { unicode, colour });
        assert_eq!(
            look(&[("TERM", "xterm"), ("LANG", "C.UTF-8")]),
            of(true, true)
        );
        assert_eq!(look(&[("TERM", "xterm"), ("LANG", "C")]), of(false, true));
        assert_eq!(look(&[("TERM", "xterm")]), of(false, true));
        // The first variable that is set counts.
        let both = [
            ("TERM", "xterm"),
            ("LC_ALL", "POSIX"),
            ("LANG", "de_DE.utf8"),
        ];
        assert_eq!(look(&both), of(false, true));
        assert_eq!(
            look(&[("TERM", "vt220"), ("LANG", "C.UTF-8")]),
            of(false, false)
        );
        let plain = [("TERM", "xterm"), ("LANG", "C.UTF-8"), ("NO_COLOR", "1")];
        assert_eq!(look(&plain), of(true, false));
        assert_eq!(look(&[("TERM", "dumb")]), None);
        assert_eq!(look(&[]), None);
    }
}
