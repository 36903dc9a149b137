//! The programs that are connected.

use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use zbus::Connection;
use zbus::connection::Builder;

use crate::manager::{BUS, Bus, INTERFACE, MANAGER, Manager};

/// Limit on connections. kubelet has one.
const MOST: usize = 16;
/// Limit on the beginning of a connection, and on a message to a program that does not read.
const ANSWER: Duration = Duration::from_secs(5);
/// The id of this bus: programs compare it with none.
const GUID: &str = "00000000000000000000000000000001";

/// The connections, and those that begin.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    beginning: JoinSet<Option<Connection>>,
    connected: Vec<Connection>,
}

impl Clients {
    /// Serves a program.
    pub(crate) fn add(&mut self, stream: UnixStream, manager: Manager) {
        self.look();
        if self.beginning.len() + self.connected.len() >= MOST {
            eprintln!("logind: a connection is refused, as there are {MOST}");
            return;
        }
        self.beginning.spawn(async {
            let begun = tokio::time::timeout(ANSWER, begin(stream, manager)).await;
            match begun {
                Ok(Ok(connection)) => Some(connection),
                Ok(Err(error)) => {
                    eprintln!("logind: {error:#}");
                    None
                }
                Err(_) => None,
            }
        });
    }

    /// Tells all programs that the machine shuts down; returns how many could be told.
    pub(crate) async fn prepare_for_shutdown(&mut self) -> usize {
        while let Some(begun) = self.beginning.join_next().await {
            self.connected.extend(begun.ok().flatten());
        }
        self.look();
        let mut told = 0;
        for connection in &self.connected {
            let telling = connection.emit_signal(
                None::<&str>,
                MANAGER,
                INTERFACE,
                "PrepareForShutdown",
                &true,
            );
            match tokio::time::timeout(ANSWER, telling).await {
                Ok(Ok(())) => told += 1,
                Ok(Err(error)) => eprintln!("logind: a program cannot be told: {error}"),
                Err(_) => eprintln!("logind: a program does not take the message"),
            }
        }
        told
    }

    /// Takes the connections that have begun, and lets go of those that have ended.
    fn look(&mut self) {
        while let Some(begun) = self.beginning.try_join_next() {
            self.connected.extend(begun.ok().flatten());
        }
        self.connected.retain(|connection| !connection.is_closed());
    }
}

async fn begin(stream: UnixStream, manager: Manager) -> Result<Connection> {
    let stream = stream.into_std().context("cannot take a connection")?;
    let connection = Builder::unix_stream(stream)
        .server(GUID)
        .p2p()
        .serve_at(MANAGER, manager)
        .serve_at(BUS, Bus)
        .build();
    connection
        .await
        .context("a program did not begin as D-Bus has it")
}
