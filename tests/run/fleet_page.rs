//! The page of the demonstration's machines, served by `instarctl fleet serve`, and pictures of it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use instar_tests::{Browser, FollowedProgram, Instarctl, Node, Scratch, Screen, fleet_file};

/// Limit on the time until the command serves the page.
const PATIENCE: Duration = Duration::from_secs(60);

/// The page, as a laptop shows it.
pub(crate) struct Page {
    browser: Browser,
    _server: FollowedProgram,
}

impl Page {
    /// Has the page served until the demonstration ends.
    pub(crate) fn serve(scratch: &Scratch, names: &[&str], nodes: &[Node]) -> Result<Self> {
        let first = nodes.first().ok_or_else(|| anyhow::anyhow!("no machine"))?;
        let addresses: Result<Vec<_>, _> = nodes.iter().map(Node::endpoint).collect();
        let file = fleet_file(scratch, names.iter().zip(addresses?))?;
        let file = file.display().to_string();
        let client = Instarctl::of(first, scratch)?;
        let shown = ["--followers", "--fleet", &file];
        let (server, address) = client.serve_page(&shown, PATIENCE)?;
        println!("the page: open {address}");
        let browser = Browser::start(scratch, Screen::Laptop)?;
        browser.open(&address)?;
        Ok(Self {
            browser,
            _server: server,
        })
    }

    /// Keeps a picture of the page once it has these words.
    pub(crate) fn picture(&self, name: &str, words: &str) -> Result<PathBuf> {
        self.browser.wait_for_text(words)?;
        let picture = self.browser.screenshot(name)?;
        println!("  {}", picture.display());
        Ok(picture)
    }
}
