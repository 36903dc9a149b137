//! `fleet serve`: the rollout in the folder, and nodes that follow a channel, as a page for a browser.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use instar_client::Failure;
use instar_rollout::{Command, MachineName};
use instar_rollout_page::{Denied, Key, Rollouts, View, Views, Visitor, serve};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::LocalSet;
use tokio::time::sleep;

use super::followers;
use super::members::Way;
use super::note::note;
use super::store::Folder;
use crate::cli::{FleetState, Global};

/// The rollout's name on the page: a folder has one.
const NAME: &str = "fleet";
/// The pause between two looks at the folder.
const LOOK: Duration = Duration::from_millis(500);

/// Serves the page until the command is ended, with these nodes that follow a channel.
pub(super) async fn run(
    global: &Global,
    listen: SocketAddr,
    state: &FleetState,
    followers: BTreeMap<MachineName, Way>,
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
    let (shown, seen) = watch::channel(None);
    let page = serve(
        listener,
        BehindKey {
            key,
            shown: Shown {
                folder,
                followers: seen,
            },
        },
    );
    let looking = async {
        match followers.is_empty() {
            true => std::future::pending().await,
            false => followers::keep(global, followers, shown).await,
        }
    };
    let both = async { tokio::join!(page, looking) };
    LocalSet::new().run_until(both).await;
    Ok(())
}

/// The rollout in a folder: who knows the key may do everything.
struct BehindKey {
    key: Key,
    shown: Shown,
}

impl Rollouts for BehindKey {
    type Visitor = Shown;

    fn enter(&self, token: &str) -> Result<Shown, Denied> {
        if !self.key.opens(token) {
            let why = "this is not the key of this page: open the address that the command printed";
            return Err(Denied::Unknown(why.to_owned()));
        }
        Ok(self.shown.clone())
    }
}

/// The rollout in a folder, and the nodes that follow a channel.
#[derive(Clone)]
struct Shown {
    folder: Folder,
    followers: watch::Receiver<Option<View>>,
}

impl Visitor for Shown {
    type Views = Looks;

    async fn watch(&self) -> Result<Looks, Denied> {
        Ok(Looks {
            shown: self.clone(),
            is_first: true,
        })
    }

    async fn command(&self, _: &str, command: Command) -> Result<(), Denied> {
        let told = self
            .folder
            .change(|rollout| rollout.record.command(command));
        let told = told.map_err(|failure| Denied::Impossible(failure.chain()))?;
        told.0
            .map_err(|refused| Denied::Impossible(refused.to_string()))
    }
}

/// Looks at a folder, again and again.
struct Looks {
    shown: Shown,
    is_first: bool,
}

impl Views for Looks {
    async fn next(&mut self) -> Result<Vec<View>, String> {
        if !self.is_first {
            sleep(LOOK).await;
        }
        self.is_first = false;
        let view = view(&self.shown.folder).map_err(|failure| failure.chain())?;
        let followers = self.shown.followers.borrow().clone();
        Ok(view.into_iter().chain(followers).collect())
    }
}

fn view(folder: &Folder) -> Result<Option<View>, Failure> {
    let Some(rollout) = folder.read()? else {
        return Ok(None);
    };
    let is_driven = folder.has_driver()?;
    let (subject, record) = (rollout.subject.to_string(), &rollout.record);
    let seen = folder.seen();
    Ok(Some(View::of(NAME, &subject, record, &seen, is_driven)))
}
