//! `fleet support`: the diagnostics of all nodes, or of those of a pool, in one file. Nodes that are away are named in it.

use instar_client::Failure;
use tokio::task::LocalSet;

use super::{look, members};
use crate::cli::{FleetSupport, Global};
use crate::commands::support::{self, Source};

pub(super) async fn run(global: &Global, arguments: &FleetSupport) -> Result<(), Failure> {
    let ways = match &arguments.pool {
        Some(pool) => members::ways_of_pool(global, &arguments.nodes, pool).await?,
        None => members::ways(global, &arguments.nodes).await?,
    };
    let connecting = look::connect_all(global, ways);
    let nodes = LocalSet::new().run_until(connecting).await.into_iter();
    let mut sources = Vec::new();
    for (name, node) in nodes {
        sources.push(Source::reach(name.to_string(), node).await);
    }
    // Of a fleet some are always away: that is no failure of the command.
    support::collect(global, sources, &arguments.file, arguments.force)
        .await
        .map(drop)
}
