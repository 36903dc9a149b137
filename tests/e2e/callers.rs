//! Clients of two libraries that ask for the version ten times a second, each over one connection and over a new one
//! for each call. They use the libraries' defaults, and retry nothing themselves.

use std::path::PathBuf;

use instar_tests::{Calling, FollowedProgram, Grpcio, Node, Scratch, SteadyCalls};
use serde_json::Value;

use crate::PATIENCE;

/// The client of tonic that keeps its connection.
pub(crate) const OVER_ONE: &str = "tonic, one channel";

/// The clients, until they are ended.
pub(crate) struct Callers {
    over_one: SteadyCalls,
    anew: SteadyCalls,
    python: FollowedProgram,
    /// Python's calls end when this file exists.
    end: PathBuf,
}

impl Callers {
    pub(crate) async fn begin(node: &Node, scratch: &Scratch) -> anyhow::Result<Self> {
        let end = scratch.join("no-more-calls");
        let mut python = Grpcio::ready(scratch)?.call_on_and_on(node, &end)?;
        python.wait_for("its first answers", PATIENCE, |line| line.contains("calls"))?;
        let way_in = node.way_in(node.identity())?;
        Ok(Self {
            over_one: SteadyCalls::over(way_in.connect().await?),
            anew: SteadyCalls::anew(way_in),
            python,
            end,
        })
    }

    /// Ends the clients, and returns the results of their calls.
    pub(crate) async fn end(mut self) -> anyhow::Result<[(&'static str, Calling); 4]> {
        std::fs::write(&self.end, "")?;
        let said = self.told_by_python()?;
        let tonic = (self.over_one.end().await?, self.anew.end().await?);
        let grpcio = |way: &str| Calling::told_by(&said[way]);
        let found = [
            (OVER_ONE, tonic.0),
            ("tonic, a connection for each call", tonic.1),
            ("grpcio, one channel", grpcio("one channel")?),
            ("grpcio, a channel for each call", grpcio("anew")?),
        ];
        for (client, calling) in &found {
            println!("{client}: {calling}, {} versions", calling.versions);
        }
        Ok(found)
    }

    fn told_by_python(&mut self) -> anyhow::Result<Value> {
        let found = |line: &str| line.contains("slowest");
        let line = self.python.wait_for("what it found", PATIENCE, found)?;
        Ok(serde_json::from_str(&line)?)
    }
}
