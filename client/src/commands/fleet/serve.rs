//! `fleet serve`: the rollout in the folder as a page for a browser.

use std::net::SocketAddr;

use instar_client::Failure;
use instar_rollout::Command;
use instar_rollout_page::{Key, Rollouts, View, serve};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::LocalSet;

use super::show::note;
use super::store::Folder;
use crate::cli::{FleetState, Global};

/// The rollout's name on the page: a folder has one.
const NAME: &str = "fleet";

/// Serves the page until the command is ended.
pub(super) async fn run(
    global: &Global,
    listen: SocketAddr,
    state: &FleetState,
) -> Result<(), Failure> {
    let folder = Folder::of(global, state)?;
    let key = Key::random().map_err(|error| Failure::io("cannot make a key", error))?;
    let listener = TcpListener::bind(listen).await;
    let listener =
        listener.map_err(|error| Failure::io(format!("cannot listen on {listen}"), error))?;
    let local = listener.local_addr();
    let local = local.map_err(|error| Failure::io("cannot listen", error))?;
    if !local.ip().is_loopback() {
        note("the page has no TLS: whoever sees its traffic can steer the rollout");
    }
    let address = format!("http://{local}/#{key}");
    global.output.show(
        || format!("open {address}"),
        || json!({ "address": address }),
    )?;
    LocalSet::new()
        .run_until(serve(listener, key, InFolder(folder)))
        .await;
    Ok(())
}

/// The rollout in a folder.
struct InFolder(Folder);

impl Rollouts for InFolder {
    async fn views(&self) -> Result<Vec<View>, String> {
        let view = || -> Result<Option<View>, Failure> {
            let Some(rollout) = self.0.read()? else {
                return Ok(None);
            };
            let is_driven = self.0.lock_driver()?.is_none();
            let (image, record) = (&rollout.image, &rollout.record);
            let seen = self.0.seen();
            Ok(Some(View::of(NAME, image, record, &seen, is_driven)))
        };
        let view = view().map_err(|failure| failure.chain())?;
        Ok(view.into_iter().collect())
    }

    async fn command(&self, _: &str, command: Command) -> Result<(), String> {
        let told = self.0.change(|rollout| rollout.record.command(command));
        let told = told.map_err(|failure| failure.chain())?.0;
        told.map_err(|refused| refused.to_string())
    }
}
