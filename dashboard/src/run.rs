//! Runs the dashboard on a terminal: receives updates and keys, and draws the changes.

use std::io;
use std::time::Duration;

use instar_client::Node;
use ratatui::crossterm::event::{Event, read};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::feed;
use crate::screen::{Asked, Screen};
use crate::terminal::{Look, Taken};
use crate::view;

/// Interval of drawing: updates within this time are drawn together.
const FRAME: Duration = Duration::from_millis(50);
/// Number of updates that may be queued. Nodes that send more wait.
const AHEAD: usize = 256;

/// The program that the quit key ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// The dashboard.
    Quit,
    /// None: it belongs to the machine, and its users may only look.
    OnlyLook,
}

/// Why the dashboard failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The terminal cannot be used, or was closed.
    #[error("cannot use the terminal")]
    Terminal(#[from] io::Error),
    /// There is no node to ask.
    #[error("there is no node to show")]
    NoNode,
}

/// Shows the nodes until the user or a signal ends it. Asks each of them every `interval`.
///
/// The terminal is restored at the end in any case. Needs a runtime with time, I/O and signals.
pub async fn run(nodes: Vec<Node>, interval: Duration, look: Look, may: Keys) -> Result<(), Error> {
    if nodes.is_empty() {
        return Err(Error::NoNode);
    }
    let mut screen = Screen::new(nodes.iter().map(|node| node.name().to_owned()));
    let (sender, mut told) = mpsc::channel(AHEAD);
    let feeds: Vec<_> = nodes
        .into_iter()
        .enumerate()
        .map(|(index, node)| feed::start(index, node, interval, sender.clone()))
        .collect();
    let mut ends = [
        signal(SignalKind::terminate())?,
        signal(SignalKind::hangup())?,
        signal(SignalKind::interrupt())?,
        signal(SignalKind::quit())?,
    ];
    let mut resized = signal(SignalKind::window_change())?;
    let began = Instant::now();
    let mut terminal = Taken::take()?;
    let mut keys = keys();
    let mut draw_at = Some(began);
    loop {
        for (index, feed) in feeds.iter().enumerate() {
            feed.want_log(screen.wanted_log(index));
        }
        let [terminate, hangup, interrupt, quit] = &mut ends;
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = hangup.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = quit.recv() => return Ok(()),
            // Only keys: a change of size comes as a signal.
            event = keys.recv() => if let Event::Key(key) = event.unwrap_or_else(closed)? {
                match screen.press(key) {
                    Asked::Nothing => {}
                    Asked::Draw => draw_at = Some(Instant::now()),
                    Asked::Repaint => {
                        terminal.repaint()?;
                        draw_at = Some(Instant::now());
                    }
                    Asked::Quit if may == Keys::Quit => return Ok(()),
                    Asked::Quit => {}
                }
            },
            _ = resized.recv() => {
                terminal.repaint()?;
                draw_at = Some(Instant::now());
            }
            Some((index, update)) = told.recv() => {
                if screen.apply(index, began.elapsed(), update) {
                    draw_at.get_or_insert_with(|| Instant::now() + FRAME);
                }
            }
            () = sleep_until(draw_at.unwrap_or(began)), if draw_at.is_some() => {
                draw_at = None;
                terminal.draw(|frame| view::draw(frame, &mut screen, look))?;
            }
        }
    }
}

/// The terminal's events, from a thread that waits for them. The thread ends with the program.
fn keys() -> mpsc::Receiver<io::Result<Event>> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        loop {
            let event = read();
            let failed = event.is_err();
            if sender.blocking_send(event).is_err() || failed {
                return;
            }
        }
    });
    receiver
}

/// The error after the thread ended with an error, which was reported before.
fn closed() -> io::Result<Event> {
    Err(io::ErrorKind::UnexpectedEof.into())
}
